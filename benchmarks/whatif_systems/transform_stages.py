"""Two stages between processes, with queues of depth 1: actors, a process for the returns, a learner."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "returns=1.25x": {"returns": 0.8},
    "returns=4x": {"returns": 0.25},
    "rollout=2x": {"rollout": 0.5},
    "learn=2x": {"learn": 0.5},
}
LIMIT = "returns"


def act(raw: Any, scale: float) -> None:
    while True:
        with hotloop.profile("rollout"):
            nap(6 * scale)
            python(0.4 * scale)
        raw.put({"rewards": np.ones(64), "values": np.zeros(64)})


def transform(raw: Any, finished: Any, scale: float) -> None:
    while True:
        batch = raw.get()
        with hotloop.profile("returns"):
            python(5 * scale)
            batch["returns"] = np.cumsum(batch["rewards"][::-1])[::-1]
        finished.put(batch)


def main() -> None:
    p = parameters(rollout=1, returns=1, learn=1, workers=2, depth=1)
    context = multiprocessing.get_context("fork")
    raw, finished = context.Queue(int(p["depth"])), context.Queue(int(p["depth"]))
    for _ in range(int(p["workers"])):
        context.Process(target=act, args=(raw, p["rollout"]), daemon=True).start()
    context.Process(target=transform, args=(raw, finished, p["returns"]), daemon=True).start()

    def cycle() -> float:
        finished.get()
        with hotloop.profile("learn"):
            native(2 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
