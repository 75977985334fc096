"""The chain of wrappers compiled: resizing by areas in whole numbers, exactly as `chain.shrink` says it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.chain import GRAY, HEIGHT, WIDTH, Chain, area_weights
from hotloop.rl.envs.lean import kernel, part

_RED, _GREEN, _BLUE = GRAY
_FEW = 4  # taps that are written out; 84 x 84 out of 240 x 256 needs no more


class Taps(NamedTuple):
    """Which source pixels make an output pixel, and with which weights."""

    rows: NDArray[np.int64]  # [size], the first source row of an output row
    row_weights: NDArray[np.uint16]  # [size, taps]
    columns: NDArray[np.int64]  # [size]
    column_weights: NDArray[np.int64]  # [size, taps]
    total: NDArray[np.float64]  # [1], the sum of all weights
    band: NDArray[np.uint16]  # [256], scratch: one output row, not yet shrunk along
    sums: NDArray[np.int32]  # [size], scratch: one output row, not yet divided


def make_taps(size: int) -> Taps:
    """The taps from 240 x 256 to size x size, with scratch of their own."""
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


@part
def shrink_rows(source: Any, offset: int, taps: Taps, y: int) -> None:
    """One output row's source rows [240, >= offset + 256] summed up into `taps.band`.

    The sums are at most 255 x 240 and fit 16 bits.
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


@kernel
def shrink_into(source: Any, offset: int, taps: Taps, out: Any, begin: int, stride: int) -> None:
    """Columns offset .. offset + 255 of uint8 [240, ...], shrunk into out[begin], out[begin + stride] ..."""
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


@kernel
def gray_into(frame: Any, gray: Any) -> None:
    """RGB [240, 256, 3] as gray [240, 256], number by number what `chain.to_gray` gives."""
    for y in range(HEIGHT):
        for x in range(WIDTH):
            gray[y, x] = np.uint8(frame[y, x, 0] * _RED + frame[y, x, 1] * _GREEN + frame[y, x, 2] * _BLUE)


class CompiledChain:
    """A chain for the RGB frames of one game elsewhere: `begin` fills the stack, `push` moves it on."""

    def __init__(self, chain: Chain):
        self.chain = chain
        self.stacked = np.zeros(chain.shape, dtype=np.uint8)
        self._taps = make_taps(chain.size)
        self._plane = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)

    def begin(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The first frame of an episode, repeated; a copy of the stack."""
        self._draw(frame)
        self.stacked[:-1] = self.stacked[-1]
        return self.stacked.copy()

    def push(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The next frame; a copy of the stack."""
        self.stacked[:-1] = self.stacked[1:]
        self._draw(frame)
        return self.stacked.copy()

    def _draw(self, frame: NDArray[np.uint8]) -> None:
        newest = self.stacked[-1].reshape(-1)
        if self.chain.gray:
            gray_into(frame, self._plane)
            shrink_into(self._plane, 0, self._taps, newest, 0, 1)
            return
        for colour in range(3):
            self._plane[...] = frame[..., colour]
            shrink_into(self._plane, 0, self._taps, newest, colour, 3)
