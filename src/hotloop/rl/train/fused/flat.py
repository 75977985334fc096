"""Networks in one flat parameter array: layer tables for kernels, and torch modules as views of the array.

Kernels and torch share the memory, so each sees the other's updates without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotloop._util.errors import HotloopError
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.tiles import Floats, padded

ACTIVATIONS = {"tanh": layers.TANH, "relu": layers.RELU, "elu": layers.ELU, "silu": layers.SILU}


@dataclass(frozen=True, slots=True)
class MlpLayout:
    """Position of one dense network in the arrays that it shares with others."""

    sizes: tuple[int, ...]
    """Width of the input, of each hidden layer, of the output."""
    activation: str
    """After each layer but the last: tanh, relu, elu or silu."""
    table: NDArray[np.int64]
    """One row for each layer; see `layers`."""
    first: int
    """Index of its first parameter in the flat array."""
    last: int
    """Index after its last parameter."""


@dataclass(frozen=True, slots=True)
class NetworkArrays:
    """Arrays that kernels need for a group of networks; allocated once, with zero padding."""

    packed: Floats
    """Weights and biases with padded columns."""
    packed_transposed: Floats
    """Weights transposed."""
    packed_grads: Floats
    """Sums of gradients, laid out like `packed`."""
    hidden: Floats
    """Layer outputs of a chunk."""
    deltas: Floats
    """Gradients with respect to the layer outputs of a chunk."""
    grads: Floats
    """Gradients in the order of the parameters."""


def lay_out(*networks: tuple[Sequence[int], str]) -> tuple[list[MlpLayout], NetworkArrays]:
    """Lay out networks, each given as (sizes, activation), one after the other, and allocate their arrays."""
    at = packed_at = transposed_at = hidden_at = 0
    found = []
    for sizes, activation in networks:
        if len(sizes) < 2 or min(sizes) < 1 or activation not in ACTIVATIONS:
            raise HotloopError(
                f"a network of sizes {tuple(sizes)} with activation {activation!r} is not supported; use at "
                "least an input and an output width, each at least 1, and 'tanh', 'relu', 'elu' or 'silu'."
            )
        first, row = at, int(sizes[0])
        table = np.zeros((len(sizes) - 1, layers.TABLE_WIDTH), dtype=np.int64)
        for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
            columns = padded(outputs)
            kind = ACTIVATIONS[activation] if layer < len(sizes) - 2 else layers.NONE
            bias_at = at + inputs * outputs
            table[layer] = (
                inputs, outputs, columns, row, at, bias_at, packed_at, transposed_at, hidden_at, kind
            )  # fmt: skip
            at = bias_at + outputs
            packed_at += (inputs + 1) * columns
            transposed_at += outputs * row if layer > 0 else 0
            hidden_at += layers.CHUNK * columns * (2 if kind == layers.SILU else 1)
            row = columns
        found.append(MlpLayout(tuple(int(size) for size in sizes), activation, table, first, at))
    sizes_of = (packed_at, transposed_at, packed_at, hidden_at, hidden_at, at)
    return found, NetworkArrays(*(aligned_zeros(size) for size in sizes_of))


def aligned_zeros(size: int) -> Floats:
    """Zeros that begin at a multiple of 64 bytes, where vectors are loaded fastest."""
    raw = np.zeros(size * 4 + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * 4].view(np.float32)


def make_flat(layouts: Sequence[MlpLayout]) -> Floats:
    """A zero parameter array for the networks of one `lay_out`."""
    return aligned_zeros(layouts[-1].last)


def bind(layout: MlpLayout, module: Any, flat: Floats) -> None:
    """Copy the module's weights into `flat` and make its parameters views of `flat`.

    `module` is any torch module whose `nn.Linear` layers, in order, have the layout's sizes. From now on
    `flat` and the module share memory, so the module must stay on the CPU.
    """
    places = views(layout, module, flat)
    for name, parameter in module.named_parameters():
        with torch.no_grad():
            places[name].copy_(parameter)
        parameter.data = places[name]


def views(layout: MlpLayout, module: Any, flat: Floats) -> dict[str, Any]:
    """The module's parameters in a flat array, as torch views by parameter name."""
    linears = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    shapes = [(part.in_features, part.out_features) for part in linears.values()]
    if shapes != list(pairwise(layout.sizes)) or any(part.bias is None for part in linears.values()):
        raise HotloopError(
            f"the module's linear layers {shapes} do not match the layout {layout.sizes}, each with bias."
        )
    memory = torch.from_numpy(flat)
    found = {}
    for (name, part), row in zip(linears.items(), layout.table, strict=True):
        inputs, outputs = part.in_features, part.out_features
        weights, bias = int(row[layers.WEIGHTS]), int(row[layers.BIAS])
        prefix = f"{name}." if name else ""
        found[f"{prefix}weight"] = memory[weights : weights + inputs * outputs].view(inputs, outputs).t()
        found[f"{prefix}bias"] = memory[bias : bias + outputs]
    return found
