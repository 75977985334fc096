"""One event loop: a task for each remote simulator, one that answers four observations, one that learns."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

from parts import heavy_tailed, meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=2x": {"simulate": 0.5},
    "infer=2x": {"infer": 0.5},
    "learn=2x": {"learn": 0.5},
    "workers=16": {"workers": 16},
}
LIMIT = "simulate"
TOGETHER = 4
BATCH = 8


def main() -> None:
    p = parameters(simulate=1, infer=1, learn=1, workers=8, depth=16)
    loop = asyncio.new_event_loop()
    pool = ThreadPoolExecutor(int(p["workers"]) + 1)
    requests: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()
    experience: asyncio.Queue[int] = asyncio.Queue(int(p["depth"]))

    def simulate(source: random.Random) -> None:
        with hotloop.profile("simulate"):
            nap(heavy_tailed(14, source) * p["simulate"])

    def learn() -> None:
        with hotloop.profile("learn"):
            nap(4 * p["learn"])

    async def interact(number: int) -> None:
        source = random.Random(int(p["seed"]) * 1000 + number)
        while True:
            answer: asyncio.Future[int] = loop.create_future()
            await requests.put(answer)
            action = await answer
            await loop.run_in_executor(pool, simulate, source)
            await experience.put(action)

    async def infer() -> None:
        while True:
            answers = [await requests.get() for _ in range(TOGETHER)]
            with hotloop.profile("infer"):
                python(0.8 * p["infer"])
            for answer in answers:
                answer.set_result(1)

    async def update() -> None:
        for _ in range(BATCH):
            await experience.get()
        await loop.run_in_executor(pool, learn)

    tasks = [loop.create_task(interact(i)) for i in range(int(p["workers"]))]
    tasks.append(loop.create_task(infer()))

    def cycle() -> float:
        loop.run_until_complete(update())
        hotloop.progress(env_steps=BATCH)
        return BATCH

    meter(p["seconds"], cycle)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    pool.shutdown()
    loop.close()


if __name__ == "__main__":
    main()
