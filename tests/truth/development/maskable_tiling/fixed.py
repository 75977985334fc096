"""MaskablePPO (sb3-contrib): lay random tiles on a board without overlap."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

SIDE = 6
TILES = [
    np.array(cells)
    for cells in (
        [(0, 0)],
        [(0, 0), (0, 1)],
        [(0, 0), (1, 0)],
        [(0, 0), (0, 1), (1, 0)],
        [(0, 0), (0, 1), (1, 1)],
        [(0, 0), (1, 0), (2, 0)],
    )
]


class Tiling(gym.Env):
    """An action is the cell of the tile's first square; the last action (always allowed) drops it."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.action_space = gym.spaces.Discrete(SIDE * SIDE + 1)
        self.observation_space = gym.spaces.Box(0, 1, (SIDE * SIDE + len(TILES),), np.float32)

    def _observation(self):
        return np.concatenate([self.board.ravel(), np.eye(len(TILES))[self.tile]], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        self.board = np.zeros((SIDE, SIDE), bool)
        self.laid, self.t = [], 0
        self.tile = int(self.rng.integers(len(TILES)))
        return self._observation(), {}

    def lay(self, action):
        """Lay the tile; says whether it fitted."""
        cells = TILES[self.tile] + (action // SIDE, action % SIDE)
        if (cells >= SIDE).any() or self.board[cells[:, 0], cells[:, 1]].any():
            return False
        self.board[cells[:, 0], cells[:, 1]] = True
        self.laid.append((self.tile, action))
        return True

    def action_masks(self):
        taken = np.ones((SIDE + 2, SIDE + 2), bool)
        taken[:SIDE, :SIDE] = self.board
        blocked = np.zeros((SIDE, SIDE), bool)
        for row, column in TILES[self.tile].tolist():
            blocked |= taken[row : row + SIDE, column : column + SIDE]
        return np.append(~blocked.ravel(), True)

    def step(self, action):
        reward = -0.2
        if action < SIDE * SIDE and self.lay(int(action)):
            reward = len(TILES[self.tile]) / 10
        self.tile = int(self.rng.integers(len(TILES)))
        self.t += 1
        return self._observation(), reward, False, self.t >= 24, {}


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
    env = DummyVecEnv([lambda seed=seed: Tiling(seed) for seed in range(4)])
    model = MaskablePPO(
        "MlpPolicy",
        env,
        n_steps=128,
        batch_size=128,
        n_epochs=4,
        gamma=0.97,
        ent_coef=0.01,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
    )
    marks = Marks()
    model.learn(rollouts * 512, callback=marks, log_interval=10_000)
    marks.marks.append(time.perf_counter())
    first = rollouts // 5
    rate = (rollouts - first) / (marks.marks[-1] - marks.marks[first])
    checksum = float(sum(p.detach().abs().sum() for p in model.policy.parameters()))
    result = {
        "env_steps": rollouts * 512,
        "updates": rollouts * 16,
        "units_per_s": rate,
        "checksum": checksum,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=55)
    main(parser.parse_args().rollouts)
