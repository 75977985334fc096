"""Two processes collect faster than the learner learns."""

from __future__ import annotations

import multiprocessing

from parts import meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "collect=2x": {"collect": 0.5},
    "learn=1.5x": {"learn": 1 / 1.5},
    "learn=4x": {"learn": 0.25},
    "workers=4": {"workers": 4},
}
LIMIT = "learn"


def collect(experience: multiprocessing.Queue[bytes], scale: float) -> None:
    while True:
        with hotloop.profile("collect"):
            nap(6 * scale)
        experience.put(bytes(2000))


def main() -> None:
    p = parameters(collect=1, learn=1, depth=16, workers=2)
    context = multiprocessing.get_context("fork")
    experience = context.Queue(int(p["depth"]))
    for _ in range(int(p["workers"])):
        context.Process(target=collect, args=(experience, p["collect"]), daemon=True).start()

    def cycle() -> float:
        experience.get()
        with hotloop.profile("learn"):
            python(5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
