"""QR-DQN trades one instrument on synthetic five-minute candles with a handful of technical indicators."""
import dataclasses
import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN
from scipy.signal import lfilter
from stable_baselines3.common.callbacks import EveryNTimesteps, BaseCallback


@dataclasses.dataclass
class Config:
    timesteps: int = 12000
    candles: int = 4000
    fee: float = 2e-4
    seed: int = 21


def moving_average(series, window):
    total = np.cumsum(series)
    out = total.copy()
    out[window:] -= total[:-window]
    return out / np.minimum(np.arange(1, len(series) + 1), window)


def exponential_average(series, span):
    alpha = 2.0 / (span + 1.0)
    out, _ = lfilter([alpha], [1.0, alpha - 1.0], series, zi=[(1.0 - alpha) * series[0]])
    return out


def relative_strength(series, window):
    change = np.diff(series, prepend=series[0])
    up = moving_average(np.maximum(change, 0.0), window)
    down = moving_average(np.maximum(-change, 0.0), window)
    return up / (up + down + 1e-9)


def deviation(series, window):
    mean = moving_average(series, window)
    return np.sqrt(np.maximum(moving_average(series * series, window) - mean * mean, 1e-12))


class Market(gym.Env):
    def __init__(self, cfg):
        self.cfg = cfg
        self.action_space = spaces.Discrete(3)  # short, flat, long
        self.observation_space = spaces.Box(-20.0, 20.0, (9,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        n = self.cfg.candles
        trend = np.repeat(self.np_random.normal(0.0, 2e-4, n // 100 + 1), 100)[:n]
        self.close = 100.0 * np.exp(np.cumsum(trend + self.np_random.normal(0.0, 1e-3, n)))
        self.t, self.position, self.worth = 50, 0, 1.0
        self.table = self.indicators()
        return self._state(), {}

    def indicators(self):
        close = self.close
        macd = exponential_average(close, 12) - exponential_average(close, 26)
        signal = exponential_average(macd, 9)
        return np.stack([
            100 * (close / moving_average(close, 10) - 1), 100 * (close / moving_average(close, 50) - 1),
            macd, macd - signal, 2 * relative_strength(close, 14) - 1,
            (close - moving_average(close, 20)) / deviation(close, 20), 100 * deviation(close, 20) / close,
        ], axis=1).astype(np.float32)

    def _state(self):
        own = np.array([self.position, self.worth - 1.0], dtype=np.float32)
        return np.clip(np.concatenate([self.table[self.t], own]), -20.0, 20.0)

    def step(self, action):
        wanted = int(action) - 1
        cost = self.cfg.fee * abs(wanted - self.position)
        self.position = wanted
        self.t += 1
        gain = self.position * (self.close[self.t] / self.close[self.t - 1] - 1.0) - cost
        self.worth *= 1.0 + gain
        return self._state(), 100.0 * gain, False, self.t >= self.cfg.candles - 1, {}


class Ticker(BaseCallback):
    def __init__(self):
        super().__init__()
        self.marks = []

    def _on_step(self):
        self.marks.append((self.num_timesteps, time.perf_counter()))
        return True


def main():
    cfg = Config(timesteps=int(sys.argv[1])) if len(sys.argv) > 1 else Config()
    torch.set_num_threads(1)
    env = Market(cfg)
    model = QRDQN("MlpPolicy", env, learning_rate=3e-4, buffer_size=20000, learning_starts=200, batch_size=64, train_freq=8,
                  target_update_interval=400, exploration_fraction=0.3, seed=cfg.seed, device="cpu",
                  policy_kwargs=dict(n_quantiles=25, net_arch=[64, 64]))
    ticker = Ticker()
    model.learn(cfg.timesteps, callback=EveryNTimesteps(cfg.timesteps // 10, ticker), log_interval=None)
    (n0, t0), (n1, t1) = ticker.marks[1], ticker.marks[-1]
    print(f"worth at the end: {env.worth:.4f}")
    checksum = float(sum(p.detach().double().sum() for p in model.policy.parameters()))
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates, "units_per_s": (n1 - n0) / (t1 - t0),
                      "checksum": checksum}))


if __name__ == "__main__":
    main()
