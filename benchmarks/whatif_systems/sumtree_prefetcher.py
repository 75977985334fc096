"""Prioritised replay in one process: a thread samples from a sum tree in Python, another one adds to it."""

from __future__ import annotations

import queue
import threading

import numpy as np
from parts import meter, nap, one_call, parameters, python

import hotloop

WHAT_IFS = {
    "sample=2x": {"sample": 0.5},
    "learn=2x": {"learn": 0.5},
    "priorities=2x": {"priorities": 0.5},
    "depth=8": {"depth": 8},
}
LIMIT = "gil"
SIZE = 2048


def main() -> None:
    p = parameters(act=1, sample=1, learn=1, priorities=1, depth=2)
    tree = np.ones(2 * SIZE)
    batches: queue.Queue[np.ndarray] = queue.Queue(int(p["depth"]))

    def act() -> None:
        place = 0
        while True:
            with hotloop.profile("act"):
                nap(4 * p["act"])  # a simulator elsewhere
                python(1.2 * p["act"])  # frames become features, features go into the buffer
            tree[SIZE + place] = 1
            place = (place + 1) % SIZE

    def sample() -> None:
        source = np.random.default_rng(int(p["seed"]))
        while True:
            with hotloop.profile("sample"):
                python(3.4 * p["sample"])
                chosen = source.integers(0, SIZE, 32)
            batches.put(chosen)

    for target in (act, sample):
        threading.Thread(target=target, daemon=True).start()

    def cycle() -> float:
        chosen = batches.get()
        with hotloop.profile("learn"):
            one_call(2.8 * p["learn"])
        with hotloop.profile("priorities"):
            python(1.8 * p["priorities"])
            tree[SIZE + chosen] = 0.5
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
