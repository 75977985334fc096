"""A thread fetches experience over the network and feeds the learner; the fetching is slower."""

from __future__ import annotations

import queue
import threading

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "fetch=2x": {"fetch": 0.5},
    "fetch=4x": {"fetch": 0.25},
    "learn=2x": {"learn": 0.5},
    "depth=64": {"depth": 64},
}
LIMIT = "fetch"


def main() -> None:
    p = parameters(fetch=1, learn=1, depth=4)
    experience: queue.Queue[int] = queue.Queue(int(p["depth"]))

    def produce() -> None:
        while True:
            with hotloop.profile("fetch"):
                nap(5 * p["fetch"])
            experience.put(1)

    def cycle() -> float:
        experience.get()
        with hotloop.profile("learn"):
            native(2 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    threading.Thread(target=produce, daemon=True, name="producer").start()
    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
