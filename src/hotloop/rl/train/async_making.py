"""What asynchronous DQN is made of: network, actor, collectors and replay for given spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.collect.env_groups import make_env_group
from hotloop.rl.collect.protocol import Collector, Setup, Spaces, Task
from hotloop.rl.train.async_actor import FrameActor
from hotloop.rl.train.async_dqn_config import AsyncDQNConfig
from hotloop.rl.train.networks.frames import FrameQNetwork
from hotloop.rl.train.networks.prepare import is_preparable, prepared


def make_network(spaces: Spaces, channels: tuple[int, ...], hidden: int, norm: bool) -> FrameQNetwork:
    """The network for these spaces."""
    shape, actions = spaces.observation.shape, int(spaces.action.n)
    return FrameQNetwork(shape, actions, channels=channels, hidden=hidden, norm=norm)


def make_actor(spaces: Spaces, channels: tuple[int, ...], hidden: int, norm: bool, fast: bool) -> FrameActor:
    """What a collector plays with; its weights come from the learner."""
    return FrameActor(make_network(spaces, channels, hidden, norm), fast=fast)


def make_collector(task: Task, config: AsyncDQNConfig, note: Callable[[str], None]) -> Collector:
    """Collectors as `transport` says."""
    from hotloop.rl.collect.locked import LockedCollector
    from hotloop.rl.collect.processes import ProcessCollector
    from hotloop.rl.collect.serial import SerialCollector

    kinds: dict[str, Any] = {"rings": ProcessCollector, "locked": LockedCollector, "serial": SerialCollector}
    setup = Setup(
        collectors=config.collectors,
        ring_rows=config.ring,
        when_full="drop" if config.drop else "wait",
        method=config.start_method,
        hang_timeout_s=config.hang_s,
        log=note,
    )
    found: Collector = kinds[config.transport](task, setup)
    return found


def make_replay(config: AsyncDQNConfig, spaces: Spaces, capacity: int) -> ReplayBuffer:
    """A replay for the rows of all collectors."""
    return ReplayBuffer(
        capacity,
        config.collectors * spaces.n_envs,
        spaces.observation,
        spaces.action,
        frame_stack=int(spaces.observation.shape[0]),
        n_steps=config.n_step,
        gamma=config.discount,
        seed=config.seed + 1,
    )


def compile_kernels(config: AsyncDQNConfig, spaces: Spaces, dtype: np.dtype[Any]) -> None:
    """Call once what the loop will call, so that none of its phases is charged with compilation."""
    buffer = make_replay(config, spaces, 4 * config.collectors * spaces.n_envs)
    rows = np.zeros(3, dtype=dtype)
    rows["first"][0] = True
    buffer.push_rows(rows)
    sample = buffer.sample(buffer.make_batch(2))
    if is_preparable(spaces.observation.shape):
        prepared(sample.tensors()["observations"])


def try_env(task: Task) -> Spaces:
    """The task's spaces, found by making its environments here and one step.

    What they compile is then there for the collectors, which would otherwise all compile it at once.
    """
    group = make_env_group(task, list(range(task.seed, task.seed + task.n_envs)))
    try:
        spaces = checked(group.spaces)
        group.reset(list(range(task.n_envs)))
        group.step(np.zeros(spaces.n_envs, dtype=spaces.action.dtype))
    finally:
        group.close()
    return spaces


def checked(spaces: Spaces) -> Spaces:
    """The spaces, if they are of frames and discrete actions."""
    observation, action = spaces.observation, spaces.action
    frames = isinstance(observation, Box) and observation.dtype == np.uint8 and len(observation.shape) == 3
    if not frames or not isinstance(action, Discrete) or action.start != 0:
        raise HotloopError(
            f"asynchronous DQN takes uint8 stacks of frames [stack, height, width] and discrete actions from "
            f"0, not {observation} and {action}; wrap the environment."
        )
    return spaces
