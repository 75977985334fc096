"""DQN + hindsight replay: push a row of coloured blocks into the wanted order of colours (a bit-flipping relative)."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

torch.set_num_threads(1)


class BlocksEnv(gym.Env):
    """n blocks, each with one of two colours; action i turns block i (and wakes its right neighbour)."""

    def __init__(self, n=12, horizon=16):
        self.n, self.horizon = n, horizon
        box = spaces.Box(0.0, 1.0, (n,), np.float32)
        self.observation_space = spaces.Dict(observation=box, achieved_goal=box, desired_goal=box)
        self.action_space = spaces.Discrete(n)

    def _obs(self):
        now = self.blocks.astype(np.float32)
        return {"observation": now, "achieved_goal": now.copy(), "desired_goal": self.goal.astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.blocks = self.np_random.integers(0, 2, self.n)
        self.goal = self.np_random.integers(0, 2, self.n)
        self.t = 0
        return self._obs(), {}

    def compute_reward(self, achieved, desired, info):
        achieved = np.atleast_2d(achieved)
        desired = np.atleast_2d(desired)
        wrong = np.mean(np.abs(achieved - desired) > 0.5, axis=-1)
        solved = np.all(np.round(achieved) == np.round(desired), axis=-1)
        return np.where(solved, 0.0, -1.0 - 0.1 * wrong).astype(np.float32)

    def step(self, action):
        self.blocks[action] ^= 1
        self.t += 1
        obs = self._obs()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})[0])
        return obs, reward, reward == 0.0, self.t >= self.horizon, {}


class Speed(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.total, self.start = total, None

    def _on_step(self):
        if self.start is None and self.num_timesteps >= self.total // 5:
            self.start, self.first = time.perf_counter(), self.num_timesteps
        return True

    def rate(self):
        return (self.num_timesteps - self.first) / (time.perf_counter() - self.start)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--blocks", type=int, default=12)
    args = parser.parse_args()
    model = DQN("MultiInputPolicy", BlocksEnv(args.blocks), replay_buffer_class=HerReplayBuffer,
                replay_buffer_kwargs=dict(n_sampled_goal=4, goal_selection_strategy="future"),
                learning_starts=400, train_freq=1, gradient_steps=1, batch_size=256, buffer_size=20_000,
                policy_kwargs=dict(net_arch=[64, 64]), learning_rate=7e-4, seed=1, device="cpu")
    speed = Speed(args.steps)
    model.learn(args.steps, callback=speed)
    weights = sum(float(p.detach().double().abs().sum()) for p in model.policy.parameters())
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates,
                      "units_per_s": speed.rate(), "checksum": weights}))
