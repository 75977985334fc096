"""Four actors that compute feed a light learner: more busy processes than cores."""

from __future__ import annotations

import multiprocessing

from parts import meter, parameters, python

import hotloop

WHAT_IFS = {
    "act=2x": {"act": 0.5},
    "learn=2x": {"learn": 0.5},
    "workers=8": {"workers": 8},
    "workers=2": {"workers": 2},
}
LIMIT = "cpu"


def act(experience: multiprocessing.Queue[bytes], scale: float) -> None:
    while True:
        with hotloop.profile("act"):
            python(6 * scale)
        experience.put(bytes(1000))


def main() -> None:
    p = parameters(act=1, learn=1, workers=4)
    context = multiprocessing.get_context("fork")
    experience = context.Queue(32)
    for _ in range(int(p["workers"])):
        context.Process(target=act, args=(experience, p["act"]), daemon=True).start()

    def cycle() -> float:
        experience.get()
        with hotloop.profile("learn"):
            python(1 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
