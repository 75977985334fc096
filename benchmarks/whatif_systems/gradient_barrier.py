"""Two gradient workers and the optimizer meet at a barrier; the second worker has the longer sequences."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "gradient=2x": {"gradient": 0.5},
    "apply=2x": {"apply": 0.5},
    "report=2x": {"report": 0.5},
    "load=2x": {"load": 0.5},
}
LIMIT = "gradient"
STRAGGLER = 1


def work(number: int, shared: Any, barrier: Any, p: dict[str, float]) -> None:
    gradients = np.frombuffer(shared, np.float32)
    with contextlib.suppress(threading.BrokenBarrierError):  # at the end
        while True:
            with hotloop.profile("load"):
                nap(1.5 * p["load"])
            with hotloop.profile("gradient"):
                native((6.5 if number == 1 else 4) * p["gradient"])
                gradients[:] = number
            if number == 0:
                with hotloop.profile("report"):
                    python(1 * p["report"])
            barrier.wait()  # all gradients are there
            barrier.wait()  # the weights are new


def main() -> None:
    p = parameters(load=1, gradient=1, apply=1, report=1)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    shared = [context.RawArray("f", 1_000) for _ in range(2)]
    workers = [context.Process(target=work, args=(i, shared[i], barrier, p), daemon=True) for i in range(2)]
    for worker in workers:
        worker.start()
    gradients = [np.frombuffer(array, np.float32) for array in shared]
    weights = np.zeros(1_000, np.float32)

    def cycle() -> float:
        barrier.wait()
        with hotloop.profile("apply"):
            native(1.5 * p["apply"])
            weights[:] -= np.mean(gradients, axis=0)
        barrier.wait()
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)
    barrier.abort()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
