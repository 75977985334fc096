"""AsyncVectorEnv, four envs with heavy-tailed step times."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from parts import heavy_tailed, meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "env_step=2x": {"env_step": 0.5},
    "policy=2x": {"policy": 0.5},
    "env_step=1.25x": {"env_step": 0.8},
}
LIMIT = "env_step"


class Simulator(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number: int, scale: float) -> None:
        self.number, self.scale, self.source = number, scale, random.Random(number)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        nap(heavy_tailed(3, self.source) * self.scale)
        return np.zeros(8, np.float32), 0.0, False, False, {}


def main() -> None:
    p = parameters(env_step=1, policy=1, workers=4)
    n = int(p["workers"])
    makers: Any = [lambda i=i: Simulator(i, p["env_step"]) for i in range(n)]
    envs = gymnasium.vector.AsyncVectorEnv(makers, context="fork")
    envs.reset()
    actions = np.zeros(n, np.int64)

    def cycle() -> float:
        envs.step(actions)
        with hotloop.profile("policy"):
            python(2 * p["policy"])
        return n

    meter(p["seconds"], cycle)
    envs.close()


if __name__ == "__main__":
    main()
