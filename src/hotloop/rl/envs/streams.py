"""Random numbers inside kernels: for each row the very stream of numpy's default generator.

Row i of a batch seeded with s draws what `numpy.random.default_rng(s + i).random()` draws, so rules
written with a numpy generator and kernels written with `next_double` see the same numbers, whatever
the size of the batch or the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import kernel

Streams = NDArray[np.uint64]  # [rows, 4]: state high, state low, increment high, increment low

_WORD = (1 << 64) - 1
_MULTIPLIER_HIGH = np.uint64(2549297995355413924)
_MULTIPLIER_LOW = np.uint64(4865540595714422341)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


def make_streams(rows: int) -> Streams:
    """Room for the streams of so many rows, not yet seeded."""
    return np.zeros((rows, 4), dtype=np.uint64)


def seed_streams(streams: Streams, seeds: Iterable[int | None]) -> None:
    """Set each row's stream to that of numpy's `default_rng(seed)`; None takes a seed from the system."""
    for row, seed in enumerate(seeds):
        state = np.random.PCG64(seed).state["state"]
        value, increment = state["state"], state["inc"]
        streams[row] = (value >> 64, value & _WORD, increment >> 64, increment & _WORD)


@kernel
def next_double(streams: Streams, row: int) -> float:
    """The row's next number in [0, 1): a step of the 128-bit PCG generator and its XSL-RR output."""
    low, high = streams[row, 1], streams[row, 0]
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    # low * multiplier_low as 128 bits, from four products of 32-bit halves
    a, b = low >> half, low & mask
    c, d = _MULTIPLIER_LOW >> half, _MULTIPLIER_LOW & mask
    bd, ad, bc = b * d, a * d, b * c
    middle = (bd >> half) + (ad & mask) + (bc & mask)
    product_low = (bd & mask) | (middle << half)
    product_high = a * c + (ad >> half) + (bc >> half) + (middle >> half)
    product_high += high * _MULTIPLIER_LOW + low * _MULTIPLIER_HIGH
    new_low = product_low + streams[row, 3]
    carry = np.uint64(1) if new_low < product_low else np.uint64(0)
    new_high = product_high + streams[row, 2] + carry
    streams[row, 0], streams[row, 1] = new_high, new_low
    mixed, turn = new_high ^ new_low, new_high >> np.uint64(58)
    turned = (mixed >> turn) | (mixed << ((np.uint64(64) - turn) & np.uint64(63)))
    return float(turned >> np.uint64(11)) * _TO_UNIT


@kernel
def next_below(streams: Streams, row: int, bound: int) -> int:
    """The row's next whole number in 0 .. bound - 1: `int(rng.random() * bound)` in the rules."""
    return int(next_double(streams, row) * bound)
