"""A mailbox with room for one batch, made of a condition variable: the writer waits until it was emptied."""

from __future__ import annotations

import threading

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "gather=2x": {"gather": 0.5},
    "learn=2x": {"learn": 0.5},
    "learn=1.25x": {"learn": 0.8},
}
LIMIT = "learn"


def main() -> None:
    p = parameters(gather=1, learn=1)
    changed = threading.Condition()
    box: list[int] = []

    def gather() -> None:
        while True:
            with hotloop.profile("gather"):
                nap(3 * p["gather"])
            with changed:
                while box:
                    changed.wait()
                box.append(1)
                changed.notify()

    def cycle() -> float:
        with changed:
            while not box:
                changed.wait()
            box.pop()
            changed.notify()
        with hotloop.profile("learn"):
            native(5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    threading.Thread(target=gather, daemon=True, name="gatherer").start()
    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
