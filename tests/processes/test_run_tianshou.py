"""tianshou scripts, unmodified: counts that equal tianshou's own, unchanged weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes.library_runs import Run, needs, plain, record

pytestmark = [needs("tianshou"), pytest.mark.long]

COMMON = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import DQN, PPO
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, SubprocVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

def make_envs(n, kind=DummyVectorEnv):
    envs = kind([lambda: gym.make("CartPole-v1") for _ in range(n)])
    envs.seed(0)
    return envs

def show(algorithm, collected, info, updates):
    print(json.dumps({
        "weights": digest(algorithm.policy.parameters()),
        "env_steps": sum(one.n_collected_steps for one in collected),
        "episodes": sum(one.n_collected_episodes for one in collected),
        "train_step": info.train_step, "train_episode": info.train_episode, "test_step": info.test_step,
        "updates": updates,
    }, default=int))

class Noted(Collector):
    # Keeps what every call has collected, as tianshou says it.
    def collect(self, *args, **kwargs):
        stats = super().collect(*args, **kwargs)
        self.__dict__.setdefault("noted", []).append(stats)
        return stats
"""
DQN = (
    COMMON
    + """
if __name__ == "__main__":
    np.random.seed(0)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[16])
    space = gym.spaces.Discrete(2, seed=0)
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=50)
    kind = {"dummy": DummyVectorEnv, "processes": SubprocVectorEnv}[sys.argv[1]]
    training = Noted(algorithm, make_envs(3, kind), VectorReplayBuffer(2000, 3), exploration_noise=True)
    test = Collector[CollectStats](algorithm, make_envs(2, kind))
    training.reset()
    training.collect(n_step=60, random=True)
    info = algorithm.run_training(OffPolicyTrainerParams(
        training_collector=training, test_collector=test, max_epochs=2, epoch_num_steps=120, batch_size=16,
        collection_step_num_env_steps=30, update_step_num_gradient_steps_per_sample=0.5,
        test_step_num_episodes=3, test_in_training=False, verbose=False, show_progress=False))
    show(algorithm, training.noted, info, algorithm._iter)
    training.env.close(), test.env.close()
"""
)
PPO = (
    COMMON
    + """
if __name__ == "__main__":
    np.random.seed(0)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    space = gym.spaces.Discrete(2, seed=0)
    nets = [Net(state_shape=(4,), hidden_sizes=[16]) for _ in range(2)]
    actor = DiscreteActor(preprocess_net=nets[0], action_shape=2)
    critic = DiscreteCritic(preprocess_net=nets[1])
    chance = lambda logits: torch.distributions.Categorical(logits=logits)
    policy = ProbabilisticActorPolicy(actor=actor, dist_fn=chance, action_space=space, action_scaling=False)
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-3))
    training = Noted(algorithm, make_envs(4), VectorReplayBuffer(512, 4))
    gradient_steps = []
    update = algorithm.update
    def noted(*args, **kwargs):
        stats = update(*args, **kwargs)
        gradient_steps.append(stats.gradient_steps)
        return stats
    algorithm.update = noted
    test = Collector[CollectStats](algorithm, make_envs(2))
    info = algorithm.run_training(OnPolicyTrainerParams(
        training_collector=training, test_collector=test, max_epochs=2, epoch_num_steps=256, batch_size=32,
        collection_step_num_env_steps=128, update_step_num_repetitions=2,
        test_step_num_episodes=2, test_in_training=False, verbose=False, show_progress=False))
    show(algorithm, training.noted, info, sum(gradient_steps))
"""
)


def check(run: Run) -> dict[str, Any]:
    """What tianshou counted is what was recorded; returns tianshou's figures."""
    said: dict[str, Any] = json.loads(run.out.splitlines()[-1])
    progress = run.capture.progress
    assert (progress.env_steps, progress.updates) == (said["env_steps"], said["updates"])
    assert progress.episodes == said["episodes"] and said["test_step"] > 0
    assert progress.mean_return == progress.mean_length  # CartPole pays 1 a step
    assert run.attributed() >= 0.95
    return said


@pytest.mark.parametrize("kind", ["dummy", "processes"])
def test_dqn_and_its_test_episodes(tmp_path: Path, kind: str) -> None:
    run = record(tmp_path, DQN, kind)
    said = check(run)
    assert run.out == plain(tmp_path, DQN, kind)  # weights included
    assert said["env_steps"] == 60 + said["train_step"] and said["train_step"] == 240
    assert run.calls("learn", "train") == {"learn": 1, "train": said["updates"]}
    collected, evaluated = run.under("collect_rollouts"), run.under("evaluate")
    assert collected["env_step"] == said["env_steps"] // 3  # three envs at a time
    assert collected["policy_forward"] == said["train_step"] // 3  # random actions at first
    assert collected["replay_push"] == collected["env_step"]
    assert evaluated["policy_forward"] == evaluated["env_step"] > 0
    below = run.under("train")
    for name in ("replay_sample", "backward", "optimizer_step", "advantage"):
        assert below[name] == said["updates"], name
    workers = [p for p in run.capture.processes if p is not run.main]
    assert len(workers) == (5 if kind == "processes" else 0)
    assert not any(worker.threads[0].progress.env_steps for worker in workers)


def test_ppo(tmp_path: Path) -> None:
    run = record(tmp_path, PPO)
    said = check(run)
    assert run.out == plain(tmp_path, PPO)
    assert said["env_steps"] == said["train_step"] == 512 and said["episodes"] == said["train_episode"]
    assert said["updates"] == 4 * 2 * 4  # collections, repetitions, batches
    collected = run.under("collect_rollouts")
    assert collected["env_step"] == collected["policy_forward"] == collected["replay_push"] == 512 // 4
    below = run.under("train")
    assert (below["replay_sample"], below["advantage"]) == (4, 4)
    assert below["backward"] == below["optimizer_step"] == said["updates"]
    assert "policy_forward" not in below
