"""TorchBeast's MonoBeast: shared rollout slots named by a free and a full queue, two learner threads,
one lock each."""

from __future__ import annotations

import multiprocessing
import queue
import random
import threading
from typing import Any

import torch
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=1.25x": {"simulate": 0.8},
    "simulate=8x": {"simulate": 0.125},
    "act=2x": {"act": 0.5},
    "learn=2x": {"learn": 0.5},
}
LIMIT = "simulate"
UNROLL, BATCH, SLOTS = 4, 2, 8


def actor(number: int, slots: torch.Tensor, free: Any, full: Any, p: dict[str, float]) -> None:
    source = random.Random(100 * p["seed"] + number)
    torch.set_num_threads(1)
    while True:
        slot = free.get()
        for t in range(UNROLL):
            with hotloop.profile("simulate"):
                nap(source.uniform(4, 6) * p["simulate"])
            with hotloop.profile("act"):
                python(0.5 * p["act"])
            slots[slot, t] = number
        full.put(slot)


def main() -> None:
    p = parameters(simulate=1, act=1, learn=1, workers=3)
    context = multiprocessing.get_context("fork")
    torch.set_num_threads(1)
    slots = torch.zeros(SLOTS, UNROLL, 64).share_memory_()
    free, full = context.SimpleQueue(), context.SimpleQueue()
    for i in range(SLOTS):
        free.put(i)
    for i in range(int(p["workers"])):
        context.Process(target=actor, args=(i, slots, free, full, p), daemon=True).start()
    batching, learning = threading.Lock(), threading.Lock()
    losses: queue.Queue[float] = queue.Queue()

    over = threading.Event()

    def learner() -> None:
        while not over.is_set():
            with batching:
                taken = [full.get() for _ in range(BATCH)]
                batch = torch.stack([slots[i] for i in taken])
            for i in taken:
                free.put(i)
            with learning, hotloop.profile("learn"):
                native(7 * p["learn"])
                hotloop.progress(updates=1)
            losses.put(float(batch.sum()))

    learners = [threading.Thread(target=learner) for _ in range(2)]
    for thread in learners:
        thread.start()

    def cycle() -> float:
        losses.get()
        return 1

    meter(p["seconds"], cycle)
    over.set()
    for thread in learners:
        thread.join()


if __name__ == "__main__":
    main()
