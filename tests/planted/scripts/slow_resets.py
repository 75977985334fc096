"""Defect: every reset builds the level anew."""

import numpy as np
from _pace import turns

from hotloop import profile, progress

rng = np.random.default_rng(0)
weights = rng.normal(size=(8, 4))


def build_level():
    return [[(row * column) % 7 for column in range(100)] for row in range(60)]


level, state = build_level(), rng.normal(size=8)
for turn in turns(40_000):
    with profile("choose"):
        move = int((state @ weights).argmax())
    with profile("env"):
        state = np.tanh(state + rng.normal(scale=0.1, size=8) + 0.01 * level[move][move])
    progress(env_steps=1)
    if turn % 40 == 0:
        with profile("restart"):
            level, state = build_level(), rng.normal(size=8)
        progress(episodes=1)
