"""Four slow simulators stepped by a thread pool; the policy runs when all have answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from parts import meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=2x": {"simulate": 0.5},
    "policy=2x": {"policy": 0.5},
    "simulate=1.25x": {"simulate": 0.8},
}
LIMIT = "simulate"


def main() -> None:
    p = parameters(simulate=1, policy=1)
    pool = ThreadPoolExecutor(4)

    def step(env: int) -> int:
        with hotloop.profile("simulate"):
            nap((4 + env) * p["simulate"])
        return env

    def cycle() -> float:
        list(pool.map(step, range(4)))
        with hotloop.profile("policy"):
            python(3 * p["policy"])
        hotloop.progress(env_steps=4)
        return 4

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
