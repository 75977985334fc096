import json
import os
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

N_ENVS = 4
TOTAL = int(os.environ.get("TOTAL_TIMESTEPS", "26000"))
if len(sys.argv) > 1:
    TOTAL = int(sys.argv[1])


class TargetReach(gym.Env):
    """Point mass on a plane that has to reach a random target."""

    def __init__(self):
        self.observation_space = spaces.Box(-10.0, 10.0, (6,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.pos = np.zeros(2)
        self.vel = np.zeros(2)
        self.goal = np.zeros(2)
        self.t = 0

    def _obs(self):
        return np.array([*self.pos, *self.vel, *(self.goal - self.pos)], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.pos = self.np_random.uniform(-1, 1, 2)
        self.vel = np.zeros(2)
        self.goal = self.np_random.uniform(-1, 1, 2)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.vel = 0.9 * self.vel + 0.1 * np.asarray(action)
        self.pos = self.pos + 0.1 * self.vel
        self.t += 1
        dist = float(np.hypot(*(self.goal - self.pos)))
        reached = dist < 0.05
        return self._obs(), -dist + 5.0 * reached, reached, self.t >= 150, {}


class Clock(BaseCallback):
    def __init__(self):
        super().__init__()
        self.start = None
        self.start_steps = 0

    def _on_step(self):
        if self.start is None and self.num_timesteps >= TOTAL // 5:
            self.start = time.perf_counter()
            self.start_steps = self.num_timesteps
        return True


def main():
    torch.set_num_threads(1)
    env = VecMonitor(make_vec_env(TargetReach, n_envs=N_ENVS, seed=2, vec_env_cls=SubprocVecEnv))
    model = A2C("MlpPolicy", env, n_steps=16, learning_rate=7e-4, ent_coef=0.0, seed=2, device="cpu")
    clock = Clock()
    model.learn(total_timesteps=TOTAL, callback=clock, log_interval=50)
    seconds = time.perf_counter() - clock.start
    env.close()
    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "updates": model._n_updates,
                "units_per_s": (model.num_timesteps - clock.start_steps) / seconds,
                "checksum": sum(p.detach().double().sum().item() for p in model.policy.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
