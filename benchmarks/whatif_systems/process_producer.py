"""One process collects and feeds the learner through a queue; collecting is slower."""

from __future__ import annotations

import multiprocessing

from parts import meter, parameters, python

import hotloop

WHAT_IFS = {
    "collect=2x": {"collect": 0.5},
    "collect=1.25x": {"collect": 0.8},
    "learn=2x": {"learn": 0.5},
}
LIMIT = "collect"


def collect(experience: multiprocessing.Queue[bytes], scale: float) -> None:
    while True:
        with hotloop.profile("collect"):
            python(6 * scale)
        experience.put(bytes(2000))


def main() -> None:
    p = parameters(collect=1, learn=1, depth=8)
    context = multiprocessing.get_context("fork")
    experience = context.Queue(int(p["depth"]))
    context.Process(target=collect, args=(experience, p["collect"]), daemon=True).start()

    def cycle() -> float:
        experience.get()
        with hotloop.profile("learn"):
            python(3.5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
