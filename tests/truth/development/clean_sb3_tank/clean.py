"""PPO (Stable-Baselines3) for level control in three coupled tanks."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

N_ENVS = 16
N_STEPS = 128
BATCH_SIZE = 256
N_EPOCHS = 5


class ThreeTanks(gym.Env):
    metadata = {"render_modes": []}

    def __init__(self, max_steps=200):
        super().__init__()
        self.max_steps = max_steps
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)

    def _obs(self):
        return np.array([self.h1, self.h2, self.h3, self.set1 - self.h1, self.set3 - self.h3, self.leak],
                        dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.h1, self.h2, self.h3, self.set1, self.set3, u = self.np_random.uniform(0.2, 0.9, 6).tolist()
        self.leak = 0.03 * u
        self.n = 0
        return self._obs(), {}

    def step(self, action):
        a1, a2 = action.tolist()
        d12, d23 = self.h1 - self.h2, self.h2 - self.h3
        f12 = math.copysign(0.05 * math.sqrt(abs(d12)), d12)
        f23 = math.copysign(0.05 * math.sqrt(abs(d23)), d23)
        self.h1 = min(max(self.h1 + 0.04 * (1 + a1) - f12 - 0.02, 0.0), 1.0)
        self.h2 = min(max(self.h2 + f12 - f23 - self.leak, 0.0), 1.0)
        self.h3 = min(max(self.h3 + 0.04 * (1 + a2) + f23 - 0.03, 0.0), 1.0)
        self.n += 1
        reward = 1.0 - abs(self.set1 - self.h1) - abs(self.set3 - self.h3) - 0.01 * (a1 * a1 + a2 * a2)
        return self._obs(), reward, False, self.n >= self.max_steps, {}


class SteadyClock(BaseCallback):
    """Note time and step count once the first fifth of training is done."""

    def __init__(self, total):
        super().__init__()
        self.threshold = total // 5
        self.started = None

    def _on_rollout_start(self):
        if self.started is None and self.num_timesteps >= self.threshold:
            self.started = (time.perf_counter(), self.num_timesteps)

    def _on_step(self):
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rollouts", type=int, nargs="?", default=210)
    args = parser.parse_args()
    total = args.rollouts * N_ENVS * N_STEPS

    th.set_num_threads(1)
    venv = make_vec_env(ThreeTanks, n_envs=N_ENVS, seed=8)
    model = PPO("MlpPolicy", venv, n_steps=N_STEPS, batch_size=BATCH_SIZE, n_epochs=N_EPOCHS,
                learning_rate=5e-4, gamma=0.97, seed=8, device="cpu")
    clock = SteadyClock(total)
    model.learn(total_timesteps=total, callback=clock)
    started_at, started_steps = clock.started
    seconds = time.perf_counter() - started_at

    print("mean episode reward", round(float(np.mean([e["r"] for e in model.ep_info_buffer])), 3))
    checksum = sum(p.detach().double().sum().item() for p in model.policy.parameters())
    print(json.dumps({
        "env_steps": model.num_timesteps,
        "updates": model._n_updates * (N_ENVS * N_STEPS // BATCH_SIZE),
        "units_per_s": (model.num_timesteps - started_steps) / seconds,
        "checksum": round(checksum, 6),
    }))


if __name__ == "__main__":
    main()
