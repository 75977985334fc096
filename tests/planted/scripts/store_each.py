"""Defect: 32 worlds move together, but what happened is stored one world at a time."""

from collections import deque

import numpy as np
from _pace import turns

from hotloop import profile, progress

WORLDS = 32
rng = np.random.default_rng(0)
weights = rng.normal(size=(24, 4))
states = rng.normal(size=(WORLDS, 24))
memory: deque[tuple[object, ...]] = deque(maxlen=50_000)

for _ in turns(10_000):
    with profile("think"):
        moves = (states @ weights).argmax(axis=1)
    with profile("world"):
        following = np.tanh(states + rng.normal(scale=0.1, size=states.shape) + moves[:, None] * 0.01)
        rewards = -np.square(following).sum(axis=1)
    for i in range(WORLDS):
        with profile("memory_store"):
            memory.append((states[i].copy(), int(moves[i]), float(rewards[i]), following[i].copy()))
    states = following
    progress(env_steps=WORLDS)
