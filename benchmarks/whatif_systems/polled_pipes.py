"""Off-policy: between two updates the learner takes what the pipes of three actors hold, and never waits."""

from __future__ import annotations

import multiprocessing
from collections import deque
from multiprocessing.connection import Connection

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=2x": {"simulate": 0.5},  # twice the transitions to store: slower
    "learn=2x": {"learn": 0.5},
    "store=2x": {"store": 0.5},
    "learn=1.25x": {"learn": 0.8},
}
LIMIT = "learn"


def act(learner: Connection, scale: float) -> None:
    observation = np.zeros(32, np.float32)
    while True:
        with hotloop.profile("simulate"):
            nap(6 * scale)
            python(0.4 * scale)
        learner.send((observation, 0, 0.0))


def main() -> None:
    p = parameters(simulate=1, store=1, learn=1, workers=3)
    context = multiprocessing.get_context("fork")
    buffer: deque[np.ndarray] = deque(maxlen=10_000)
    actors = []
    for _ in range(int(p["workers"])):
        mine, theirs = context.Pipe()
        context.Process(target=act, args=(theirs, p["simulate"]), daemon=True).start()
        actors.append(mine)

    def cycle() -> float:
        for actor in actors:
            while actor.poll():
                observation, _, _ = actor.recv()
                with hotloop.profile("store"):
                    python(0.35 * p["store"])
                    buffer.append(observation)
        with hotloop.profile("learn"):
            native(4.5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
