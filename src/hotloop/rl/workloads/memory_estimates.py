"""Estimates the memory of a workload from its settings, before anything is allocated.

    estimate_memory("snake", Snake(buffer_size=1_000_000))

A workload's module may define its own `memory_needs(config)`; the other four workloads are estimated here.
The memory of the Python process before training (torch, numba, our own code) is not included.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hotloop._util.memory_estimate import MemoryEstimate
from hotloop.rl.buffers.replay_layout import Layout

# Compiled kernels and buffers of allocators; measured: 50 to 70 MiB in three workloads.
KERNELS_BYTES = 60 << 20
# Added once a learner or a library has trained; measured the same with batches of 64 and of 512. Half of the
# memory of torch's compiler is in its worker processes, which it does not start if its cache has the code.
LEARNERS_BYTES = {"fused": 0, "torch": 75 << 20, "auto": 75 << 20, "compiled": 370 << 20}
LIBRARIES_BYTES = {"sb3": 98 << 20, "torchrl": 125 << 20}
# Added by torch's first convolution; measured the same with 64 and 2,048 pictures.
CONVOLUTIONS_BYTES = 97 << 20
PICTURE_COPIES = 2  # as floats: the input of a convolution, and a copy in the memory layout of its library
# Maps that a ConvLSTM layer keeps for the gradient: inputs, gates and intermediate results. Measured with 256
# and with 512 pictures.
LSTM_MAPS = 22
# Values per cell and channel that a block of gated scans keeps for the gradient.
SCAN_MAPS = 24
# Bytes per byte of a picture that evaluating them needs, environments included; training has not returned its
# memory by then. Measured with 256 boards.
SCAN_EVALUATION_COPIES = 22


def estimate_memory(name: str, config: Any) -> tuple[MemoryEstimate, ...] | None:
    """The parts, largest first; None for a workload without estimates."""
    module = importlib.import_module(f"hotloop.rl.workloads.{name}")
    estimate: Callable[[Any], tuple[MemoryEstimate, ...]] | None = getattr(
        module, "memory_needs", _ESTIMATES.get(name)
    )
    if estimate is None:
        return None
    return tuple(sorted((part for part in estimate(config) if part.bytes), key=lambda part: -part.bytes))


def rollout_bytes(steps: int, envs: int, observation_bytes: int, actions: int, masked: bool) -> int:
    """Memory of a `RolloutBuffer`."""
    each = 8 + 5 * 4 + 3 + 4 + (actions if masked else 0)
    return (steps + 1) * envs * observation_bytes + steps * envs * each + envs * 4


def replay_bytes(capacity: int, envs: int, space: Any, action_space: Any, frame_stack: int = 1) -> int:
    """Memory of a `ReplayBuffer` without priorities and without final observations, which grow over time."""
    layout = Layout(
        envs, tuple(space.shape), np.dtype(space.dtype),
        tuple(action_space.shape), np.dtype(action_space.dtype),
        frame_stack, "first", 1, 0.99, "same_step",
    )  # fmt: skip
    return (capacity // envs + frame_stack) * envs * layout.record().itemsize


def _libraries(learner: str, trainer: str = "hotloop", convolves: bool = False) -> MemoryEstimate:
    """Memory of kernels, torch and libraries, which does not depend on any size."""
    more = LEARNERS_BYTES[learner] if trainer == "hotloop" else LIBRARIES_BYTES[trainer]
    names = {
        "fused": "",
        "torch": ", torch's learner",
        "auto": ", learners",
        "compiled": ", torch's compiler",
    }
    words = names[learner] if trainer == "hotloop" else f", {trainer}"
    total = KERNELS_BYTES + more + (CONVOLUTIONS_BYTES if convolves else 0)
    return MemoryEstimate(f"compiled kernels, network{words}", total)


def _snake(config: Any) -> tuple[MemoryEstimate, ...]:
    from hotloop.rl.workloads.snake import make_envs

    envs = make_envs(config, 1)
    space, actions = envs.single_observation_space, envs.single_action_space
    held = replay_bytes(config.buffer_size, config.n_envs, space, actions)
    if config.trainer == "sb3":  # which stores next observations separately
        held = config.buffer_size * (2 * _bytes_of(space) + 8 + 4 + 4 + 4)
    games = config.n_envs * (8 * config.size * config.size + 4 * _bytes_of(space))
    return (
        MemoryEstimate(
            f"replay of {config.buffer_size:,} transitions", held, "buffer_size", config.buffer_size
        ),
        MemoryEstimate(f"{config.n_envs:,} games", games, "n_envs", config.n_envs),
        MemoryEstimate(
            f"batches of {config.batch_size:,}", config.batch_size * 4096, "batch_size", config.batch_size
        ),
        _libraries(config.settings.learner, config.trainer),
    )


def _petri(config: Any) -> tuple[MemoryEstimate, ...]:
    from hotloop.rl.workloads.petri import make_envs

    one = make_envs(replace(config, n_envs=1))
    seen, actions = _bytes_of(one.single_observation_space), int(one.single_action_space.n)
    samples = config.samples
    held = rollout_bytes(config.n_steps, config.n_envs, seen, actions, masked=True)
    copies = 2 if config.learner == "auto" else 1  # the learners are timed on a made-up rollout
    order = 8 * config.n_epochs * samples
    batch = config.batch_size * 4 * (seen // 4 + 6 * sum(config.net_arch))
    return (
        MemoryEstimate(f"rollouts of {samples:,} steps", copies * held + order, "n_steps", config.n_steps),
        MemoryEstimate(f"{config.n_envs:,} tools", config.n_envs * 4 * seen, "n_envs", config.n_envs),
        MemoryEstimate(f"batches of {config.batch_size:,}", batch, "batch_size", config.batch_size),
        _libraries(config.learner, config.trainer),
    )


def _ricochet(config: Any) -> tuple[MemoryEstimate, ...]:
    from hotloop.rl.workloads.ricochet_config import make_envs
    from hotloop.rl.workloads.ricochet_evaluation import BOARDS_AT_ONCE

    one = make_envs(replace(config, n_envs=1))
    space, actions = one.single_observation_space, int(one.single_action_space.n)
    seen, steps, envs = _bytes_of(space), config.n_steps, config.n_envs
    if config.algo != "ppo":
        return _ricochet_by_imitation(config, space.shape, seen)
    held = rollout_bytes(steps, envs, seen, actions, masked=False)
    boards = envs * 3 * seen
    pictures = config.obs_mode == "rgb_image"
    learner = "compiled" if config.compile else "torch" if pictures else "auto"
    if not pictures:
        dense = 4 * math.prod(space.shape)
        held = 2 * rollout_bytes(steps, envs, dense, actions, masked=False)
        batch = max(steps * envs // config.num_minibatches, 1) * (dense + 4 * 12 * 128)
    else:
        rows = -(-envs // config.num_minibatches)
        batch = rows * steps * (seen + _picture_bytes(config, space.shape))
    played = min(config.n_eval_episodes, BOARDS_AT_ONCE)
    evaluation = played * (3 + 4 * PICTURE_COPIES) * seen if pictures else 0
    return (
        MemoryEstimate(f"rollouts of {steps} steps x {envs:,} boards", held, "n_envs", envs),
        MemoryEstimate(f"evaluation on {played} boards at once, beyond learning", max(evaluation - batch, 0)),
        MemoryEstimate(
            f"batches of {max(steps * envs // config.num_minibatches, 1):,} observations",
            batch,
            "n_steps",
            steps,
        ),
        MemoryEstimate(f"{envs:,} boards", boards, "n_envs", envs),
        _libraries(learner, config.trainer, convolves=pictures),
    )


def _ricochet_by_imitation(config: Any, shape: tuple[int, ...], seen: int) -> tuple[MemoryEstimate, ...]:
    from hotloop.rl.workloads.ricochet_evaluation import BOARDS_AT_ONCE

    envs = config.n_envs
    batch = envs * (seen + _picture_bytes(config, shape))
    evaluation = 0
    if config.n_eval_episodes or config.eval_every_steps:
        copies = SCAN_EVALUATION_COPIES if config.encoder == "scan" else 3 + 4 * PICTURE_COPIES
        evaluation = BOARDS_AT_ONCE * copies * seen
    return (
        MemoryEstimate(f"evaluation on {BOARDS_AT_ONCE} boards at once", evaluation),
        MemoryEstimate(f"batches of {envs:,} observations", batch, "n_envs", envs),
        MemoryEstimate(f"{envs:,} boards", envs * 3 * seen, "n_envs", envs),
        _libraries("torch", convolves=config.encoder != "scan"),
    )


def _picture_bytes(config: Any, shape: tuple[int, ...]) -> int:
    """Memory that a gradient step needs per picture."""
    if config.encoder == "scan":
        from hotloop.rl.train.dagger import DaggerConfig

        in_blocks = SCAN_MAPS * config.board_size**2 * config.channels * DaggerConfig.layers
        return int(4 * (PICTURE_COPIES * math.prod(shape) + in_blocks))
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


# ---- mario: a learner, and collectors in separate processes

# Private memory of one more collector process, measured with Python 3.11, numba 0.68 and torch 2.13 on Linux.
COLLECTOR_BYTES = 210 << 20
LEARNER_WEIGHT_COPIES = 9  # network, target, gradient, two moments, folded copies, two in transit
COLLECTOR_WEIGHT_COPIES = 4  # network, folded copy, two in transit
GAME_BYTES = 1 << 20  # the game, its frames, and the network's activations
# Copies that a gradient step needs of the pixels of a sample, and of each map of a convolution.
PIXEL_COPIES = {"fast": 1.5, "plain": 4.0}
MAP_COPIES = 5.0


def _mario(config: Any) -> tuple[MemoryEstimate, ...]:
    from gymnasium.spaces import Box, Discrete

    from hotloop.rl.collect.protocol import Spaces, experience_dtype

    now = config.settings
    shape = (config.stack, config.size, config.size)
    space, actions = Box(0, 255, shape, np.uint8), Discrete(7)
    games = now.n_collectors * now.envs_per_collector
    weights, maps = _frame_network(config, int(actions.n))
    stored = replay_bytes(now.buffer_size, games, space, actions, config.stack)
    row = experience_dtype(Spaces(space, actions, now.envs_per_collector, config.stack), ("x_pos",)).itemsize
    rings = now.n_collectors * config.queue_size * row
    pixels = math.prod(shape)
    sample = pixels + pixels // config.stack  # the stack and the next one overlap
    in_half = now.layout == "fast" and _learns_in_bfloat16(config)
    sample += int((2 if in_half else 4) * (PIXEL_COPIES[now.layout] * pixels + MAP_COPIES * maps))
    alone = now.transport == "serial"
    each = COLLECTOR_WEIGHT_COPIES * weights + now.envs_per_collector * GAME_BYTES
    playing = now.n_collectors * (each if alone else COLLECTOR_BYTES + each)
    collectors = (
        f"{games:,} games"
        if alone
        else f"{now.n_collectors:,} x collector of {now.envs_per_collector:,} games"
    )
    return (
        MemoryEstimate(f"replay of {now.buffer_size:,} transitions", stored, "buffer_size", now.buffer_size),
        MemoryEstimate(collectors, playing, "n_collectors", now.n_collectors, in_children=not alone),
        MemoryEstimate(
            f"batches of {now.batch_size:,}", now.batch_size * sample, "batch_size", now.batch_size
        ),
        MemoryEstimate("network and optimizer", LEARNER_WEIGHT_COPIES * weights),
        MemoryEstimate("compiled kernels, convolutions", KERNELS_BYTES + CONVOLUTIONS_BYTES),
        MemoryEstimate(
            f"{now.n_collectors:,} x queue of {config.queue_size:,}", rings, "queue_size", config.queue_size
        ),
    )


def _learns_in_bfloat16(config: Any) -> bool:
    from hotloop.rl.train.devices import choose_device, choose_precision

    return choose_precision(config.precision, choose_device(config.device)) == "bfloat16"


def _frame_network(config: Any, actions: int) -> tuple[int, int]:
    """Bytes of the weights, and numbers in all activations of one observation."""
    from hotloop.rl.train.networks.frame_q import KERNELS, STRIDES

    weights, maps, before, side = 0, 0, config.stack, config.size
    for after, kernel, stride in zip(config.channels, KERNELS, STRIDES, strict=True):
        side = (side - kernel) // stride + 1
        weights += before * after * kernel * kernel
        maps += after * side * side
        before = after
    weights += before * side * side * config.features_dim + config.features_dim * actions
    return 4 * weights, maps + config.features_dim


def _bytes_of(space: Any) -> int:
    return int(math.prod(space.shape)) * int(np.dtype(space.dtype).itemsize)


_ESTIMATES: dict[str, Callable[[Any], tuple[MemoryEstimate, ...]]] = {
    "snake": _snake,
    "petri": _petri,
    "ricochet": _ricochet,
    "mario": _mario,
}
