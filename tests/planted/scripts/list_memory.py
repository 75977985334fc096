"""Defect: the memory is a list that is turned into an array at every draw, so draws get slower."""

import numpy as np
from _pace import turns

from hotloop import profile, progress

WORLDS = 8
rng = np.random.default_rng(0)
states = rng.normal(size=(WORLDS, 6))
weights = rng.normal(size=(6, 6)) * 0.1
kept: list[np.ndarray] = []

for _ in turns(7000):
    with profile("advance"):
        states = np.tanh(states + rng.normal(scale=0.1, size=states.shape))
    with profile("keep"):
        kept.append(states)
    progress(env_steps=WORLDS)
    if len(kept) % 8 == 0:
        with profile("draw"):
            batch = np.asarray(kept).reshape(-1, 6)[rng.integers(0, len(kept) * WORLDS, 64)]
        with profile("fit"):
            for _ in range(100):
                weights -= 1e-3 * batch.T @ (batch @ weights - batch)
        progress(updates=1)
