"""DQN (tianshou) that charges and sells a battery against hourly electricity prices."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import pandas as pd
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net


def write_prices(path, days=365, seed=0):
    rng = np.random.default_rng(seed)
    hours = pd.date_range("2023-01-01", periods=24 * days, freq="h")
    base = 60 + 25 * np.sin(2 * np.pi * (hours.hour.to_numpy() - 8) / 24)
    price = base + 10 * rng.standard_normal(len(hours)).cumsum() / np.sqrt(np.arange(1, len(hours) + 1))
    pd.DataFrame({"time": hours, "price": price.round(2), "wind": rng.random(len(hours)).round(3)}).to_csv(
        path, index=False
    )


class BatteryEnv(gym.Env):
    """One episode is two days; actions: sell, wait, buy."""

    def __init__(self, path, n_hours=48, seed=0):
        self.path, self.n_hours = path, n_hours
        self.rng = np.random.default_rng(seed)
        self.observation_space = gym.spaces.Box(-10, 10, (8,), np.float32)
        self.action_space = gym.spaces.Discrete(3, seed=seed)

    def load(self):
        df = pd.read_csv(self.path, parse_dates=["time"])
        price = ((df["price"] - df["price"].mean()) / df["price"].std()).to_numpy()
        return price, df["wind"].to_numpy(), df["time"].dt.hour.to_numpy() / 24

    def reset(self, *, seed=None, options=None):
        self.price, self.wind, self.hour = self.load()
        self.t = int(self.rng.integers(4, len(self.price) - self.n_hours - 1))
        self.end = self.t + self.n_hours
        self.charge = 0.5
        return self.observe(), {}

    def observe(self):
        t = self.t
        obs = np.empty(8, np.float32)
        obs[:5] = self.price[t - 4 : t + 1]
        obs[5], obs[6], obs[7] = self.wind[t], self.hour[t], self.charge
        return obs

    def step(self, action):
        amount = 0.1 * (int(action) - 1)
        amount = min(1 - self.charge, max(-self.charge, amount))
        reward = -amount * float(self.price[self.t])
        self.charge += amount
        self.t += 1
        return self.observe(), reward, False, self.t >= self.end, {}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=16000)
    ap.add_argument("--envs", type=int, default=4)
    args = ap.parse_args()
    np.random.seed(0)
    torch.manual_seed(0)
    write_prices("prices.csv")
    envs = DummyVectorEnv([lambda i=i: BatteryEnv("prices.csv", seed=i) for i in range(args.envs)])
    net = Net(state_shape=(8,), action_shape=3, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=net, action_space=gym.spaces.Discrete(3, seed=0), eps_training=0.1)
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.97,
        n_step_return_horizon=3,
        target_update_freq=200,
    )
    buffer = VectorReplayBuffer(20000, args.envs)
    collector = Collector[CollectStats](algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=400, random=True)
    algorithm.train()
    steps, updates, start = 400, 0, None
    while steps < args.steps:
        if start is None and steps >= args.steps // 5:
            start, before = time.perf_counter(), steps
        with policy_within_training_step(policy):
            collector.collect(n_step=100)
            steps += 100
            for _ in range(10):
                algorithm.update(buffer, sample_size=64)
                updates += 1
    rate = (steps - before) / (time.perf_counter() - start)
    checksum = float(sum(p.double().sum() for p in net.parameters()))
    print(json.dumps({"env_steps": steps, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
