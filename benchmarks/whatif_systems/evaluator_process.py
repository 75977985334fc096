"""SubprocVecEnv with heavy-tailed steps; an evaluator process takes the weights when it has time for them."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import random
from typing import Any

import gymnasium
import numpy as np
from parts import heavy_tailed, meter, nap, native, parameters, python
from stable_baselines3.common.vec_env import SubprocVecEnv

import hotloop

WHAT_IFS = {
    "env_step=2x": {"env_step": 0.5},
    "evaluate=2x": {"evaluate": 0.5},
    "learn=2x": {"learn": 0.5},
    "policy=2x": {"policy": 0.5},
}
LIMIT = "env_step"


class Simulator(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, scale: float, seed: int) -> None:
        self.scale, self.source = scale, random.Random(seed)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        nap(heavy_tailed(3, self.source) * self.scale)
        return np.zeros(8, np.float32), 0.0, False, False, {}


def evaluate(offered: Any, scale: float) -> None:
    while True:
        offered.get()
        with hotloop.profile("evaluate"):
            python(20 * scale)


def main() -> None:
    p = parameters(env_step=1, policy=1, learn=1, evaluate=1, workers=3)
    n = int(p["workers"])
    context = multiprocessing.get_context("fork")
    offered = context.Queue(1)
    context.Process(target=evaluate, args=(offered, p["evaluate"]), daemon=True).start()
    makers: Any = [lambda i=i: Simulator(p["env_step"], int(p["seed"]) * 100 + i) for i in range(n)]
    envs = SubprocVecEnv(makers, start_method="fork")
    envs.reset()
    actions = np.zeros(n, np.int64)
    steps = 0

    def cycle() -> float:
        nonlocal steps
        with hotloop.profile("policy"):
            python(1.2 * p["policy"])
        envs.step(actions)
        steps += 1
        if steps % 8 == 0:
            with hotloop.profile("learn"):
                native(8 * p["learn"])
            with contextlib.suppress(queue.Full):
                offered.put_nowait(bytes(10_000))
        return n

    meter(p["seconds"], cycle)
    envs.close()


if __name__ == "__main__":
    main()
