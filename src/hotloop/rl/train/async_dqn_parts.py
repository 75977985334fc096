"""Builds the collectors and the replay buffer of asynchronous DQN, and prepares both for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.collect.env_groups import make_env_group
from hotloop.rl.collect.locked import LockedCollector
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Collector, Setup, Spaces, Task
from hotloop.rl.collect.ray_nodes import RayCollector
from hotloop.rl.collect.serial import SerialCollector
from hotloop.rl.train.networks.space_to_depth import has_whole_blocks, space_to_depth

if TYPE_CHECKING:
    from hotloop.rl.train.async_dqn import AsyncDQNConfig, FrameLearner


def make_collector(task: Task, config: AsyncDQNConfig, log: Callable[[str], None]) -> Collector:
    kinds: dict[str, Any] = {"rings": ProcessCollector, "locked": LockedCollector, "serial": SerialCollector}
    setup = Setup(
        collectors=config.n_collectors,
        ring_rows=config.queue_size,
        when_full="drop" if config.drop_when_full else "wait",
        method=config.start_method,
        hang_timeout_s=config.hang_timeout_s,
        allow_nonfinite=config.allow_nonfinite,
        log=log,
    )
    if config.on:
        return RayCollector(task, setup, config.on)
    found: Collector = kinds[config.transport](task, setup)
    return found


def make_replay(config: AsyncDQNConfig, spaces: Spaces, buffer_size: int) -> ReplayBuffer:
    """A replay buffer for the rows of all collectors."""
    return ReplayBuffer(
        buffer_size,
        config.n_collectors * spaces.n_envs,
        spaces.observation,
        spaces.action,
        frame_stack=int(spaces.observation.shape[0]),
        n_steps=config.n_steps,
        gamma=config.gamma,
        seed=config.seed + 1,
    )


def probe_spaces(task: Task) -> Spaces:
    """The spaces of the task's environments, found by making them here and taking one step.

    This also compiles their kernels, so that the collectors do not all do so at the same time.
    """
    group = make_env_group(task, list(range(task.seed, task.seed + task.n_envs)))
    try:
        spaces = group.spaces
        check_spaces(spaces)
        group.reset(list(range(task.n_envs)))
        group.step(np.zeros(spaces.n_envs, dtype=spaces.action.dtype))
    finally:
        group.close()
    return spaces


def check_spaces(spaces: Spaces) -> None:
    observation, action = spaces.observation, spaces.action
    frames = isinstance(observation, Box) and observation.dtype == np.uint8 and len(observation.shape) == 3
    if not frames or not isinstance(action, Discrete) or action.start != 0:
        raise HotloopError(
            f"Asynchronous DQN takes uint8 stacks of frames [stack, height, width] and discrete actions from "
            f"0, not {observation} and {action}; wrap the environment."
        )


def warm_up(learner: FrameLearner, config: AsyncDQNConfig, spaces: Spaces, dtype: np.dtype[Any]) -> None:
    """Compile or load the kernels that the loop calls, so that its time is that of training."""
    buffer = make_replay(config, spaces, 4 * config.n_collectors * spaces.n_envs)
    rows = np.zeros(3, dtype=dtype)
    rows["first"][0] = True
    buffer.push_rows(rows)
    sample = buffer.sample(buffer.make_batch(2))
    observations = sample.tensors()["observations"]
    if has_whole_blocks(spaces.observation.shape):
        space_to_depth(observations)  # as actors in this process do
    learner.compile_kernels(observations)
