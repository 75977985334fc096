"""MaskablePPO (sb3-contrib) for packing blocks into a small grid."""

import argparse
import copy
import json
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

SHAPES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1)]


class Board:
    def __init__(self, size):
        self.size = size
        self.cells = np.zeros((size, size), dtype=np.int8)
        self.placed = []

    def place(self, row, col, shape):
        """Put the block down; False (and a spoilt board) if it does not fit."""
        h, w = shape
        if row + h > self.size or col + w > self.size:
            return False
        spot = self.cells[row : row + h, col : col + w]
        if spot.any():
            return False
        spot[:] = 1
        self.placed.append((row, col, shape))
        return True


class PackingEnv(gym.Env):
    def __init__(self, size=5):
        self.size = size
        self.observation_space = spaces.Box(0.0, 1.0, (size * size + len(SHAPES),), np.float32)
        self.action_space = spaces.Discrete(size * size)
        self.board = Board(size)
        self.shape = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.board = Board(self.size)
        self.shape = int(self.np_random.integers(len(SHAPES)))
        return self._observe(), {}

    def _observe(self):
        obs = np.zeros(self.size * self.size + len(SHAPES), dtype=np.float32)
        obs[: self.size * self.size] = self.board.cells.ravel()
        obs[self.size * self.size + self.shape] = 1.0
        return obs

    def action_masks(self):
        mask = np.zeros(self.size * self.size, dtype=bool)
        for a in range(self.size * self.size):
            trial = copy.deepcopy(self.board)
            mask[a] = trial.place(*divmod(a, self.size), SHAPES[self.shape])
        return mask

    def step(self, action):
        row, col = divmod(int(action), self.size)
        ok = self.board.place(row, col, SHAPES[self.shape])
        reward = float(np.prod(SHAPES[self.shape])) if ok else -1.0
        self.shape = int(self.np_random.integers(len(SHAPES)))
        stuck = not self.action_masks().any()
        return self._observe(), reward, stuck or not ok, False, {}


class Progress(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.total = total
        self.since = None

    def _on_step(self):
        if self.since is None and self.num_timesteps >= 0.2 * self.total:
            self.since = (time.perf_counter(), self.num_timesteps)
        return True


def run(total, seed):
    torch.set_num_threads(1)
    model = MaskablePPO(
        "MlpPolicy", PackingEnv(), n_steps=512, batch_size=128, n_epochs=4, seed=seed, device="cpu", verbose=0
    )
    progress = Progress(total)
    model.learn(total, callback=progress)
    t0, n0 = progress.since
    return {
        "env_steps": model.num_timesteps,
        "updates": model.num_timesteps // 128 * 4,
        "units_per_s": (model.num_timesteps - n0) / (time.perf_counter() - t0),
        "checksum": sum(p.detach().double().sum().item() for p in model.policy.parameters()),
    }


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--total", type=int, default=6144)
    cli.add_argument("--seed", type=int, default=0)
    opts = cli.parse_args()
    print(json.dumps(run(opts.total, opts.seed)))
