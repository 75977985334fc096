"""Kernels over lists of torch's tensors, given by address and size: Adam, norms, checks, categorical samples.

Each stands in for a loop of torch over the tensors, at two or three microseconds an operation and tensor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import array_at
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fma, kernel, not_inlined
from hotloop.rl.train.fused.tiles import Floats, squares

# Rows of a table of addresses for Adam, one column for each tensor.
WEIGHTS, GRADS, FIRST, SECOND, STEPS, SIZES = range(6)
ADAM_ROWS = 6

Words = NDArray[np.int64]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LEAST = np.finfo(np.float32).min
_NEARLY_LEAST = np.float32(-1e30)


@kernel
def adam(
    table: Words,
    decayed: Floats,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    is_decoupled: bool,
) -> None:
    """One step of `torch.optim.Adam` or, decoupled, `AdamW` for the tensors of the table.

    `decayed` has room for the largest tensor and is used with weight decay only.
    """
    not_inlined()
    decay = np.float32(weight_decay)
    shrink = np.float32(1.0 - learning_rate * weight_decay)
    for i in range(table.shape[1]):
        size = table[SIZES, i]
        weights = array_at(table[WEIGHTS], i, (size,), np.float32)
        gradient = array_at(table[GRADS], i, (size,), np.float32)
        first = array_at(table[FIRST], i, (size,), np.float32)
        second = array_at(table[SECOND], i, (size,), np.float32)
        steps = array_at(table[STEPS], i, (1,), np.float32)
        steps[0] += _ONE
        if decay != _ZERO:
            if is_decoupled:
                for j in range(size):
                    weights[j] *= shrink
            else:
                for j in range(size):
                    decayed[j] = fma(decay, weights[j], gradient[j])
                gradient = decayed[:size]
        layers.adam(
            weights, gradient, first, second, int(steps[0]), learning_rate, beta1, beta2, epsilon, 1.0
        )


@kernel
def norm(addresses: Words, sizes: Words) -> float:
    """The Euclidean norm of all tensors together."""
    not_inlined()
    total = 0.0
    for i in range(addresses.size):
        total += float(squares(array_at(addresses, i, (sizes[i],), np.float32), sizes[i]))
    return math.sqrt(total)


@kernel
def scale(addresses: Words, sizes: Words, factor: float) -> None:
    """Multiply all tensors by a number."""
    not_inlined()
    by = np.float32(factor)
    for i in range(addresses.size):
        values = array_at(addresses, i, (sizes[i],), np.float32)
        for j in range(sizes[i]):
            values[j] *= by


@kernel
def clip(addresses: Words, sizes: Words, max_norm: float, norm_at: int) -> bool:
    """Write the norm and scale the tensors as `clip_grad_norm_`; False, with none changed, if not finite."""
    not_inlined()
    where: Any = (norm_at,)
    found = array_at(where, 0, (1,), np.float32)
    found[0] = np.float32(norm(addresses, sizes))
    total = float(found[0])
    if not np.isfinite(total):
        return False
    factor = min(max_norm / (total + 1e-6), 1.0)
    if factor != 1.0:
        scale(addresses, sizes, factor)
    return True


@kernel
def has_nan(address: int, size: int) -> bool:
    """Whether a float32 tensor holds a NaN."""
    not_inlined()
    found = False
    where: Any = (address,)
    values = array_at(where, 0, (size,), np.float32)
    for i in range(size):
        found |= values[i] != values[i]
    return found


@kernel
def are_positive(address: int, size: int) -> bool:
    """Whether all numbers of a float32 tensor are greater than 0."""
    not_inlined()
    found = True
    where: Any = (address,)
    values = array_at(where, 0, (size,), np.float32)
    for i in range(size):
        found &= values[i] > _ZERO
    return found


@kernel
def are_choices_int(address: int, size: int, choices: int) -> bool:
    """Whether all numbers of an int64 tensor are at least 0 and less than `choices`."""
    not_inlined()
    found = True
    where: Any = (address,)
    values = array_at(where, 0, (size,), np.int64)
    for i in range(size):
        found &= (values[i] >= 0) & (values[i] < choices)
    return found


@kernel
def are_choices_float(address: int, size: int, choices: int) -> bool:
    """Whether all numbers of a float32 tensor are whole, at least 0 and less than `choices`."""
    not_inlined()
    found, limit = True, np.float32(choices)
    where: Any = (address,)
    values = array_at(where, 0, (size,), np.float32)
    for i in range(size):
        value = values[i]
        found &= (value >= _ZERO) & (value < limit) & (np.floor(value) == value)
    return found


@kernel
def are_chances(address: int, size: int) -> bool:
    """Whether all numbers of a float32 tensor are finite and at least 0."""
    not_inlined()
    found = True
    where: Any = (address,)
    values = array_at(where, 0, (size,), np.float32)
    for i in range(size):
        found &= (values[i] >= _ZERO) & (values[i] < np.float32(np.inf))
    return found


@kernel
def choose(probs_at: int, exponentials_at: int, rows: int, choices: int, chosen_at: int) -> bool:
    """For each row the choice with the largest probability / exponential, as `torch.multinomial` draws it.

    Returns False if a row has no chance at all: torch has an error message for that.
    """
    not_inlined()
    size = rows * choices
    places: Any = (probs_at, exponentials_at, chosen_at)
    probs = array_at(places, 0, (size,), np.float32)
    draws = array_at(places, 1, (size,), np.float32)
    chosen = array_at(places, 2, (rows,), np.int64)
    for i in range(rows):
        best, top, total = 0, -_ONE, _ZERO
        for a in range(choices):
            p = probs[i * choices + a]
            total += p
            ratio = p / draws[i * choices + a]
            if ratio > top:
                best, top = a, ratio
        if total == _ZERO:
            return False
        chosen[i] = best
    return True


@kernel
def pick(logits_at: int, values_at: int, rows: int, choices: int, picked_at: int) -> bool:
    """For each row the logit of its choice; False, with an unfinished result, if a choice does not exist."""
    not_inlined()
    places: Any = (logits_at, values_at, picked_at)
    logits = array_at(places, 0, (rows * choices,), np.float32)
    values = array_at(places, 1, (rows,), np.int64)
    picked = array_at(places, 2, (rows,), np.float32)
    for i in range(rows):
        if values[i] < 0 or values[i] >= choices:
            return False
        picked[i] = logits[i * choices + values[i]]
    return True


@kernel
def entropy(logits_at: int, probs_at: int, rows: int, choices: int, entropy_at: int) -> bool:
    """The entropy of each row; a choice that cannot be has the log probability `_LEAST`, as in torch.

    Returns False if there is such a choice, or nearly: torch's own gradients may overflow there.
    """
    not_inlined()
    places: Any = (logits_at, probs_at, entropy_at)
    logits = array_at(places, 0, (rows * choices,), np.float32)
    probs = array_at(places, 1, (rows * choices,), np.float32)
    found = array_at(places, 2, (rows,), np.float32)
    are_possible = True
    for i in range(rows):
        total = 0.0
        for a in range(i * choices, (i + 1) * choices):
            logit = _LEAST if logits[a] < _LEAST else logits[a]
            are_possible &= bool(logit > _NEARLY_LEAST)
            total -= float(probs[a] * logit)
        found[i] = np.float32(total)
    return are_possible


@kernel
def entropy_gradient(
    logits_at: int, probs_at: int, grads_at: int, rows: int, choices: int, gradient_at: int
) -> None:
    """The gradient of `entropy`, where that is True, by the logits, also through the probabilities."""
    not_inlined()
    places: Any = (logits_at, probs_at, grads_at, gradient_at)
    logits = array_at(places, 0, (rows * choices,), np.float32)
    probs = array_at(places, 1, (rows * choices,), np.float32)
    given = array_at(places, 2, (rows,), np.float32)
    gradient = array_at(places, 3, (rows * choices,), np.float32)
    for i in range(rows):
        mean = 0.0
        for a in range(i * choices, (i + 1) * choices):
            mean += float(probs[a] * logits[a])
        for a in range(i * choices, (i + 1) * choices):
            slope = float(logits[a]) - mean + 1.0
            gradient[a] = np.float32(-float(given[i]) * float(probs[a]) * slope)
