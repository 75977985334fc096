"""Stable-Baselines3 DQN: a courier that always starts at the same depot of the same town."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.monitor import Monitor

SIDE, DAY = 9, 60


class Town(gym.Env):
    """Deliver parcels to fixed houses; streets, houses and the depot are the same every day."""

    houses = np.array([[1, 1], [7, 2], [3, 7], [8, 8], [0, 6]])
    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])

    def __init__(self):
        self.action_space = gym.spaces.Discrete(4)
        self.observation_space = gym.spaces.Box(-1, 1, (2 + len(self.houses) + 1,), np.float32)
        rng = np.random.default_rng(12)
        self.walls = rng.random((SIDE, SIDE)) < 0.15
        self.walls[4, 4] = False
        self.walls[tuple(self.houses.T)] = False

    def _observation(self):
        return np.concatenate([self.place / SIDE, self.waiting, [self.t / DAY]], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.t = np.array([4, 4]), 0
        self.waiting = np.ones(len(self.houses))
        return self._observation(), {}

    def step(self, action):
        x, y = wanted = self.place + self.moves[action]
        if 0 <= x < SIDE and 0 <= y < SIDE and not self.walls[x, y]:
            self.place = wanted
        self.t += 1
        here = (self.houses == self.place).all(axis=1) * self.waiting
        self.waiting = self.waiting - here
        return self._observation(), float(here.sum()) - 0.01, False, self.t >= DAY, {}


class Marks(BaseCallback):
    """When each step began."""

    def __init__(self):
        super().__init__()
        self.marks = []

    def _on_step(self):
        self.marks.append(time.perf_counter())
        return True


def main(steps):
    torch.set_num_threads(1)
    env, marks = Monitor(Town()), Marks()
    evaluation = EvalCallback(
        Monitor(Town()), n_eval_episodes=20, eval_freq=500, deterministic=True, verbose=0
    )
    model = DQN(
        "MlpPolicy",
        env,
        learning_rate=5e-4,
        buffer_size=20_000,
        learning_starts=500,
        batch_size=64,
        train_freq=4,
        target_update_interval=500,
        exploration_fraction=0.5,
        policy_kwargs={"net_arch": [64, 64]},
        seed=8,
        device="cpu",
    )
    model.learn(steps, callback=CallbackList([marks, evaluation]), log_interval=None)
    first = steps // 5
    rate = (steps - 1 - first) / (marks.marks[-1] - marks.marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in model.q_net.parameters()))
    result = {"env_steps": None, "updates": model._n_updates, "units_per_s": rate, "checksum": checksum}
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15_000)
    main(parser.parse_args().steps)
