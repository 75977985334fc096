"""Coroutines that play episodes: simulators in an executor's threads, everything in Python on the one
event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "encode=2x": {"encode": 0.5},
    "encode=16x": {"encode": 0.0625},
    "simulate=2x": {"simulate": 0.5},
    "update=2x": {"update": 0.5},
}
LIMIT = "encode"
BATCH = 8


def main() -> None:
    p = parameters(encode=1, simulate=1, update=1, workers=8)
    n = int(p["workers"])
    loop = asyncio.new_event_loop()
    executor = concurrent.futures.ThreadPoolExecutor(n)
    steps: asyncio.Queue[int] = asyncio.Queue(2 * BATCH)

    def simulate(ms: float) -> None:
        with hotloop.profile("simulate"):
            nap(ms * p["simulate"])
            native(0.2 * p["simulate"])

    async def episode(number: int) -> None:
        source = random.Random(100 * p["seed"] + number)
        while True:
            await loop.run_in_executor(executor, simulate, source.uniform(6, 10))
            with hotloop.profile("encode"):
                python(1.8 * p["encode"])
            await steps.put(number)

    async def update() -> None:
        for _ in range(BATCH):
            await steps.get()
        with hotloop.profile("update"):
            python(1.5 * p["update"])

    tasks = [loop.create_task(episode(i)) for i in range(n)]

    def cycle() -> float:
        loop.run_until_complete(update())
        hotloop.progress(updates=BATCH)
        return BATCH

    meter(p["seconds"], cycle)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    executor.shutdown()
    loop.close()


if __name__ == "__main__":
    main()
