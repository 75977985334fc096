"""Stable-Baselines3 A2C: surveyors walk over land in worker processes and find its highest point."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

SIDE, WORKERS, ROLL = 160, 4, 16


class Survey(gym.Env):
    """The surveyor sees slope and height around it and marks what it has measured on a map."""

    moves = np.array([[0, 4], [4, 0], [0, -4], [-4, 0]])

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.action_space = gym.spaces.Discrete(4)
        self.observation_space = gym.spaces.Box(-5, 5, (7,), np.float32)
        axis = np.linspace(0, 3, SIDE)
        waves = self.rng.uniform(0.5, 2, (6, 2))
        self.land = sum(np.sin(a * axis)[:, None] * np.cos(b * axis)[None, :] for a, b in waves) / 6

    def _observation(self):
        x, y = self.place
        near = self.land[[x, x - 4, x + 4, x, x], [y, y, y, y - 4, y + 4]]
        return np.concatenate([near, self.place / SIDE], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        self.place, self.t = self.rng.integers(8, SIDE - 8, 2), 0
        self.map = np.full((SIDE, SIDE), np.nan)
        return self._observation(), {}

    def step(self, action):
        self.place = np.clip(self.place + self.moves[action], 5, SIDE - 6)
        x, y = self.place
        self.map[x - 1 : x + 2, y - 1 : y + 2] = self.land[x - 1 : x + 2, y - 1 : y + 2]
        self.t += 1
        info = {"place": (int(x), int(y))}
        if self.t >= 100:
            info["survey"] = self.map
        return self._observation(), float(self.land[x, y]), False, self.t >= 100, info


class Coverage(BaseCallback):
    """Share of the land measured at the end of each episode; when each rollout began."""

    def __init__(self):
        super().__init__()
        self.marks, self.covered = [], []

    def _on_rollout_start(self):
        self.marks.append(time.perf_counter())

    def _on_step(self):
        for info, ended in zip(self.locals["infos"], self.locals["dones"], strict=True):
            if ended:
                self.covered.append(float(np.isfinite(info["survey"]).mean()))
        return True


def main(rollouts):
    torch.set_num_threads(1)
    env = VecMonitor(
        SubprocVecEnv([lambda seed=seed: Survey(seed) for seed in range(WORKERS)], start_method="fork")
    )
    model = A2C("MlpPolicy", env, n_steps=ROLL, seed=0, device="cpu", policy_kwargs={"net_arch": [64, 64]})
    coverage = Coverage()
    model.learn(rollouts * ROLL * WORKERS, callback=coverage, log_interval=10_000)
    marks = [*coverage.marks, time.perf_counter()]
    env.close()
    first = rollouts // 5
    rate = (rollouts - first) / (marks[-1] - marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in model.policy.parameters())) + sum(coverage.covered)
    result = {
        "env_steps": rollouts * ROLL * WORKERS,
        "updates": rollouts,
        "units_per_s": rate,
        "checksum": checksum,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=400)
    main(parser.parse_args().rollouts)
