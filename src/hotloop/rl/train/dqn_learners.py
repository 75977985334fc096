"""Which DQN learner a run takes: the one asked for, or the fastest of those that can, measured and said."""

from __future__ import annotations

import copy
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete
from torch import nn

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.train.dqn_torch import TorchLearner
from hotloop.rl.train.fused.dqn_learner import FusedLearner
from hotloop.rl.train.networks.q import QNetwork

if TYPE_CHECKING:
    from hotloop.rl.train.dqn_config import DQNConfig

COMPILE_PAYS_S = 120.0  # torch.compile takes up to a minute here: not tried for less learning than this


def make_learner(name: str, network: nn.Module, config: DQNConfig) -> Any:
    """The learner of this name."""
    if name == "fused":
        if not isinstance(network, QNetwork):
            raise HotloopError(
                f"learner='fused' needs the dense network {QNetwork.__name__}, not a "
                f"{type(network).__name__}; use learner='torch' or 'compiled'."
            )
        return FusedLearner(network, config)
    if name in ("torch", "compiled"):
        return TorchLearner(network, config, compiled=name == "compiled")
    raise HotloopError(f"learner={name!r} is not known; use auto, fused, torch or compiled.")


def choose_learner(
    config: DQNConfig, network: nn.Module, observation_space: Any, updates: float, known: str | None
) -> Any:
    """The learner for a run of so many updates; with `auto` the fastest, unless `known` says who it was."""
    if config.learner != "auto":
        return make_learner(config.learner, network, config)
    if known is not None or config.transfers == "items":
        return make_learner(known or "torch", network, config)
    actions = network.actions if isinstance(network, QNetwork) else 2
    times_ms = {"torch": update_ms("torch", config, network, observation_space, actions)}
    if isinstance(network, QNetwork):
        times_ms["fused"] = update_ms("fused", config, network, observation_space, actions)
    if min(times_ms.values()) * updates / 1000 > COMPILE_PAYS_S:
        times_ms["compiled"] = update_ms("compiled", config, network, observation_space, actions)
    best = min(times_ms, key=lambda name: times_ms[name])
    if not config.quiet:
        shown = ", ".join(f"{name} {ms:.3g} ms" for name, ms in sorted(times_ms.items(), key=lambda x: x[1]))
        print(f"hotloop: learner {best} (an update takes: {shown})", file=sys.stderr)
    return make_learner(best, network, config)


def update_ms(
    name: str, config: DQNConfig, network: nn.Module, observation_space: Any, actions: int
) -> float:
    """The least time of an update on made-up transitions, with a copy of the network."""
    rng = np.random.default_rng(0)
    shape, dtype = observation_space.shape, observation_space.dtype
    space = Discrete(actions)
    buffer = ReplayBuffer(64, 1, observation_space, space, frame_stack=config.frame_stack)
    buffer.start(np.zeros((1, *shape), dtype=dtype))
    no = np.zeros(1, dtype=np.bool_)
    for _ in range(64):
        observations = (rng.random((1, *shape)) * 2).astype(dtype)
        buffer.push(rng.integers(0, actions, 1), rng.random(1), no, no, observations)
    learner = make_learner(name, copy.deepcopy(network), config)
    batch = buffer.make_batch(config.batch_size)
    best = float("inf")
    for _ in range(8):  # the first one compiles
        began = time.perf_counter()
        learner.learn(buffer, batch, 1)
        best = min(best, time.perf_counter() - began)
    return 1000 * best
