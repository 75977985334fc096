"""Kernels of the fused SAC learner: acting and the whole update.

`sac.TorchLearner` is the reference: with the same samples and noise, the numbers agree up to rounding.

Offsets of 0 are passed as int(np.int64(0)), because numba compiles a kernel again for every literal argument.
`multiply` gets its strides and its last argument as literals on purpose: the update is 4 % faster with them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.buffers import replay_kernels
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel, inlined_kernel, not_inlined
from hotloop.rl.train.fused.layers import (
    ACTIVATION,
    CHUNK,
    COLUMNS,
    HIDDEN,
    INPUT_ROW,
    INPUTS,
    OUTPUTS,
    PACKED,
    PACKED_TRANSPOSED,
    Table,
)
from hotloop.rl.train.fused.tiles import Floats, multiply

# Indices into `settings`, float64.
LEARNING_RATE, BETA1, BETA2, EPSILON, GAMMA, TAU, TARGET_ENTROPY, LEARN_ENT_COEF = range(8)
ACTOR_RATE, ANCHOR_WEIGHT = 8, 9

# Indices into `ent_coef_state`, float64: the logarithm, Adam's moments and steps.
LOG, FIRST, SECOND, STEPS = range(4)

# Indices into `statistics`, float64: sums over updates, then the numbers of updates.
CRITIC_LOSS, VALUE, ACTOR_LOSS, LOG_PROB, UPDATES, ACTOR_UPDATES = range(6)
STATISTICS = 6

LOG_STD_MIN, LOG_STD_MAX = np.float32(-20.0), np.float32(2.0)
_HALF_LOG_2_PI = np.float32(0.5 * math.log(2.0 * math.pi))
_LOG_2 = np.float32(math.log(2.0))
_ONE, _TWO, _ZERO, _HALF = np.float32(1.0), np.float32(2.0), np.float32(0.0), np.float32(0.5)

Words = NDArray[np.int64]


class Network(NamedTuple):
    """The actor, or both critics one after the other, with Adam's state; the caller owns the arrays."""

    parameters: Floats
    first: Floats
    second: Floats
    steps: Words
    packed: Floats
    packed_transposed: Floats
    packed_grads: Floats
    hidden: Floats
    deltas: Floats
    grads: Floats


class Tables(NamedTuple):
    """Layer tables of the three networks (see `layers`)."""

    actor: Table
    critic_a: Table
    critic_b: Table


class Targets(NamedTuple):
    """The target critics."""

    parameters: Floats
    packed: Floats
    packed_transposed: Floats


class Scratch(NamedTuple):
    """Memory for intermediate results: of one chunk, except `targets` [batch]."""

    joined: Floats
    """[CHUNK * (observation + actions)]: inputs of the critics."""
    actions: Floats
    """[CHUNK * actions]: squashed actions."""
    action_grads: Floats
    """[CHUNK * actions]: derivatives of the loss with respect to the squashed actions."""
    anchor_actions: Floats
    """[CHUNK * actions]: greedy actions of the anchor."""
    log_probs: Floats
    """[CHUNK]: log probabilities."""
    targets: Floats
    """[batch]: TD targets of the critics."""


class Batch(NamedTuple):
    """Samples [batch, ...]: views of the replay buffer's batch."""

    observations: Floats
    actions: Floats
    rewards: Floats
    discounts: Floats
    next_observations: Floats


@fast_kernel
def pack_all(tables: Tables, actor: Network, critics: Network, targets: Targets) -> None:
    """Repack all weights after something else changed the parameters."""
    layers.pack(tables.actor, actor.parameters, actor.packed, actor.packed_transposed)
    pack_critics(tables, critics.parameters, critics.packed, critics.packed_transposed)
    pack_critics(tables, targets.parameters, targets.packed, targets.packed_transposed)


@inlined_kernel
def pack_critics(tables: Tables, parameters: Floats, packed: Floats, packed_transposed: Floats) -> None:
    """Repack the weights of two critics."""
    layers.pack(tables.critic_a, parameters, packed, packed_transposed)
    layers.pack(tables.critic_b, parameters, packed, packed_transposed)


@fast_kernel
def clipped_log_std(raw: np.float32) -> np.float32:
    """The actor's output as a log standard deviation within its bounds."""
    return min(max(raw, LOG_STD_MIN), LOG_STD_MAX)


@fast_kernel
def softplus(x: np.float32) -> np.float32:
    """log(1 + exp(x)), without overflow."""
    return np.float32(max(x, _ZERO) + math.log1p(math.exp(-abs(x))))


@fast_kernel
def sample_actions(
    table: Table, hidden: Floats, rows: int, count: int, noise: Floats, scratch: Scratch
) -> None:
    """Write squashed actions and log probabilities of the rows that the actor has just run on.

    `noise` [rows, count] is standard normal.
    """
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    for i in range(rows):
        line = hidden[out + i * columns : out + (i + 1) * columns]
        total = _ZERO
        for a in range(count):
            log_std, drawn = clipped_log_std(line[count + a]), noise[i, a]
            raw = line[a] + np.float32(math.exp(log_std)) * drawn
            scratch.actions[i * count + a] = layers.tanh(raw)
            squash = _TWO * (_LOG_2 - raw - softplus(-_TWO * raw))
            total += -_HALF * drawn * drawn - log_std - _HALF_LOG_2_PI - squash
        scratch.log_probs[i] = total


@fast_kernel
def act(table: Table, actor: Network, observations: Floats, noise: Floats, actions: Floats) -> None:
    """Write actions [rows, count] for observations [rows, width] and standard normal noise [rows, count]."""
    not_inlined()
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    rows, width = observations.shape
    count = actions.shape[1]
    inputs = observations.reshape(-1)
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        layers.forward(table, actor.packed, inputs, start * width, actor.hidden, stop - start)
        for row in range(start, stop):
            at = out + (row - start) * columns
            for a in range(count):
                std = np.float32(math.exp(clipped_log_std(actor.hidden[at + count + a])))
                actions[row, a] = layers.tanh(actor.hidden[at + a] + std * noise[row, a])


@fast_kernel
def join_inputs(
    observations: Floats, actions: Floats, at: int, start: int, rows: int, joined: Floats
) -> None:
    """Write observations [batch, width] from row `start` and actions from index `at` to `joined`."""
    width = observations.shape[1]
    wide = joined.size // CHUNK
    count = wide - width
    for i in range(rows):
        source, target = observations[start + i], joined[i * wide : (i + 1) * wide]
        for j in range(width):
            target[j] = source[j]
        for a in range(count):
            target[width + a] = actions[at + i * count + a]


@inlined_kernel
def run_critics(tables: Tables, packed: Floats, hidden: Floats, rows: int, joined: Floats) -> None:
    """Run both critics on the rows of `joined`."""
    layers.forward(tables.critic_a, packed, joined, int(np.int64(0)), hidden, rows)
    layers.forward(tables.critic_b, packed, joined, int(np.int64(0)), hidden, rows)


@inlined_kernel
def update_critics(
    tables: Tables,
    actor: Network,
    critics: Network,
    targets: Targets,
    scratch: Scratch,
    batch: Batch,
    noise: Floats,
    ent_coef: np.float32,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """One step of both critics towards reward + discount * (smaller value - ent_coef * log prob)."""
    size, width = batch.observations.shape
    count = batch.actions.shape[1]
    last = tables.critic_a.shape[0] - 1
    out_a, out_b = tables.critic_a[last, HIDDEN], tables.critic_b[last, HIDDEN]
    columns = tables.critic_a[last, COLUMNS]
    later, taken = batch.next_observations.reshape(-1), batch.actions.reshape(-1)
    share = np.float32(1.0 / size)
    loss, value = 0.0, 0.0
    for start in range(0, size, CHUNK):
        rows = min(CHUNK, size - start)
        layers.forward(tables.actor, actor.packed, later, start * width, actor.hidden, rows)
        sample_actions(tables.actor, actor.hidden, rows, count, noise[start : start + rows], scratch)
        join_inputs(batch.next_observations, scratch.actions, int(np.int64(0)), start, rows, scratch.joined)
        run_critics(tables, targets.packed, critics.hidden, rows, scratch.joined)
        for i in range(rows):
            a, b = critics.hidden[out_a + i * columns], critics.hidden[out_b + i * columns]
            soft = min(a, b) - ent_coef * scratch.log_probs[i]
            scratch.targets[start + i] = batch.rewards[start + i] + batch.discounts[start + i] * soft
        join_inputs(batch.observations, taken, start * count, start, rows, scratch.joined)
        run_critics(tables, critics.packed, critics.hidden, rows, scratch.joined)
        for i in range(rows):
            for out in (out_a, out_b):
                at = out + i * columns
                error = critics.hidden[at] - scratch.targets[start + i]
                value += critics.hidden[at]
                loss += error * error
                for j in range(columns):
                    critics.deltas[at + j] = _ZERO
                critics.deltas[at] = share * error
        for table in (tables.critic_a, tables.critic_b):
            layers.backward(
                table, critics.packed_transposed, scratch.joined, int(np.int64(0)), critics.hidden,
                critics.deltas, rows, critics.packed_grads,
            )  # fmt: skip
    layers.unpack_grads(tables.critic_a, critics.packed_grads, critics.grads)
    layers.unpack_grads(tables.critic_b, critics.packed_grads, critics.grads)
    adam(critics, settings[LEARNING_RATE], settings)
    pack_critics(tables, critics.parameters, critics.packed, critics.packed_transposed)
    statistics[CRITIC_LOSS] += 0.5 * loss / size
    statistics[VALUE] += 0.5 * value / size
    statistics[UPDATES] += 1


@inlined_kernel
def adam(network: Network, learning_rate: float, settings: NDArray[np.float64]) -> None:
    """Adam's next step for all parameters of a network."""
    network.steps[0] += 1
    layers.adam(
        network.parameters, network.grads, network.first, network.second, network.steps[0],
        learning_rate, settings[BETA1], settings[BETA2], settings[EPSILON], 1.0,
    )  # fmt: skip


@fast_kernel
def add_action_grads(table: Table, critics: Network, rows: int, width: int, action_grads: Floats) -> None:
    """Add the gradient of a critic's output with respect to the actions, weighted by its output deltas.

    The actions are the inputs from `width` on. The gradients of the weights are not changed.
    """
    not_inlined()
    for layer in range(table.shape[0] - 1, 0, -1):
        row, depth, columns = table[layer, INPUT_ROW], table[layer, OUTPUTS], table[layer, COLUMNS]
        before, delta = table[layer - 1, HIDDEN], table[layer, HIDDEN]
        multiply(
            critics.deltas, delta, columns, 1,
            critics.packed_transposed, table[layer, PACKED_TRANSPOSED], row,
            critics.deltas, before, row, rows, row, depth, False,
        )  # fmt: skip
        size = rows * row
        layers.through_activation(
            critics.deltas[before : before + size],
            critics.hidden[before : before + size],
            table[layer - 1, ACTIVATION],
        )
    columns, at = table[0, COLUMNS], table[0, HIDDEN]
    count = table[0, INPUTS] - width
    for i in range(rows):
        line = critics.deltas[at + i * columns : at + (i + 1) * columns]
        for a in range(count):
            begin = table[0, PACKED] + (width + a) * columns
            weights = critics.packed[begin : begin + columns]
            total = _ZERO
            for j in range(columns):
                total += line[j] * weights[j]
            action_grads[i * count + a] += total


@inlined_kernel
def compute_anchor_actions(
    table: Table, anchor: Floats, hidden: Floats, inputs: Floats, at: int, rows: int, scratch: Scratch
) -> None:
    """Write the greedy actions of the anchor, given by its packed weights, to `scratch`."""
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    count = scratch.anchor_actions.size // CHUNK
    layers.forward(table, anchor, inputs, at, hidden, rows)
    for i in range(rows):
        for a in range(count):
            scratch.anchor_actions[i * count + a] = layers.tanh(hidden[out + i * columns + a])


@inlined_kernel
def update_actor(
    tables: Tables,
    actor: Network,
    critics: Network,
    anchor: Floats,
    scratch: Scratch,
    batch: Batch,
    noise: Floats,
    ent_coef: np.float32,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> float:
    """One step of the actor on ent_coef * log prob - smaller value + weighted distance from the anchor.

    Returns the mean log probability.
    """
    size, width = batch.observations.shape
    count = batch.actions.shape[1]
    last, last_critic = tables.actor.shape[0] - 1, tables.critic_a.shape[0] - 1
    out, columns = tables.actor[last, HIDDEN], tables.actor[last, COLUMNS]
    out_a, out_b = tables.critic_a[last_critic, HIDDEN], tables.critic_b[last_critic, HIDDEN]
    critic_columns = tables.critic_a[last_critic, COLUMNS]
    inputs = batch.observations.reshape(-1)
    share, weight = np.float32(1.0 / size), np.float32(settings[ANCHOR_WEIGHT])
    loss, logs = 0.0, 0.0
    for start in range(0, size, CHUNK):
        rows = min(CHUNK, size - start)
        if weight > _ZERO:
            compute_anchor_actions(tables.actor, anchor, actor.hidden, inputs, start * width, rows, scratch)
        layers.forward(tables.actor, actor.packed, inputs, start * width, actor.hidden, rows)
        sample_actions(tables.actor, actor.hidden, rows, count, noise[start : start + rows], scratch)
        join_inputs(batch.observations, scratch.actions, int(np.int64(0)), start, rows, scratch.joined)
        run_critics(tables, critics.packed, critics.hidden, rows, scratch.joined)
        for i in range(rows):
            at_a, at_b = out_a + i * critic_columns, out_b + i * critic_columns
            a, b = critics.hidden[at_a], critics.hidden[at_b]
            loss += ent_coef * scratch.log_probs[i] - min(a, b)
            logs += scratch.log_probs[i]
            for j in range(critic_columns):
                critics.deltas[at_a + j], critics.deltas[at_b + j] = _ZERO, _ZERO
            critics.deltas[at_a if a <= b else at_b] = -share  # if equal, the first, as in torch
            for k in range(count):
                scratch.action_grads[i * count + k] = _ZERO
        add_action_grads(tables.critic_a, critics, rows, width, scratch.action_grads)
        add_action_grads(tables.critic_b, critics, rows, width, scratch.action_grads)
        for i in range(rows):
            line = actor.hidden[out + i * columns : out + (i + 1) * columns]
            delta = actor.deltas[out + i * columns : out + (i + 1) * columns]
            for j in range(columns):
                delta[j] = _ZERO
            for k in range(count):
                squashed, output = scratch.actions[i * count + k], line[count + k]
                # d log p / d raw = 2 tanh(raw), since raw enters it only through the squashing
                by_raw = share * ent_coef * _TWO * squashed
                by_raw += scratch.action_grads[i * count + k] * (_ONE - squashed * squashed)
                delta[k] = by_raw
                if weight > _ZERO:
                    best = layers.tanh(line[k])
                    apart = best - scratch.anchor_actions[i * count + k]
                    loss += weight * apart * apart
                    delta[k] += share * weight * _TWO * apart * (_ONE - best * best)
                if LOG_STD_MIN <= output <= LOG_STD_MAX:
                    std = np.float32(math.exp(output))
                    delta[count + k] = by_raw * std * noise[start + i, k] - share * ent_coef
        layers.backward(
            tables.actor, actor.packed_transposed, inputs, start * width, actor.hidden, actor.deltas, rows,
            actor.packed_grads,
        )  # fmt: skip
    layers.unpack_grads(tables.actor, actor.packed_grads, actor.grads)
    adam(actor, settings[ACTOR_RATE], settings)
    layers.pack(tables.actor, actor.parameters, actor.packed, actor.packed_transposed)
    statistics[ACTOR_LOSS] += loss / size
    statistics[LOG_PROB] += logs / size
    statistics[ACTOR_UPDATES] += 1
    return float(logs / size)


@inlined_kernel
def update_ent_coef(state: NDArray[np.float64], gradient: float, settings: NDArray[np.float64]) -> None:
    """One step of Adam on the logarithm of the entropy coefficient."""
    state[STEPS] += 1.0
    state[FIRST] = settings[BETA1] * state[FIRST] + (1.0 - settings[BETA1]) * gradient
    state[SECOND] = settings[BETA2] * state[SECOND] + (1.0 - settings[BETA2]) * gradient * gradient
    scaled = state[FIRST] / (1.0 - settings[BETA1] ** state[STEPS])
    root = math.sqrt(state[SECOND] / (1.0 - settings[BETA2] ** state[STEPS]))
    state[LOG] -= settings[LEARNING_RATE] * scaled / (root + settings[EPSILON])


@inlined_kernel
def update_targets(tables: Tables, critics: Network, targets: Targets, rate: np.float32) -> None:
    """Move the target critics towards the critics."""
    for i in range(targets.parameters.size):
        targets.parameters[i] += rate * (critics.parameters[i] - targets.parameters[i])
    pack_critics(tables, targets.parameters, targets.packed, targets.packed_transposed)


@fast_kernel
def update(
    tables: Tables,
    actor: Network,
    critics: Network,
    targets: Targets,
    anchor: Floats,
    scratch: Scratch,
    replay: replay_kernels.ReplayArrays,
    batch: Batch,
    noise: Floats,
    ent_coef_state: NDArray[np.float64],
    train_actor: bool,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """One update per entry of `noise` [updates, 2, batch, actions], each on a fresh uniform sample."""
    for number in range(noise.shape[0]):
        replay_kernels.sample(
            replay.memory, replay.numbers, replay.marks, replay.finals, replay.ring, settings[GAMMA],
            replay.streams, replay.rows, replay.out, replay.out_numbers, replay.layout,
        )  # fmt: skip
        ent_coef = np.float32(math.exp(ent_coef_state[LOG]))
        update_critics(
            tables, actor, critics, targets, scratch, batch, noise[number, 0], ent_coef, settings, statistics
        )
        if train_actor:
            logs = update_actor(
                tables,
                actor,
                critics,
                anchor,
                scratch,
                batch,
                noise[number, 1],
                ent_coef,
                settings,
                statistics,
            )
            if settings[LEARN_ENT_COEF] != 0.0:
                update_ent_coef(ent_coef_state, -(logs + settings[TARGET_ENTROPY]), settings)
        update_targets(tables, critics, targets, np.float32(settings[TAU]))
