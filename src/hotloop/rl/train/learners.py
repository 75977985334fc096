"""Which learner a run takes: the one asked for, or the fastest of those that can, measured and said."""

from __future__ import annotations

import copy
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotloop._util.errors import HotloopError
from hotloop.machine.facts import cores_granted
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.train.fused.ppo import FusedPPO
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.torch_learner import TorchLearner

if TYPE_CHECKING:
    from hotloop.rl.train.ppo import PPOConfig


class Learner(Protocol):
    """What the loop needs of a learner; see `TorchLearner` for the meaning of each."""

    name: str
    network: nn.Module

    def act(self, observations: Any, masks: Any, uniforms: Any, actions: Any, log_probabilities: Any) -> None:
        """Draw actions."""

    def best(self, observations: Any, masks: Any) -> NDArray[np.int64]:
        """The likeliest actions."""

    def values(self, observations: Any) -> NDArray[np.float32]:
        """Values of observations."""

    def update(self, buffer: RolloutBuffer, order: Any, edges: Any, learning_rate: float) -> dict[str, float]:
        """Learn from a rollout."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and moments."""

    def load(self, state: Any) -> None:
        """Take up weights and moments."""


THREADS_MAY_PAY_MS = 5.0  # a minibatch faster than this is not tried with more threads
COMPILE_PAYS_S = 120.0  # torch.compile takes up to a minute here: not tried for less learning than this


def make_learner(name: str, network: nn.Module, config: PPOConfig) -> Any:
    """The learner of this name."""
    if name == "fused":
        if not isinstance(network, ActorCritic):
            raise HotloopError(
                f"learner='fused' needs the dense network {ActorCritic.__name__}, not a "
                f"{type(network).__name__}; use learner='torch' or 'compiled'."
            )
        return FusedPPO(network, config)
    if name in ("torch", "compiled"):
        return TorchLearner(network, config, compiled=name == "compiled")
    raise HotloopError(f"learner={name!r} is not known; use auto, fused, torch or compiled.")


def choose_learner(config: PPOConfig, network: nn.Module, buffer: RolloutBuffer, known: str | None) -> Any:
    """The learner for a run; with `auto` the fastest on a made-up rollout, unless `known` says who it was."""
    if known is not None:
        return make_learner(known if config.learner == "auto" else config.learner, network, config)
    if config.learner != "auto":
        if config.learner != "fused" and config.threads == 0:
            torch_ms(config, network, buffer)
        return make_learner(config.learner, network, config)
    times_ms = {"torch": torch_ms(config, network, buffer)}
    if isinstance(network, ActorCritic):
        times_ms["fused"] = minibatch_ms("fused", config, network, buffer)
    minibatches = config.total_steps * config.epochs / config.minibatch
    if min(times_ms.values()) * minibatches / 1000 > COMPILE_PAYS_S:
        times_ms["compiled"] = minibatch_ms("compiled", config, network, buffer)
    best = min(times_ms, key=lambda name: times_ms[name])
    if not config.quiet:
        shown = ", ".join(f"{name} {ms:.3g} ms" for name, ms in sorted(times_ms.items(), key=lambda x: x[1]))
        print(f"hotloop: learner {best} (a minibatch takes: {shown})", file=sys.stderr)
    return make_learner(best, network, config)


def torch_ms(config: PPOConfig, network: nn.Module, buffer: RolloutBuffer) -> float:
    """What a minibatch takes with torch, whose number of threads is left at the faster of one and all.

    More threads are tried only where one takes long: small products never gain.
    """
    one = minibatch_ms("torch", config, network, buffer)
    cores = int(cores_granted())
    if config.threads > 0 or one < THREADS_MAY_PAY_MS or cores < 2:
        return one
    torch.set_num_threads(cores)
    more = minibatch_ms("torch", config, network, buffer)
    if more > 0.9 * one:
        torch.set_num_threads(1)
    if not config.quiet:
        print(
            f"hotloop: torch runs with {torch.get_num_threads()} thread(s) (a minibatch takes {one:.3g} ms "
            f"with 1, {more:.3g} ms with {cores})",
            file=sys.stderr,
        )
    return min(one, more)


def minibatch_ms(name: str, config: PPOConfig, network: nn.Module, buffer: RolloutBuffer) -> float:
    """The least time of a minibatch in three epochs of a made-up rollout, on a copy of the network."""
    rng = np.random.default_rng(0)
    like = RolloutBuffer(
        buffer.steps,
        buffer.envs,
        buffer.observations.shape[2:],
        buffer.actions_allowed,
        observation_dtype=buffer.observations.dtype,
        masked=buffer.masked,
    )
    shape = (like.steps, like.envs)
    like.actions[:] = rng.integers(0, like.actions_allowed, shape)
    like.log_probabilities[:] = -np.log(like.actions_allowed)
    like.advantages[:] = rng.standard_normal(shape)
    like.returns[:] = rng.standard_normal(shape)
    learner = make_learner(name, copy.deepcopy(network), config)
    count = like.steps * like.envs
    order = rng.permutation(count)[None]
    edges = np.arange(0, count + 1, config.minibatch)
    best = float("inf")
    for _ in range(4):  # the first one compiles
        began = time.perf_counter()
        learner.update(like, order, edges, config.learning_rate)
        best = min(best, time.perf_counter() - began)
    return 1000 * best / (edges.size - 1)
