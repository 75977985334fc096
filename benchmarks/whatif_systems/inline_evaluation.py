"""Every eighth update the learner evaluates in its own process, while the actor fills a queue of two."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "evaluate=2x": {"evaluate": 0.5},
    "learn=2x": {"learn": 0.5},
    "rollout=2x": {"rollout": 0.5},
    "depth=16": {"depth": 16},
}
LIMIT = "evaluate"
EVERY = 8


def act(rollouts: Any, scale: float) -> None:
    while True:
        with hotloop.profile("rollout"):
            nap(3.6 * scale)
            python(0.6 * scale)
        rollouts.put(np.zeros((64, 8), np.float32))


def main() -> None:
    p = parameters(rollout=1, learn=1, evaluate=1, depth=2)
    context = multiprocessing.get_context("fork")
    rollouts = context.Queue(int(p["depth"]))
    context.Process(target=act, args=(rollouts, p["rollout"]), daemon=True).start()
    updates = 0

    def cycle() -> float:
        nonlocal updates
        rollouts.get()
        with hotloop.profile("learn"):
            native(3 * p["learn"])
        updates += 1
        if updates % EVERY == 0:
            with hotloop.profile("evaluate"):
                for _ in range(5):
                    python(2 * p["evaluate"])
                    nap(5 * p["evaluate"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
