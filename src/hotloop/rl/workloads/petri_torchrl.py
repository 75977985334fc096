"""The cluster tool with TorchRL: an environment on tensordicts, and PPO from TorchRL's own parts."""

# TorchRL and tensordict come without types.
# mypy: disable-error-code="import-untyped,misc"

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

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
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.runs import ProgressLine, StopRequests, torch_threads
from hotloop.rl.workloads.outcome import Outcome

if TYPE_CHECKING:
    from hotloop.rl.workloads.petri import AroundBatch, Petri

ADAM_EPS = 1e-5  # as in our PPO and in Stable-Baselines3
LOSSES = ("loss_objective", "loss_critic", "loss_entropy")

# Only the simulator: the time around it is TorchRL's.
_simulate = profile("env_simulation", "environment")
_simulate_reset = profile("env_simulation_reset", "environment")


class PetriTorchEnv(EnvBase):
    """A `PetriVectorEnv` on tensordicts: batch size [envs], keys observation, action_mask, action."""

    def __init__(self, envs: Any):
        n_envs, space, actions = envs.num_envs, envs.single_observation_space, int(envs.single_action_space.n)
        super().__init__(device=torch.device("cpu"), batch_size=torch.Size([n_envs]))
        self.envs = envs
        self.observation_spec = Composite(
            observation=Bounded(0.0, 1.0, shape=(n_envs, *space.shape), dtype=torch.float32),
            action_mask=Binary(actions, shape=(n_envs, actions), dtype=torch.bool),
            shape=(n_envs,),
        )
        self.action_spec = Categorical(actions, shape=(n_envs,), dtype=torch.int64)
        self.reward_spec = Unbounded(shape=(n_envs, 1), dtype=torch.float32)
        flag = Categorical(2, shape=(n_envs, 1), dtype=torch.bool)
        self.done_spec = Composite(
            done=flag.clone(), terminated=flag.clone(), truncated=flag.clone(), shape=(n_envs,)
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        reset = None if tensordict is None else tensordict.get("_reset", None)
        mask = np.ones(self.envs.num_envs, dtype=np.bool_) if reset is None else reset.reshape(-1).numpy()
        with _simulate_reset:
            observations, infos = self.envs.reset(options={"reset_mask": mask})
        return self._tensordict(observations, infos)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict.get("action").numpy()
        with _simulate:
            observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        after = self._tensordict(observations, infos)
        after.set("reward", torch.from_numpy(rewards.astype(np.float32))[:, None])
        after.set("terminated", torch.from_numpy(terminated)[:, None])
        after.set("truncated", torch.from_numpy(truncated)[:, None])
        after.set("done", torch.from_numpy(terminated | truncated)[:, None])
        return after

    def _tensordict(self, observations: Any, infos: dict[str, Any]) -> TensorDict:
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


def train_torchrl(
    config: Petri, envs: Any, network: ActorCritic, around: AroundBatch, quiet: bool = True
) -> Outcome:
    """PPO with TorchRL's collector, GAE, clipped loss and replay buffer, at our settings."""
    logger = logging.getLogger("torchrl")
    level = logger.level
    logger.setLevel(logging.WARNING)  # it logs every buffer it makes
    try:
        with torch_threads(1), torch.random.fork_rng(devices=[]), StopRequests() as stop:
            line = ProgressLine(config.all_batches * config.samples, quiet=quiet)
            return _train(config, PetriTorchEnv(envs), network, around, stop, line)
    finally:
        logger.setLevel(level)


def _train(
    config: Petri,
    env: PetriTorchEnv,
    network: ActorCritic,
    around: AroundBatch,
    stop: StopRequests,
    line: ProgressLine,
) -> Outcome:
    env.set_seed(config.seed)
    actor, critic = _actor(network, env), ValueOperator(network.critic, in_keys=["observation"])
    advantage = GAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=config.clip_range,
        entropy_coeff=config.ent_coef,
        critic_coeff=config.vf_coef,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    adam = torch.optim.Adam(loss_module.parameters(), lr=config.learning_rate, eps=ADAM_EPS)
    samples = config.samples
    collector = _collector(env, actor, samples, config.all_batches * samples)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(samples), sampler=SamplerWithoutReplacement(), batch_size=config.batch_size
    )
    episodes = _Episodes(config.n_envs)
    torch.manual_seed(config.seed)
    rollouts, batches = iter(collector), 0
    began_s = time.perf_counter()
    try:
        for number in range(config.all_batches):
            if stop.by is not None:
                break
            with around() if number else nullcontext():
                data = next(rollouts)
                with torch.no_grad():
                    advantage(data)
                for _ in range(config.n_epochs):
                    buffer.extend(data.reshape(-1))
                    for _ in range(samples // config.batch_size):
                        losses = loss_module(buffer.sample())
                        adam.zero_grad()
                        sum(losses[name] for name in LOSSES).backward()
                        torch.nn.utils.clip_grad_norm_(loss_module.parameters(), config.max_grad_norm)
                        adam.step()
                episodes.add(data)
            batches += 1
            line.update(batches * samples, episodes.mean_return)
        seconds = time.perf_counter() - began_s
    finally:
        collector.shutdown()
        line.close()
    return Outcome(
        env_steps=batches * samples,
        updates=batches * config.updates_per_batch,
        episodes=episodes.finished,
        mean_return=episodes.mean_return,
        seconds=seconds,
        stopped_by=stop.by,
    )


def _actor(network: ActorCritic, env: PetriTorchEnv) -> ProbabilisticActor:
    return ProbabilisticActor(
        TensorDictModule(network.actor, in_keys=["observation"], out_keys=["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        spec=env.action_spec,
    )


def _collector(env: EnvBase, actor: ProbabilisticActor, frames: int, total: int) -> Any:
    """The single-process collector, whatever this version of TorchRL calls it."""
    kind = getattr(torchrl.collectors, "SyncDataCollector", None) or torchrl.collectors.Collector
    settings: dict[str, Any] = {"frames_per_batch": frames, "total_frames": total, "device": "cpu"}
    if "auto_register_policy_transforms" in inspect.signature(kind.__init__).parameters:
        settings["auto_register_policy_transforms"] = False  # the policy is not recurrent
    return kind(env, actor, **settings)


class _Episodes:
    """Episode returns across training batches, from the collector's data."""

    def __init__(self, rows: int):
        self._running = np.zeros(rows)
        self._recent: deque[float] = deque(maxlen=100)
        self.finished = 0

    def add(self, data: TensorDictBase) -> None:
        """Add a training batch [envs, steps]."""
        rewards = data["next", "reward"].squeeze(-1).numpy()
        ends = data["next", "done"].squeeze(-1).numpy()
        for step in range(rewards.shape[1]):
            self._running += rewards[:, step]
            ended = ends[:, step]
            if ended.any():
                self._recent.extend(self._running[ended].tolist())
                self.finished += int(ended.sum())
                self._running[ended] = 0.0

    @property
    def mean_return(self) -> float | None:
        """Of the last 100 episodes; None before the first has finished."""
        return sum(self._recent) / len(self._recent) if self._recent else None
