"""Defect: each update picks its 64 samples one by one."""

import numpy as np
from _pace import turns

from hotloop import profile, progress

WORLDS = 8
rng = np.random.default_rng(0)
states = rng.normal(size=(WORLDS, 12))
ring = np.zeros((4096, 12))
weights = rng.normal(size=(12, 12)) * 0.1

for turn in turns(16_000):
    with profile("move_worlds"):
        states = np.tanh(states + rng.normal(scale=0.1, size=states.shape))
        ring[np.arange(turn * WORLDS, (turn + 1) * WORLDS) % 4096] = states
    progress(env_steps=WORLDS)
    if turn % 8 == 0:
        with profile("improve"):
            samples = []
            for _ in range(64):
                with profile("pick"):
                    samples.append(ring[int(rng.integers(0, 4096))].copy())
            batch = np.stack(samples)
            weights -= 1e-3 * batch.T @ (batch @ weights - batch)
        progress(updates=1)
