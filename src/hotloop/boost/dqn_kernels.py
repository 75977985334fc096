"""One gradient step of Stable-Baselines3's DQN, and its greedy actions.

The reference is the library itself: tests and audits compare with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.boost import dense_kernels as dense
from hotloop.boost.dense_kernels import OUTPUT_AT, OUTPUTS, TARGET, WEIGHTS, Addresses, Table
from hotloop.boost.off_policy_kernels import Batch, Memory, load, padded_samples
from hotloop.rl.train.fused.compiled import kernel, not_inlined
from hotloop.rl.train.fused.tiles import Floats

LOSS = 0
STATISTICS = 1

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Networks(NamedTuple):
    """Tables and addresses of tensors (see `dense_kernels`)."""

    q_net: Table
    """Reads the observations."""
    q_net_on_next: Table
    """The target network; reads the next observations."""
    addresses: Addresses


@kernel
def update(
    networks: Networks,
    memory: Memory,
    batch: Batch,
    optimizer: NDArray[np.float64],
    statistics: NDArray[np.float64],
) -> None:
    """One gradient step on the Huber loss; `batch.actions` [samples, 1] are whole numbers."""
    not_inlined()
    real, width = batch.observations.shape
    if real == 0:
        return
    samples = padded_samples(real)
    work, deltas = memory.work, memory.deltas
    load(batch.next_observations, work, int(np.int64(0)), samples)
    load(batch.observations, work, width * samples, samples)
    table, later = networks.q_net, networks.q_net_on_next
    alone = table[0]  # stands for a team's words, which a single thread does not use
    dense.forward(later, networks.addresses, TARGET, work, memory.slopes, samples, alone, 0, 1)
    dense.forward(table, networks.addresses, WEIGHTS, work, memory.slopes, samples, alone, 0, 1)
    last = table.shape[0] - 1
    out, target_out, actions = table[last, OUTPUT_AT], later[last, OUTPUT_AT], table[last, OUTPUTS]
    share = np.float32(1.0 / real)
    for i in range(out, out + actions * samples):
        deltas[i] = _ZERO
    total = 0.0
    for i in range(real):
        best = work[target_out + i]
        for a in range(1, actions):
            best = max(best, work[target_out + a * samples + i])
        target = batch.rewards[i] + batch.discounts[i] * best
        at = out + int(batch.actions[i, 0]) * samples + i
        error = work[at] - target
        if abs(error) >= _ONE:
            total += abs(error) - np.float32(0.5)
            deltas[at] = share if error > _ZERO else -share
        else:
            total += np.float32(0.5) * error * error
            deltas[at] = share * error
    statistics[LOSS] = total / real
    dense.backward(
        table, networks.addresses, work, deltas, memory.slopes, samples, real,
        memory.grads, memory.across[0], memory.sums[0], memory.codes[0], int(np.int64(0)), alone, 0, 1,
    )  # fmt: skip
    dense.adam(table, networks.addresses, memory.grads, optimizer, alone, 0, 1)


@kernel
def act(
    table: Table, addresses: Addresses, observations: Floats, scratch: Floats, actions: NDArray[np.int64]
) -> bool:
    """The action with the largest value for each of the observations [rows, width]; the first if several.

    Returns whether all values are finite.
    """
    not_inlined()
    half, count = scratch.size // 3, table[table.shape[0] - 1, OUTPUTS]
    outputs, are_finite = scratch[2 * half :], True
    for i in range(actions.size):
        dense.run_one(table, addresses, observations[i], scratch[: 2 * half], outputs)
        best = 0
        for a in range(count):
            are_finite &= math.isfinite(outputs[a])
            if outputs[a] > outputs[best]:
                best = a
        actions[i] = best
    return are_finite
