"""PPO's whole update in kernels: epochs x minibatches of forward, loss, backward, clipping, Adam.

The twin is `ppo.torch_update` with `ppo.ppo_loss`; both take the same minibatches and agree up to rounding.
Actor and critic are separate networks; what couples them is the norm of the whole gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel
from hotloop.rl.train.fused.layers import CHUNK, COLUMNS, HIDDEN, OUTPUTS, Table
from hotloop.rl.train.fused.tiles import Floats

# Places in `settings`, float64.
CLIP, VALUE_CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT, LARGEST_NORM, TARGET_KL = 0, 1, 2, 3, 4, 5
LEARNING_RATE, BETA1, BETA2, EPSILON, NORMALISE = 6, 7, 8, 9, 10
SETTINGS = 11

# Places in `statistics`, float64: sums over the minibatches done, and their number.
POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, NORM, MINIBATCHES, EPOCHS = 0, 1, 2, 3, 4, 5, 6, 7
STATISTICS = 8


class Learner(NamedTuple):
    """Everything of the networks and of Adam that the kernels change; arrays owned by the caller."""

    parameters: Floats
    first: Floats
    second: Floats
    steps: NDArray[np.int64]
    """[1]: steps of Adam so far."""
    actor: Table
    critic: Table
    packed: Floats
    packed_transposed: Floats
    packed_grads: Floats
    hidden: Floats
    deltas: Floats
    grads: Floats
    inputs: Floats
    """[CHUNK, observation]: rows gathered from the batch."""


class Batch(NamedTuple):
    """A rollout flattened to [samples, ...]."""

    observations: Floats
    actions: NDArray[np.int64]
    log_probabilities: Floats
    advantages: Floats
    returns: Floats
    values: Floats
    masks: NDArray[np.bool_]
    """[samples, actions], or [0, actions] when every action is allowed everywhere."""


@fast_kernel
def update(
    learner: Learner,
    batch: Batch,
    order: NDArray[np.int64],
    edges: NDArray[np.int64],
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """Learn from a rollout: minibatch k of an epoch is order[epoch, edges[k] : edges[k + 1]].

    `statistics` is overwritten. With TARGET_KL above 0, no epoch follows one whose mean KL exceeds it.
    """
    statistics[:] = 0.0
    minibatches = edges.size - 1
    for epoch in range(order.shape[0]):
        kl_before = statistics[KL]
        for k in range(minibatches):
            rows = order[epoch, edges[k] : edges[k + 1]]
            actor_gradients(learner, batch, rows, settings, statistics)
            critic_gradients(learner, batch, rows, settings, statistics)
            layers.unpack_grads(learner.actor, learner.packed_grads, learner.grads)
            layers.unpack_grads(learner.critic, learner.packed_grads, learner.grads)
            norm = math.sqrt(layers.sum_of_squares(learner.grads))
            scale = 1.0
            if settings[LARGEST_NORM] > 0.0:
                scale = min(1.0, settings[LARGEST_NORM] / (norm + 1e-6))
            learner.steps[0] += 1
            layers.adam(
                learner.parameters, learner.grads, learner.first, learner.second, learner.steps[0],
                settings[LEARNING_RATE], settings[BETA1], settings[BETA2], settings[EPSILON], scale,
            )  # fmt: skip
            layers.pack(learner.actor, learner.parameters, learner.packed, learner.packed_transposed)
            layers.pack(learner.critic, learner.parameters, learner.packed, learner.packed_transposed)
            statistics[NORM] += norm
            statistics[MINIBATCHES] += 1.0
        statistics[EPOCHS] += 1.0
        if settings[TARGET_KL] > 0.0 and (statistics[KL] - kl_before) / minibatches > settings[TARGET_KL]:
            return


@fast_kernel
def gather(observations: Floats, rows: NDArray[np.int64], start: int, stop: int, inputs: Floats) -> None:
    """Copy the observations of samples rows[start:stop] to the first rows of `inputs`."""
    width = observations.shape[1]
    for i in range(stop - start):
        layers.copy(observations[rows[start + i]], 0, inputs, i * width, width)


@fast_kernel
def moments(advantages: Floats, rows: NDArray[np.int64]) -> tuple[float, float]:
    """Mean and standard deviation (that of a sample, n - 1) of some advantages."""
    total = 0.0
    for i in range(rows.size):
        total += advantages[rows[i]]
    mean = total / rows.size
    squares = 0.0
    for i in range(rows.size):
        squares += (advantages[rows[i]] - mean) ** 2
    return mean, math.sqrt(squares / (rows.size - 1))


@fast_kernel
def actor_gradients(
    learner: Learner,
    batch: Batch,
    rows: NDArray[np.int64],
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """Add the gradients of the clipped policy loss and the entropy bonus for one minibatch."""
    table, count = learner.actor, rows.size
    last = table.shape[0] - 1
    out, columns, actions = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    mean, scale = 0.0, 1.0
    if settings[NORMALISE] > 0.0:
        mean, deviation = moments(batch.advantages, rows)
        scale = 1.0 / (deviation + 1e-8)
    loss = entropy = kl = clipped = 0.0
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        gather(batch.observations, rows, start, stop, learner.inputs)
        layers.forward(table, learner.packed, learner.inputs, 0, learner.hidden, stop - start)
        for i in range(stop - start):
            sample, at = rows[start + i], out + i * columns
            parts = policy_gradient(
                learner.hidden[at : at + actions],
                learner.deltas[at : at + actions],
                batch.actions[sample],
                batch.log_probabilities[sample],
                np.float32((batch.advantages[sample] - mean) * scale),
                batch.masks,
                sample,
                1.0 / count,
                settings[CLIP],
                settings[ENTROPY_WEIGHT],
            )
            loss += parts[0]
            entropy += parts[1]
            kl += parts[2]
            clipped += parts[3]
        layers.backward(
            table, learner.packed_transposed, learner.inputs, 0, learner.hidden, learner.deltas, stop - start,
            learner.packed_grads,
        )  # fmt: skip
    statistics[POLICY_LOSS] += loss / count
    statistics[ENTROPY] += entropy / count
    statistics[KL] += kl / count
    statistics[CLIPPED] += clipped / count


@fast_kernel
def policy_gradient(
    logits: Floats,
    gradient: Floats,
    action: int,
    old_log_probability: np.float32,
    advantage: np.float32,
    masks: NDArray[np.bool_],
    sample: int,
    share: float,
    clip: float,
    entropy_weight: float,
) -> tuple[float, float, float, float]:
    """The gradient by the logits of one sample's part of the loss, of which it has `share`.

    Returns the sample's policy loss, entropy, KL estimate, and 1 if its ratio left the range.
    """
    shift = probabilities(logits, gradient, masks, sample)  # into `gradient`, for now
    entropy = 0.0
    for a in range(logits.size):
        if gradient[a] > 0.0:
            entropy -= gradient[a] * (logits[a] - shift)
    log_ratio = logits[action] - shift - old_log_probability
    ratio = math.exp(log_ratio)
    low, high = 1.0 - clip, 1.0 + clip
    # Not by comparing the plain with the clipped loss: inside the range they are equal up to rounding.
    cut = ratio > high if advantage > 0.0 else ratio < low
    slope = 0.0 if cut else -advantage * ratio * share
    bonus = entropy_weight * share
    for a in range(logits.size):
        p = gradient[a]
        # d log p(action) / d logit a = [a = action] - p(a);  d H / d logit a = -p(a) (log p(a) + H)
        change = -slope * p
        if p > 0.0:
            change += bonus * p * (logits[a] - shift + entropy)
        if a == action:
            change += slope
        gradient[a] = np.float32(change)
    loss = -min(advantage * ratio, advantage * min(max(ratio, low), high))
    outside = 1.0 if ratio < low or ratio > high else 0.0
    return float(loss), float(entropy), float(ratio - 1.0 - log_ratio), outside


@fast_kernel
def probabilities(logits: Floats, out: Floats, masks: NDArray[np.bool_], sample: int) -> np.float32:
    """Probabilities into `out`, 0 where the mask forbids the action; log p(a) is logits[a] - the result."""
    masked = masks.shape[0] > 0
    top = np.float32(-np.inf)
    for a in range(logits.size):
        if not masked or masks[sample, a]:
            top = max(top, logits[a])
    total = np.float32(0.0)
    for a in range(logits.size):
        out[a] = 0.0
        if not masked or masks[sample, a]:
            out[a] = np.exp(logits[a] - top)
            total += out[a]
    for a in range(logits.size):
        out[a] /= total
    return np.float32(top + np.log(total))


@fast_kernel
def critic_gradients(
    learner: Learner,
    batch: Batch,
    rows: NDArray[np.int64],
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """Add the gradients of the value loss (mean squared error, clipped on request) for one minibatch."""
    table, count = learner.critic, rows.size
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    reach, slope_share = settings[VALUE_CLIP], settings[VALUE_WEIGHT] / count
    total = 0.0
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        gather(batch.observations, rows, start, stop, learner.inputs)
        layers.forward(table, learner.packed, learner.inputs, 0, learner.hidden, stop - start)
        for i in range(stop - start):
            sample, at = rows[start + i], out + i * columns
            value, target = float(learner.hidden[at]), float(batch.returns[sample])
            loss, slope = (value - target) ** 2, 2.0 * (value - target)
            old = float(batch.values[sample])
            if reach > 0.0 and abs(value - old) > reach:
                near = old + (reach if value > old else -reach)
                if (near - target) ** 2 > loss:
                    loss, slope = (near - target) ** 2, 0.0
            learner.deltas[at] = np.float32(slope * slope_share)
            total += loss
        layers.backward(
            table, learner.packed_transposed, learner.inputs, 0, learner.hidden, learner.deltas, stop - start,
            learner.packed_grads,
        )  # fmt: skip
    statistics[VALUE_LOSS] += total / count
