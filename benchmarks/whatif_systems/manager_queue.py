"""Two actors send rollouts of a remote simulator through a queue of multiprocessing.Manager."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "rollout=2x": {"rollout": 0.5},
    "learn=2x": {"learn": 0.5},
    "workers=4": {"workers": 4},
    "depth=32": {"depth": 32},
}
LIMIT = "rollout"


def act(rollouts: Any, scale: float) -> None:
    while True:
        with hotloop.profile("rollout"):
            nap(15 * scale)
            python(0.5 * scale)
        rollouts.put(np.zeros((32, 8), np.float32))


def main() -> None:
    p = parameters(rollout=1, learn=1, workers=2, depth=4)
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        rollouts = manager.Queue(int(p["depth"]))
        actors = [
            context.Process(target=act, args=(rollouts, p["rollout"]), daemon=True)
            for _ in range(int(p["workers"]))
        ]
        for actor in actors:
            actor.start()

        def cycle() -> float:
            rollouts.get()
            with hotloop.profile("learn"):
                native(2 * p["learn"])
            hotloop.progress(updates=1)
            return 1

        meter(p["seconds"], cycle)
        for actor in actors:
            actor.terminate()
        for actor in actors:
            actor.join()


if __name__ == "__main__":
    main()
