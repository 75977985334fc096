"""Packing crates into a container from above, with MaskablePPO: only drops that fit may be chosen."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

CRATES = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3), (3, 2)]


class Container:
    def __init__(self, width, height):
        self.width, self.height = width, height
        self.skyline = [0] * width
        self.holes = 0
        self.placed = []

    def resting_height(self, crate, column):
        """Height on which the crate would come to rest, or None where it does not fit."""
        w, h = crate
        if column + w > self.width:
            return None
        base = max(self.skyline[column:column + w])
        return base if base + h <= self.height else None

    def drop(self, crate, column):
        base = self.resting_height(crate, column)
        if base is None:
            return False
        w, h = crate
        for x in range(column, column + w):
            self.holes += base - self.skyline[x]
            self.skyline[x] = base + h
        self.placed.append((column, base, w, h))
        return True

    def filled(self):
        return sum(self.skyline) - self.holes


class PackingEnv(gym.Env):
    """Action a: column a // 2, turned by 90 degrees when a is odd."""

    def __init__(self, width=7, height=9):
        self.width, self.height = width, height
        self.action_space = spaces.Discrete(2 * width)
        self.observation_space = spaces.Box(0.0, 1.0, (width + 2 + len(CRATES),), np.float32)

    def _crate(self, action):
        w, h = CRATES[self.kind]
        return (h, w) if action % 2 else (w, h)

    def _obs(self):
        obs = np.zeros(self.observation_space.shape, np.float32)
        obs[:self.width] = self.container.skyline
        obs[:self.width] /= self.height
        obs[self.width] = self.container.holes / 20
        obs[self.width + 1] = len(self.container.placed) / 30
        obs[self.width + 2 + self.kind] = 1.0
        return np.clip(obs, 0.0, 1.0)

    def action_masks(self):
        mask = np.zeros(self.action_space.n, dtype=bool)
        for action in range(self.action_space.n):
            mask[action] = self.container.resting_height(self._crate(action), action // 2) is not None
        return mask

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.container = Container(self.width, self.height)
        self.kind = int(self.np_random.integers(len(CRATES)))
        return self._obs(), {}

    def step(self, action):
        action = int(action)
        before = self.container.holes
        if not self.container.drop(self._crate(action), action // 2):
            return self._obs(), -1.0, True, False, {}
        w, h = CRATES[self.kind]
        reward = (w * h - (self.container.holes - before)) / 10
        self.kind = int(self.np_random.integers(len(CRATES)))
        full = all(self.container.resting_height(self._crate(a), a // 2) is None for a in range(self.action_space.n))
        if full:
            reward += self.container.filled() / (self.width * self.height)
        return self._obs(), reward, full, False, {}


class Speed(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.total, self.began = total, None

    def _on_step(self):
        if self.began is None and self.num_timesteps >= self.total // 5:
            self.began, self.first = time.perf_counter(), self.num_timesteps
        return True

    def _on_training_end(self):
        self.rate = (self.num_timesteps - self.first) / (time.perf_counter() - self.began)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=40000)
    parser.add_argument("--envs", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)

    venv = DummyVecEnv([lambda: Monitor(PackingEnv()) for _ in range(args.envs)])
    model = MaskablePPO("MlpPolicy", venv, n_steps=256, batch_size=256, n_epochs=4, ent_coef=0.005, seed=3,
                        policy_kwargs=dict(net_arch=[64, 64]), device="cpu")
    speed = Speed(args.timesteps)
    model.learn(args.timesteps, callback=speed)
    returns = [ep["r"] for ep in model.ep_info_buffer]
    print(f"mean return of the last {len(returns)} containers: {np.mean(returns):.3f}")
    with torch.no_grad():
        checksum = float(sum(p.double().sum() for p in model.policy.parameters()))
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates * (256 * args.envs // 256),
                      "units_per_s": speed.rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
