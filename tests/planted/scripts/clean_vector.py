"""Nothing wrong: 64 worlds in arrays, one network call, one write, a learner now and then."""

import numpy as np
from _pace import turns

from hotloop import profile, progress

WORLDS = 64
rng = np.random.default_rng(0)
first, second = rng.normal(size=(24, 64)) * 0.1, rng.normal(size=(64, 4)) * 0.1
states = rng.normal(size=(WORLDS, 24))
ring = np.zeros((64_000, 24))

for turn in turns(7000):
    with profile("think"):
        moves = (np.maximum(states @ first, 0) @ second).argmax(axis=1)
    with profile("world"):
        states = np.tanh(states + rng.normal(scale=0.1, size=states.shape) + moves[:, None] * 0.01)
    with profile("keep"):
        start = turn * WORLDS % len(ring)
        ring[start : start + WORLDS] = states
    progress(env_steps=WORLDS)
    if turn % 4 == 0:
        with profile("fit"):
            batch = ring[rng.integers(0, min(turn * WORLDS, len(ring)), 256)]
            hidden = np.maximum(batch @ first, 0)
            error = hidden @ second - batch[:, :4]
            first -= 1e-5 * (batch.T @ ((error @ second.T) * (hidden > 0)))
            second -= 1e-5 * hidden.T @ error
        progress(updates=1)
