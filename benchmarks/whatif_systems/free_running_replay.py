"""Three self-play processes write to shared memory and never wait; nor does the learner, on two cores."""

from __future__ import annotations

import ctypes
import multiprocessing
from typing import Any

import numpy as np
from parts import meter, native, parameters, python

import hotloop

WHAT_IFS = {
    "learn=2x": {"learn": 0.5},
    "selfplay=2x": {"selfplay": 0.5},  # twice the games in the same cores
    "workers=1": {"workers": 1},  # a core for the learner
    "workers=6": {"workers": 6},
}
LIMIT = "cpu"
ROWS, WIDTH = 1024, 64


def play(memory: Any, written: Any, scale: float) -> None:
    games = np.frombuffer(memory, np.float32).reshape(ROWS, WIDTH)
    while True:
        with hotloop.profile("selfplay"):
            python(2 * scale)
            native(3 * scale)
        with written.get_lock():
            row = written.value % ROWS
            written.value += 1
        games[row] = 1


def main() -> None:
    p = parameters(selfplay=1, learn=1, workers=3)
    context = multiprocessing.get_context("fork")
    memory: Any = context.RawArray(ctypes.c_float, ROWS * WIDTH)
    written = context.Value("l", 0)
    for _ in range(int(p["workers"])):
        context.Process(target=play, args=(memory, written, p["selfplay"]), daemon=True).start()
    games = np.frombuffer(memory, np.float32).reshape(ROWS, WIDTH)
    source = np.random.default_rng(int(p["seed"]))

    def cycle() -> float:
        batch = games[source.integers(0, ROWS, 128)]
        with hotloop.profile("learn"):
            native(4 * p["learn"])
            batch.mean()
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
