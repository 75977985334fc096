"""AsyncVectorEnv used asynchronously: while the envs step, the learner trains on the step before; env
2 is slow."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=1.25x": {"simulate": 0.8},
    "simulate=4x": {"simulate": 0.25},
    "learn=2x": {"learn": 0.5},
    "policy=2x": {"policy": 0.5},
}
LIMIT = "simulate"
STRAGGLER = 2


class Simulator(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number: int, p: dict[str, float]) -> None:
        self.number, self.scale, self.source = number, p["simulate"], random.Random(100 * p["seed"] + number)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        with hotloop.profile("simulate"):
            nap((13 if self.number == 2 else 4) * self.source.uniform(0.9, 1.1) * self.scale)
        return np.zeros(8, np.float32), 0.0, False, False, {}


def main() -> None:
    p = parameters(simulate=1, learn=1, policy=1, workers=3)
    n = int(p["workers"])
    envs = AsyncVectorEnv([lambda i=i: Simulator(i, p) for i in range(n)], context="fork")  # type: ignore[misc]
    envs.reset()
    actions = np.zeros(n, np.int64)

    def cycle() -> float:
        envs.step_async(actions)
        with hotloop.profile("learn"):
            native(6 * p["learn"])
        envs.step_wait()
        with hotloop.profile("policy"):
            python(1.5 * p["policy"])
        hotloop.progress(updates=n)
        return n

    meter(p["seconds"], cycle)
    envs.close()


if __name__ == "__main__":
    main()
