"""Kernels for PPO, A2C and MaskablePPO as Stable-Baselines3 computes them: minibatches, acting, advantages.

Actor and critic are separate networks (see `rl.train.fused.layers`). The actor's outputs are the logits of
one or more categorical heads, or the means of a Gaussian whose log standard deviations are the last entries
of the parameters. The reference is the library itself: tests and audits compare with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel, inlined_kernel, kernel
from hotloop.rl.train.fused.layers import CHUNK, COLUMNS, HIDDEN, OUTPUTS, Table
from hotloop.rl.train.fused.ppo_kernels import gather, moments
from hotloop.rl.train.fused.tiles import Floats

Words = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Indices into `settings`, float64.
CLIP_RANGE, CLIP_RANGE_VF, VF_COEF, ENT_COEF, MAX_GRAD_NORM, STOP_KL = 0, 1, 2, 3, 4, 5
LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 6, 7, 8, 9, 10
NORMALIZE, SURROGATE, OPTIMIZER = 11, 12, 13
SETTINGS = 14

NEVER, MORE_THAN_ONE, ALWAYS = 0.0, 1.0, 2.0  # NORMALIZE: advantages of a batch
PLAIN, CLIPPED = 0.0, 1.0  # SURROGATE: A2C's policy loss, PPO's
ADAM, RMSPROP = 0.0, 1.0  # OPTIMIZER
# CLIP_RANGE_VF, STOP_KL: not used. Schedules can end below zero, so no small number will do.
OFF = -1e300

# Columns of `statistics`, float64, one row for each minibatch.
POLICY_LOSS, CLIP_FRACTION, VALUE_LOSS, ENTROPY_LOSS, LOSS, APPROX_KL = range(6)
STATISTICS = 6

_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


class State(NamedTuple):
    """Networks and optimizer state; the caller owns the arrays, the kernels change them."""

    parameters: Floats
    first: Floats
    """Adam's first moment; unused by RMSprop."""
    second: Floats
    """Adam's second moment, or RMSprop's mean square."""
    grads: Floats
    steps: Words
    """[1]: the optimizer's steps so far."""
    actor: Table
    critic: Table
    heads: Words
    """Number of choices of each categorical head; empty for a Gaussian."""
    packed: Floats
    packed_transposed: Floats
    packed_grads: Floats
    hidden: Floats
    deltas: Floats
    inputs: Floats
    """[CHUNK, observation width]: observations gathered from the batch."""
    decayed: Floats
    """Gradients with weight decay, for the optimizer."""
    std_grads: Floats
    """Sums of the gradients of a Gaussian's log standard deviations."""


class Batch(NamedTuple):
    """A rollout flattened to [samples, ...]."""

    observations: Floats
    actions: Floats
    """[samples, heads or dimensions]"""
    log_probs: Floats
    advantages: Floats
    returns: Floats
    values: Floats
    masks: Bools
    """[samples, all logits], or [0, all logits] when every action is always allowed."""


@fast_kernel
def pack(state: State) -> None:
    """Repack the weights after something else changed `parameters`."""
    layers.pack(state.actor, state.parameters, state.packed, state.packed_transposed)
    layers.pack(state.critic, state.parameters, state.packed, state.packed_transposed)


@fast_kernel
def run_minibatches(
    state: State,
    batch: Batch,
    order: Words,
    batch_size: int,
    first: int,
    last: int,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> int:
    """Minibatches first..last - 1 of one pass over the samples in `order`; returns how many were run.

    Minibatch k is order[k * batch_size : (k + 1) * batch_size] and its statistics are row k. One whose KL
    estimate exceeds STOP_KL is the last and changes no weight.
    """
    for k in range(first, last):
        rows = order[k * batch_size : min((k + 1) * batch_size, order.size)]
        found = statistics[k]
        found[:] = 0.0
        policy_gradients(state, batch, rows, settings, found)
        value_gradients(state, batch, rows, settings, found)
        found[LOSS] = (
            found[POLICY_LOSS]
            + settings[ENT_COEF] * found[ENTROPY_LOSS]
            + settings[VF_COEF] * found[VALUE_LOSS]
        )
        if settings[STOP_KL] != OFF and found[APPROX_KL] > settings[STOP_KL]:
            for i in range(state.packed_grads.size):  # `grads` stay those of the last step that was made
                state.packed_grads[i] = 0.0
            return k - first + 1
        layers.unpack_grads(state.actor, state.packed_grads, state.grads)
        layers.unpack_grads(state.critic, state.packed_grads, state.grads)
        first_std = state.grads.size - state.std_grads.size
        for i in range(state.std_grads.size):
            state.grads[first_std + i] = state.std_grads[i]
        norm = math.sqrt(layers.sum_of_squares(state.grads))
        scale = settings[MAX_GRAD_NORM] / (norm + 1e-6)
        if scale > 1.0:
            scale = 1.0
        optimizer_step(state, scale, settings)
        pack(state)
    return last - first


@inlined_kernel
def optimizer_step(state: State, scale: float, settings: NDArray[np.float64]) -> None:
    """One step of Adam or RMSprop with gradients `scale * grads`, as torch makes it; `grads` get scaled."""
    factor, decay = np.float32(scale), np.float32(settings[WEIGHT_DECAY])
    for i in range(state.grads.size):
        state.grads[i] *= factor
        state.decayed[i] = state.grads[i] + decay * state.parameters[i]
    state.steps[0] += 1
    if settings[OPTIMIZER] == ADAM:
        layers.adam(
            state.parameters, state.decayed, state.first, state.second, state.steps[0],
            settings[LEARNING_RATE], settings[BETA1], settings[BETA2], settings[EPSILON], 1.0,
        )  # fmt: skip
    else:
        rmsprop(
            state.parameters, state.decayed, state.second,
            np.float32(settings[LEARNING_RATE]), settings[BETA2], np.float32(settings[EPSILON]),
        )  # fmt: skip


@inlined_kernel
def rmsprop(
    parameters: Floats,
    grads: Floats,
    mean_square: Floats,
    learning_rate: np.float32,
    alpha: float,
    epsilon: np.float32,
) -> None:
    """One step of `torch.optim.RMSprop` without momentum and not centered."""
    keep, new = np.float32(alpha), np.float32(1.0 - alpha)
    for i in range(parameters.size):
        g = grads[i]
        v = keep * mean_square[i] + new * g * g
        mean_square[i] = v
        parameters[i] -= learning_rate * g / (np.sqrt(v) + epsilon)


# ---- gradients


@inlined_kernel
def policy_gradients(
    state: State, batch: Batch, rows: Words, settings: NDArray[np.float64], found: NDArray[np.float64]
) -> None:
    """Add the gradients of the policy loss and the entropy bonus of one minibatch."""
    table, count = state.actor, rows.size
    last = table.shape[0] - 1
    out, columns, outputs = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    mean, scale = 0.0, 1.0
    if settings[NORMALIZE] == ALWAYS or (settings[NORMALIZE] == MORE_THAN_ONE and count > 1):
        mean, deviation = moments(batch.advantages, rows)
        scale = 1.0 / (deviation + 1e-8)
    is_gaussian = state.heads.size == 0
    first_std = state.parameters.size - state.std_grads.size
    for i in range(state.std_grads.size):
        state.std_grads[i] = 0.0
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        gather(batch.observations, rows, start, stop, state.inputs)
        layers.forward(table, state.packed, state.inputs, int(np.int64(0)), state.hidden, stop - start)
        for i in range(stop - start):
            sample, at = rows[start + i], out + i * columns
            outs, deltas = state.hidden[at : at + outputs], state.deltas[at : at + outputs]
            if is_gaussian:
                log_prob, entropy = gaussian_terms(outs, state.parameters[first_std:], batch.actions[sample])
            else:
                log_prob, entropy = categorical_terms(
                    outs, deltas, state.heads, batch.actions[sample], batch.masks, sample
                )
            advantage = np.float32((batch.advantages[sample] - mean) * scale)
            slope = policy_loss(advantage, log_prob, batch.log_probs[sample], settings, found) / count
            found[ENTROPY_LOSS] -= entropy
            bonus = settings[ENT_COEF] / count
            if is_gaussian:
                gaussian_gradient(
                    outs, deltas, state.parameters[first_std:], state.std_grads,
                    batch.actions[sample], slope, bonus,
                )  # fmt: skip
            else:
                categorical_gradient(
                    outs, deltas, state.heads, batch.actions[sample], batch.masks, sample, slope, bonus
                )
        layers.backward(
            table, state.packed_transposed, state.inputs, int(np.int64(0)), state.hidden, state.deltas,
            stop - start, state.packed_grads,
        )  # fmt: skip
    for column in (POLICY_LOSS, CLIP_FRACTION, ENTROPY_LOSS, APPROX_KL):
        found[column] /= count


@inlined_kernel
def policy_loss(
    advantage: np.float32,
    log_prob: np.float32,
    old_log_prob: np.float32,
    settings: NDArray[np.float64],
    found: NDArray[np.float64],
) -> float:
    """Add a sample's loss and its estimates to `found`; returns d loss / d log_prob."""
    if settings[SURROGATE] == PLAIN:
        found[POLICY_LOSS] -= advantage * log_prob
        return -float(advantage)
    log_ratio = np.float32(log_prob - old_log_prob)
    ratio = np.float32(math.exp(log_ratio))
    clip = settings[CLIP_RANGE]
    low, high = np.float32(1.0 - clip), np.float32(1.0 + clip)
    # As `torch.clamp`: `high` for all where a schedule ends below zero. Comparing the plain with the clipped
    # loss would not do: inside the range they differ by rounding.
    clipped = min(max(ratio, low), high)
    cut = ratio > clipped if advantage > 0.0 else ratio < clipped
    found[POLICY_LOSS] -= min(advantage * ratio, advantage * clipped)
    found[CLIP_FRACTION] += 1.0 if abs(ratio - np.float32(1.0)) > clip else 0.0
    found[APPROX_KL] += (ratio - np.float32(1.0)) - log_ratio
    return 0.0 if cut else -float(advantage) * float(ratio)


@inlined_kernel
def categorical_terms(
    logits: Floats, probs: Floats, heads: Words, actions: Floats, masks: Bools, sample: int
) -> tuple[np.float32, float]:
    """Log probability of the actions and entropy, summed over the heads.

    `logits` become log probabilities, `probs` probabilities: 0 for masked actions.
    """
    log_prob, entropy, at = np.float32(0.0), 0.0, 0
    for head in range(heads.size):
        size = heads[head]
        normalise(logits[at : at + size], probs[at : at + size], masks, sample, at)
        for a in range(at, at + size):
            if probs[a] > 0.0 and (masks.shape[0] == 0 or masks[sample, a]):
                entropy -= probs[a] * logits[a]
        log_prob += logits[at + int(actions[head])]
        at += size
    return log_prob, entropy


@fast_kernel
def normalise(logits: Floats, probs: Floats, masks: Bools, sample: int, at: int) -> None:
    """Replace the logits of one head by log probabilities, and write their exponentials to `probs`.

    `masks[sample, at:]` are the head's. A masked action has probability 0, or as in sb3-contrib the same as
    all others when the whole head is masked.
    """
    masked = masks.shape[0] > 0
    top = np.float32(-np.inf)
    for a in range(logits.size):
        if masked and not masks[sample, at + a]:
            logits[a] = np.float32(-1e8)
        top = max(top, logits[a])
    total = np.float32(0.0)
    for a in range(logits.size):
        probs[a] = np.exp(logits[a] - top)
        total += probs[a]
    shift = np.float32(top + np.log(total))
    for a in range(logits.size):
        probs[a] /= total
        logits[a] -= shift


@inlined_kernel
def categorical_gradient(
    log_probs: Floats,
    gradient: Floats,
    heads: Words,
    actions: Floats,
    masks: Bools,
    sample: int,
    slope: float,
    bonus: float,
) -> None:
    """Turn the probabilities in `gradient` into the gradient of the loss with respect to the logits."""
    at, masked = 0, masks.shape[0] > 0
    for head in range(heads.size):
        size = heads[head]
        entropy = 0.0
        for a in range(at, at + size):
            if gradient[a] > 0.0:
                entropy -= gradient[a] * log_probs[a]
        chosen = at + int(actions[head])
        for a in range(at, at + size):
            p = gradient[a]
            # d log p(action) / d logit a = [a = action] - p(a);  d H / d logit a = -p(a) (log p(a) + H)
            change = -slope * p
            if p > 0.0:
                change += bonus * p * (log_probs[a] + entropy)
            if a == chosen:
                change += slope
            gradient[a] = np.float32(0.0) if masked and not masks[sample, a] else np.float32(change)
        at += size


@fast_kernel
def gaussian_terms(means: Floats, log_stds: Floats, actions: Floats) -> tuple[np.float32, float]:
    """Log probability of the action and entropy, summed over the dimensions."""
    log_prob, entropy = np.float32(0.0), 0.0
    for a in range(means.size):
        z = (actions[a] - means[a]) * np.float32(math.exp(-log_stds[a]))
        log_prob += np.float32(-0.5 * z * z - log_stds[a] - _HALF_LOG_2_PI)
        entropy += 0.5 + _HALF_LOG_2_PI + log_stds[a]
    return log_prob, entropy


@inlined_kernel
def gaussian_gradient(
    means: Floats,
    gradient: Floats,
    log_stds: Floats,
    log_std_grads: Floats,
    actions: Floats,
    slope: float,
    bonus: float,
) -> None:
    """Write the gradient with respect to the means; add that of the log standard deviations."""
    for a in range(means.size):
        inverse = np.float32(math.exp(-log_stds[a]))
        z = (actions[a] - means[a]) * inverse
        gradient[a] = np.float32(slope * z * inverse)
        log_std_grads[a] += np.float32(slope * (z * z - 1.0) - bonus)


@inlined_kernel
def value_gradients(
    state: State, batch: Batch, rows: Words, settings: NDArray[np.float64], found: NDArray[np.float64]
) -> None:
    """Add the gradients of the value loss (mean squared error, optionally clipped) of one minibatch."""
    table, count = state.critic, rows.size
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    clip, share = settings[CLIP_RANGE_VF], settings[VF_COEF] / count
    total = 0.0
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        gather(batch.observations, rows, start, stop, state.inputs)
        layers.forward(table, state.packed, state.inputs, int(np.int64(0)), state.hidden, stop - start)
        for i in range(stop - start):
            sample, at = rows[start + i], out + i * columns
            value, target, old = state.hidden[at], batch.returns[sample], batch.values[sample]
            slope = 2.0 * (value - target)
            if clip != OFF and (value - old > clip or value - old < -clip):
                value = old + np.float32(min(max(float(value - old), -clip), clip))
                slope = 0.0
            state.deltas[at] = np.float32(slope * share)
            total += (value - target) ** 2
        layers.backward(
            table, state.packed_transposed, state.inputs, int(np.int64(0)), state.hidden, state.deltas,
            stop - start, state.packed_grads,
        )  # fmt: skip
    found[VALUE_LOSS] = total / count


# ---- acting


@fast_kernel
def act(
    state: State,
    observations: Floats,
    noise: Floats,
    masks: Bools,
    deterministic: bool,
    choices: Words,
    actions: Floats,
    log_probs: Floats,
    values: Floats,
) -> None:
    """Actions, their log probabilities and values for observations [rows, width].

    `noise` is what torch draws for the same distributions: exponential numbers [rows, choices] of each head,
    one head after the other, or standard normal numbers [rows, dimensions]. A categorical action is the
    argmax of probability / exponential number, as in torch.multinomial. Actions go to `choices` [rows, heads]
    or `actions` [rows, dimensions]. `masks` is [rows, all logits] or [0, ...].
    """
    table = state.actor
    last = table.shape[0] - 1
    out, columns, outputs = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    rows, width = observations.shape
    inputs = observations.reshape(-1)
    log_stds = state.parameters[state.parameters.size - outputs :]
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        layers.forward(table, state.packed, inputs, start * width, state.hidden, stop - start)
        for row in range(start, stop):
            at = out + (row - start) * columns
            outs, probs = state.hidden[at : at + outputs], state.deltas[at : at + outputs]
            if state.heads.size == 0:
                for a in range(outputs):
                    drawn = np.float32(0.0) if deterministic else noise[row * outputs + a]
                    actions[row, a] = outs[a] + drawn * np.float32(math.exp(log_stds[a]))
                log_probs[row], _ = gaussian_terms(outs, log_stds, actions[row])
                continue
            log_probs[row] = 0.0
            first, drawn_at = 0, 0
            for head in range(state.heads.size):
                size = state.heads[head]
                one = probs[first : first + size]
                normalise(outs[first : first + size], one, masks, row, first)
                best, top = 0, np.float32(-1.0)
                for a in range(size):
                    score = one[a] if deterministic else one[a] / noise[drawn_at + row * size + a]
                    if score > top:
                        best, top = a, score
                choices[row, head] = best
                log_probs[row] += outs[first + best]
                first += size
                drawn_at += rows * size
    predict_values(state, observations, values)


@fast_kernel
def predict_values(state: State, observations: Floats, values: Floats) -> None:
    """Write the critic's value of each row of `observations` [rows, width] to `values` [rows]."""
    table = state.critic
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    rows, width = observations.shape
    inputs = observations.reshape(-1)
    for start in range(0, rows, CHUNK):
        stop = min(start + CHUNK, rows)
        layers.forward(table, state.packed, inputs, start * width, state.hidden, stop - start)
        for row in range(start, stop):
            values[row] = state.hidden[out + (row - start) * columns]


# ---- advantages


@kernel
def advantages(
    rewards: Floats,
    values: Floats,
    episode_starts: Floats,
    last_values: Floats,
    last_dones: Floats,
    gamma: np.float32,
    gamma_lambda: np.float32,
    found: Floats,
) -> None:
    """GAE of a rollout [steps, envs], bit for bit as `RolloutBuffer.compute_returns_and_advantage`."""
    steps, envs = rewards.shape
    one = np.float32(1.0)
    for env in range(envs):
        later = np.float32(0.0)
        for step in range(steps - 1, -1, -1):
            if step == steps - 1:
                going_on, next_value = one - last_dones[env], last_values[env]
            else:
                going_on, next_value = one - episode_starts[step + 1, env], values[step + 1, env]
            delta = rewards[step, env] + gamma * next_value * going_on - values[step, env]
            later = delta + gamma_lambda * going_on * later
            found[step, env] = later
