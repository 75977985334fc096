"""Weights between torch's own tensors and one flat array for kernels.

Stable-Baselines3 keeps its tensors: kernels work on a flat copy (weights as [inputs, outputs], then the bias,
as `rl.train.fused.flat` lays them out), which is read from the tensors at every entry and written back in
place at the end. Nothing ever becomes a view of the flat array, so checkpoints look as they always did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import array_at
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import kernel
from hotloop.rl.train.fused.flat import MlpLayout
from hotloop.rl.train.fused.tiles import Floats, transpose

if TYPE_CHECKING:
    from torch import Tensor

# Columns of a table of places, one row for each tensor: its index in the flat array, and its shape as
# torch has it. A vector has 0 columns.
AT, ROWS, PLACE_COLUMNS = 0, 1, 2


class Places:
    """Where the tensors of one optimizer, in a fixed order, are in a flat array."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []
        self.table = np.zeros((0, 3), dtype=np.int64)

    def add_network(self, layout: MlpLayout) -> None:
        """Weight and bias of each layer, in this order."""
        for row in layout.table:
            inputs, outputs = int(row[layers.INPUTS]), int(row[layers.OUTPUTS])
            self._rows.append((int(row[layers.WEIGHTS]), outputs, inputs))
            self._rows.append((int(row[layers.BIAS]), outputs, 0))
        self.table = np.array(self._rows, dtype=np.int64)

    def add_vector(self, at: int, size: int) -> None:
        self._rows.append((at, size, 0))
        self.table = np.array(self._rows, dtype=np.int64)

    def read(self, tensors: Sequence[Tensor], flat: Floats) -> None:
        """Copy the tensors, contiguous float32 on the CPU, into `flat`."""
        copy_in(self.table, addresses(tensors), flat)

    def write(self, tensors: Sequence[Tensor], flat: Floats) -> None:
        """Copy `flat` into the tensors, in place."""
        copy_out(self.table, addresses(tensors), flat)

    def is_current(self, tensors: Sequence[Tensor], seen: NDArray[np.uint32]) -> bool:
        """Whether the tensors hold the numbers they held at the last call, of which `seen` keeps a copy.

        Writes through `.data` leave no trace in torch's version counters, so the numbers are compared.
        """
        return bool(refresh(self.table, addresses(tensors), seen))

    def slices(self) -> list[slice]:
        """The part of the flat array that each tensor has."""
        return [slice(at, at + rows * (columns or 1)) for at, rows, columns in self._rows]


def addresses(tensors: Sequence[Any]) -> NDArray[np.int64]:
    """Where the tensors' numbers are now; tensors can be replaced at any time, so ask again each time."""
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)


@kernel
def copy_in(places: NDArray[np.int64], where: NDArray[np.int64], flat: Floats) -> None:
    """Copy each tensor into the flat array, weights transposed."""
    for i in range(places.shape[0]):
        at, rows, columns = places[i, AT], places[i, ROWS], places[i, PLACE_COLUMNS]
        tensor = array_at(where, i, (rows * max(columns, 1),), np.float32)
        if columns > 0:
            transpose(tensor, int(np.int64(0)), rows, columns, flat, at, rows)
        else:
            layers.copy(tensor, int(np.int64(0)), flat, at, rows)


@kernel
def copy_out(places: NDArray[np.int64], where: NDArray[np.int64], flat: Floats) -> None:
    """Copy the flat array into each tensor, weights transposed."""
    for i in range(places.shape[0]):
        at, rows, columns = places[i, AT], places[i, ROWS], places[i, PLACE_COLUMNS]
        tensor = array_at(where, i, (rows * max(columns, 1),), np.float32)
        if columns > 0:
            transpose(flat, at, columns, rows, tensor, int(np.int64(0)), columns)
        else:
            layers.copy(flat, at, tensor, int(np.int64(0)), rows)


@kernel
def refresh(places: NDArray[np.int64], where: NDArray[np.int64], seen: NDArray[np.uint32]) -> bool:
    """Copy the tensors' bits, as they lie in memory, to `seen`; returns whether that changed nothing."""
    at, difference = 0, np.uint32(0)
    for i in range(places.shape[0]):
        size = places[i, ROWS] * max(places[i, PLACE_COLUMNS], 1)
        bits, before = array_at(where, i, (size,), np.uint32), seen[at : at + size]
        for j in range(size):
            difference |= bits[j] ^ before[j]
        if difference != 0:
            for j in range(size):
                before[j] = bits[j]
        at += size
    return bool(difference == 0)
