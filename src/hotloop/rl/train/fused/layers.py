"""Dense networks in kernels: forward, backward, clipping by the global norm, Adam.

A network is a table (`flat.MlpLayout.table`) over a flat float32 parameter array that holds each layer's
weights as [inputs, outputs], then its bias. Samples are processed in chunks of CHUNK rows, whose activations
fit the L1 and L2 caches. Matrix products read packed copies of the weights: `packed` has padded columns,
`packed_transposed` is for the backward pass. Gradients are summed in the same padded form.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.train.fused.compiled import fma, kernel, not_inlined
from hotloop.rl.train.fused.tiles import Floats, multiply, squares, transpose

Table = NDArray[np.int64]  # [layers, 10]: the columns below

# Columns of a table, one row for each layer. Offsets count float32 elements.
INPUTS, OUTPUTS = 0, 1
COLUMNS = 2  # outputs, padded
INPUT_ROW = 3  # distance between rows of the layer's input
WEIGHTS, BIAS = 4, 5  # where in the flat parameters
PACKED = 6  # where in `packed`: weights [inputs, COLUMNS], then bias [COLUMNS]; the same in `packed_grads`
PACKED_TRANSPOSED = 7  # where in `packed_transposed`: weights as [outputs, INPUT_ROW]
HIDDEN = 8  # where in `hidden`: the layer's output [CHUNK, COLUMNS]; with SILU its slopes follow
ACTIVATION = 9  # NONE, TANH, RELU, ELU or SILU, after the layer
TABLE_WIDTH = 10

NONE, TANH, RELU, ELU, SILU = 0, 1, 2, 3, 4
CHUNK = 64  # rows processed at a time

# tanh(x) = x P(x^2) / Q(x^2) on [-8.7, 8.7]: the least relative error found by a weighted least-squares
# iteration, 1.5e-8 before rounding; in float32 at most 4e-7 relative to the true value.
_LIMIT = np.float32(8.7)
_P0, _P1, _P2 = np.float32(1.0), np.float32(0.13400466740131378), np.float32(0.0035187446046620607)
_P3, _P4 = np.float32(2.0993842554162256e-05), np.float32(1.3897642148208433e-08)
_Q1, _Q2 = np.float32(0.46733787655830383), np.float32(0.025964897125959396)
_Q3, _Q4 = np.float32(0.00033236489980481565), np.float32(7.99653264493827e-07)
_ONE, _ZERO, _HALF, _TWO = np.float32(1.0), np.float32(0.0), np.float32(0.5), np.float32(2.0)


# Moments below these change no weight: a step of 1e-25 at most, and a root far below Adam's epsilon.
_LEAST_FIRST, _LEAST_SECOND = np.float32(1e-30), np.float32(1e-36)


@kernel
def tanh(x: np.float32) -> np.float32:
    """tanh in single precision without branches, so that a loop over it is vectorised."""
    y = np.float32(x)
    y = _LIMIT if y > _LIMIT else y
    y = -_LIMIT if y < -_LIMIT else y
    s = y * y
    top = fma(s, fma(s, fma(s, fma(s, _P4, _P3), _P2), _P1), _P0)
    bottom = fma(s, fma(s, fma(s, fma(s, _Q4, _Q3), _Q2), _Q1), _ONE)
    return y * top / bottom


@kernel
def activate(values: Floats, at: int, rows: int, columns: int, bias: Floats, bias_at: int, kind: int) -> None:
    """Add the bias to each row of `values` [rows, columns] and apply the activation, in place.

    The derivative of SiLU cannot be had from its output: it is written CHUNK rows further on.
    """
    row_bias = bias[bias_at : bias_at + columns]
    for i in range(rows):
        row = values[at + i * columns : at + (i + 1) * columns]
        if kind == TANH:
            for j in range(columns):
                row[j] = tanh(row[j] + row_bias[j])
        elif kind == RELU:
            for j in range(columns):
                value = row[j] + row_bias[j]
                row[j] = _ZERO if value < _ZERO else value
        elif kind == ELU:
            for j in range(columns):
                value = row[j] + row_bias[j]
                half = tanh(_HALF * value)
                row[j] = value if value > _ZERO else _TWO * half / (_ONE - half)  # exp(value) - 1
        elif kind == SILU:
            start = at + (CHUNK + i) * columns
            slopes = values[start : start + columns]
            for j in range(columns):
                value = row[j] + row_bias[j]
                sigmoid = fma(_HALF, tanh(_HALF * value), _HALF)
                slopes[j] = sigmoid * fma(value, _ONE - sigmoid, _ONE)
                row[j] = value * sigmoid
        else:
            for j in range(columns):
                row[j] += row_bias[j]


@kernel
def copy(source: Floats, at: int, target: Floats, to: int, count: int) -> None:
    """Copy `count` numbers.

    A loop over views that counts from 0 compiles to vector moves. Assigning slices would check for overlap,
    and the compiler must assume that an index with an offset can be negative.
    """
    a, b = source[at : at + count], target[to : to + count]
    for i in range(count):
        b[i] = a[i]


@kernel
def pack(table: Table, parameters: Floats, packed: Floats, packed_transposed: Floats) -> None:
    """Write the packed copies of the weights; call it after each change of `parameters`.

    The padding of `packed` and `packed_transposed` is zero from their allocation and never written.
    """
    not_inlined()
    for layer in range(table.shape[0]):
        inputs, outputs, columns = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, COLUMNS]
        weights, to = table[layer, WEIGHTS], table[layer, PACKED]
        for i in range(inputs):
            copy(parameters, weights + i * outputs, packed, to + i * columns, outputs)
        copy(parameters, table[layer, BIAS], packed, to + inputs * columns, outputs)
        if layer > 0:
            back, row = table[layer, PACKED_TRANSPOSED], table[layer, INPUT_ROW]
            transpose(parameters, weights, inputs, outputs, packed_transposed, back, row)


@kernel
def forward(table: Table, packed: Floats, inputs: Floats, at: int, hidden: Floats, rows: int) -> None:
    """Run at most CHUNK rows through the network and write the layer outputs to `hidden` at their offsets.

    The first layer reads `inputs` from `at` on, rows INPUT_ROW apart.
    """
    not_inlined()
    for layer in range(table.shape[0]):
        depth, columns = table[layer, INPUTS], table[layer, COLUMNS]
        weights, out = table[layer, PACKED], table[layer, HIDDEN]
        row = table[layer, INPUT_ROW]
        if layer == 0:
            multiply(
                inputs, at, row, 1, packed, weights, columns,
                hidden, out, columns, rows, columns, depth, False,
            )  # fmt: skip
        else:
            before = table[layer - 1, HIDDEN]
            multiply(
                hidden, before, row, 1, packed, weights, columns,
                hidden, out, columns, rows, columns, depth, False,
            )  # fmt: skip
        activate(hidden, out, rows, columns, packed, weights + depth * columns, table[layer, ACTIVATION])


@kernel
def backward(
    table: Table,
    packed_transposed: Floats,
    inputs: Floats,
    at: int,
    hidden: Floats,
    deltas: Floats,
    rows: int,
    packed_grads: Floats,
) -> None:
    """Add the gradients of the rows that `forward` has just run to `packed_grads`.

    `deltas` [as `hidden`]: at the last layer's HIDDEN offset, the caller writes the gradient of the loss with
    respect to the network's output [rows, COLUMNS], with zero padding; the other offsets are written here.
    """
    not_inlined()
    for layer in range(table.shape[0] - 1, -1, -1):
        wide, columns, row = table[layer, INPUTS], table[layer, COLUMNS], table[layer, INPUT_ROW]
        grads, delta = table[layer, PACKED], table[layer, HIDDEN]
        bias = packed_grads[grads + wide * columns : grads + (wide + 1) * columns]
        for i in range(rows):
            line = deltas[delta + i * columns : delta + (i + 1) * columns]
            for j in range(columns):
                bias[j] += line[j]
        if layer == 0:
            multiply(
                inputs, at, 1, row, deltas, delta, columns,
                packed_grads, grads, columns, wide, columns, rows, True,
            )  # fmt: skip
            continue
        before = table[layer - 1, HIDDEN]
        multiply(
            hidden, before, 1, row, deltas, delta, columns,
            packed_grads, grads, columns, wide, columns, rows, True,
        )  # fmt: skip
        back, depth = table[layer, PACKED_TRANSPOSED], table[layer, OUTPUTS]
        multiply(
            deltas, delta, columns, 1, packed_transposed, back, row,
            deltas, before, row, rows, row, depth, False,
        )  # fmt: skip
        size, kind = rows * row, table[layer - 1, ACTIVATION]
        known = before + CHUNK * row if kind == SILU else before
        through_activation(deltas[before : before + size], hidden[known : known + size], kind)


@kernel
def through_activation(deltas: Floats, outputs: Floats, kind: int) -> None:
    """Multiply the gradient by the derivative of the activation.

    `outputs` are the activation's, or with SILU its derivative.
    """
    if kind == TANH:
        for j in range(deltas.size):
            deltas[j] *= fma(-outputs[j], outputs[j], _ONE)
    elif kind == RELU:
        for j in range(deltas.size):
            deltas[j] = deltas[j] if outputs[j] > _ZERO else _ZERO
    elif kind == ELU:
        for j in range(deltas.size):
            deltas[j] *= _ONE if outputs[j] > _ZERO else outputs[j] + _ONE
    elif kind == SILU:
        for j in range(deltas.size):
            deltas[j] *= outputs[j]


@kernel
def unpack_grads(table: Table, packed_grads: Floats, grads: Floats) -> None:
    """Move the summed gradients to the flat order of the parameters and leave `packed_grads` zero."""
    not_inlined()
    for layer in range(table.shape[0]):
        inputs, outputs, columns = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, COLUMNS]
        weights, source, bias = table[layer, WEIGHTS], table[layer, PACKED], table[layer, BIAS]
        for i in range(inputs):
            copy(packed_grads, source + i * columns, grads, weights + i * outputs, outputs)
        end = source + inputs * columns
        copy(packed_grads, end, grads, bias, outputs)
        whole = packed_grads[source : end + columns]
        for i in range(whole.size):
            whole[i] = _ZERO


@kernel
def sum_of_squares(values: Floats) -> np.float32:
    """The sum of the squares, added up in the same order for every caller."""
    return squares(values, values.size)


@kernel
def adam(
    parameters: Floats,
    grads: Floats,
    first: Floats,
    second: Floats,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    scale: float,
) -> None:
    """Adam's step number `step` (from 1) with gradients `scale * grads`, as torch.optim.Adam does it.

    All arrays are flat float32 [parameters] and, except `grads`, are changed in place. Moments too small to
    move a weight become 0: those of a dead unit would otherwise shrink to denormal numbers, which made an
    update 2.3 times as slow (Snake, 128-128, after some thousand updates, Xeon 2.8 GHz).
    """
    rate = np.float32(learning_rate / (1.0 - beta1**step))
    root = np.float32(1.0 / math.sqrt(1.0 - beta2**step))
    keep1, new1 = np.float32(beta1), np.float32(1.0 - beta1)
    keep2, new2 = np.float32(beta2), np.float32(1.0 - beta2)
    small, factor = np.float32(epsilon), np.float32(scale)
    for i in range(parameters.size):
        g = grads[i] * factor
        m = fma(keep1, first[i], new1 * g)
        v = fma(keep2, second[i], new2 * g * g)
        m = _ZERO if abs(m) <= _LEAST_FIRST else m  # not the other way round: NaN stays NaN
        v = _ZERO if v <= _LEAST_SECOND else v
        first[i], second[i] = m, v
        parameters[i] -= rate * m / fma(np.sqrt(v), root, small)
