"""Acting in kernels: forward and sampling for a batch of environments, and values for a whole rollout."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel
from hotloop.rl.train.fused.layers import CHUNK, COLUMNS, HIDDEN, OUTPUTS
from hotloop.rl.train.fused.ppo import Learner
from hotloop.rl.train.fused.tiles import Floats


@fast_kernel
def pack_both(learner: Learner) -> None:
    """Make the packed weights those of the parameters, which something else may have changed."""
    layers.pack(learner.actor, learner.parameters, learner.packed, learner.packed_transposed)
    layers.pack(learner.critic, learner.parameters, learner.packed, learner.packed_transposed)


@fast_kernel
def act(
    learner: Learner,
    observations: Floats,
    uniforms: Floats,
    masks: NDArray[np.bool_],
    actions: NDArray[np.int64],
    log_probabilities: Floats,
) -> None:
    """Choose an action for each row of `observations` [rows, width] by its number in [0, 1).

    `masks` [rows, actions] or [0, actions]. Writes `actions` and `log_probabilities` [rows]. Like the
    twin `ppo.sample`: the first action at which the summed probabilities exceed the number.
    """
    table = learner.actor
    last = table.shape[0] - 1
    out, columns, allowed = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    rows, width = observations.shape
    inputs = observations.reshape(-1)
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        layers.forward(table, learner.packed, inputs, start * width, learner.hidden, stop - start)
        for row in range(start, stop):
            at = out + (row - start) * columns
            logits = learner.hidden[at : at + allowed]
            action, log_probability = draw(logits, masks, row, uniforms[row])
            actions[row] = action
            log_probabilities[row] = log_probability


@fast_kernel
def draw(logits: Floats, masks: NDArray[np.bool_], row: int, uniform: np.float32) -> tuple[int, np.float32]:
    """An action drawn by a number in [0, 1), and its log-probability; `logits` are used up."""
    masked = masks.shape[0] > 0
    top = np.float32(-np.inf)
    for a in range(logits.size):
        if not masked or masks[row, a]:
            top = max(top, logits[a])
    total = np.float32(0.0)
    for a in range(logits.size):
        logits[a] -= top
        if not masked or masks[row, a]:
            total += np.exp(logits[a])
    threshold, summed, action = uniform * total, np.float32(0.0), 0
    for a in range(logits.size):
        if not masked or masks[row, a]:
            action = a
            summed += np.exp(logits[a])
            if summed > threshold:
                break
    return action, np.float32(logits[action] - math.log(total))


@fast_kernel
def best(
    learner: Learner, observations: Floats, masks: NDArray[np.bool_], actions: NDArray[np.int64]
) -> None:
    """The likeliest allowed action for each row of `observations`, into `actions`."""
    table = learner.actor
    last = table.shape[0] - 1
    out, columns, allowed = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    rows, width = observations.shape
    inputs = observations.reshape(-1)
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        layers.forward(table, learner.packed, inputs, start * width, learner.hidden, stop - start)
        for row in range(start, stop):
            at = out + (row - start) * columns
            logits = learner.hidden[at : at + allowed]
            action, top = -1, np.float32(0.0)
            for a in range(allowed):
                if (masks.shape[0] == 0 or masks[row, a]) and (action < 0 or logits[a] > top):
                    action, top = a, logits[a]
            actions[row] = action


@fast_kernel
def values(learner: Learner, observations: Floats, found: Floats) -> None:
    """The critic's value of each row of `observations` [rows, width] into `found` [rows]."""
    table = learner.critic
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    rows, width = observations.shape
    inputs = observations.reshape(-1)
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        layers.forward(table, learner.packed, inputs, start * width, learner.hidden, stop - start)
        for row in range(start, stop):
            found[row] = learner.hidden[out + (row - start) * columns]
