"""Double DQN for a warehouse with tianshou.

Training can be resumed: policy and replay buffer are written to the log directory.
"""

import argparse
import json
import logging
import os
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils import TensorboardLogger
from tianshou.utils.net.common import Net
from torch.utils.tensorboard import SummaryWriter

logging.getLogger("tianshou").setLevel(logging.WARNING)


class Warehouse(gym.Env):
    """Choose which product to reorder each day. Stock that runs out loses sales, stock that lies costs money."""

    def __init__(self, products: int = 12, horizon: int = 100):
        self.products, self.horizon = products, horizon
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (2 * products,), np.float32)
        self.action_space = gym.spaces.Discrete(products)

    def _observe(self) -> np.ndarray:
        return np.concatenate([self.stock, self.rate], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.stock = self.np_random.uniform(0.5, 2.0, self.products)
        self.rate = self.np_random.uniform(0.02, 0.15, self.products)
        self.day = 0
        return self._observe(), {}

    def step(self, action):
        demand = self.rate * self.np_random.uniform(0.5, 1.5, self.products)
        sold = np.minimum(self.stock, demand)
        self.stock -= sold
        self.stock[action] = min(self.stock[action] + 1.0, 4.0)
        self.day += 1
        reward = float(sold.sum() - 2.0 * (demand - sold).sum() - 0.01 * self.stock.sum())
        return self._observe(), reward, False, self.day >= self.horizon, {}


def get_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--epoch-steps", type=int, default=320)
    parser.add_argument("--collect-steps", type=int, default=320)
    parser.add_argument("--training-envs", type=int, default=40)
    parser.add_argument("--buffer-size", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--updates-per-step", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logdir", default=None)
    return parser.parse_args()


def main() -> None:
    args = get_args()
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    logdir = args.logdir or tempfile.mkdtemp(prefix="warehouse-")

    envs = DummyVectorEnv([Warehouse for _ in range(args.training_envs)])
    envs.seed(args.seed)
    env = Warehouse()
    net = Net(
        state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=[128, 128]
    )
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.2)
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=args.lr),
        gamma=0.97,
        n_step_return_horizon=3,
        target_update_freq=100,
    )
    buffer = VectorReplayBuffer(args.buffer_size, args.training_envs)
    collector = Collector[CollectStats](algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=args.buffer_size, random=True)

    first = args.epochs // 5 + 1
    marks: dict[int, float] = {}

    def training_fn(epoch: int, env_step: int) -> None:
        marks.setdefault(epoch, time.perf_counter())

    def save_checkpoint_fn(epoch: int, env_step: int, gradient_step: int) -> str:
        path = os.path.join(logdir, "checkpoint.pth")
        torch.save({"algorithm": algorithm.state_dict(), "epoch": epoch}, path)
        buffer.save_hdf5(os.path.join(logdir, "buffer.h5"), compression="gzip")
        return path

    writer = SummaryWriter(logdir)
    logger = TensorboardLogger(writer, save_interval=1)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=args.epochs,
            epoch_num_steps=args.epoch_steps,
            collection_step_num_env_steps=args.collect_steps,
            batch_size=args.batch_size,
            update_step_num_gradient_steps_per_sample=args.updates_per_step,
            training_fn=training_fn,
            save_checkpoint_fn=save_checkpoint_fn,
            logger=logger,
            verbose=False,
            show_progress=False,
        )
    )
    elapsed = time.perf_counter() - marks[first]
    writer.close()
    print(
        json.dumps(
            {
                "env_steps": args.buffer_size + collector.collect_step,
                "updates": int(args.epochs * args.epoch_steps * args.updates_per_step),
                "units_per_s": (args.epochs - first + 1) / elapsed,
                "checksum": sum(p.detach().abs().sum().item() for p in net.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
