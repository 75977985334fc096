"""sb3-contrib TRPO steers a harvester along crop rows; observations are a Dict of sensors."""
import json
import math
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium import spaces
from sb3_contrib import TRPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv


@dataclass
class Args:
    timesteps: int = 120_000
    n_envs: int = 8
    n_steps: int = 128
    seed: int = 26


def box(low, high, n):
    return spaces.Box(low, high, (n,), np.float32)


class Harvester(gym.Env):
    """Follow the row, keep the drum at crop height, do not overload the engine."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "row": box(-5.0, 5.0, 2),
                "heading": box(-1.0, 1.0, 2),
                "drum": box(-2.0, 2.0, 2),
                "engine": box(0.0, 3.0, 2),
                "ahead": box(-5.0, 5.0, 4),
                "tank": box(0.0, 1.0, 1),
            }
        )
        self.action_space = box(-1.0, 1.0, 3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.a, self.b = self.np_random.uniform(0.2, 1.0), self.np_random.uniform(0, 6.0)
        self.x, self.y, self.heading = 0.0, self._row(0.0) + self.np_random.uniform(-0.5, 0.5), 0.0
        self.drum, self.load, self.speed, self.tank, self.t = 0.0, 0.5, 0.5, 0.0, 0
        return self._observe(), {}

    def _row(self, x):
        return self.a * math.sin(0.3 * x + self.b)

    def _crop(self, x):
        return 0.5 * math.sin(0.7 * x + 2 * self.b)

    def _observe(self):
        here = self.y - self._row(self.x)
        obs = {
            "row": np.array([max(-5.0, min(5.0, here)), self._row(self.x)], np.float32),
            "heading": np.array([math.sin(self.heading), math.cos(self.heading)], np.float32),
            "drum": np.array([self.drum, self._crop(self.x)], np.float32),
            "engine": np.array([self.load, self.speed], np.float32),
            "ahead": np.array([self._row(self.x + d) - self._row(self.x) for d in (0.5, 1.0, 2.0, 4.0)], np.float32),
            "tank": np.array([self.tank], np.float32),
        }
        assert self.observation_space.contains(obs), f"bad observation: {obs}"
        return obs

    def step(self, action):
        assert self.action_space.contains(action), f"bad action: {action}"
        turn, lift, gas = action.tolist()
        self.heading += 0.2 * turn
        self.speed = min(2.0, max(0.0, self.speed + 0.1 * gas))
        self.x += 0.2 * self.speed * math.cos(self.heading)
        self.y += 0.2 * self.speed * math.sin(self.heading)
        self.drum = min(2.0, max(-2.0, self.drum + 0.2 * lift))
        miss = abs(self.drum - self._crop(self.x))
        off = abs(self.y - self._row(self.x))
        self.load = min(3.0, 0.8 * self.load + 0.2 * self.speed * (1.5 - min(miss, 1.0)))
        cut = self.speed * max(0.0, 1 - off) * max(0.0, 1 - miss)
        self.tank = min(1.0, self.tank + 0.01 * cut)
        self.t += 1
        lost = off > 3
        reward = cut - 0.5 * max(0.0, self.load - 1.2) - (5.0 if lost else 0.0)
        return self._observe(), reward, lost, self.t >= 150, {}


class Clock(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.skip, self.began, self.first, self.reward = total // 5, 0.0, 0, 0.0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if not self.began and self.num_timesteps >= self.skip:
            self.began, self.first = time.perf_counter(), self.num_timesteps

    def _on_rollout_end(self) -> None:
        self.reward = 0.9 * self.reward + 0.1 * float(self.model.rollout_buffer.rewards.mean())
        self.last, self.ended = self.num_timesteps, time.perf_counter()


def main(args: Args):
    torch.set_num_threads(1)
    venv = DummyVecEnv([Harvester for _ in range(args.n_envs)])
    model = TRPO(
        "MultiInputPolicy",
        venv,
        n_steps=args.n_steps,
        batch_size=512,
        n_critic_updates=4,
        gamma=0.98,
        seed=args.seed,
        device="cpu",
    )
    clock = Clock(args.timesteps)
    model.learn(args.timesteps, callback=clock)
    rate = (clock.last - clock.first) / (clock.ended - clock.began)
    print(f"mean reward of the last rollouts {clock.reward:.3f}")
    check = sum(p.detach().double().abs().sum().item() for p in model.policy.parameters())
    print(json.dumps({"env_steps": model.num_timesteps, "updates": None, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main(tyro.cli(Args))
