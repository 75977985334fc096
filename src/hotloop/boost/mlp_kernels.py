"""Forward and backward passes of MLPs in `nn.Sequential`, in kernels that work on torch's own tensors.

As in `dense_kernels`, activations are stored with one sample a column, so that torch's weights [outputs,
inputs] are read where they are. Samples are processed in chunks whose activations stay in the caches; the
activations of chunk k begin at element k * CHUNK * rows of `work`. Tensors are passed by address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.boost.dense_kernels import SILU, activate, silu, sum_rows, through_activation
from hotloop.rl.envs.compiled import array_at
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import kernel, not_inlined
from hotloop.rl.train.fused.tiles import LANES, Floats, multiply, transpose

# Columns of a network's table, one row for each Linear layer. INPUT_ROW and OUTPUT_ROW say where in a chunk
# of activations [rows, samples] the layer's input and output begin.
INPUTS, OUTPUTS, INPUT_ROW, OUTPUT_ROW, ACTIVATION, GRADS_AT = range(6)
TABLE_WIDTH = 6

CHUNK = 128  # samples

Table = NDArray[np.int64]
Addresses = NDArray[np.int64]

_ZERO = np.float32(0.0)


@kernel
def forward(
    table: Table,
    weights: Addresses,
    rows: int,
    inputs_at: int,
    outputs_at: int,
    work_at: int,
    slopes_at: int,
    batch: int,
    is_kept: bool,
) -> None:
    """Run the network on inputs [batch, features] and write its outputs [batch, ...].

    `weights` are the addresses of weight and bias of each layer, `rows` the sum of the widths. With `is_kept`
    the activations of all chunks stay in `work` for `backward`; otherwise there is room for one chunk.
    `slopes` is like `work` and used with SiLU only.
    """
    not_inlined()
    last = table.shape[0] - 1
    features, results = table[0, INPUTS], table[last, OUTPUTS]
    places: Any = (inputs_at, outputs_at, work_at, slopes_at)
    x = array_at(places, 0, (batch * features,), np.float32)
    out = array_at(places, 1, (batch * results,), np.float32)
    room = rows * padded_batch(batch if is_kept else min(batch, CHUNK))
    all_work = array_at(places, 2, (room,), np.float32)
    all_slopes = array_at(places, 3, (room,), np.float32)
    for start in range(0, batch, CHUNK):
        real = min(CHUNK, batch - start)
        samples = padded_batch(real)
        base = start * rows if is_kept else 0
        work, slopes = all_work[base:], all_slopes[base:]
        load(x, start * features, features, real, work, 0, samples)
        for layer in range(last + 1):
            width, height = table[layer, INPUTS], table[layer, OUTPUTS]
            at, kind = table[layer, OUTPUT_ROW] * samples, table[layer, ACTIVATION]
            matrix = array_at(weights, 2 * layer, (height * width,), np.float32)
            bias = array_at(weights, 2 * layer + 1, (height,), np.float32)
            multiply(
                matrix, 0, width, 1, work, table[layer, INPUT_ROW] * samples, samples,
                work, at, samples, height, samples, width, False,
            )  # fmt: skip
            for i in range(height):
                activate(work[at + i * samples : at + (i + 1) * samples], bias[i], kind)
            if kind == SILU:
                end = at + height * samples
                silu(work[at:end], slopes[at:end])
        unload(work, table[last, OUTPUT_ROW] * samples, results, samples, real, out, start * results)


@kernel
def backward(
    table: Table,
    weights: Addresses,
    grads: Addresses,
    rows: int,
    output_grads_at: int,
    input_grads_at: int,
    work_at: int,
    slopes_at: int,
    scratch_at: int,
    widest: int,
    packed_size: int,
    batch: int,
    wants_weights: bool,
    wants_inputs: bool,
) -> None:
    """Gradients for what `forward` has kept, given those of the outputs [batch, ...].

    `grads` are the addresses of the gradients of weight and bias of each layer, written with `wants_weights`;
    those of the inputs are written with `wants_inputs`. `scratch` has room for `scratch_size` floats.
    """
    not_inlined()
    last = table.shape[0] - 1
    features, results = table[0, INPUTS], table[last, OUTPUTS]
    most = padded_batch(min(batch, CHUNK))
    places: Any = (output_grads_at, input_grads_at, work_at, slopes_at, scratch_at)
    given = array_at(places, 0, (batch * results,), np.float32)
    wanted = array_at(places, 1, (batch * features,), np.float32)
    all_work = array_at(places, 2, (rows * padded_batch(batch),), np.float32)
    all_slopes = array_at(places, 3, (rows * padded_batch(batch),), np.float32)
    scratch = array_at(places, 4, (scratch_size(rows, widest, packed_size, batch),), np.float32)
    deltas, across = scratch[: rows * most], scratch[rows * most :]
    packed = scratch[rows * most + widest * most :]
    for start in range(0, batch, CHUNK):
        real = min(CHUNK, batch - start)
        samples = padded_batch(real)
        work, slopes = all_work[start * rows :], all_slopes[start * rows :]
        top = table[last, OUTPUT_ROW] * samples
        load(given, start * results, results, real, deltas, top, samples)
        end = top + results * samples
        through_activation(deltas[top:end], work[top:end], slopes[top:end], table[last, ACTIVATION])
        for layer in range(last, -1, -1):
            width, height, at = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, GRADS_AT]
            source, out = table[layer, INPUT_ROW] * samples, table[layer, OUTPUT_ROW] * samples
            matrix = array_at(weights, 2 * layer, (height * width,), np.float32)
            if wants_weights:
                wide = (width + LANES - 1) // LANES * LANES
                transpose(work, source, width, samples, across, 0, wide)
                multiply(
                    deltas, out, samples, 1, across, 0, wide,
                    packed, at, wide, height, wide, real, start > 0,
                )  # fmt: skip
                sums = packed[at + height * wide : at + height * (wide + 2)]
                sum_rows(deltas[out : out + height * samples], samples, real, sums[height:])
                for i in range(height):
                    sums[i] = sums[height + i] + (sums[i] if start > 0 else _ZERO)
            if layer > 0 or wants_inputs:
                multiply(
                    matrix, 0, 1, width, deltas, out, samples,
                    deltas, source, samples, width, samples, height, False,
                )  # fmt: skip
            if layer > 0:
                end = source + width * samples
                through_activation(
                    deltas[source:end], work[source:end], slopes[source:end], table[layer - 1, ACTIVATION]
                )
        if wants_inputs:
            unload(deltas, 0, features, samples, real, wanted, start * features)
    if wants_weights:
        unpack(table, packed, grads)


@kernel
def padded_batch(batch: int) -> int:
    """`batch` rounded up to a multiple of LANES."""
    return (batch + LANES - 1) // LANES * LANES


@kernel
def scratch_size(rows: int, widest: int, packed_size: int, batch: int) -> int:
    """Floats that `backward` needs; `widest` is the largest padded number of inputs."""
    return (rows + widest) * padded_batch(min(batch, CHUNK)) + packed_size


@kernel
def load(source: Floats, at: int, width: int, real: int, target: Floats, to: int, samples: int) -> None:
    """Copy `real` rows of `width` numbers to the columns of `target` [width, samples], padded with zeros."""
    not_inlined()
    transpose(source, at, real, width, target, to, samples)
    for i in range(width):
        line = target[to + i * samples + real : to + (i + 1) * samples]
        for j in range(line.size):
            line[j] = _ZERO


@kernel
def unload(source: Floats, at: int, width: int, samples: int, real: int, target: Floats, to: int) -> None:
    """Copy the first `real` columns of `source` [width, samples] to the rows of `target`."""
    not_inlined()
    for i in range(width):
        line, column = source[at + i * samples : at + (i + 1) * samples], target[to + i :]
        for j in range(real):
            column[j * width] = line[j]


@kernel
def unpack(table: Table, packed: Floats, grads: Addresses) -> None:
    """Copy gradients with padded rows to torch's tensors."""
    not_inlined()
    for layer in range(table.shape[0]):
        width, height, at = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, GRADS_AT]
        wide = (width + LANES - 1) // LANES * LANES
        matrix = array_at(grads, 2 * layer, (height * width,), np.float32)
        bias = array_at(grads, 2 * layer + 1, (height,), np.float32)
        for i in range(height):
            layers.copy(packed, at + i * wide, matrix, i * width, width)
        layers.copy(packed, at + height * wide, bias, 0, height)
