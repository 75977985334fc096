"""Kernels of the fused PPO learner: the whole update, acting, and whole rollouts of our own envs.

The twin of `update` is `TorchLearner.update` in `ppo.py`; given the same batches they agree up to rounding.
Actor and critic are separate networks, coupled only by the norm of the whole gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.cartpole import kernels as cartpole
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel
from hotloop.rl.train.fused.layers import CHUNK, COLUMNS, HIDDEN, OUTPUTS, Table
from hotloop.rl.train.fused.tiles import Floats
from hotloop.rl.train.make_envs import EpisodeLog

Bools = NDArray[np.bool_]

# Indices into `settings`, float64; 0 switches off what is optional in PPOConfig.
CLIP_RANGE, CLIP_RANGE_VF, VF_COEF, ENT_COEF, MAX_GRAD_NORM, TARGET_KL = 0, 1, 2, 3, 4, 5
LEARNING_RATE, BETA1, BETA2, ADAM_EPS, NORMALIZE_ADVANTAGE = 6, 7, 8, 9, 10
SETTINGS = 11

# Indices into `statistics`, float64: sums over the gradient steps, their number, and the epochs.
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION, GRAD_NORM, GRADIENT_STEPS, EPOCHS = range(8)
STATISTICS = 8


class Learner(NamedTuple):
    """Networks and Adam's state; the caller owns the arrays, the kernels change them."""

    parameters: Floats
    first: Floats
    second: Floats
    steps: NDArray[np.int64]
    """[1]: Adam's steps so far."""
    actor: Table
    critic: Table
    packed: Floats
    packed_transposed: Floats
    packed_grads: Floats
    hidden: Floats
    deltas: Floats
    grads: Floats
    inputs: Floats
    """[CHUNK, observation width]: observations gathered from the batch."""


class Batch(NamedTuple):
    """A rollout flattened to [samples, ...]."""

    observations: Floats
    actions: NDArray[np.int64]
    log_probabilities: Floats
    advantages: Floats
    returns: Floats
    values: Floats
    masks: Bools
    """[samples, actions], or [0, actions] when every action is always allowed."""


@fast_kernel
def update(
    learner: Learner,
    batch: Batch,
    order: NDArray[np.int64],
    edges: NDArray[np.int64],
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """All epochs over a rollout: batch k of an epoch is order[epoch, edges[k] : edges[k + 1]].

    `statistics` is overwritten. With TARGET_KL above 0, an epoch whose mean KL exceeds it is the last.
    """
    statistics[:] = 0.0
    batches = edges.size - 1
    for epoch in range(order.shape[0]):
        kl_before = statistics[APPROX_KL]
        for k in range(batches):
            rows = order[epoch, edges[k] : edges[k + 1]]
            actor_gradients(learner, batch, rows, settings, statistics)
            critic_gradients(learner, batch, rows, settings, statistics)
            layers.unpack_grads(learner.actor, learner.packed_grads, learner.grads)
            layers.unpack_grads(learner.critic, learner.packed_grads, learner.grads)
            norm = math.sqrt(layers.sum_of_squares(learner.grads))
            scale = 1.0
            if settings[MAX_GRAD_NORM] > 0.0:
                scale = min(1.0, settings[MAX_GRAD_NORM] / (norm + 1e-6))
            learner.steps[0] += 1
            layers.adam(
                learner.parameters, learner.grads, learner.first, learner.second, learner.steps[0],
                settings[LEARNING_RATE], settings[BETA1], settings[BETA2], settings[ADAM_EPS], scale,
            )  # fmt: skip
            layers.pack(learner.actor, learner.parameters, learner.packed, learner.packed_transposed)
            layers.pack(learner.critic, learner.parameters, learner.packed, learner.packed_transposed)
            statistics[GRAD_NORM] += norm
            statistics[GRADIENT_STEPS] += 1.0
        statistics[EPOCHS] += 1.0
        mean_kl = (statistics[APPROX_KL] - kl_before) / batches
        if settings[TARGET_KL] > 0.0 and mean_kl > settings[TARGET_KL]:
            return


@fast_kernel
def gather(observations: Floats, rows: NDArray[np.int64], start: int, stop: int, inputs: Floats) -> None:
    """Copy the observations of samples rows[start:stop] to the first rows of `inputs`."""
    width = observations.shape[1]
    for i in range(stop - start):
        layers.copy(observations[rows[start + i]], 0, inputs, i * width, width)


@fast_kernel
def moments(advantages: Floats, rows: NDArray[np.int64]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1) of the advantages at `rows`."""
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
    """Add the gradients of the clipped policy loss and the entropy bonus of one batch."""
    table, count = learner.actor, rows.size
    last = table.shape[0] - 1
    out, columns, actions = table[last, HIDDEN], table[last, COLUMNS], table[last, OUTPUTS]
    mean, scale = 0.0, 1.0
    if settings[NORMALIZE_ADVANTAGE] > 0.0:
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
                settings[CLIP_RANGE],
                settings[ENT_COEF],
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
    statistics[APPROX_KL] += kl / count
    statistics[CLIP_FRACTION] += clipped / count


@fast_kernel
def policy_gradient(
    logits: Floats,
    gradient: Floats,
    action: int,
    old_log_probability: np.float32,
    advantage: np.float32,
    masks: Bools,
    sample: int,
    share: float,
    clip_range: float,
    ent_coef: float,
) -> tuple[float, float, float, float]:
    """Write the gradient of one sample's loss, weighted by `share`, with respect to its logits.

    Returns the sample's policy loss, entropy, KL estimate, and 1 if its ratio left the clip range.
    """
    shift = probabilities(logits, gradient, masks, sample)  # into `gradient`, for now
    entropy = 0.0
    for a in range(logits.size):
        if gradient[a] > 0.0:
            entropy -= gradient[a] * (logits[a] - shift)
    log_ratio = logits[action] - shift - old_log_probability
    ratio = math.exp(log_ratio)
    low, high = 1.0 - clip_range, 1.0 + clip_range
    # Comparing the plain with the clipped loss would not do: inside the range they differ by rounding.
    cut = ratio > high if advantage > 0.0 else ratio < low
    slope = 0.0 if cut else -advantage * ratio * share
    bonus = ent_coef * share
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
def probabilities(logits: Floats, out: Floats, masks: Bools, sample: int) -> np.float32:
    """Write probabilities to `out`, 0 for masked actions; returns z such that log p(a) = logits[a] - z."""
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
    """Add the gradients of the value loss (mean squared error, optionally clipped) of one batch."""
    table, count = learner.critic, rows.size
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    clip, share = settings[CLIP_RANGE_VF], settings[VF_COEF] / count
    total = 0.0
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        gather(batch.observations, rows, start, stop, learner.inputs)
        layers.forward(table, learner.packed, learner.inputs, 0, learner.hidden, stop - start)
        for i in range(stop - start):
            sample, at = rows[start + i], out + i * columns
            value, target = float(learner.hidden[at]), float(batch.returns[sample])
            old = float(batch.values[sample])
            slope = 2.0 * (value - target)
            if clip > 0.0 and abs(value - old) > clip:
                value, slope = old + (clip if value > old else -clip), 0.0
            learner.deltas[at] = np.float32(slope * share)
            total += (value - target) ** 2
        layers.backward(
            table, learner.packed_transposed, learner.inputs, 0, learner.hidden, learner.deltas, stop - start,
            learner.packed_grads,
        )  # fmt: skip
    statistics[VALUE_LOSS] += total / count


# ---- acting


@fast_kernel
def pack_both(learner: Learner) -> None:
    """Repack the weights after something else changed `parameters`."""
    layers.pack(learner.actor, learner.parameters, learner.packed, learner.packed_transposed)
    layers.pack(learner.critic, learner.parameters, learner.packed, learner.packed_transposed)


@fast_kernel
def act(
    learner: Learner,
    observations: Floats,
    uniforms: Floats,
    masks: Bools,
    actions: NDArray[np.int64],
    log_probabilities: Floats,
) -> None:
    """Sample an action for each row of `observations` [rows, width] with its uniform number in [0, 1).

    `masks` is [rows, actions] or [0, actions]. Writes `actions` and `log_probabilities` [rows]. An action
    is the first at which the cumulated probabilities exceed the number, as in `TorchLearner.act`.
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
            action, log_probability = sample_action(logits, masks, row, uniforms[row])
            actions[row] = action
            log_probabilities[row] = log_probability


@fast_kernel
def sample_action(logits: Floats, masks: Bools, row: int, uniform: np.float32) -> tuple[int, np.float32]:
    """An action and its log-probability for a uniform number in [0, 1); overwrites `logits`."""
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
def greedy_actions(learner: Learner, observations: Floats, masks: Bools, actions: NDArray[np.int64]) -> None:
    """Write the most likely allowed action for each row of `observations` to `actions`."""
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
    """Write the critic's value of each row of `observations` [rows, width] to `found` [rows]."""
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


# ---- whole rollouts: each family of envs has its own few lines, because numba cannot cache a kernel that
# gets another one as an argument


class Envs(NamedTuple):
    """The arrays of a `BatchedEnv` that a rollout reads and writes."""

    actions: NDArray[np.int64]
    observations: Floats
    final_observations: Floats
    rewards: NDArray[np.float64]
    terminated: Bools
    truncated: Bools


class Rollout(NamedTuple):
    """The arrays of a `RolloutBuffer` with observations as [steps + 1, envs, width]."""

    observations: Floats
    actions: NDArray[np.int64]
    log_probabilities: Floats
    rewards: Floats
    terminated: Bools
    truncated: Bools
    values: Floats
    final_values: Floats
    masks: Bools


@fast_kernel
def store_step(learner: Learner, envs: Envs, rollout: Rollout, episodes: EpisodeLog, step: int) -> None:
    """Store one step of all envs, with the value of the final observation where an episode was truncated."""
    rows, width = envs.observations.shape
    for row in range(rows):
        for j in range(width):
            rollout.observations[step + 1, row, j] = envs.observations[row, j]
    for row in range(rows):
        terminated, truncated = envs.terminated[row], envs.truncated[row]
        rollout.rewards[step, row] = envs.rewards[row]
        rollout.terminated[step, row] = terminated
        rollout.truncated[step, row] = truncated
        rollout.final_values[step, row] = 0.0
        episodes.running_returns[row] += envs.rewards[row]
        episodes.running_lengths[row] += 1
        if terminated or truncated:
            at = episodes.count[0]
            episodes.returns[at] = episodes.running_returns[row]
            episodes.lengths[at] = episodes.running_lengths[row]
            episodes.count[0] = at + 1
            episodes.running_returns[row] = 0.0
            episodes.running_lengths[row] = 0
        if truncated and not terminated:
            table = learner.critic
            last = table.shape[0] - 1
            for j in range(width):
                learner.inputs[j] = envs.final_observations[row, j]
            layers.forward(table, learner.packed, learner.inputs, 0, learner.hidden, 1)
            rollout.final_values[step, row] = learner.hidden[table[last, HIDDEN]]


@fast_kernel
def value_observations(learner: Learner, rollout: Rollout) -> None:
    """The critic's values of all observations of the rollout, in large batches."""
    steps, envs, width = rollout.observations.shape
    values(learner, rollout.observations.reshape(steps * envs, width), rollout.values.reshape(-1))


@fast_kernel
def cartpole_rollout(
    learner: Learner,
    envs: Envs,
    rollout: Rollout,
    episodes: EpisodeLog,
    uniforms: Floats,
    table: NDArray[np.int64],
) -> int:
    """A rollout of `CartPoleVectorEnv`; returns -1, or the row whose action the environment refused."""
    rows = envs.actions.size
    for step in range(uniforms.shape[0]):
        act(
            learner, rollout.observations[step], uniforms[step], rollout.masks[0:0, 0],
            envs.actions, rollout.log_probabilities[step],
        )  # fmt: skip
        for row in range(rows):  # an assignment of whole rows takes seconds to compile
            rollout.actions[step, row] = envs.actions[row]
        wrong = cartpole.step_batch(table, 0, rows)
        if wrong >= 0:
            return wrong
        store_step(learner, envs, rollout, episodes, step)
    value_observations(learner, rollout)
    return -1
