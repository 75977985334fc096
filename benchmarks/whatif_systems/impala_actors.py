"""IMPALA: three actor processes copy the newest weights, unroll and queue; the learner takes four of them."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "learn=1.25x": {"learn": 0.8},
    "learn=4x": {"learn": 0.25},
    "rollout=2x": {"rollout": 0.5},
}
LIMIT = "learn"
PARAMETERS = 5_000
BATCH = 4


def act(unrolls: Any, weights: Any, scale: float) -> None:
    newest = np.frombuffer(weights.get_obj(), np.float32)
    while True:
        with weights.get_lock():
            copied = newest.copy()
        with hotloop.profile("rollout"):
            python(1 * scale)
            nap(4 * scale)
        unrolls.put((np.zeros((20, 16), np.float32), float(copied[0])))


def main() -> None:
    p = parameters(rollout=1, learn=1, workers=3)
    context = multiprocessing.get_context("fork")
    unrolls = context.Queue(8)
    weights: Any = context.Array("f", PARAMETERS)
    for _ in range(int(p["workers"])):
        context.Process(target=act, args=(unrolls, weights, p["rollout"]), daemon=True).start()
    newest = np.frombuffer(weights.get_obj(), np.float32)

    def cycle() -> float:
        batch = np.stack([unrolls.get()[0] for _ in range(BATCH)])
        with hotloop.profile("learn"):
            native(12 * p["learn"])
        with weights.get_lock():
            newest[:] = batch.mean() + 1
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
