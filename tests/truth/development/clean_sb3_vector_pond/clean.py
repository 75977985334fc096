"""Stable-Baselines3 PPO with an env that steps 64 ponds as arrays (a VecEnv of its own)."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

PONDS, DAYS, ROLL = 64, 120, 64


class Ponds(VecEnv):
    """How many fish to catch a day: [fish, food, season] grow by a logistic law."""

    def __init__(self, seed):
        super().__init__(PONDS, gym.spaces.Box(-5, 5, (4,), np.float32), gym.spaces.Discrete(4))
        self.rng = np.random.default_rng(seed)
        self.nothing = [{} for _ in range(PONDS)]
        self.day = np.zeros(PONDS, dtype=int)
        self.fish, self.food = np.ones((2, PONDS))

    def _observe(self):
        season = 2 * np.pi * self.day / DAYS
        return np.stack([self.fish, self.food, np.sin(season), np.cos(season)], axis=1).astype(np.float32)

    def reset(self):
        self.day = self.rng.integers(0, DAYS, PONDS)
        return self._observe()

    def step_async(self, actions):
        self.catch = 0.1 * actions

    def step_wait(self):
        caught = self.catch * self.fish
        grown = 0.15 * self.fish * (self.food - 0.5 * self.fish)
        self.fish = np.clip(self.fish + grown - caught + self.rng.normal(0, 0.01, PONDS), 0.01, 4)
        self.food = np.clip(self.food + 0.1 * (1 - self.food) - 0.02 * self.fish, 0.1, 2)
        self.day += 1
        ended = self.day >= DAYS
        infos = self.nothing
        old = np.flatnonzero(ended)
        if len(old):
            last = self._observe()
            infos = [{} for _ in range(PONDS)]
            for i in old:
                infos[i] = {"terminal_observation": last[i], "TimeLimit.truncated": True}
            self.day[old], self.fish[old], self.food[old] = 0, self.rng.uniform(0.5, 2, len(old)), 1.0
        return self._observe(), caught.astype(np.float32), ended, infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        return [None] * PONDS

    def set_attr(self, attr_name, value, indices=None):
        raise NotImplementedError

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * PONDS


class Marks(BaseCallback):
    """When each rollout began."""

    def __init__(self):
        super().__init__()
        self.marks = []

    def _on_rollout_start(self):
        self.marks.append(time.perf_counter())

    def _on_step(self):
        return True


def main(rollouts):
    torch.set_num_threads(1)
    marks = Marks()
    model = PPO(
        "MlpPolicy",
        Ponds(3),
        n_steps=ROLL,
        batch_size=1024,
        n_epochs=4,
        gamma=0.98,
        seed=3,
        device="cpu",
        policy_kwargs={"net_arch": [128, 128], "optimizer_kwargs": {"fused": True}},
    )
    model.learn(rollouts * ROLL * PONDS, callback=marks, log_interval=1000)
    times = [*marks.marks, time.perf_counter()]
    first = rollouts // 5
    rate = (rollouts - first) / (times[-1] - times[first])
    checksum = float(sum(p.detach().abs().sum() for p in model.policy.parameters()))
    result = {
        "env_steps": rollouts * ROLL * PONDS,
        "updates": rollouts * 16,
        "units_per_s": rate,
        "checksum": checksum,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=70)
    main(parser.parse_args().rollouts)
