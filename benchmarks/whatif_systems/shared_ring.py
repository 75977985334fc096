"""A ring in shared memory, guarded by two semaphores; an actor writes rows, the learner reads them."""

from __future__ import annotations

import multiprocessing
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "act=2x": {"act": 0.5},
    "act=1.25x": {"act": 0.8},
    "learn=2x": {"learn": 0.5},
}
LIMIT = "act"
SLOTS, ROW = 4, 4096


def act(name: str, empty: Any, full: Any, scale: float) -> None:
    memory: Any = SharedMemory(name)
    at = 0
    while True:
        empty.acquire()
        with hotloop.profile("act"):
            nap(3 * scale)
            native(2 * scale)
            memory.buf[at % SLOTS * ROW] = at % 100
        at += 1
        full.release()


def main() -> None:
    p = parameters(act=1, learn=1)
    context = multiprocessing.get_context("fork")
    memory: Any = SharedMemory(create=True, size=SLOTS * ROW)
    empty, full = context.Semaphore(SLOTS), context.Semaphore(0)
    actor = context.Process(target=act, args=(memory.name, empty, full, p["act"]), daemon=True)
    actor.start()
    at = 0

    def cycle() -> float:
        nonlocal at
        full.acquire()
        with hotloop.profile("learn"):
            bytes(memory.buf[at % SLOTS * ROW : (at % SLOTS + 1) * ROW])
            native(3 * p["learn"])
        at += 1
        empty.release()
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)
    actor.terminate()
    actor.join()
    memory.close()
    memory.unlink()


if __name__ == "__main__":
    main()
