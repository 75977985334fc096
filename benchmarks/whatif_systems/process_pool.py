"""A pool of two processes makes episodes (imap), the main process learns from each in order."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "episode=2x": {"episode": 0.5},
    "learn=2x": {"learn": 0.5},
    "workers=4": {"workers": 4},
}
LIMIT = "episode"
P = parameters(episode=1, learn=1, workers=2)


def episode(number: int) -> int:
    with hotloop.profile("episode"):
        nap((7 + number % 3) * P["episode"])
    return number


def episodes(pool: multiprocessing.pool.Pool, ahead: int) -> Iterator[int]:
    started = [pool.apply_async(episode, (i,)) for i in range(ahead)]
    for i in itertools.count(ahead):
        yield started.pop(0).get()
        started.append(pool.apply_async(episode, (i,)))


def main() -> None:
    pool = multiprocessing.get_context("fork").Pool(int(P["workers"]))
    stream = episodes(pool, 2 * int(P["workers"]))

    def cycle() -> float:
        next(stream)
        with hotloop.profile("learn"):
            native(2 * P["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(P["seconds"], cycle)
    pool.terminate()


if __name__ == "__main__":
    main()
