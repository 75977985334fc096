"""Train PPO (Stable-Baselines3) to bring a swinging crane load to rest over a truck."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.monitor import Monitor


class CraneEnv(gym.Env):
    metadata = {"render_modes": []}

    def __init__(self, max_steps: int = 120):
        super().__init__()
        self.max_steps = max_steps
        self.action_space = spaces.Box(-1.0, 1.0, shape=(1,), dtype=np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape=(6,), dtype=np.float32)

    def _observe(self):
        return np.array([self.x, self.v, math.sin(self.phi), math.cos(self.phi), self.w, self.goal],
                        dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v = 0.0, 0.0
        self.phi = self.np_random.uniform(-0.3, 0.3)
        self.w = 0.0
        self.goal = self.np_random.uniform(-2.0, 2.0)
        self.n = 0
        return self._observe(), {}

    def step(self, action):
        acc = 3.0 * min(max(float(action[0]), -1.0), 1.0)
        for _ in range(2):
            dw = -(9.81 * math.sin(self.phi) + acc * math.cos(self.phi)) / 1.5 - 0.1 * self.w
            self.v += 0.02 * (acc - 0.2 * self.v)
            self.x += 0.02 * self.v
            self.w += 0.02 * dw
            self.phi += 0.02 * self.w
        self.n += 1
        load = self.x + 1.5 * math.sin(self.phi)
        reward = 1.0 - abs(load - self.goal) - 0.1 * abs(self.v) - 0.05 * abs(self.w)
        return self._observe(), reward, abs(self.x) > 5.0, self.n >= self.max_steps, {}


class ThroughputCallback(BaseCallback):
    """Remember the time at which the first fifth of training is over."""

    def __init__(self, total: int):
        super().__init__()
        self.start_at = total // 5
        self.t0 = None
        self.n0 = 0

    def _on_step(self) -> bool:
        if self.t0 is None and self.num_timesteps >= self.start_at:
            self.t0 = time.perf_counter()
            self.n0 = self.num_timesteps
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("timesteps", type=int, nargs="?", default=26624)
    args = parser.parse_args()
    th.set_num_threads(1)

    env = Monitor(CraneEnv())
    eval_env = Monitor(CraneEnv())
    eval_env.reset(seed=1234)

    model = PPO(
        "MlpPolicy",
        env,
        n_steps=1024,
        batch_size=128,
        n_epochs=8,
        learning_rate=3e-4,
        gamma=0.98,
        seed=21,
        device="cpu",
        verbose=0,
    )
    eval_callback = EvalCallback(
        eval_env,
        n_eval_episodes=10,
        eval_freq=10_000,
        deterministic=True,
        verbose=1,
    )
    meter = ThroughputCallback(args.timesteps)
    model.learn(total_timesteps=args.timesteps, callback=CallbackList([eval_callback, meter]))
    seconds = time.perf_counter() - meter.t0

    total = sum(p.detach().double().sum().item() for p in model.policy.parameters())
    print(f"best mean reward: {eval_callback.best_mean_reward:.2f}")
    print(json.dumps({
        "env_steps": model.num_timesteps,
        "updates": model._n_updates * (1024 // 128),
        "units_per_s": (model.num_timesteps - meter.n0) / seconds,
        "checksum": round(total, 6),
    }))


if __name__ == "__main__":
    main()
