"""AlphaZero: games in a multiprocessing.Pool, whose callback adds the symmetries in the pool's own
result thread."""

from __future__ import annotations

import multiprocessing
import queue
import random
import threading

from parts import meter, nap, native, one_call, parameters, python

import hotloop

WHAT_IFS = {
    "augment=1.25x": {"augment": 0.8},
    "augment=4x": {"augment": 0.25},
    "search=2x": {"search": 0.5},
    "train=2x": {"train": 0.5},
}
LIMIT = "augment"


def play(seed: float, scale: float) -> bytes:
    with hotloop.profile("search"):
        nap(random.Random(seed).uniform(9, 13) * scale)
        native(0.5 * scale)
    return bytes(4000)


def main() -> None:
    p = parameters(augment=1, search=1, train=1, workers=5)
    context = multiprocessing.get_context("fork")
    examples: queue.Queue[bytes] = queue.Queue(12)
    slots = threading.Semaphore(2 * int(p["workers"]))
    source = random.Random(p["seed"])
    over = threading.Event()

    def augment(game: bytes) -> None:  # called by the result thread of the pool
        slots.release()
        with hotloop.profile("augment"):
            python(5 * p["augment"])
        if not over.is_set():
            examples.put(game)

    pool = context.Pool(int(p["workers"]))

    def order() -> None:
        while not over.is_set():
            slots.acquire()
            if not over.is_set():
                pool.apply_async(play, (source.random(), p["search"]), callback=augment)

    threading.Thread(target=order, daemon=True).start()

    def cycle() -> float:
        for _ in range(2):
            examples.get()
        with hotloop.profile("train"):
            one_call(4 * p["train"])
        hotloop.progress(updates=2)
        return 2

    meter(p["seconds"], cycle)
    over.set()
    slots.release()
    while not examples.empty():
        examples.get()
    pool.terminate()
    pool.join()


if __name__ == "__main__":
    main()
