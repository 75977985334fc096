"""Every eighth update the learner waits for an evaluation in another process."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "evaluate=2x": {"evaluate": 0.5},
    "update=2x": {"update": 0.5},
    "evaluate=4x": {"evaluate": 0.25},
}
LIMIT = "update"


def evaluator(learner: Connection, scale: float) -> None:
    while True:
        learner.recv()
        with hotloop.profile("evaluate"):
            nap(12 * scale)
        learner.send(1.0)


def main() -> None:
    p = parameters(evaluate=1, update=1)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    context.Process(target=evaluator, args=(theirs, p["evaluate"]), daemon=True).start()

    def cycle() -> float:
        for _ in range(8):
            with hotloop.profile("update"):
                native(2.5 * p["update"])
            hotloop.progress(updates=1)
        mine.send(bytes(3000))
        mine.recv()
        return 8

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
