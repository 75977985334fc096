"""Three actors write to shared memory, each with two events, to go and for done; the last one is slow."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=1.25x": {"simulate": 0.8},
    "simulate=2x": {"simulate": 0.5},
    "policy=2x": {"policy": 0.5},
    "record=2x": {"record": 0.5},
}
LIMIT = "simulate"
STRAGGLER = 2
ACTORS = 3


def act(number: int, shared: Any, go: Any, done: Any, p: dict[str, float]) -> None:
    observations = np.frombuffer(shared, np.float32).reshape(ACTORS, -1)
    while True:
        go.wait()
        go.clear()
        with hotloop.profile("simulate"):
            nap((10 if number == 2 else 4) * p["simulate"])
            python(0.4 * p["simulate"])
        if number == 0:
            with hotloop.profile("record"):
                nap(2 * p["record"])
        observations[number] += 1
        done.set()


def main() -> None:
    p = parameters(simulate=1, record=1, policy=1)
    context = multiprocessing.get_context("fork")
    shared = context.RawArray("f", ACTORS * 64)
    observations = np.frombuffer(shared, np.float32).reshape(ACTORS, -1)
    go = [context.Event() for _ in range(ACTORS)]
    done = [context.Event() for _ in range(ACTORS)]
    for i in range(ACTORS):
        context.Process(target=act, args=(i, shared, go[i], done[i], p), daemon=True).start()

    def cycle() -> float:
        with hotloop.profile("policy"):
            native(2.5 * p["policy"])
            observations.mean()
        for event in go:
            event.set()
        for event in done:
            event.wait()
            event.clear()
        hotloop.progress(env_steps=ACTORS)
        return ACTORS

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
