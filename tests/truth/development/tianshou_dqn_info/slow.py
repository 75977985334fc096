"""DQN with tianshou on a small inventory problem."""

import argparse
import json
import time
import warnings

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

warnings.filterwarnings("ignore")


class Inventory(gym.Env):
    """Order 0..4 units of three goods in turn; demand is random, storage costs money."""

    GOODS = 3

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (self.GOODS * 2,), np.float32)
        self.action_space = spaces.Discrete(5)
        self.stock = np.zeros(self.GOODS)
        self.turn = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stock = self.np_random.integers(0, 5, self.GOODS).astype(np.float64)
        self.turn = 0
        return self._obs(), self._info(np.zeros(self.GOODS), np.zeros(self.GOODS), 0.0)

    def _obs(self):
        onehot = np.eye(self.GOODS)[self.turn % self.GOODS]
        return np.concatenate([self.stock / 10, onehot]).astype(np.float32)

    def _info(self, demand, sold, cost):
        info = {"cost": cost, "turn": self.turn}
        for g in range(self.GOODS):
            info[f"good_{g}"] = {
                "stock": float(self.stock[g]),
                "demand": float(demand[g]),
                "sold": float(sold[g]),
                "missed": float(demand[g] - sold[g]),
                "service": float(sold[g] / max(demand[g], 1.0)),
                "history": {"stock": self.stock.copy(), "demand": demand.copy()},
            }
        return info

    def step(self, action):
        self.stock[self.turn % self.GOODS] += int(action)
        demand = self.np_random.poisson(0.6, self.GOODS).astype(np.float64)
        sold = np.minimum(demand, self.stock)
        self.stock = np.minimum(self.stock - sold, 10)
        cost = 0.1 * float(self.stock.sum())
        reward = float(sold.sum()) - cost - 0.3 * int(action)
        self.turn += 1
        return self._obs(), reward, False, self.turn >= 60, self._info(demand, sold, cost)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--step-per-epoch", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    envs = DummyVectorEnv([Inventory for _ in range(8)])
    envs.seed(args.seed)
    probe = Inventory()
    net = Net(state_shape=probe.observation_space.shape, action_shape=5, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=net, action_space=probe.action_space, eps_training=0.1)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.95, target_update_freq=200)
    collector = Collector(algorithm, envs, VectorReplayBuffer(20_000, 8), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=400)

    marks = []

    def on_step(epoch, env_step):
        marks.append((time.perf_counter(), env_step))

    params = OffPolicyTrainerParams(
        training_collector=collector,
        max_epochs=args.epochs,
        epoch_num_steps=args.step_per_epoch,
        collection_step_num_env_steps=16,
        update_step_num_gradient_steps_per_sample=0.125,
        batch_size=64,
        training_fn=on_step,
        verbose=False,
        show_progress=False,
    )
    algorithm.run_training(params)
    end = time.perf_counter()
    total = args.epochs * args.step_per_epoch
    t0, s0 = marks[len(marks) // 5]
    print(
        json.dumps(
            {
                "env_steps": total + 400,
                "updates": int(total * 0.125),
                "units_per_s": (total - s0) / (end - t0),
                "checksum": sum(p.detach().double().sum().item() for p in net.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
