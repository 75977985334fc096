"""A collecting thread and a learning thread, both in Python: they share one GIL."""

from __future__ import annotations

import queue
import threading

from parts import meter, parameters, python

import hotloop

WHAT_IFS = {
    "collect=2x": {"collect": 0.5},
    "learn=2x": {"learn": 0.5},
    "learn=4x": {"learn": 0.25},
}
LIMIT = "gil"


def main() -> None:
    p = parameters(collect=1, learn=1, depth=8)
    experience: queue.Queue[int] = queue.Queue(int(p["depth"]))

    def produce() -> None:
        while True:
            with hotloop.profile("collect"):
                python(8 * p["collect"])
            experience.put(1)

    def cycle() -> float:
        experience.get()
        with hotloop.profile("learn"):
            python(12 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    threading.Thread(target=produce, daemon=True, name="collector").start()
    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
