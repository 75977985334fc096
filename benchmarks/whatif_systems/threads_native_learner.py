"""Two threads whose work releases the GIL; the learner is the slower one."""

from __future__ import annotations

import queue
import threading

from parts import meter, native, parameters

import hotloop

WHAT_IFS = {
    "render=2x": {"render": 0.5},
    "learn=2x": {"learn": 0.5},
    "learn=1.25x": {"learn": 0.8},
}
LIMIT = "learn"


def main() -> None:
    p = parameters(render=1, learn=1, depth=2)
    frames: queue.Queue[int] = queue.Queue(int(p["depth"]))

    def produce() -> None:
        while True:
            with hotloop.profile("render"):
                native(3 * p["render"])
            frames.put(1)

    def cycle() -> float:
        frames.get()
        with hotloop.profile("learn"):
            native(5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    threading.Thread(target=produce, daemon=True, name="renderer").start()
    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
