"""Three self-play processes search in Python and send games by SimpleQueue; the learner computes as well."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "search=2x": {"search": 0.5},
    "learn=2x": {"learn": 0.5},
    "store=2x": {"store": 0.5},
    "workers=6": {"workers": 6},
}
LIMIT = "cpu"


def play(games: Any, scale: float) -> None:
    while True:
        for _ in range(5):
            with hotloop.profile("search"):
                python(2.4 * scale)
        games.put(np.zeros((64, 128), np.float32))


def main() -> None:
    p = parameters(search=1, learn=1, store=1, workers=3)
    context = multiprocessing.get_context("fork")
    games = context.SimpleQueue()
    for _ in range(int(p["workers"])):
        context.Process(target=play, args=(games, p["search"]), daemon=True).start()
    finished: queue.Queue[np.ndarray] = queue.Queue(4)

    def store() -> None:
        while True:
            finished.get()
            with hotloop.profile("store"):
                nap(6 * p["store"])

    threading.Thread(target=store, daemon=True).start()

    def cycle() -> float:
        game = games.get()
        with contextlib.suppress(queue.Full):
            finished.put_nowait(game)
        with hotloop.profile("learn"):
            native(4 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
