"""Kernels that the off-policy learners share: memory, samples from a replay buffer, Adam for one number."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.boost.dense_kernels import (
    ACTIVATION,
    FIRST,
    OUTPUT_AT,
    OUTPUTS,
    SECOND,
    SILU,
    STEPS,
    WEIGHTS,
    Addresses,
    Table,
    backward,
)
from hotloop.boost.selected_sums import Codes
from hotloop.rl.envs.compiled import array_at
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import inlined_kernel, kernel, not_inlined
from hotloop.rl.train.fused.tiles import LANES, Floats, transpose

Words = NDArray[np.int64]
Numbers = NDArray[np.uint64]  # an index that cannot be negative is faster


class Memory(NamedTuple):
    """Arrays for one batch size; see `dense_kernels`."""

    work: Floats
    deltas: Floats
    slopes: Floats
    grads: Floats
    across: Floats
    """[threads, ...]"""
    sums: Floats
    """[threads, TABLES_SIZE]"""
    codes: Codes
    """[threads, ...]"""


class Batch(NamedTuple):
    """A batch of transitions [samples, ...]."""

    observations: Floats
    next_observations: Floats
    actions: Floats
    rewards: Floats
    discounts: Floats
    """gamma, or 0 after a terminal transition."""


@kernel
def gather(
    observations: NDArray[Any],
    next_observations: NDArray[Any],
    actions: NDArray[Any],
    rewards: Floats,
    dones: Floats,
    timeouts: Floats,
    steps: Words,
    envs: Words,
    n_envs: int,
    gamma: float,
    batch: Batch,
) -> bool:
    """The transitions (steps[i], envs[i]) of a replay buffer flattened to [steps * n_envs, ...].

    Discrete observations become one-hot rows. Returns whether all of them are within their space.
    """
    discount, are_valid = np.float32(gamma), True
    for i in range(steps.size):
        row = steps[i] * n_envs + envs[i]
        are_valid &= write_observation(observations[row], batch.observations[i])
        are_valid &= write_observation(next_observations[row], batch.next_observations[i])
        for j in range(actions.shape[1]):
            batch.actions[i, j] = actions[row, j]
        done = dones[row] * (np.float32(1.0) - timeouts[row])
        batch.rewards[i] = rewards[row]
        batch.discounts[i] = (np.float32(1.0) - done) * discount
    return are_valid


@inlined_kernel
def write_observation(source: NDArray[Any], target: Floats) -> bool:
    """Copy an observation, or write a one-hot row for a single number; returns whether it fits."""
    if source.size == target.size:
        for j in range(target.size):
            target[j] = source[j]
        return True
    choice = int(source[0])
    for j in range(target.size):
        target[j] = np.float32(1.0) if j == choice else np.float32(0.0)
    return 0 <= choice < target.size


@kernel
def load(rows: Floats, work: Floats, at: int, samples: int) -> None:
    """Write rows [real samples, width] as columns [width, samples] from `at` on."""
    transpose(rows.reshape(-1), int(np.int64(0)), rows.shape[0], rows.shape[1], work, at, samples)


@inlined_kernel
def padded_samples(count: int) -> int:
    """`count` rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@inlined_kernel
def adam_number(addresses: Addresses, gradient: Floats, settings: NDArray[np.float64]) -> None:
    """One step of Adam for a tensor of one number; see `dense_kernels.adam`."""
    steps = array_at(addresses[:, STEPS], 0, (1,), np.float32)
    steps[0] += np.float32(1.0)
    layers.adam(
        array_at(addresses[:, WEIGHTS], 0, (1,), np.float32), gradient,
        array_at(addresses[:, FIRST], 0, (1,), np.float32),
        array_at(addresses[:, SECOND], 0, (1,), np.float32),
        int(steps[0]), settings[0], settings[1], settings[2], settings[3], 1.0,
    )  # fmt: skip


@inlined_kernel
def mean_squared_error(values: Floats, targets: Floats, weight: float, deltas: Floats) -> float:
    """`weight` times the mean of (value - target)^2, and its derivative; padding gets 0."""
    count = targets.size
    slope = np.float32(weight * 2.0 / count)
    total = 0.0
    for i in range(count):
        error = values[i] - targets[i]
        total += error * error
        deltas[i] = slope * error
    for i in range(count, deltas.size):
        deltas[i] = 0.0
    return weight * total / count


@kernel
def select_columns(matrix: Floats, at: int, rows: int, columns: int, fewer: int, selected: Numbers) -> None:
    """Keep the selected columns of a matrix [rows, columns], which becomes [rows, fewer], in place."""
    for i in range(rows):
        # A column moves to the left, so nothing is overwritten before it was read.
        source = matrix[at + i * columns : at + (i + 1) * columns]
        target = matrix[at + i * fewer : at + i * fewer + selected.size]
        for j in range(selected.size):
            target[j] = source[selected[j]]


@kernel
def keep_selected(table: Table, memory: Memory, samples: int, selected: Numbers, slope: np.float32) -> None:
    """Move the columns of some samples together in a network that has run; the others then cost nothing.

    `selected` has their numbers, increasing; `slope` becomes the derivative of the network's only output.
    """
    not_inlined()
    count, few = selected.size, padded_samples(selected.size)
    last = table.shape[0] - 1
    are_all = few == samples and count > 0 and selected[count - 1] == count - 1
    for layer in range(0 if are_all else last):
        at, rows = table[layer, OUTPUT_AT], table[layer, OUTPUTS]
        select_columns(memory.work, at, rows, samples, few, selected)
        if table[layer, ACTIVATION] == SILU:
            select_columns(memory.slopes, at, rows, samples, few, selected)
    out = table[last, OUTPUT_AT]
    for j in range(few):
        memory.deltas[out + j] = slope if j < count else np.float32(0.0)


@kernel
def input_gradient_of_selected(
    table: Table,
    addresses: Addresses,
    memory: Memory,
    samples: int,
    selected: Numbers,
    rows: int,
    gradient: Floats,
    team: Words,
    part: int,
    parts: int,
) -> None:
    """The gradient by the network's last `rows` inputs, after `keep_selected`.

    `gradient` [rows, samples] is written for the selected samples only. Threads of a team may call it
    together, as in `dense_kernels`; they do not wait at its end.
    """
    not_inlined()
    count, few = selected.size, padded_samples(selected.size)
    backward(
        table, addresses, memory.work, memory.deltas, memory.slopes, few, count,
        memory.grads, memory.across[part], memory.sums[part], memory.codes[part], rows, team, part, parts,
    )  # fmt: skip
    if part == 0:
        last = table.shape[0] - 1
        at = table[last, OUTPUT_AT] + few  # see `backward`
        for i in range(rows):
            for j in range(count):
                gradient[i * samples + selected[j]] = memory.deltas[at + i * few + j]
