"""Defect: one cheap step, then four gradient updates."""

import numpy as np
from _pace import turns

from hotloop import profile, progress

rng = np.random.default_rng(0)
first, second = rng.normal(size=(16, 64)) * 0.1, rng.normal(size=(64, 4)) * 0.1
seen = rng.normal(size=(4096, 16))
state = rng.normal(size=16)
at = 0

for _ in turns(2600):
    with profile("choose_action"):
        move = int((np.maximum(state @ first, 0) @ second).argmax())
    with profile("simulate"):
        state = np.tanh(state + rng.normal(scale=0.1, size=16) + 0.01 * move)
    with profile("remember"):
        seen[at % 4096] = state
        at += 1
    for _ in range(4):
        with profile("fit"):
            batch = seen[rng.integers(0, 4096, 128)]
            hidden = np.maximum(batch @ first, 0)
            error = hidden @ second - batch[:, :4]
            gradient = hidden.T @ error
            first -= 1e-4 * (batch.T @ ((error @ second.T) * (hidden > 0)))
            second -= 1e-4 * gradient
        progress(updates=1)
    progress(env_steps=1)
