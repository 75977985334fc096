"""Two asyncio processes, each with four requests to a remote simulator under way, feed the learner."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "request=1.25x": {"request": 0.8},
    "request=2x": {"request": 0.5},
    "learn=2x": {"learn": 0.5},
    "parse=2x": {"parse": 0.5},
}
LIMIT = "request"
TASKS = 4  # in each process
TURNS = 2  # of an episode
BATCH = 4


def generate(episodes: Any, p: dict[str, float]) -> None:
    def request() -> bytes:  # a client that blocks, so it runs in a thread
        with hotloop.profile("request"):
            nap(14 * p["request"])
        return bytes(1000)

    async def play() -> None:
        while True:
            answers = []
            for _ in range(TURNS):
                answers.append(await asyncio.to_thread(request))
                with hotloop.profile("parse"):
                    python(0.4 * p["parse"])
            episodes.put(answers)

    async def all_tasks() -> None:
        await asyncio.gather(*(play() for _ in range(TASKS)))

    asyncio.run(all_tasks())


def main() -> None:
    p = parameters(request=1, parse=1, learn=1, workers=2, depth=16)
    context = multiprocessing.get_context("fork")
    episodes = context.Queue(int(p["depth"]))
    for _ in range(int(p["workers"])):
        context.Process(target=generate, args=(episodes, p), daemon=True).start()

    def cycle() -> float:
        for _ in range(BATCH):
            episodes.get()
        with hotloop.profile("learn"):
            native(6 * p["learn"])
        hotloop.progress(updates=1)
        return BATCH

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
