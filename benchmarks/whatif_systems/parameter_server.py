"""A parameter server: four workers push gradients over pipes and get new weights; none waits for another."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection, wait

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "apply=1.25x": {"apply": 0.8},
    "apply=4x": {"apply": 0.25},
    "rollout=2x": {"rollout": 0.5},
    "gradient=2x": {"gradient": 0.5},
}
LIMIT = "apply"


def work(server: Connection, rollout: float, gradient: float) -> None:
    while True:
        with hotloop.profile("rollout"):
            nap(6 * rollout)
        with hotloop.profile("gradient"):
            python(0.8 * gradient)
        server.send(np.ones(4_000, np.float32))
        server.recv()


def main() -> None:
    p = parameters(rollout=1, gradient=1, apply=1, workers=4)
    context = multiprocessing.get_context("fork")
    workers = []
    for _ in range(int(p["workers"])):
        mine, theirs = context.Pipe()
        context.Process(target=work, args=(theirs, p["rollout"], p["gradient"]), daemon=True).start()
        workers.append(mine)
    weights = np.zeros(4_000, np.float32)

    def cycle() -> float:
        ready = wait(workers)
        for worker in ready:
            assert isinstance(worker, Connection)
            gradient = worker.recv()
            with hotloop.profile("apply"):
                weights[:] -= 1e-3 * gradient
                native(3.2 * p["apply"])
            worker.send(weights)
            hotloop.progress(updates=1)
        return len(ready)

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
