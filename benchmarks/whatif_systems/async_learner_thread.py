"""The main thread steps an AsyncVectorEnv, a thread of the same process learns and is the slower one."""

from __future__ import annotations

import queue
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from parts import meter, nap, one_call, parameters, python

import hotloop

WHAT_IFS = {
    "env_step=2x": {"env_step": 0.5},
    "policy=2x": {"policy": 0.5},
    "learn=1.25x": {"learn": 0.8},
    "learn=2x": {"learn": 0.5},  # then the envs are the limit
}
LIMIT = "learn"


class Simulator(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (16,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(16, np.float32), {}

    def step(self, action: Any) -> Any:
        nap(5 * self.scale)
        python(0.4 * self.scale)
        return np.zeros(16, np.float32), 0.0, False, False, {}


def main() -> None:
    p = parameters(env_step=1, policy=1, learn=1, workers=4, depth=4)
    n = int(p["workers"])
    makers: Any = [lambda: Simulator(p["env_step"])] * n
    envs = AsyncVectorEnv(makers, context="fork")
    observations, _ = envs.reset()
    batches: queue.Queue[np.ndarray] = queue.Queue(int(p["depth"]))

    def learn() -> None:
        while True:
            batches.get()
            with hotloop.profile("learn"):
                for _ in range(3):  # forward, backward, optimizer
                    one_call(3.8 * p["learn"])
            hotloop.progress(updates=1)

    threading.Thread(target=learn, daemon=True).start()

    def cycle() -> float:
        nonlocal observations
        with hotloop.profile("policy"):
            python(0.7 * p["policy"])
            actions = np.zeros(n, np.int64)
        observations, rewards, _, _, _ = envs.step(actions)
        batches.put(np.concatenate([observations.ravel(), rewards]))
        return n

    meter(p["seconds"], cycle)
    envs.close()


if __name__ == "__main__":
    main()
