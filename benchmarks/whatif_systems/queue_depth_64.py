"""A queue of depth 64 between two processes whose times vary widely."""

from __future__ import annotations

import multiprocessing
import random

from parts import meter, nap, parameters

import hotloop

WHAT_IFS = {
    "collect=2x": {"collect": 0.5},
    "learn=2x": {"learn": 0.5},
    "depth=1": {"depth": 1},
}
LIMIT = "collect"


def collect(experience: multiprocessing.Queue[bytes], scale: float) -> None:
    source = random.Random(3)
    while True:
        with hotloop.profile("collect"):
            nap(source.expovariate(1 / 4.0) * scale)
        experience.put(bytes(500))


def main() -> None:
    p = parameters(collect=1, learn=1, depth=64, seconds=6)
    context = multiprocessing.get_context("fork")
    experience = context.Queue(int(p["depth"]))
    context.Process(target=collect, args=(experience, p["collect"]), daemon=True).start()
    source = random.Random(4)

    def cycle() -> float:
        experience.get()
        with hotloop.profile("learn"):
            nap(source.expovariate(1 / 3.0) * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
