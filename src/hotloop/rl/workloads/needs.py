"""What the workloads will hold in memory, from their settings, before anything is made.

    needs_of("snake", Snake(capacity=1_000_000))

A workload's module may have a function `memory_needs(config)` of its own; the three below are told here.
What the Python process holds before (torch, numba, our own code) is not among them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hotloop._util.needs import Need

KERNELS_BYTES = 60 << 20  # compiled kernels, buffers of allocators: seen 50 to 70 MiB in all three workloads
CONVOLUTIONS_BYTES = 97 << 20  # more, once torch has convolved: seen with 64 as with 2,048 pictures
PICTURE_COPIES = 2  # as floats: what is convolved, and the same in the order that the library wants
# Floats that a ConvLSTM layer keeps for the gradient, in maps of its own size: inputs, gates and what is
# made of them. Seen: 22 with 256 and with 512 pictures.
LSTM_MAPS = 22


def needs_of(name: str, config: Any) -> tuple[Need, ...] | None:
    """The parts, largest first; None for a workload of which nothing is known."""
    module = importlib.import_module(f"hotloop.rl.workloads.{name}")
    known: Callable[[Any], tuple[Need, ...]] | None = getattr(module, "memory_needs", _KNOWN.get(name))
    if known is None:
        return None
    return tuple(sorted(known(config), key=lambda need: -need.bytes))


def rollout_bytes(steps: int, envs: int, observation_bytes: int, actions: int, masked: bool) -> int:
    """Memory of a `RolloutBuffer`."""
    each = 8 + 5 * 4 + 3 + 4 + (actions if masked else 0)
    return (steps + 1) * envs * observation_bytes + steps * envs * each + envs * 4


def replay_bytes(capacity: int, envs: int, space: Any, action_space: Any) -> int:
    """Memory of a `ReplayBuffer` without priorities; final observations grow with the episodes and are not
    counted."""
    from hotloop.rl.buffers.replay_layout import Layout

    layout = Layout(
        envs, tuple(space.shape), np.dtype(space.dtype),
        tuple(action_space.shape), np.dtype(action_space.dtype),
        1, "first", 1, 0.99, "same_step",
    )  # fmt: skip
    return (capacity // envs + 1) * envs * layout.record().itemsize


def _snake(config: Any) -> tuple[Need, ...]:
    from hotloop.rl.workloads.snake import make_envs

    envs = make_envs(config, 1)
    space, actions = envs.single_observation_space, envs.single_action_space
    held = replay_bytes(config.capacity, config.envs, space, actions)
    if config.trainer == "sb3":  # observations and next observations in arrays of their own
        held = config.capacity * (2 * _bytes_of(space) + 8 + 4 + 4 + 4)
    games = config.envs * (8 * config.size * config.size + 4 * _bytes_of(space))
    return (
        Need(f"replay of {config.capacity:,} transitions", held, "capacity", config.capacity),
        Need(f"{config.envs:,} games", games, "envs", config.envs),
        Need(f"batches of {config.batch_size:,}", config.batch_size * 4096, "batch_size", config.batch_size),
        Need("compiled kernels and network", KERNELS_BYTES),
    )


def _petri(config: Any) -> tuple[Need, ...]:
    from hotloop.rl.workloads.petri import make_envs

    one = make_envs(replace(config, envs=1))
    seen, actions = _bytes_of(one.single_observation_space), int(one.single_action_space.n)
    frames = config.frames_per_batch
    held = rollout_bytes(frames // config.envs, config.envs, seen, actions, masked=True)
    copies = 2 if config.learner == "auto" else 1  # the learners are tried on a made-up rollout
    order = 8 * config.epochs * frames
    batch = config.minibatch * 4 * (seen // 4 + 6 * config.n_layer * config.n_hidden)
    return (
        Need(f"rollouts of {frames:,} frames", copies * held + order, "frames_per_batch", frames),
        Need(f"{config.envs:,} tools", config.envs * 4 * seen, "envs", config.envs),
        Need(f"minibatches of {config.minibatch:,}", batch, "minibatch", config.minibatch),
        Need("compiled kernels and network", KERNELS_BYTES),
    )


def _ricochet(config: Any) -> tuple[Need, ...]:
    from hotloop.rl.workloads.ricochet import make_envs

    one = make_envs(replace(config, envs=1))
    space, actions = one.single_observation_space, int(one.single_action_space.n)
    seen, steps, envs = _bytes_of(space), config.rollout_steps, config.envs
    held = rollout_bytes(steps, envs, seen, actions, masked=False)
    boards = envs * 3 * seen
    pictures = config.obs_mode == "rgb_image"
    if not pictures:
        dense = 4 * math.prod(space.shape)
        held = 2 * rollout_bytes(steps, envs, dense, actions, masked=False)
        batch = max(steps * envs // 4, 1) * (dense + 4 * 12 * 128)
    else:
        rows = -(-envs // min(4, envs))
        batch = rows * steps * (seen + _picture_bytes(config, space.shape))
    return (
        Need(f"rollouts of {steps} steps x {envs:,} boards", held, "envs", envs),
        Need(f"minibatches of {max(steps * envs // 4, 1):,} observations", batch, "rollout_steps", steps),
        Need(f"{envs:,} boards", boards, "envs", envs),
        Need("compiled kernels and network", KERNELS_BYTES + (CONVOLUTIONS_BYTES if pictures else 0)),
    )


def _picture_bytes(config: Any, shape: tuple[int, ...]) -> int:
    """What learning keeps of one picture until its gradient is known."""
    colours, height, width = shape
    channels, pixels = config.channels, height * width
    floats = (
        PICTURE_COPIES * colours * pixels
        + channels // 2 * pixels // 16
        + channels * pixels // 64
        + channels * pixels // 256
    )
    if config.convlstm:
        floats += 2 * LSTM_MAPS * channels * pixels // 256
    return int(4 * floats)


def _bytes_of(space: Any) -> int:
    return int(math.prod(space.shape)) * int(np.dtype(space.dtype).itemsize)


_KNOWN: dict[str, Callable[[Any], tuple[Need, ...]]] = {
    "snake": _snake,
    "petri": _petri,
    "ricochet": _ricochet,
}
