"""Two threads pass two buffers back and forth with semaphores: one fills while the other learns."""

from __future__ import annotations

import threading

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "fill=2x": {"fill": 0.5},
    "learn=2x": {"learn": 0.5},
    "fill=1.25x": {"fill": 0.8},
}
LIMIT = "fill"


def main() -> None:
    p = parameters(fill=1, learn=1)
    empty, full = threading.Semaphore(2), threading.Semaphore(0)

    def fill() -> None:
        while True:
            empty.acquire()
            with hotloop.profile("fill"):
                nap(2 * p["fill"])
                native(3 * p["fill"])
            full.release()

    def cycle() -> float:
        full.acquire()
        with hotloop.profile("learn"):
            native(3 * p["learn"])
        empty.release()
        hotloop.progress(updates=1)
        return 1

    threading.Thread(target=fill, daemon=True, name="filler").start()
    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
