"""Four computing actors on two cores fill a shared-memory ring; semaphores count its free and full slots."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "rollout=1.25x": {"rollout": 0.8},
    "rollout=4x": {"rollout": 0.25},
    "learn=2x": {"learn": 0.5},
    "fetch=2x": {"fetch": 0.5},
}
LIMIT = "rollout"
SLOTS = 8
BATCH = 2
WIDTH = 256


def act(memory: Any, head: Any, free: Any, full: Any, rollout: float, fetch: float) -> None:
    ring = np.frombuffer(memory, np.float32).reshape(SLOTS, WIDTH)
    while True:
        with hotloop.profile("fetch"):
            nap(1 * fetch)
        with hotloop.profile("rollout"):
            python(4 * rollout)
        free.acquire()
        with head.get_lock():
            ring[head.value % SLOTS] = head.value
            head.value += 1
        full.release()


def main() -> None:
    p = parameters(fetch=1, rollout=1, learn=1, workers=4)
    context = multiprocessing.get_context("fork")
    memory = context.RawArray("f", SLOTS * WIDTH)
    head = context.Value("q", 0)
    free, full = context.Semaphore(SLOTS), context.Semaphore(0)
    for _ in range(int(p["workers"])):
        args = (memory, head, free, full, p["rollout"], p["fetch"])
        context.Process(target=act, args=args, daemon=True).start()
    ring = np.frombuffer(memory, np.float32).reshape(SLOTS, WIDTH)
    batch = np.zeros((BATCH, WIDTH), np.float32)
    tail = 0

    def cycle() -> float:
        nonlocal tail
        for row in range(BATCH):
            full.acquire()
            batch[row] = ring[tail % SLOTS]
            tail += 1
            free.release()
        with hotloop.profile("learn"):
            native(3 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
