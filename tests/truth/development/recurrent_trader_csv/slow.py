"""Recurrent PPO agent for intraday trading on minute bars."""

from __future__ import annotations

import csv
import json
import math
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

torch.set_num_threads(1)
COLUMNS = ("open", "high", "low", "close", "volume")


def write_bars(path: Path, rows: int, seed: int) -> None:
    """Synthetic minute bars: a mean-reverting walk."""
    rng = np.random.default_rng(seed)
    price = 100.0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("minute", *COLUMNS))
        for minute in range(rows):
            opening = price
            price += 0.02 * (100.0 - price) + 0.15 * rng.standard_normal() + 0.1 * math.sin(minute / 40)
            high, low = max(opening, price) + 0.05, min(opening, price) - 0.05
            bar = (opening, high, low, price, 1000 + 200 * rng.random())
            writer.writerow((minute, *(f"{value:.4f}" for value in bar)))


def read_bars(path: Path) -> np.ndarray:
    with path.open(newline="") as file:
        return np.array([[float(row[name]) for name in COLUMNS] for row in csv.DictReader(file)])


class TradingEnv(gym.Env):
    """Hold -1, 0 or +1 units through an episode of `length` bars that begins at a random minute."""

    def __init__(self, bars_file: Path, length: int = 60, cost: float = 0.02) -> None:
        self.bars_file = bars_file
        self.length = length
        self.cost = cost
        self.observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        bars = read_bars(self.bars_file)
        start = int(self.np_random.integers(0, len(bars) - self.length - 1))
        self.window = bars[start : start + self.length + 1]
        scale = np.array([1.0, 1.0, 1.0, 1.0, 200.0])
        offset = np.append(np.full(4, self.window[0, 3]), 1100.0)
        self.features = ((self.window - offset) / scale).astype(np.float32)
        self.closes = self.window[:, 3].tolist()
        self.t = 0
        self.position = 0
        return self._observation(), {}

    def _observation(self) -> np.ndarray:
        return np.append(self.features[self.t], np.float32(self.position))

    def step(self, action):
        target = int(action) - 1
        reward = -self.cost * abs(target - self.position)
        self.position = target
        reward += target * (self.closes[self.t + 1] - self.closes[self.t])
        self.t += 1
        return self._observation(), reward, False, self.t == self.length, {}


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=40)
    parser.add_argument("--bars", type=int, default=5000)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        bars_file = Path(folder) / "bars.csv"
        write_bars(bars_file, args.bars, args.seed)
        env = make_vec_env(TradingEnv, args.envs, seed=args.seed, env_kwargs={"bars_file": bars_file})
        model = RecurrentPPO(
            "MlpLstmPolicy",
            env,
            n_steps=60,
            batch_size=240,
            n_epochs=3,
            gamma=0.98,
            learning_rate=3e-4,
            policy_kwargs={
                "lstm_hidden_size": 32,
                "net_arch": [32],
                "shared_lstm": True,
                "enable_critic_lstm": False,
                "optimizer_kwargs": {"eps": 1e-5, "fused": True},
            },
            seed=args.seed,
            device="cpu",
        )
        steps = model.n_steps * args.envs
        first = args.rollouts // 5
        model.learn(first * steps, log_interval=None)
        start = time.perf_counter()
        model.learn((args.rollouts - first) * steps, log_interval=None, reset_num_timesteps=False)
        seconds = time.perf_counter() - start
        env.close()

    result = {
        "env_steps": args.rollouts * steps,
        "updates": args.rollouts * model.n_epochs * steps // model.batch_size,
        "units_per_s": (args.rollouts - first) / seconds,
        "checksum": sum(p.double().abs().sum().item() for p in model.policy.parameters()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
