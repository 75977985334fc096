"""Kernels of the fused DQN learner: acting, and the whole gradient step.

The twin is `TorchLearner` in `dqn.py`; given the same samples and random numbers they agree up to rounding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.buffers import replay_kernels
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import kernel, not_inlined
from hotloop.rl.train.fused.layers import CHUNK, COLUMNS, HIDDEN, OUTPUTS, Table
from hotloop.rl.train.fused.tiles import Floats

# Indices into `settings`, float64.
LEARNING_RATE, BETA1, BETA2, ADAM_EPS, MAX_GRAD_NORM, GAMMA, HUBER, DOUBLE, DUELING, TAU = range(10)
INITIAL_EPS, FINAL_EPS, EXPLORATION_STEPS = 10, 11, 12
SETTINGS = 13

# Indices into `statistics`, float64: sums over gradient steps, and their number.
LOSS, GRADIENT_NORM, VALUE, GRADIENT_STEPS = range(4)
STATISTICS = 4

Words = NDArray[np.int64]


class Learner(NamedTuple):
    """Online and target network and Adam's state; the caller owns the arrays, the kernels change them."""

    parameters: Floats
    target: Floats
    first: Floats
    second: Floats
    steps: Words
    table: Table
    packed: Floats
    packed_transposed: Floats
    packed_target: Floats
    transposed_target: Floats
    packed_grads: Floats
    hidden: Floats
    deltas: Floats
    grads: Floats
    targets: Floats
    """[batch]: scratch space for the TD targets."""


class Batch(NamedTuple):
    """Samples [batch, ...]; in the training loop views of the replay buffer's batch."""

    observations: Floats
    actions: Words
    rewards: Floats
    discounts: Floats
    next_observations: Floats
    weights: Floats
    errors: Floats
    """Output: target - value, for priorities."""


@kernel
def pack_both(learner: Learner) -> None:
    """Repack the weights of both networks after something else changed the parameters."""
    layers.pack(learner.table, learner.parameters, learner.packed, learner.packed_transposed)
    layers.pack(learner.table, learner.target, learner.packed_target, learner.transposed_target)


@kernel
def action_values(row: Floats, dueling: bool) -> None:
    """Combine advantages and state value into action values, in place; without dueling nothing changes."""
    if dueling:
        actions = row.size - 1
        total = np.float32(0.0)
        for a in range(actions):
            total += row[a]
        shift = row[actions] - total / np.float32(actions)
        for a in range(actions):
            row[a] += shift


@kernel
def argmax(row: Floats, actions: int) -> int:
    """The action with the largest value, the first one if there are several."""
    best = 0
    for a in range(1, actions):
        if row[a] > row[best]:
            best = a
    return best


@kernel
def act(
    learner: Learner,
    settings: NDArray[np.float64],
    observations: Floats,
    epsilon: float,
    uniforms: NDArray[np.float64],
    actions: Words,
) -> None:
    """Epsilon-greedy actions [rows] for `observations` [rows, width], from `uniforms` [rows, 2] in 0 .. 1."""
    not_inlined()
    table = learner.table
    last = table.shape[0] - 1
    out, columns, outputs = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    dueling = settings[DUELING] != 0.0
    count = outputs - 1 if dueling else outputs
    rows, width = observations.shape
    inputs = observations.reshape(-1)
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        layers.forward(table, learner.packed, inputs, start * width, learner.hidden, stop - start)
        for row in range(start, stop):
            at = out + (row - start) * columns
            line = learner.hidden[at : at + outputs]
            if uniforms[row, 0] < epsilon:
                actions[row] = int(uniforms[row, 1] * count)
            else:
                action_values(line, dueling)
                actions[row] = argmax(line, count)


@kernel
def compute_targets(
    learner: Learner, batch: Batch, settings: NDArray[np.float64], start: int, rows: int
) -> None:
    """Write the TD targets of `rows` samples from `start` on to `learner.targets`."""
    table = learner.table
    last = table.shape[0] - 1
    out, columns, outputs = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    double, dueling = settings[DOUBLE] != 0.0, settings[DUELING] != 0.0
    count = outputs - 1 if dueling else outputs
    width = batch.observations.shape[1]
    later = batch.next_observations.reshape(-1)
    if double:
        layers.forward(table, learner.packed, later, start * width, learner.hidden, rows)
        for row in range(rows):
            line = learner.hidden[out + row * columns : out + row * columns + outputs]
            # dueling advantages have the same order as the action values
            learner.targets[start + row] = argmax(line, count)
    layers.forward(table, learner.packed_target, later, start * width, learner.hidden, rows)
    for row in range(rows):
        line = learner.hidden[out + row * columns : out + row * columns + outputs]
        action_values(line, dueling)
        best = int(learner.targets[start + row]) if double else argmax(line, count)
        # Rounds as torch does: the product is exact in double precision, the sum is rounded once.
        value = np.float64(batch.discounts[start + row]) * np.float64(line[best])
        learner.targets[start + row] = np.float32(np.float64(batch.rewards[start + row]) + value)


@kernel
def gradient_step(
    learner: Learner, batch: Batch, settings: NDArray[np.float64], statistics: NDArray[np.float64]
) -> None:
    """TD targets, loss, backward pass, clipping and Adam on one batch."""
    not_inlined()
    table = learner.table
    last = table.shape[0] - 1
    out, columns, outputs = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    huber, dueling = settings[HUBER] != 0.0, settings[DUELING] != 0.0
    actions = outputs - 1 if dueling else outputs
    size, width = batch.observations.shape
    inputs = batch.observations.reshape(-1)
    share = np.float32(1.0 / size)
    one = np.float32(1.0)
    loss, value = 0.0, 0.0
    for start in range(0, size, CHUNK):
        rows = min(CHUNK, size - start)
        compute_targets(learner, batch, settings, start, rows)
        layers.forward(table, learner.packed, inputs, start * width, learner.hidden, rows)
        for row in range(rows):
            at = out + row * columns
            line = learner.hidden[at : at + outputs]
            action_values(line, dueling)
            action = batch.actions[start + row]
            error = line[action] - learner.targets[start + row]
            weight = batch.weights[start + row] * share
            batch.errors[start + row] = -error
            value += line[action]
            if huber and abs(error) >= one:
                loss += weight * (abs(error) - np.float32(0.5))
                slope = weight if error > 0 else -weight
            elif huber:
                loss += weight * np.float32(0.5) * error * error
                slope = weight * error
            else:
                loss += weight * error * error
                slope = weight * np.float32(2.0) * error
            delta = learner.deltas[at : at + columns]
            for a in range(columns):
                delta[a] = np.float32(0.0)
            if dueling:
                for a in range(actions):
                    delta[a] = -slope / np.float32(actions)
                delta[actions] = slope
            delta[action] += slope
        layers.backward(
            table,
            learner.packed_transposed,
            inputs,
            start * width,
            learner.hidden,
            learner.deltas,
            rows,
            learner.packed_grads,
        )
    layers.unpack_grads(table, learner.packed_grads, learner.grads)
    norm = math.sqrt(layers.sum_of_squares(learner.grads))
    scale, largest = 1.0, settings[MAX_GRAD_NORM]
    if largest > 0.0 and norm > largest:
        scale = largest / (norm + 1e-6)
    learner.steps[0] += 1
    layers.adam(
        learner.parameters, learner.grads, learner.first, learner.second, learner.steps[0],
        settings[LEARNING_RATE], settings[BETA1], settings[BETA2], settings[ADAM_EPS], scale,
    )  # fmt: skip
    layers.pack(table, learner.parameters, learner.packed, learner.packed_transposed)
    statistics[LOSS] += loss
    statistics[GRADIENT_NORM] += norm
    statistics[VALUE] += value / size
    statistics[GRADIENT_STEPS] += 1


@kernel
def update_target(learner: Learner, tau: float) -> None:
    """Move the target network towards the online network; tau = 1 copies it."""
    part = np.float32(tau)
    for i in range(learner.target.size):
        learner.target[i] += part * (learner.parameters[i] - learner.target[i])
    if tau == 1.0:
        for i in range(learner.target.size):
            learner.target[i] = learner.parameters[i]
    layers.pack(learner.table, learner.target, learner.packed_target, learner.transposed_target)


@kernel
def update(
    learner: Learner,
    replay: replay_kernels.ReplayArrays,
    batch: Batch,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
    gradient_steps: int,
) -> None:
    """Make gradient steps, each on a fresh uniform sample."""
    for _ in range(gradient_steps):
        replay_kernels.sample(
            replay.memory, replay.numbers, replay.marks, replay.finals, replay.ring, settings[GAMMA],
            replay.streams, replay.rows, replay.out, replay.out_numbers, replay.layout,
        )  # fmt: skip
        gradient_step(learner, batch, settings, statistics)
