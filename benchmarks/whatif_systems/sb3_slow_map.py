"""PPO of Stable-Baselines3, three envs in processes, one with a large map; a callback counts visits."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from parts import meter, nap, native, parameters, python
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import SubprocVecEnv

import hotloop

WHAT_IFS = {
    "env_step=1.25x": {"env_step": 0.8},
    "env_step=4x": {"env_step": 0.25},
    "visits=2x": {"visits": 0.5},
    "relabel=2x": {"relabel": 0.5},
}
LIMIT = "env_step"
STRAGGLER = 0
STEP_MS = (10, 3, 4)  # by map
ROLLOUT = 16


class Maze(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, number: int, scale: float) -> None:
        self.number, self.scale, self.steps = number, scale, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        nap(STEP_MS[self.number % len(STEP_MS)] * self.scale)
        self.steps += 1
        return np.full(8, self.steps / 50, np.float32), 0.1, self.steps == 50, False, {}


class Novelty(BaseCallback):
    """Counts visited cells after every step and adds a bonus to the rewards of each rollout."""

    def __init__(self, p: dict[str, float]) -> None:
        super().__init__()
        self.p = p

    def _on_step(self) -> bool:
        with hotloop.profile("visits"):
            python(1.2 * self.p["visits"])
        return True

    def _on_rollout_end(self) -> None:
        with hotloop.profile("relabel"):
            native(14 * self.p["relabel"])
            self.model.rollout_buffer.rewards += 0.01  # type: ignore[attr-defined]


def main() -> None:
    p = parameters(env_step=1, visits=1, relabel=1, workers=3)
    torch.set_num_threads(1)
    n = int(p["workers"])
    makers: Any = [lambda i=i: Maze(i, p["env_step"]) for i in range(n)]
    envs = SubprocVecEnv(makers, start_method="fork")
    model = PPO("MlpPolicy", envs, n_steps=ROLLOUT, batch_size=ROLLOUT * n, n_epochs=4, device="cpu", seed=0)
    model.set_logger(Logger(None, []))  # the default makes a folder in each call of learn
    novelty = Novelty(p)

    def cycle() -> float:
        model.learn(ROLLOUT * n, callback=novelty, reset_num_timesteps=False)
        return ROLLOUT * n

    meter(p["seconds"], cycle)
    envs.close()


if __name__ == "__main__":
    main()
