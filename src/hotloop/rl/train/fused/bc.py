"""Behaviour cloning in kernels for a small dense actor: whole epochs, gathering included, in one call.

The twin is the torch learner of `bc.py`: same order of samples, the same weights up to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel, not_inlined
from hotloop.rl.train.fused.layers import CHUNK, COLUMNS, HIDDEN, Table
from hotloop.rl.train.fused.tiles import Floats

Words = NDArray[np.int64]


class Actor(NamedTuple):
    """The actor and Adam; arrays owned by the caller."""

    parameters: Floats
    first: Floats
    second: Floats
    steps: Words
    table: Table
    packed: Floats
    packed_transposed: Floats
    packed_grads: Floats
    hidden: Floats
    deltas: Floats
    grads: Floats
    inputs: Floats
    """[CHUNK * width]: room for the observations of a chunk."""


@fast_kernel
def pack(actor: Actor) -> None:
    """Make the packed weights those of the parameters, which something else may have changed."""
    layers.pack(actor.table, actor.parameters, actor.packed, actor.packed_transposed)


@fast_kernel
def gather(rows: Words, observations: Floats, inputs: Floats) -> None:
    """The observations [samples, width] at `rows`, one after the other, into `inputs`."""
    width = observations.shape[1]
    for i in range(rows.size):
        source, target = observations[rows[i]], inputs[i * width : (i + 1) * width]
        for j in range(width):
            target[j] = source[j]


@fast_kernel
def errors(
    actor: Actor, observations: Floats, actions: Floats, rows: Words, share: np.float32, learn: bool
) -> float:
    """The sum of squared errors of the squashed means for at most CHUNK samples.

    With `learn` the gradient of `share` times that sum is added to the actor's packed gradients.
    """
    not_inlined()
    table, count = actor.table, actions.shape[1]
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    gather(rows, observations, actor.inputs)
    layers.forward(table, actor.packed, actor.inputs, 0, actor.hidden, rows.size)
    total = 0.0
    two, one = np.float32(2.0), np.float32(1.0)
    for i in range(rows.size):
        at = out + i * columns
        delta = actor.deltas[at : at + columns]
        for j in range(columns):
            delta[j] = np.float32(0.0)  # also the outputs for the noise, which cloning leaves alone
        for a in range(count):
            squashed = layers.tanh(actor.hidden[at + a])
            error = squashed - actions[rows[i], a]
            total += error * error
            delta[a] = share * two * error * (one - squashed * squashed)
    if learn:
        layers.backward(
            table,
            actor.packed_transposed,
            actor.inputs,
            0,
            actor.hidden,
            actor.deltas,
            rows.size,
            actor.packed_grads,
        )
    return total


@fast_kernel
def epoch(
    actor: Actor,
    observations: Floats,
    actions: Floats,
    order: Words,
    batch: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> float:
    """One Adam step for every `batch` samples of `order`; returns the mean squared error on the way."""
    total = 0.0
    for begin in range(0, order.size, batch):
        end = min(begin + batch, order.size)
        share = np.float32(1.0 / ((end - begin) * actions.shape[1]))
        for start in range(begin, end, CHUNK):
            rows = order[start : min(start + CHUNK, end)]
            total += errors(actor, observations, actions, rows, share, True)
        layers.unpack_grads(actor.table, actor.packed_grads, actor.grads)
        actor.steps[0] += 1
        layers.adam(
            actor.parameters, actor.grads, actor.first, actor.second, actor.steps[0],
            learning_rate, beta1, beta2, epsilon, 1.0,
        )  # fmt: skip
        layers.pack(actor.table, actor.parameters, actor.packed, actor.packed_transposed)
    return float(total / (order.size * actions.shape[1]))


@fast_kernel
def mean_error(actor: Actor, observations: Floats, actions: Floats, order: Words) -> float:
    """The mean squared error over the samples of `order`, without learning."""
    total = 0.0
    for start in range(0, order.size, CHUNK):
        rows = order[start : min(start + CHUNK, order.size)]
        total += errors(actor, observations, actions, rows, np.float32(0.0), False)
    return float(total / (order.size * actions.shape[1]))
