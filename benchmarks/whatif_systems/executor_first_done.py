"""A ThreadPoolExecutor steps four Python envs; the policy answers the first that is done. The GIL is full."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from parts import meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "physics=2x": {"physics": 0.5},
    "policy=2x": {"policy": 0.5},
    "fetch_frame=2x": {"fetch_frame": 0.5},
    "physics=1.25x": {"physics": 0.8},
}
LIMIT = "physics"


def main() -> None:
    p = parameters(physics=1, fetch_frame=1, policy=1, workers=4)
    n = int(p["workers"])

    def step(env: int) -> int:
        with hotloop.profile("fetch_frame"):
            nap(2 * p["fetch_frame"])
        with hotloop.profile("physics"):
            python(1.8 * p["physics"])
        return env

    pool = ThreadPoolExecutor(n)
    running: set[Future[int]] = {pool.submit(step, env) for env in range(n)}

    def cycle() -> float:
        nonlocal running
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            with hotloop.profile("policy"):
                python(1.2 * p["policy"])
            running.add(pool.submit(step, future.result()))
        hotloop.progress(env_steps=len(done))
        return len(done)

    meter(p["seconds"], cycle)
    pool.shutdown()


if __name__ == "__main__":
    main()
