"""TRPO (sb3-contrib) learns to hold or sell a synthetic stock from technical indicators."""
import json
import sys
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import TRPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

cfg = SimpleNamespace(
    steps=int(sys.argv[1]) if len(sys.argv) > 1 else 10240,
    days=1500, window=24, fee=0.001, seed=21,
)
torch.set_num_threads(1)


def synthetic_prices(n, rng):
    trend = np.repeat(rng.normal(0, 0.0015, n // 50 + 1), 50)[:n]
    return 100.0 * np.exp(np.cumsum(trend + rng.normal(0, 0.01, n)))


def ema(series, span):
    k, out = 2.0 / (span + 1.0), np.empty_like(series)
    acc = series[0]
    for i, v in enumerate(series):
        acc += k * (v - acc)
        out[i] = acc
    return out


def indicators(close):
    """MACD, its signal line, RSI and the relative distance to two averages, a row per day."""
    fast, slow = ema(close, 12), ema(close, 26)
    macd = (fast - slow) / close
    signal = ema(macd, 9)
    change = np.diff(close, prepend=close[0])
    up, down = ema(np.maximum(change, 0.0), 14), ema(np.maximum(-change, 0.0), 14)
    rsi = up / (up + down + 1e-9) - 0.5
    return np.stack([50 * macd, 50 * signal, 2 * rsi, 20 * (close / fast - 1), 20 * (close / slow - 1)], axis=1)


class StockEnv(gym.Env):
    def __init__(self, prices, window, fee):
        self.prices, self.window, self.fee = prices, window, fee
        self.length = 128
        self.action_space = gym.spaces.Discrete(3)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (window * 5 + 1,), np.float32)

    def _observe(self):
        table = indicators(self.prices[: self.day + 1])
        recent = table[-self.window:]
        return np.append(recent.ravel(), self.position).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.day = int(self.np_random.integers(self.window, self.start_limit()))
        self.end = self.day + self.length
        self.position = 0.0
        return self._observe(), {}

    def start_limit(self):
        return min(len(self.prices) - self.length - 1, 120)

    def step(self, action):
        wanted = float(action) - 1.0
        cost = self.fee * abs(wanted - self.position)
        self.position = wanted
        self.day += 1
        gain = self.position * (self.prices[self.day] / self.prices[self.day - 1] - 1.0)
        return self._observe(), 100.0 * (gain - cost), False, self.day >= self.end, {}


class Stopwatch(BaseCallback):
    t0 = None

    def _on_step(self):
        if self.t0 is None and self.num_timesteps >= cfg.steps // 5:
            self.t0, self.n0 = time.perf_counter(), self.num_timesteps
        return True

    def _on_training_end(self):
        self.rate = (self.num_timesteps - self.n0) / (time.perf_counter() - self.t0)


env = Monitor(StockEnv(synthetic_prices(cfg.days, np.random.default_rng(cfg.seed)), cfg.window, cfg.fee))
model = TRPO("MlpPolicy", env, n_steps=1024, batch_size=128, seed=cfg.seed, device="cpu", verbose=0)
watch = Stopwatch()
model.learn(cfg.steps, callback=watch)
print("last returns", [round(r, 2) for r in env.get_episode_rewards()[-5:]])
print(json.dumps({
    "env_steps": model.num_timesteps, "updates": None, "units_per_s": watch.rate,
    "checksum": sum(p.detach().double().abs().sum().item() for p in model.policy.parameters()),
}))
