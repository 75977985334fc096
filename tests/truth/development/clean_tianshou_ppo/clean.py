# PPO (tianshou) swings up a pendulum
import argparse
import json
import logging
import time

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import TorchOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from torch import nn
from torch.distributions import Independent, Normal

logging.getLogger("tianshou").setLevel(logging.WARNING)
torch.set_num_threads(1)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=18, help="one collection and its updates each")
parser.add_argument("--envs", type=int, default=64)
parser.add_argument("--collect", type=int, default=2048)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--repeats", type=int, default=10)
parser.add_argument("--seed", type=int, default=2)
args = parser.parse_args()

np.random.seed(args.seed)
torch.manual_seed(args.seed)


def dist_fn(loc_scale):
    loc, scale = loc_scale
    return Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)


envs = DummyVectorEnv([lambda: gym.make("Pendulum-v1") for _ in range(args.envs)])
envs.seed(args.seed)
env = gym.make("Pendulum-v1")
shape = env.observation_space.shape
hidden = {"hidden_sizes": [64, 64], "activation": nn.Tanh}

actor = ContinuousActorProbabilistic(
    preprocess_net=Net(state_shape=shape, **hidden), action_shape=env.action_space.shape, unbounded=True
)
critic = ContinuousCritic(preprocess_net=Net(state_shape=shape, **hidden))
algorithm = PPO(
    policy=ProbabilisticActorPolicy(
        actor=actor, dist_fn=dist_fn, action_space=env.action_space, action_scaling=False
    ),
    critic=critic,
    optim=TorchOptimizerFactory(torch.optim.Adam, lr=1e-3, fused=True),
    gamma=0.95,
    gae_lambda=0.95,
    max_grad_norm=0.5,
    ent_coef=0.0,
    max_batchsize=args.collect,
)
collector = Collector[CollectStats](algorithm, envs, VectorReplayBuffer(args.collect, args.envs))
collector.reset()

first = args.epochs // 5 + 1
marks = {}


def training_fn(epoch, env_step):
    marks.setdefault(epoch, time.perf_counter())


algorithm.run_training(
    OnPolicyTrainerParams(
        training_collector=collector,
        max_epochs=args.epochs,
        epoch_num_steps=args.collect,
        collection_step_num_env_steps=args.collect,
        batch_size=args.batch_size,
        update_step_num_repetitions=args.repeats,
        training_fn=training_fn,
        verbose=False,
        show_progress=False,
    )
)
elapsed = time.perf_counter() - marks[first]
params = [*actor.parameters(), *critic.parameters()]
print(
    json.dumps(
        {
            "env_steps": collector.collect_step,
            "updates": args.epochs * args.repeats * (args.collect // args.batch_size),
            "units_per_s": (args.epochs - first + 1) / elapsed,
            "checksum": sum(p.detach().abs().sum().item() for p in params),
        }
    )
)
