"""One gradient step of Stable-Baselines3's SAC: entropy coefficient, critics, actor, target critics.

The reference is the library itself: tests and audits compare with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.boost import dense_kernels as dense
from hotloop.boost.dense_kernels import INPUTS, OUTPUT_AT, TARGET, WEIGHTS, Addresses, Table
from hotloop.boost.off_policy_kernels import (
    Batch,
    Memory,
    Numbers,
    adam_number,
    input_gradient_of_selected,
    keep_selected,
    load,
    mean_squared_error,
    padded_samples,
)
from hotloop.boost.team_kernels import Words, begins, wait_for_all
from hotloop.rl.envs.compiled import array_at
from hotloop.rl.train.fused.compiled import inlined_kernel, kernel, not_inlined
from hotloop.rl.train.fused.tiles import Floats

# Indices into `settings`, float64; the three optimizers' settings are rows of a table.
ENT_COEF, LEARN_ENT_COEF, TARGET_ENTROPY, TAU, UPDATE_TARGETS = range(5)
SETTINGS = 5
ACTOR, CRITIC, ENT = 0, 1, 2

# Indices into `statistics`, float64.
ENT_COEF_USED, ENT_COEF_LOSS, CRITIC_LOSS, ACTOR_LOSS = range(4)
STATISTICS = 4

# Passes of the critics.
ON_NEXT, ON_TAKEN, ON_POLICY = 0, 1, 2

LOG_STD_MIN, LOG_STD_MAX = np.float32(-20.0), np.float32(2.0)
_SQUASH_EPS = np.float32(1e-6)
_LOG_ROOT_2_PI = np.float32(math.log(math.sqrt(2.0 * math.pi)))
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


class Networks(NamedTuple):
    """Tables and addresses of tensors (see `dense_kernels`)."""

    actor: Table
    """Reads the observations."""
    actor_on_next: Table
    """The same network; reads the next observations."""
    critics: NDArray[np.int64]
    """[passes, critics, layers, columns]"""
    actor_at: Addresses
    critics_at: Addresses
    ent_coef_at: Addresses


class Scratch(NamedTuple):
    """Memory for intermediate results."""

    log_probs: Floats
    """[2, samples]: of the policy's actions, of the next actions."""
    targets: Floats
    """[threads, samples]"""
    next_values: Floats
    """[critics, samples]: of the target critics."""
    values: Floats
    """[critics, samples]"""
    losses: NDArray[np.float64]
    """[critics]"""
    action_grads: Floats
    """[actions * samples]"""
    selected: Numbers
    """[critics, samples]: the samples for which each critic is the smallest one."""
    chosen: Numbers
    """[critics]: how many those are."""
    numbers: Floats
    """[2]: the entropy coefficient in use, and a gradient."""


@kernel
def squash(
    table: Table, work: Floats, samples: int, noise: Floats, actions_at: int, log_probs: Floats
) -> None:
    """Write squashed Gaussian actions [actions, samples] to `work`, and their log probabilities.

    The actor has just run: its last outputs are the means, then the log standard deviations.
    """
    real, count = noise.shape
    means = table[table.shape[0] - 2, OUTPUT_AT]
    spread = table[table.shape[0] - 1, OUTPUT_AT]
    for i in range(real):
        log_prob, correction = _ZERO, _ZERO
        for a in range(count):
            mean = work[means + a * samples + i]
            log_std = clamped(work[spread + a * samples + i])
            std = np.float32(math.exp(log_std))
            raw = np.float32(mean + std * noise[i, a])
            apart = np.float32(raw - mean)
            action = np.float32(math.tanh(raw))
            log_prob += -(apart * apart) / (_TWO * (std * std)) - np.float32(math.log(std)) - _LOG_ROOT_2_PI
            correction += np.float32(math.log(_ONE - action * action + _SQUASH_EPS))
            work[actions_at + a * samples + i] = action
        log_probs[i] = log_prob - correction


@kernel
def update(
    networks: Networks,
    memory: Memory,
    scratch: Scratch,
    batch: Batch,
    noise: Floats,
    optimizers: NDArray[np.float64],
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
    team: Words,
    part: int,
    parts: int,
) -> None:
    """One gradient step; `noise` [2, samples, actions]: standard normal, for observations and next ones.

    Called by `parts` threads of a team, each with its `part`; helpers (part 1 and on) return when the team is
    stopped. Nothing is changed if a log probability is not finite; then the critics' loss is NaN.
    """
    not_inlined()
    rounds = 0
    while batch.rewards.size > 0 and begins(team, part, parts, rounds):
        gradient_step(
            networks, memory, scratch, batch, noise, optimizers, settings, statistics, team, part, parts
        )
        rounds += 1
        if part == 0:
            break


@inlined_kernel
def gradient_step(
    networks: Networks,
    memory: Memory,
    scratch: Scratch,
    batch: Batch,
    noise: Floats,
    optimizers: NDArray[np.float64],
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
    team: Words,
    part: int,
    parts: int,
) -> None:
    """See `update`."""
    real, width = batch.observations.shape
    count = batch.actions.shape[1]
    samples = padded_samples(real)
    work, slopes = memory.work, memory.slopes
    n_critics = networks.critics.shape[1]
    # Inputs of the critics, [observation and action, samples]: next, taken and the policy's actions.
    block = (width + count) * samples
    if part == 0:
        load(batch.observations, work, block, samples)
        load(batch.actions, work, block + width * samples, samples)
        load(batch.observations, work, 2 * block, samples)
        dense.forward(networks.actor, networks.actor_at, WEIGHTS, work, slopes, samples, team, 0, 1)
        squash(networks.actor, work, samples, noise[0], 2 * block + width * samples, scratch.log_probs[0])
    if part == parts - 1:
        load(batch.next_observations, work, int(np.int64(0)), samples)
        dense.forward(networks.actor_on_next, networks.actor_at, WEIGHTS, work, slopes, samples, team, 0, 1)
        squash(networks.actor_on_next, work, samples, noise[1], width * samples, scratch.log_probs[1])
    wait_for_all(team, parts)

    are_finite = True
    for i in range(real):
        are_finite &= math.isfinite(scratch.log_probs[0, i]) and math.isfinite(scratch.log_probs[1, i])
    if not are_finite:
        statistics[CRITIC_LOSS] = np.nan
        wait_for_all(team, parts)
        return
    if part == 0:
        update_ent_coef(networks, scratch, real, optimizers, settings, statistics)
    for c in range(part, n_critics, parts):
        run_critic(networks, ON_NEXT, c, TARGET, memory, samples, scratch.next_values, team)
    wait_for_all(team, parts)

    targets, ent_coef = scratch.targets[part], scratch.numbers[0]
    for i in range(real):
        least = scratch.next_values[0, i]
        for c in range(1, n_critics):
            least = min(least, scratch.next_values[c, i])
        soft = np.float32(least - ent_coef * scratch.log_probs[1, i])
        targets[i] = batch.rewards[i] + batch.discounts[i] * soft
    for c in range(part, n_critics, parts):
        update_critic(networks, c, memory, scratch, part, samples, real, optimizers, settings, team)
        run_critic(networks, ON_POLICY, c, WEIGHTS, memory, samples, scratch.values, team)
    wait_for_all(team, parts)

    # Critics with few of the samples have little to do, so threads share the work of each.
    for c in range(part, n_critics, parts):
        scratch.chosen[c] = choose_samples(networks, c, scratch, real)
        chosen = scratch.selected[c, : scratch.chosen[c]]
        keep_selected(networks.critics[ON_POLICY, c], memory, samples, chosen, np.float32(-1.0 / real))
    wait_for_all(team, parts)

    for c in range(n_critics):
        chosen = scratch.selected[c, : scratch.chosen[c]]
        input_gradient_of_selected(
            networks.critics[ON_POLICY, c], networks.critics_at, memory, samples,
            chosen, count, scratch.action_grads, team, part, parts,
        )  # fmt: skip
    if part == 0:
        gradient_of_actions(networks, memory, scratch, noise[0], samples, statistics)
    wait_for_all(team, parts)

    dense.backward(
        networks.actor, networks.actor_at, work, memory.deltas, slopes, samples, real,
        memory.grads, memory.across[0], memory.sums[part], memory.codes[part], int(np.int64(0)),
        team, part, parts,
    )  # fmt: skip
    dense.adam(networks.actor, networks.actor_at, memory.grads, optimizers[ACTOR], team, part, parts)


@inlined_kernel
def update_ent_coef(
    networks: Networks,
    scratch: Scratch,
    real: int,
    optimizers: NDArray[np.float64],
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """One step of Adam on the entropy coefficient's logarithm if it is learned; the one before is in use."""
    scratch.numbers[0] = settings[ENT_COEF]
    if settings[LEARN_ENT_COEF] != 0.0:
        total = 0.0
        for i in range(real):
            total += scratch.log_probs[0, i] + np.float32(settings[TARGET_ENTROPY])
        log_ent_coef = array_at(networks.ent_coef_at[:, WEIGHTS], 0, (1,), np.float32)
        scratch.numbers[0] = math.exp(log_ent_coef[0])
        statistics[ENT_COEF_LOSS] = -log_ent_coef[0] * (total / real)
        scratch.numbers[1] = -total / real
        adam_number(networks.ent_coef_at, scratch.numbers[1:], optimizers[ENT])
    statistics[ENT_COEF_USED] = scratch.numbers[0]


@kernel
def run_critic(
    networks: Networks,
    on: int,
    c: int,
    column: int,
    memory: Memory,
    samples: int,
    values: Floats,
    team: Words,
) -> None:
    """Run critic `c` and copy its values to a row of `values` [critics, samples]."""
    table = networks.critics[on, c]
    dense.forward(table, networks.critics_at, column, memory.work, memory.slopes, samples, team, 0, 1)
    out = table[table.shape[0] - 1, OUTPUT_AT]
    for i in range(samples):
        values[c, i] = memory.work[out + i]


@inlined_kernel
def update_critic(
    networks: Networks,
    c: int,
    memory: Memory,
    scratch: Scratch,
    part: int,
    samples: int,
    real: int,
    optimizers: NDArray[np.float64],
    settings: NDArray[np.float64],
    team: Words,
) -> None:
    """One step of critic `c` towards the targets, and of its target network towards it."""
    run_critic(networks, ON_TAKEN, c, WEIGHTS, memory, samples, scratch.values, team)
    table = networks.critics[ON_TAKEN, c]
    out = table[table.shape[0] - 1, OUTPUT_AT]
    scratch.losses[c] = mean_squared_error(
        scratch.values[c], scratch.targets[part, :real], 0.5, memory.deltas[out : out + samples]
    )
    dense.backward(
        table, networks.critics_at, memory.work, memory.deltas, memory.slopes, samples, real,
        memory.grads, memory.across[part], memory.sums[part], memory.codes[part], int(np.int64(0)),
        team, 0, 1,
    )  # fmt: skip
    dense.adam(table, networks.critics_at, memory.grads, optimizers[CRITIC], team, 0, 1)
    if settings[UPDATE_TARGETS] != 0.0:
        dense.update_targets(table, networks.critics_at, settings[TAU], 0, 1)


@inlined_kernel
def choose_samples(networks: Networks, c: int, scratch: Scratch, real: int) -> int:
    """Write the numbers of the samples for which critic `c` is the smallest; returns how many they are."""
    chosen = 0
    for i in range(real):
        best = 0
        for other in range(1, networks.critics.shape[1]):
            if scratch.values[other, i] < scratch.values[best, i]:
                best = other
        if best == c:
            scratch.selected[c, chosen] = i
            chosen += 1
    return chosen


@inlined_kernel
def gradient_of_actions(
    networks: Networks,
    memory: Memory,
    scratch: Scratch,
    noise: Floats,
    samples: int,
    statistics: NDArray[np.float64],
) -> None:
    """The actor loss's gradient by the actor's outputs: actions that the smallest critic values, entropy."""
    real, count = noise.shape
    n_critics, ent_coef = networks.critics.shape[1], scratch.numbers[0]
    share = np.float32(1.0 / real)
    loss = 0.0
    for i in range(real):
        least = scratch.values[0, i]
        for c in range(1, n_critics):
            least = min(least, scratch.values[c, i])
        loss += ent_coef * scratch.log_probs[0, i] - least
    statistics[ACTOR_LOSS], statistics[CRITIC_LOSS] = loss / real, 0.0
    for c in range(n_critics):
        statistics[CRITIC_LOSS] += scratch.losses[c]
    table = networks.actor
    means, spread = table[table.shape[0] - 2, OUTPUT_AT], table[table.shape[0] - 1, OUTPUT_AT]
    actions = table[0, dense.INPUT_AT] + table[0, INPUTS] * samples
    for a in range(count):
        for i in range(samples):
            at = a * samples + i
            if i >= real:
                memory.deltas[means + at], memory.deltas[spread + at] = _ZERO, _ZERO
                continue
            action, log_std = memory.work[actions + at], memory.work[spread + at]
            slope = _ONE - action * action
            by_raw = share * ent_coef * _TWO * action * slope / (slope + _SQUASH_EPS)
            by_raw += scratch.action_grads[at] * slope
            # What the log probability pulls at the action and at the mean cancels out, but for rounding. That
            # is much where deviations are small beside means, so it is computed as autograd does.
            mean, std = memory.work[means + at], np.float32(math.exp(clamped(log_std)))
            apart = np.float32(mean + std * noise[i, a]) - mean
            twice = _TWO * (std * std)
            pull = share * ent_coef / twice * (_TWO * apart)
            by_raw -= pull
            memory.deltas[means + at] = by_raw + pull
            memory.deltas[spread + at] = _ZERO
            if LOG_STD_MIN <= log_std <= LOG_STD_MAX:
                by_std = share * ent_coef * (apart * apart / twice / twice) * _TWO * (_TWO * std)
                by_std += by_raw * noise[i, a] - share * ent_coef / std
                memory.deltas[spread + at] = by_std * std


@inlined_kernel
def clamped(log_std: np.float32) -> np.float32:
    """The logarithm of a standard deviation within the library's bounds."""
    return min(max(log_std, LOG_STD_MIN), LOG_STD_MAX)


@kernel
def act(
    table: Table, addresses: Addresses, observations: Floats, noise: Floats, scratch: Floats, actions: Floats
) -> bool:
    """Squashed actions [rows, actions] for observations [rows, width] and standard normal noise.

    Returns whether the actor's outputs are finite.
    """
    not_inlined()
    rows, count = actions.shape
    half = scratch.size // 3
    outputs, are_finite = scratch[2 * half :], True
    for i in range(rows):
        dense.run_one(table, addresses, observations[i], scratch[: 2 * half], outputs)
        for a in range(count):
            are_finite &= math.isfinite(outputs[a]) and math.isfinite(outputs[count + a])
            std = np.float32(math.exp(clamped(outputs[count + a])))
            actions[i, a] = math.tanh(np.float32(outputs[a] + std * noise[i, a]))
    return are_finite
