"""Defect: a line is written and flushed after every turn."""

import os
import tempfile

import numpy as np
from _pace import turns

from hotloop import profile, progress

WORLDS = 16
rng = np.random.default_rng(0)
states = rng.normal(size=(WORLDS, 24))
weights = rng.normal(size=(24, 4))

with tempfile.TemporaryFile("w") as out:
    for turn in turns(10_000):
        with profile("decide"):
            moves = (states @ weights).argmax(axis=1)
        with profile("play"):
            states = np.tanh(states + rng.normal(scale=0.1, size=states.shape) + moves[:, None] * 0.01)
        progress(env_steps=WORLDS)
        with profile("journal", "logging"):
            out.write(",".join(f"{value:.6f}" for value in states[:, :6].ravel()) + f",{turn}\n")
            out.flush()
            os.fstat(out.fileno())
