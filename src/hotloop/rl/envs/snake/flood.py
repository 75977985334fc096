"""Reachable areas by flood fill: in Python, cached, every k-th step, or compiled.

The compiled version works on whole rows of the board, one 64-bit word each: a run of open cells is filled
with a few word operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import allocation_free_kernel, inlined_part
from hotloop.rl.envs.snake.config import BASE_FEATURES, EVERY_K, SnakeConfig
from hotloop.rl.envs.snake.directions import column_step, row_step, turned
from hotloop.rl.envs.snake.layout import (
    COLUMN_MASK,
    HEAD_AT,
    HEADING,
    LENGTH,
    RING,
    ROW_SHIFT,
    SIZE,
    TAIL_BLOCKS,
    Boards,
    Options,
    Snakes,
    body_of,
)
from hotloop.rl.envs.snake.rules import reachable_areas

Word = Any  # a uint64, one row of the board; mypy and numba disagree on its arithmetic

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_REMEMBERED = 100_000  # entries of `cached`, about 35 MB on the default board; then it is cleared


@inlined_part
def count_bits(word: Word) -> int:
    """Count the ones in a uint64."""
    word -= (word >> _ONE) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inlined_part
def full_row(size: int) -> Word:
    """Return a word with the lowest `size` bits set, 1 <= size <= 64."""
    return _ALL >> np.uint64(64 - size)


@inlined_part
def _fill_runs(seeds: Word, mask: Word, size: int) -> Word:
    """Return the runs of ones in `mask` that contain a seed; `seeds` are within `mask`."""
    # Upwards: the carry of an addition passes through a run of ones and clears it. A seed above another one
    # in the same run is set again by its own addition, hence the last `| seeds`.
    filled = ((mask ^ (mask + seeds)) & mask) | seeds
    # Downwards: in doubling distances, along cells that are open all the way.
    way, distance = mask, 1
    while distance < size:
        filled |= way & (filled >> np.uint64(distance))
        way &= way >> np.uint64(distance)
        distance *= 2
    return filled


@inlined_part
def fill_from(boards: Boards, row: int, size: int, y: int, x: int) -> None:
    """Mark the cells reachable from the open cell (y, x) in the second half of the board."""
    full = full_row(size)
    for r in range(size):
        boards[row, size + r] = np.uint64(0)
    boards[row, size + y] = _fill_runs(_ONE << np.uint64(x), ~boards[row, y] & full, size)
    changed = True
    while changed:
        changed = False
        for r in range(1, size):
            mask, here = ~boards[row, r] & full, boards[row, size + r]
            seeds = boards[row, size + r - 1] & mask
            if seeds & ~here:
                boards[row, size + r] = _fill_runs(here | seeds, mask, size)
                changed = True
        for r in range(size - 2, -1, -1):
            mask, here = ~boards[row, r] & full, boards[row, size + r]
            seeds = boards[row, size + r + 1] & mask
            if seeds & ~here:
                boards[row, size + r] = _fill_runs(here | seeds, mask, size)
                changed = True


@inlined_part
def count_filled(boards: Boards, row: int, size: int) -> int:
    """Count the marked cells without snake."""
    count = 0
    for r in range(size):
        count += count_bits(boards[row, size + r] & ~boards[row, r])
    return count


@inlined_part
def flood_row(snakes: Snakes, boards: Boards, options: Options, row: int, observations: NDArray[Any]) -> None:
    """Write the three areas of one row after its other features."""
    size = options[SIZE]
    head_at, length = snakes[row, HEAD_AT], snakes[row, LENGTH]
    head = snakes[row, RING + head_at]
    free = size * size - length
    tail_at = head_at - length + 1
    tail = snakes[row, RING + (tail_at if tail_at >= 0 else tail_at + size * size)]
    tail_bit = np.uint64(0)
    if options[TAIL_BLOCKS] == 0:
        tail_bit = _ONE << np.uint64(tail & COLUMN_MASK)
    tail_row = tail >> ROW_SHIFT
    boards[row, tail_row] &= ~tail_bit  # paths may pass through the tail; restored before cells are counted
    filled = False
    count = 0
    for i in range(3):
        direction = turned(snakes[row, HEADING], i)
        y, x = (head >> ROW_SHIFT) + row_step(direction), (head & COLUMN_MASK) + column_step(direction)
        area = 0
        if 0 <= y < size and 0 <= x < size and (boards[row, y] >> np.uint64(x)) & _ONE == 0 and free > 0:
            # Two of the three are often in one area: then reuse the last count.
            if not filled or (boards[row, size + y] >> np.uint64(x)) & _ONE == 0:
                fill_from(boards, row, size, y, x)
                boards[row, tail_row] |= tail_bit
                count = count_filled(boards, row, size)
                boards[row, tail_row] &= ~tail_bit
                filled = True
            area = count
        observations[row, BASE_FEATURES + i] = area / free if free > 0 else 0.0
    boards[row, tail_row] |= tail_bit


@allocation_free_kernel
def flood_rows(
    snakes: Snakes, boards: Boards, options: Options, observations: NDArray[Any], start: int, stop: int
) -> None:
    """`flood_row` for rows start .. stop - 1."""
    for row in range(start, stop):
        flood_row(snakes, boards, options, row, observations)


class RowFlood:
    """Computes areas row by row: by breadth-first search in Python, or by the kernel on rows that are due."""

    def __init__(
        self,
        config: SnakeConfig,
        snakes: Snakes,
        boards: Boards,
        options: Options,
        features: NDArray[np.float32],
    ):
        self._size = config.size
        self._tail_leaves = not config.tail_blocks
        self._every = config.flood_every if config.flood_fill in EVERY_K else 1
        self._known: dict[bytes, list[float]] | None = {} if config.flood_fill == "cached" else None
        self._compiled = config.flood_fill == "every_k_compiled"
        self._snakes, self._boards, self._options, self._features = snakes, boards, options, features

    def fill_due(self, elapsed: NDArray[np.int32], start: int, stop: int) -> None:
        """Update the rows that are due; the others keep their values."""
        for row in range(start, stop):
            if elapsed[row] % self._every == 0:
                self.fill_rows((row,))

    def fill_rows(self, rows: Iterable[int]) -> None:
        """Update these rows."""
        for row in rows:
            if self._compiled:
                flood_rows(self._snakes, self._boards, self._options, self._features, row, row + 1)
            else:
                self._features[row, BASE_FEATURES:] = (
                    self._areas(row) if self._known is None else self._remembered(row, self._known)
                )

    def _areas(self, row: int) -> list[float]:
        heading = int(self._snakes[row, HEADING])
        return reachable_areas(self._size, body_of(self._snakes, row), heading, self._tail_leaves)

    def _remembered(self, row: int, known: dict[bytes, list[float]]) -> list[float]:
        """Look areas up by what they depend on: occupied cells, head, heading and, if it leaves, the tail."""
        snake = self._snakes[row]
        head_at = int(snake[HEAD_AT])
        tail_at = (head_at - int(snake[LENGTH]) + 1) % (self._size * self._size)
        ends = snake[[HEADING, RING + head_at, RING + tail_at]]
        key = self._boards[row, : self._size].tobytes() + ends.tobytes()
        found = known.get(key)
        if found is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            found = known[key] = self._areas(row)
        return found
