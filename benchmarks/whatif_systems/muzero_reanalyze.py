"""MuZero: self-play processes fill a replay, a reanalyze process refreshes targets, the learner eats
only those."""

from __future__ import annotations

import collections
import multiprocessing
import queue
import random
import threading
from typing import Any

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "reanalyze=1.25x": {"reanalyze": 0.8},
    "reanalyze=4x": {"reanalyze": 0.25},
    "learn=2x": {"learn": 0.5},
    "selfplay=2x": {"selfplay": 0.5},
}
LIMIT = "reanalyze"


def selfplay(number: int, games: Any, p: dict[str, float]) -> None:
    source = random.Random(100 * p["seed"] + number)
    while True:
        with hotloop.profile("selfplay"):
            nap(source.uniform(10, 18) * p["selfplay"])
        games.put(bytes(2000))


def reanalyze(requests: Any, targets: Any, p: dict[str, float]) -> None:
    source = random.Random(100 * p["seed"] + 50)
    while True:
        requests.get()
        with hotloop.profile("reanalyze"):
            native(source.uniform(7.5, 10.5) * p["reanalyze"])
        targets.put(bytes(4000))


def evaluate(checkpoints: Any) -> None:
    while True:
        checkpoints.recv()
        with hotloop.profile("evaluate"):
            nap(20)
            python(1)


def main() -> None:
    p = parameters(reanalyze=1, learn=1, selfplay=1, workers=2)
    context = multiprocessing.get_context("fork")
    games, requests, targets = context.Queue(32), context.Queue(2), context.Queue(3)
    theirs, checkpoints = context.Pipe(duplex=False)
    for i in range(int(p["workers"])):
        context.Process(target=selfplay, args=(i, games, p), daemon=True).start()
    context.Process(target=reanalyze, args=(requests, targets, p), daemon=True).start()
    context.Process(target=evaluate, args=(theirs,), daemon=True).start()
    replay: collections.deque[bytes] = collections.deque([bytes(2000)] * 8, maxlen=500)

    def fill() -> None:
        while True:
            replay.append(games.get())

    def sample() -> None:
        while True:
            requests.put([random.choice(replay) for _ in range(4)])

    threading.Thread(target=fill, daemon=True).start()
    threading.Thread(target=sample, daemon=True).start()
    ready: queue.Queue[bytes] = queue.Queue(1)

    def prefetch() -> None:
        while True:
            ready.put(targets.get())

    threading.Thread(target=prefetch, daemon=True).start()
    updates = 0

    def cycle() -> float:
        nonlocal updates
        ready.get()
        with hotloop.profile("learn"):
            native(4.5 * p["learn"])
        updates += 1
        if updates % 20 == 0:
            checkpoints.send(bytes(1000))
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)
    requests.cancel_join_thread()


if __name__ == "__main__":
    main()
