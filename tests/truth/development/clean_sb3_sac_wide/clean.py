"""SAC (Stable-Baselines3) with wide networks for a crane that carries a swinging load."""

import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback


class Crane(gym.Env):
    def __init__(self):
        self.observation_space = gym.spaces.Box(-10, 10, (5,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.goal = self.np_random.uniform(-1, 1, 2).tolist()
        self.v = self.angle = self.swing = 0.0
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return np.array(
            [self.goal - self.x, self.v, math.sin(self.angle), math.cos(self.angle), self.swing], np.float32
        )

    def step(self, action):
        force = float(action[0])
        self.v = 0.97 * self.v + 0.05 * force
        self.swing = 0.99 * self.swing - 0.1 * (math.sin(self.angle) + 0.5 * force)
        self.angle += 0.1 * self.swing
        self.x += 0.1 * self.v
        self.t += 1
        reward = -abs(self.goal - self.x) - 0.1 * self.angle**2
        return self.observe(), reward, False, self.t >= 200, {}


class Speed(BaseCallback):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def _on_step(self):
        if self.num_timesteps == self.first:
            self.start = time.perf_counter()
        elif self.num_timesteps == self.last:
            self.rate = (self.last - self.first) / (time.perf_counter() - self.start)
        return True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=600)
    ap.add_argument("--batch-size", type=int, default=1024)
    args = ap.parse_args()
    model = SAC(
        "MlpPolicy",
        Crane(),
        batch_size=args.batch_size,
        learning_starts=100,
        ent_coef=0.05,
        policy_kwargs={"net_arch": [256, 256], "optimizer_kwargs": {"fused": True}},
        seed=1,
        device="cpu",
    )
    speed = Speed(100 + args.steps // 5, 100 + args.steps)
    model.learn(100 + args.steps, callback=speed, log_interval=10)
    checksum = float(sum(p.double().sum() for p in model.actor.parameters()))
    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "updates": model._n_updates,
                "units_per_s": speed.rate,
                "checksum": checksum,
            }
        )
    )


if __name__ == "__main__":
    main()
