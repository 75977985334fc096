"""Quantile regression DQN (sb3-contrib) for a two-joint arm, on a grid of radial basis functions."""

import argparse
import itertools
import json
import time

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import QRDQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor


class RBFFeatures(BaseFeaturesExtractor):
    def __init__(self, observation_space, per_dim=5, width=0.5):
        super().__init__(observation_space, features_dim=per_dim ** observation_space.shape[0])
        self.per_dim, self.width = per_dim, width
        self.n_dims = observation_space.shape[0]
        self.grid = self.centres()

    def centres(self):
        ticks = np.linspace(-1, 1, self.per_dim)
        return torch.tensor(list(itertools.product(ticks, repeat=self.n_dims)), dtype=torch.float32)

    def forward(self, obs):
        distance = torch.cdist(obs, self.grid)
        return torch.exp(-((distance / self.width) ** 2))


class ArmEnv(gym.Env):
    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.q = self.np_random.uniform(-1, 1, 4).tolist()
        self.t = 0
        return np.array(self.q, np.float32), {}

    def step(self, action):
        a, b, ga, gb = self.q
        da, db = ((0, 0), (0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1))[action]
        a, b = min(1.0, max(-1.0, a + da)), min(1.0, max(-1.0, b + db))
        self.q = [a, b, ga, gb]
        self.t += 1
        near = abs(a - ga) + abs(b - gb)
        return np.array(self.q, np.float32), -near, near < 0.1, self.t >= 50, {}


class Clock(BaseCallback):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def _on_step(self):
        if self.num_timesteps == self.first:
            self.t0 = time.perf_counter()
        elif self.num_timesteps == self.last:
            self.rate = (self.last - self.first) / (time.perf_counter() - self.t0)
        return True


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=16000)
    args = ap.parse_args()
    model = QRDQN(
        "MlpPolicy",
        ArmEnv(),
        learning_rate=5e-4,
        learning_starts=500,
        buffer_size=20000,
        batch_size=64,
        train_freq=4,
        target_update_interval=500,
        exploration_fraction=0.3,
        policy_kwargs={
            "features_extractor_class": RBFFeatures,
            "net_arch": [64],
            "n_quantiles": 25,
        },
        seed=2,
        device="cpu",
    )
    clock = Clock(args.steps // 5, args.steps)
    model.learn(args.steps, callback=clock)
    checksum = float(sum(p.double().sum() for p in model.quantile_net.parameters()))
    print(
        json.dumps(
            {
                "env_steps": args.steps,
                "updates": model._n_updates,
                "units_per_s": clock.rate,
                "checksum": checksum,
            }
        )
    )
