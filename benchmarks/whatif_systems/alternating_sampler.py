"""A double-buffered sampler: while one group of env processes steps, the policy answers the other group."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "env_step=1.25x": {"env_step": 0.8},
    "env_step=4x": {"env_step": 0.25},
    "policy=2x": {"policy": 0.5},
}
LIMIT = "env_step"
GROUPS = 2


def simulate(row: Any, go: Any, done: Any, scale: float) -> None:
    observation = np.frombuffer(row, np.float32)
    while True:
        go.acquire()
        with hotloop.profile("env_step"):
            nap(8 * scale)
            observation[:] += 1
        done.release()


def main() -> None:
    p = parameters(env_step=1, policy=1, workers=2)
    n = int(p["workers"])
    context = multiprocessing.get_context("fork")
    groups = []
    for _ in range(GROUPS):
        done = context.Semaphore(0)
        gos = []
        for _ in range(n):
            go, row = context.Semaphore(1), context.RawArray("f", 32)
            args = (row, go, done, p["env_step"])
            context.Process(target=simulate, args=args, daemon=True).start()
            gos.append(go)
        groups.append((gos, done))
    turn = 0

    def cycle() -> float:
        nonlocal turn
        gos, done = groups[turn % GROUPS]
        turn += 1
        for _ in gos:
            done.acquire()
        with hotloop.profile("policy"):
            python(2.5 * p["policy"])
        for go in gos:
            go.release()
        hotloop.progress(env_steps=n)
        return n

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
