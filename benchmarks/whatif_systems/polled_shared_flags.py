"""Envs in processes that hand over through flags in shared memory, which both sides poll; env 1 is slow."""

from __future__ import annotations

import multiprocessing
import queue
import random
import threading
import time
from multiprocessing import shared_memory

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=1.25x": {"simulate": 0.8},
    "simulate=8x": {"simulate": 0.125},
    "policy=2x": {"policy": 0.5},
    "log=2x": {"log": 0.5},
}
LIMIT = "simulate"
STRAGGLER = 1
IDLE, GO, DONE = 0, 1, 2
SIZE = 256


def environment(number: int, name: str, p: dict[str, float]) -> None:
    memory = shared_memory.SharedMemory(name)
    source = random.Random(100 * p["seed"] + number)
    flags = np.ndarray(16, np.int64, memory.buf)
    rows = np.ndarray((16, SIZE), np.float32, memory.buf, 128)
    while True:
        while flags[number] != GO:
            time.sleep(0.0002)
        with hotloop.profile("simulate"):
            nap((12 if number == 1 else 4) * source.uniform(0.9, 1.1) * p["simulate"])
            rows[number] = number
        flags[number] = DONE


def main() -> None:
    p = parameters(simulate=1, policy=1, log=1, workers=4)
    n = int(p["workers"])
    memory = shared_memory.SharedMemory(create=True, size=128 + 16 * SIZE * 4)
    flags = np.ndarray(16, np.int64, memory.buf)
    rows = np.ndarray((16, SIZE), np.float32, memory.buf, 128)
    flags[:] = IDLE
    context = multiprocessing.get_context("fork")
    envs = [context.Process(target=environment, args=(i, memory.name, p), daemon=True) for i in range(n)]
    for process in envs:
        process.start()
    records: queue.Queue[float] = queue.Queue()

    def log() -> None:
        while True:
            records.get()
            with hotloop.profile("log"):
                nap(2 * p["log"])
                native(0.3 * p["log"])

    threading.Thread(target=log, daemon=True).start()

    def cycle() -> float:
        flags[:n] = GO  # noqa: F821
        while (flags[:n] != DONE).any():  # noqa: F821
            time.sleep(0.0002)
        with hotloop.profile("policy"):
            records.put(float(rows[:n].mean()))  # noqa: F821
            python(3 * p["policy"])
        hotloop.progress(updates=n)
        return n

    meter(p["seconds"], cycle)
    for process in envs:
        process.terminate()
    for process in envs:
        process.join()
    del flags, rows
    memory.unlink()


if __name__ == "__main__":
    main()
