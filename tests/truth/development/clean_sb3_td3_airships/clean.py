"""Stable-Baselines3 TD3 on a VecEnv that simulates sixteen airships at once."""
import argparse
import json
import time

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
from stable_baselines3.common.vec_env import VecEnv


class Airships(VecEnv):
    """Fly to a mast against the wind: thrust and rudder. All arrays have the airship as first axis."""

    LIMIT = 120

    def __init__(self, n, seed):
        box = spaces.Box(-np.inf, np.inf, (8,), np.float32)
        super().__init__(n, box, spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.rng = np.random.default_rng(seed)
        self.at, self.speed, self.mast, self.wind = (np.zeros((n, 2)) for _ in range(4))
        self.course, self.t = np.zeros(n), np.zeros(n, np.int64)
        self.nothing = [{} for _ in range(n)]

    def _launch(self, who):
        k = int(who.sum())
        self.at[who] = self.rng.uniform(-1, 1, (k, 2))
        self.mast[who] = self.rng.uniform(-1, 1, (k, 2))
        self.wind[who] = self.rng.normal(0, 0.1, (k, 2))
        self.speed[who] = self.course[who] = 0.0
        self.t[who] = 0

    def _observe(self):
        heading = np.stack([np.cos(self.course), np.sin(self.course)], 1)
        return np.concatenate([self.mast - self.at, self.speed, heading, self.wind], 1, dtype=np.float32)

    def reset(self):
        self._launch(np.ones(self.num_envs, bool))
        return self._observe()

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        thrust, rudder = self.actions[:, 0], self.actions[:, 1]
        self.course += 0.2 * rudder
        heading = np.stack([np.cos(self.course), np.sin(self.course)], 1)
        self.speed += 0.1 * thrust[:, None] * heading - 0.05 * (self.speed - self.wind)
        self.at += 0.1 * self.speed
        gap = np.linalg.norm(self.mast - self.at, axis=1)
        reward = (-gap - 0.05 * thrust**2 + (gap < 0.1)).astype(np.float32)
        self.t += 1
        done = self.t == self.LIMIT
        obs, infos = self._observe(), self.nothing
        if done.any():
            infos = [
                {"terminal_observation": obs[i], "TimeLimit.truncated": True} if over else {}
                for i, over in enumerate(done)
            ]
            self._launch(done)
            obs = self._observe()
        return obs, reward, done, infos

    def close(self):
        pass

    def seed(self, seed=None):
        return [None] * self.num_envs

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        setattr(self, attr_name, value)

    def env_method(self, method_name, *method_args, indices=None, **method_kwargs):
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class Clock(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.skip, self.began, self.first = total // 5, 0.0, 0

    def _on_step(self):
        if not self.began and self.num_timesteps >= self.skip:
            self.began, self.first = time.perf_counter(), self.num_timesteps
        return True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--timesteps", type=int, default=40_000)
    ap.add_argument("--airships", type=int, default=16)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()
    torch.set_num_threads(1)
    venv = Airships(args.airships, args.seed)
    noise = VectorizedActionNoise(NormalActionNoise(np.zeros(2), np.full(2, 0.1)), args.airships)
    model = TD3(
        "MlpPolicy",
        venv,
        batch_size=512,
        learning_starts=1600,
        train_freq=1,
        gradient_steps=1,
        action_noise=noise,
        gamma=0.98,
        buffer_size=100_000,
        policy_kwargs={"net_arch": [400, 300], "optimizer_kwargs": {"fused": True}},
        seed=args.seed,
        device="cpu",
    )
    clock = Clock(args.timesteps)
    model.learn(args.timesteps, callback=clock, log_interval=1_000_000)
    rate = (model.num_timesteps - clock.first) / (time.perf_counter() - clock.began)
    check = sum(p.detach().double().abs().sum().item() for p in model.policy.parameters())
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
