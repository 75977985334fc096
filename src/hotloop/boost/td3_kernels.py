"""One gradient step of Stable-Baselines3's TD3 and DDPG: critics, and at times the actor and the targets.

The reference is the library itself: tests and audits compare with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.boost import dense_kernels as dense
from hotloop.boost.dense_kernels import INPUT_AT, INPUTS, OUTPUT_AT, TARGET, WEIGHTS, Addresses, Table
from hotloop.boost.off_policy_kernels import (
    Batch,
    Memory,
    Numbers,
    input_gradient_of_selected,
    keep_selected,
    load,
    mean_squared_error,
    padded_samples,
)
from hotloop.boost.team_kernels import Words, begins, wait_for_all
from hotloop.rl.train.fused.compiled import inlined_kernel, kernel, not_inlined
from hotloop.rl.train.fused.tiles import Floats

# Indices into `settings`, float64; the two optimizers' settings are rows of a table.
NOISE_CLIP, TAU, UPDATE_ACTOR = range(3)
SETTINGS = 3
ACTOR, CRITIC = 0, 1

# Indices into `statistics`, float64.
CRITIC_LOSS, ACTOR_LOSS = range(2)
STATISTICS = 2

# Passes of the critics; only the first critic runs on the policy's actions.
ON_NEXT, ON_TAKEN, ON_POLICY = 0, 1, 2

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Networks(NamedTuple):
    """Tables and addresses of tensors (see `dense_kernels`)."""

    actor: Table
    """Reads the observations."""
    actor_on_next: Table
    """The target actor; reads the next observations."""
    critics: NDArray[np.int64]
    """[passes, critics, layers, columns]"""
    actor_at: Addresses
    critics_at: Addresses


class Scratch(NamedTuple):
    """Memory for intermediate results."""

    targets: Floats
    """[threads, samples]"""
    next_values: Floats
    """[critics, samples]: of the target critics."""
    losses: NDArray[np.float64]
    """[critics]"""
    action_grads: Floats
    """[actions * samples]"""
    everyone: Numbers
    """[samples]: 0, 1, 2, ..."""


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
    """One gradient step; `noise` [samples, actions] is for the target actions, not clipped yet.

    Called by `parts` threads of a team, each with its `part`; helpers (part 1 and on) return when the team is
    stopped.
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
    n_critics, is_actors_turn = networks.critics.shape[1], settings[UPDATE_ACTOR] != 0.0
    # Inputs of the critics, [observation and action, samples]: next, taken and the policy's actions.
    block = (width + count) * samples
    if part == 0:
        load(batch.next_observations, memory.work, int(np.int64(0)), samples)
    if part == parts - 1:
        load(batch.observations, memory.work, block, samples)
        load(batch.actions, memory.work, block + width * samples, samples)
        load(batch.observations, memory.work, 2 * block, samples)
    wait_for_all(team, parts)
    dense.forward(
        networks.actor_on_next, networks.actor_at, TARGET, memory.work, memory.slopes, samples,
        team, part, parts,
    )  # fmt: skip
    if part == 0:
        choose_next_actions(networks, memory, samples, noise, width, np.float32(settings[NOISE_CLIP]))
    if is_actors_turn:
        dense.forward(
            networks.actor, networks.actor_at, WEIGHTS, memory.work, memory.slopes, samples, team, part, parts
        )
        if part == parts - 1:
            squash(networks.actor, memory.work, samples, real, count)
    wait_for_all(team, parts)

    for c in range(part, n_critics, parts):
        table = networks.critics[ON_NEXT, c]
        dense.forward(table, networks.critics_at, TARGET, memory.work, memory.slopes, samples, team, 0, 1)
        out = table[table.shape[0] - 1, OUTPUT_AT]
        for i in range(real):
            scratch.next_values[c, i] = memory.work[out + i]
    wait_for_all(team, parts)

    targets = scratch.targets[part]
    for i in range(real):
        least = scratch.next_values[0, i]
        for c in range(1, n_critics):
            least = min(least, scratch.next_values[c, i])
        targets[i] = batch.rewards[i] + batch.discounts[i] * least
    for c in range(part, n_critics, parts):
        update_critic(networks, c, memory, scratch, part, samples, real, optimizers, team)
        if is_actors_turn:
            dense.update_targets(networks.critics[ON_TAKEN, c], networks.critics_at, settings[TAU], 0, 1)
    wait_for_all(team, parts)

    if is_actors_turn:
        update_actor(
            networks, memory, scratch, samples, real, count, optimizers, statistics, team, part, parts
        )
        dense.update_targets(networks.actor, networks.actor_at, settings[TAU], part, parts)
        wait_for_all(team, parts)

    if part == 0:
        statistics[CRITIC_LOSS] = 0.0
        for c in range(n_critics):
            statistics[CRITIC_LOSS] += scratch.losses[c]


@inlined_kernel
def choose_next_actions(
    networks: Networks, memory: Memory, samples: int, noise: Floats, width: int, clip: np.float32
) -> None:
    """The actions of the target actor, which has run, with clipped noise, where the critics read them."""
    real, count = noise.shape
    work, table = memory.work, networks.actor_on_next
    squash(table, work, samples, real, count)
    for a in range(count):
        for i in range(real):
            at = (width + a) * samples + i
            jitter = min(max(noise[i, a], -clip), clip)
            work[at] = min(max(work[at] + jitter, -_ONE), _ONE)


@kernel
def squash(table: Table, work: Floats, samples: int, real: int, count: int) -> None:
    """Write tanh of the actor's outputs after its inputs, where the critics read the actions."""
    out = table[table.shape[0] - 1, OUTPUT_AT]
    actions = table[0, INPUT_AT] + table[0, INPUTS] * samples
    for a in range(count):
        for i in range(real):
            work[actions + a * samples + i] = math.tanh(work[out + a * samples + i])


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
    team: Words,
) -> None:
    """One step of critic `c` towards the targets."""
    table = networks.critics[ON_TAKEN, c]
    dense.forward(table, networks.critics_at, WEIGHTS, memory.work, memory.slopes, samples, team, 0, 1)
    out = table[table.shape[0] - 1, OUTPUT_AT]
    scratch.losses[c] = mean_squared_error(
        memory.work[out : out + samples],
        scratch.targets[part, :real],
        1.0,
        memory.deltas[out : out + samples],
    )
    dense.backward(
        table, networks.critics_at, memory.work, memory.deltas, memory.slopes, samples, real,
        memory.grads, memory.across[part], memory.sums[part], memory.codes[part], int(np.int64(0)),
        team, 0, 1,
    )  # fmt: skip
    dense.adam(table, networks.critics_at, memory.grads, optimizers[CRITIC], team, 0, 1)


@inlined_kernel
def update_actor(
    networks: Networks,
    memory: Memory,
    scratch: Scratch,
    samples: int,
    real: int,
    count: int,
    optimizers: NDArray[np.float64],
    statistics: NDArray[np.float64],
    team: Words,
    part: int,
    parts: int,
) -> None:
    """One step of the actor, which has run, towards actions that the first critic values."""
    work, deltas, actor, critic = memory.work, memory.deltas, networks.actor, networks.critics[ON_POLICY, 0]
    dense.forward(critic, networks.critics_at, WEIGHTS, work, memory.slopes, samples, team, part, parts)
    if part == 0:
        value_at = critic[critic.shape[0] - 1, OUTPUT_AT]
        total = 0.0
        for i in range(real):
            total -= work[value_at + i]
        statistics[ACTOR_LOSS] = total / real
        keep_selected(critic, memory, samples, scratch.everyone[:real], np.float32(-1.0 / real))
    wait_for_all(team, parts)
    input_gradient_of_selected(
        critic, networks.critics_at, memory, samples,
        scratch.everyone[:real], count, scratch.action_grads, team, part, parts,
    )  # fmt: skip
    if part == 0:
        out = actor[actor.shape[0] - 1, OUTPUT_AT]
        actions = actor[0, INPUT_AT] + actor[0, INPUTS] * samples
        for a in range(count):
            for i in range(samples):
                at = a * samples + i
                action = work[actions + at]
                deltas[out + at] = scratch.action_grads[at] * (_ONE - action * action) if i < real else _ZERO
    wait_for_all(team, parts)
    dense.backward(
        actor, networks.actor_at, work, deltas, memory.slopes, samples, real,
        memory.grads, memory.across[0], memory.sums[part], memory.codes[part], int(np.int64(0)),
        team, part, parts,
    )  # fmt: skip
    dense.adam(actor, networks.actor_at, memory.grads, optimizers[ACTOR], team, part, parts)


@kernel
def act(table: Table, addresses: Addresses, observations: Floats, scratch: Floats, actions: Floats) -> None:
    """Actions [rows, actions] in -1 .. 1 for observations [rows, width]."""
    not_inlined()
    rows, count = actions.shape
    half = scratch.size // 3
    outputs = scratch[2 * half :]
    for i in range(rows):
        dense.run_one(table, addresses, observations[i], scratch[: 2 * half], outputs)
        for a in range(count):
            actions[i, a] = math.tanh(outputs[a])
