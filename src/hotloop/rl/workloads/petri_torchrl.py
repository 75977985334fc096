"""The cluster tool in TorchRL: an environment on tensordicts, and PPO from TorchRL's own parts."""

# TorchRL and tensordict come without types.
# mypy: disable-error-code="import-untyped,misc"

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torchrl.collectors
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    LazyTensorStorage,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from hotloop import profile
from hotloop.rl.workloads import petri
from hotloop.rl.workloads.outcome import Outcome
from hotloop.rl.workloads.petri import Measured, Petri

# The simulator itself: what TorchRL does around it is TorchRL's.
_simulate = profile("env_simulation", "environment")
_renew = profile("env_simulation_reset", "environment")


class PetriTorchEnv(EnvBase):
    """`PetriVectorEnv` on tensordicts: batch size [envs], keys observation, action_mask, action."""

    def __init__(self, config: Petri):
        super().__init__(device=torch.device("cpu"), batch_size=torch.Size([config.envs]))
        self.envs = petri.make_envs(config, autoreset_mode="Disabled", copy=True)
        rows, space = config.envs, self.envs.single_observation_space
        actions = int(self.envs.single_action_space.n)
        self.observation_spec = Composite(
            observation=Bounded(0.0, 1.0, shape=(rows, *space.shape), dtype=torch.float32),
            action_mask=Binary(actions, shape=(rows, actions), dtype=torch.bool),
            shape=(rows,),
        )
        self.action_spec = Categorical(actions, shape=(rows,), dtype=torch.int64)
        self.reward_spec = Unbounded(shape=(rows, 1), dtype=torch.float32)
        one = Categorical(2, shape=(rows, 1), dtype=torch.bool)
        self.done_spec = Composite(
            done=one.clone(), terminated=one.clone(), truncated=one.clone(), shape=(rows,)
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows = None if tensordict is None else tensordict.get("_reset", None)
        marked = np.ones(self.envs.num_envs, dtype=np.bool_) if rows is None else rows.reshape(-1).numpy()
        with _renew:
            observations, infos = self.envs.reset(options={"reset_mask": marked})
        return self._seen(observations, infos)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict.get("action").numpy()
        with _simulate:
            observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        after = self._seen(observations, infos)
        after.set("reward", torch.from_numpy(rewards.astype(np.float32))[:, None])
        after.set("terminated", torch.from_numpy(terminated)[:, None])
        after.set("truncated", torch.from_numpy(truncated)[:, None])
        after.set("done", torch.from_numpy(terminated | truncated)[:, None])
        return after

    def _seen(self, observations: Any, infos: dict[str, Any]) -> TensorDict:
        return TensorDict(
            {
                "observation": torch.from_numpy(observations),
                "action_mask": torch.from_numpy(infos["action_mask"]),
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def _set_seed(self, seed: int | None) -> None:
        self.envs.reset(seed=seed)


def train(config: Petri, around: Measured) -> Outcome:
    """PPO by TorchRL's collector, GAE, clipped loss and replay buffer."""
    threads, talk = torch.get_num_threads(), logging.getLogger("torchrl")
    level = talk.level
    torch.set_num_threads(1)
    talk.setLevel(logging.WARNING)  # it tells of every buffer it makes
    try:
        with torch.random.fork_rng(devices=[]):
            return _train(config, around)
    finally:
        torch.set_num_threads(threads)
        talk.setLevel(level)


def _train(config: Petri, around: Measured) -> Outcome:
    env = PetriTorchEnv(config)
    env.set_seed(config.seed)
    size = env.observation_spec["observation"].shape[-1]
    network = petri.make_network(config, size, int(env.envs.single_action_space.n))
    actor, critic = _actor(network, env), ValueOperator(network.critic, in_keys=["observation"])
    advantage = GAE(gamma=petri.DISCOUNT, lmbda=petri.TRACE, value_network=critic, average_gae=False)
    loss_of = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=petri.CLIP,
        entropy_coeff=config.entropy_weight,
        critic_coeff=petri.VALUE_WEIGHT,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    adam = torch.optim.Adam(loss_of.parameters(), lr=config.learning_rate, eps=petri.ADAM_EPSILON)
    batches, frames = petri.batches_of(config), config.frames_per_batch
    collector = _collector(env, actor, frames, batches * frames)
    memory = TensorDictReplayBuffer(
        storage=LazyTensorStorage(frames), sampler=SamplerWithoutReplacement(), batch_size=config.minibatch
    )
    episodes = _Episodes(config.envs)
    torch.manual_seed(config.seed)
    rollouts = iter(collector)
    began_s = time.perf_counter()
    try:
        for number in range(batches):
            with around() if number else nullcontext():
                data = next(rollouts)
                with torch.no_grad():
                    advantage(data)
                for _ in range(config.epochs):
                    memory.extend(data.reshape(-1))
                    for _ in range(frames // config.minibatch):
                        _learn(loss_of, adam, memory.sample())
                episodes.add(data)
        seconds = time.perf_counter() - began_s
    finally:
        collector.shutdown()
    return Outcome(
        env_steps=batches * frames,
        updates=batches * config.epochs * (frames // config.minibatch),
        episodes=episodes.ended,
        mean_return=episodes.mean_return,
        seconds=seconds,
        remarks=petri.played_words(config, petri.best_of(network)),
    )


def _learn(loss_of: ClipPPOLoss, adam: torch.optim.Optimizer, samples: TensorDictBase) -> None:
    losses = loss_of(samples)
    adam.zero_grad()
    (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
    torch.nn.utils.clip_grad_norm_(loss_of.parameters(), petri.LARGEST_NORM)
    adam.step()


def _actor(network: Any, env: PetriTorchEnv) -> ProbabilisticActor:
    return ProbabilisticActor(
        TensorDictModule(network.actor, in_keys=["observation"], out_keys=["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        spec=env.action_spec,
    )


def _collector(env: EnvBase, actor: ProbabilisticActor, frames: int, total: int) -> Any:
    """The collector of one process, under the name this TorchRL has for it."""
    kind = getattr(torchrl.collectors, "SyncDataCollector", None) or torchrl.collectors.Collector
    settings: dict[str, Any] = {"frames_per_batch": frames, "total_frames": total, "device": "cpu"}
    if "auto_register_policy_transforms" in inspect.signature(kind.__init__).parameters:
        settings["auto_register_policy_transforms"] = False  # the policy has no memory to keep track of
    return kind(env, actor, **settings)


class _Episodes:
    """Returns of episodes across batches, counted from what the collector hands out."""

    def __init__(self, rows: int):
        self._running = np.zeros(rows)
        self._recent: deque[float] = deque(maxlen=100)
        self.ended = 0

    def add(self, data: TensorDictBase) -> None:
        """A batch [envs, steps]."""
        rewards = data["next", "reward"].squeeze(-1).numpy()
        ends = data["next", "done"].squeeze(-1).numpy()
        for step in range(rewards.shape[1]):
            self._running += rewards[:, step]
            over = ends[:, step]
            if over.any():
                self._recent.extend(self._running[over].tolist())
                self.ended += int(over.sum())
                self._running[over] = 0.0

    @property
    def mean_return(self) -> float | None:
        """Of the last 100 episodes; None before the first ended."""
        return sum(self._recent) / len(self._recent) if self._recent else None
