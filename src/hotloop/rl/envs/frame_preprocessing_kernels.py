"""Compiled frame preprocessing: the same numbers as `frame_preprocessing`, resized in integer arithmetic."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import allocation_free_kernel, kernel_part
from hotloop.rl.envs.frame_preprocessing import GRAY, HEIGHT, WIDTH, FramePreprocessing, area_weights

_RED, _GREEN, _BLUE = GRAY
_FEW = 4  # taps that are unrolled by hand; 240 x 256 to 84 x 84 needs no more


class Taps(NamedTuple):
    """The source pixels of each output pixel and their weights."""

    rows: NDArray[np.int64]  # [size], first source row of each output row
    row_weights: NDArray[np.uint16]  # [size, taps]
    columns: NDArray[np.int64]  # [size]
    column_weights: NDArray[np.int64]  # [size, taps]
    total: NDArray[np.float64]  # [1], sum of all weights
    band: NDArray[np.uint16]  # [256], scratch: one output row at full width
    sums: NDArray[np.int32]  # [size], scratch: one output row before the division


def make_taps(size: int) -> Taps:
    """Return the taps for 240 x 256 to size x size, with their own scratch."""
    rows, row_weights = _taps(HEIGHT, size)
    columns, column_weights = _taps(WIDTH, size)
    return Taps(
        rows,
        row_weights.astype(np.uint16),
        columns,
        column_weights,
        np.array([row_weights[0].sum() * column_weights[0].sum()], dtype=np.float64),
        np.zeros(WIDTH, dtype=np.uint16),
        np.zeros(size, dtype=np.int32),
    )


def _taps(length: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    dense = area_weights(length, size)
    count = max(int((dense > 0).sum(axis=1).max()), _FEW)
    first = np.minimum((dense > 0).argmax(axis=1), length - count)
    weights = np.stack([dense[out, begin : begin + count] for out, begin in enumerate(first)])
    return first.astype(np.int64), np.ascontiguousarray(weights)


@kernel_part
def shrink_rows(source: Any, offset: int, taps: Taps, y: int) -> None:
    """Sum the source rows [240, >= offset + 256] of one output row into `taps.band`.

    The sums are at most 255 x 240, so they fit 16 bits.
    """
    band, first, weights = taps.band, taps.rows[y], taps.row_weights[y]
    a, b = source[first, offset:], source[first + 1, offset:]
    c, d = source[first + 2, offset:], source[first + 3, offset:]
    wa, wb, wc, wd = weights[0], weights[1], weights[2], weights[3]
    for x in range(WIDTH):
        band[x] = wa * a[x] + wb * b[x] + wc * c[x] + wd * d[x]
    for tap in range(_FEW, weights.shape[0]):
        line, weight = source[first + tap, offset:], weights[tap]
        for x in range(WIDTH):
            band[x] += weight * line[x]


@allocation_free_kernel
def shrink_into(source: Any, offset: int, taps: Taps, out: Any, begin: int, stride: int) -> None:
    """Resize columns offset to offset + 255 of uint8 [240, ...] into out[begin], out[begin + stride], ..."""
    size, few = taps.rows.shape[0], taps.column_weights.shape[1] == _FEW
    total, band, sums = taps.total[0], taps.band, taps.sums
    columns, weights = taps.columns, taps.column_weights
    for y in range(size):
        shrink_rows(source, offset, taps, y)
        for x in range(size):
            first = columns[x]
            added = (
                weights[x, 0] * band[first]
                + weights[x, 1] * band[first + 1]
                + weights[x, 2] * band[first + 2]
                + weights[x, 3] * band[first + 3]
            )
            if not few:
                for tap in range(_FEW, weights.shape[1]):
                    added += weights[x, tap] * band[first + tap]
            sums[x] = added
        at = begin + y * size * stride
        if stride == 1:
            line = out[at : at + size]
            for x in range(size):
                line[x] = np.uint8(np.rint(sums[x] / total))
        else:
            for x in range(size):
                out[at + x * stride] = np.uint8(np.rint(sums[x] / total))


@allocation_free_kernel
def gray_into(frame: Any, gray: Any) -> None:
    """Convert RGB [240, 256, 3] to gray [240, 256], exactly like `frame_preprocessing.to_gray`."""
    for y in range(HEIGHT):
        for x in range(WIDTH):
            gray[y, x] = np.uint8(frame[y, x, 0] * _RED + frame[y, x, 1] * _GREEN + frame[y, x, 2] * _BLUE)


class CompiledPreprocessor:
    """Preprocesses the RGB frames of one game that runs elsewhere, such as an emulator."""

    def __init__(self, preprocessing: FramePreprocessing):
        self.preprocessing = preprocessing
        self.stacked = np.zeros(preprocessing.shape, dtype=np.uint8)
        self._taps = make_taps(preprocessing.size)
        self._plane = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)

    def begin(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Fill the stack with the first frame of an episode; return a copy of the stack."""
        self._draw(frame, False)
        self.stacked[:-1] = self.stacked[-1]
        return self.stacked.copy()

    def push(self, frame: NDArray[np.uint8], jump_down: bool = False) -> NDArray[np.uint8]:
        """Append a frame to the stack, drop the oldest, return a copy of the stack.

        `jump_down`: whether A was down, for `show_jump_button`.
        """
        self.stacked[:-1] = self.stacked[1:]
        self._draw(frame, jump_down)
        return self.stacked.copy()

    def _draw(self, frame: NDArray[np.uint8], jump_down: bool) -> None:
        newest = self.stacked[-1].reshape(-1)
        if self.preprocessing.gray:
            gray_into(frame, self._plane)
            shrink_into(self._plane, 0, self._taps, newest, 0, 1)
        else:
            for colour in range(3):
                self._plane[...] = frame[..., colour]
                shrink_into(self._plane, 0, self._taps, newest, colour, 3)
        newest[: self.preprocessing.bar_bytes] = 255 if jump_down else 0
