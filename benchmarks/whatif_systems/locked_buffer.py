"""Two actors and a learner share a replay buffer behind one lock, which the learner holds for long."""

from __future__ import annotations

import multiprocessing
from typing import Any

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "sample=2x": {"sample": 0.5},
    "push=2x": {"push": 0.5},
    "simulate=2x": {"simulate": 0.5},
}
LIMIT = "learn"


def act(lock: Any, scale: dict[str, float]) -> None:
    while True:
        with hotloop.profile("simulate"):
            nap(6 * scale["simulate"])
        with lock, hotloop.profile("push"):
            native(0.5 * scale["push"])


def main() -> None:
    p = parameters(sample=1, push=1, simulate=1, learn=1)
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    for _ in range(2):
        context.Process(target=act, args=(lock, p), daemon=True).start()

    def cycle() -> float:
        with lock, hotloop.profile("sample"):
            native(2 * p["sample"])
        with hotloop.profile("learn"):
            native(4 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
