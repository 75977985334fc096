"""AsyncVectorEnv, four envs, of which the second also computes; learning goes on while they step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "env_step=1.25x": {"env_step": 0.8},
    "env_step=4x": {"env_step": 0.25},
    "learn=2x": {"learn": 0.5},
    "policy=2x": {"policy": 0.5},
}
LIMIT = "env_step"
STRAGGLER = 1


class Simulator(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number: int, scale: float) -> None:
        self.number, self.scale = number, scale

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        nap(3 * self.scale)
        if self.number == 1:
            python(5 * self.scale)
        return np.zeros(8, np.float32), 0.0, False, False, {}


def main() -> None:
    p = parameters(env_step=1, policy=1, learn=1, workers=4)
    n = int(p["workers"])
    makers: Any = [lambda i=i: Simulator(i, p["env_step"]) for i in range(n)]
    envs = AsyncVectorEnv(makers, context="fork")
    envs.reset()
    actions = np.zeros(n, np.int64)

    def cycle() -> float:
        envs.step_async(actions)
        with hotloop.profile("learn"):  # on the batch before this one
            native(3.5 * p["learn"])
        envs.step_wait()
        with hotloop.profile("policy"):
            python(1.5 * p["policy"])
        return n

    meter(p["seconds"], cycle)
    envs.close()


if __name__ == "__main__":
    main()
