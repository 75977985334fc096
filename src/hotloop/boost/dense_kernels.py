"""Dense networks in kernels that work on torch's own tensors, for the off-policy learners.

Weights, Adam's moments and target weights are read and written where torch keeps them, so there is no copy
that could be out of date. This works because activations are stored with one sample a column: with weights W
[outputs, inputs] as torch has them, W X is the layer, W^T D its input's gradient, and both are products that
`tiles.multiply` makes without a transposed copy of W. Only the weights' gradient D X^T needs the transposed
activations. Sums over the depth have a fixed order, whoever calls and however the work is split.

Threads of a team (see `team_kernels`) may call a kernel together, each with its `part`; they share the rows
and are done when it returns. With `parts` 1, `team` is not used.

A network is a table with one row for each Linear layer; its tensors are rows of a table of addresses, weight
and bias of each layer in the order of the table. Offsets count float32 elements. Activations are [width,
samples], samples padded to a multiple of LANES. `grads` has gradients of weights as [outputs, padded inputs].
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hotloop.boost.selected_sums import BITS, Codes, codes_of_columns, codes_of_rows, multiply_selected
from hotloop.boost.team_kernels import Words, begin_of_share, wait_for_all
from hotloop.rl.envs.compiled import array_at
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel, fma, inlined_kernel, kernel, not_inlined
from hotloop.rl.train.fused.tiles import LANES, Floats, multiply, squares, transpose

# Columns of a network's table. BELOW is the row of the layer whose output is read, or -1 for the network's
# input; the last rows may be two heads, with the same BELOW.
INPUTS, OUTPUTS, TENSOR, INPUT_AT, OUTPUT_AT, ACTIVATION, GRADS_AT, BELOW = range(8)
TABLE_WIDTH = 8

NONE, TANH, RELU, ELU, SILU = 0, 1, 2, 3, 4

# Columns of a table of addresses, one row for each tensor.
WEIGHTS, FIRST, SECOND, STEPS, TARGET = range(5)
ADDRESSES = 5

THIN = 4  # inputs or outputs of a layer whose gradients are made by `thin_gradient`

# Indices into the settings of an optimizer, float64.
LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY, MAX_GRAD_NORM = range(6)
OPTIMIZER_SETTINGS = 6

Table = NDArray[np.int64]
Addresses = NDArray[np.int64]

_ZERO, _HALF, _ONE, _TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)


@kernel
def forward(
    table: Table,
    addresses: Addresses,
    column: int,
    work: Floats,
    slopes: Floats,
    samples: int,
    team: Words,
    part: int,
    parts: int,
) -> None:
    """Run the network on its input in `work` and leave every layer's output there.

    `column` is WEIGHTS or TARGET. `slopes` gets the derivative of activations that cannot be had from their
    output; with others it is not touched.
    """
    not_inlined()
    for layer in range(table.shape[0]):
        inputs, outputs, tensor = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, TENSOR]
        where, out = addresses[:, column], table[layer, OUTPUT_AT]
        weights = array_at(where, tensor, (outputs * inputs,), np.float32)
        bias = array_at(where, tensor + 1, (outputs,), np.float32)
        first, end = begin_of_share(outputs, part, parts), begin_of_share(outputs, part + 1, parts)
        multiply(
            weights, first * inputs, inputs, 1, work, table[layer, INPUT_AT], samples,
            work, out + first * samples, samples, end - first, samples, inputs, False,
        )  # fmt: skip
        kind = table[layer, ACTIVATION]
        for i in range(first, end):
            at = out + i * samples
            activate(work[at : at + samples], bias[i], kind)
        if kind == SILU:
            at, stop = out + first * samples, out + end * samples
            silu(work[at:stop], slopes[at:stop])
        wait_for_all(team, parts)


@inlined_kernel
def activate(row: Floats, bias: np.float32, kind: int) -> None:
    """Add the bias and apply the activation in place; SiLU is left to `silu`."""
    if kind == RELU:
        for j in range(row.size):
            value = row[j] + bias
            row[j] = _ZERO if value < _ZERO else value
    elif kind == TANH:
        for j in range(row.size):
            row[j] = layers.tanh(row[j] + bias)
    elif kind == ELU:
        for j in range(row.size):
            value = row[j] + bias
            half = layers.tanh(_HALF * value)
            row[j] = value if value > _ZERO else _TWO * half / (_ONE - half)  # exp(value) - 1
    else:
        for j in range(row.size):
            row[j] += bias


@inlined_kernel
def silu(values: Floats, slopes: Floats) -> None:
    """x * sigmoid(x) in place, and its derivative."""
    for j in range(values.size):
        x = values[j]
        sigmoid = fma(_HALF, layers.tanh(_HALF * x), _HALF)
        slopes[j] = sigmoid * fma(x, _ONE - sigmoid, _ONE)
        values[j] = x * sigmoid


@inlined_kernel
def through_activation(deltas: Floats, outputs: Floats, slopes: Floats, kind: int) -> None:
    """Multiply the gradient by the derivative of the activation."""
    if kind == RELU:
        for j in range(deltas.size):
            deltas[j] = _ZERO if outputs[j] <= _ZERO else deltas[j]  # NaN gets a gradient, as in torch
    elif kind == TANH:
        for j in range(deltas.size):
            deltas[j] *= fma(-outputs[j], outputs[j], _ONE)
    elif kind == ELU:
        for j in range(deltas.size):
            deltas[j] *= _ONE if outputs[j] > _ZERO else outputs[j] + _ONE
    elif kind == SILU:
        for j in range(deltas.size):
            deltas[j] *= slopes[j]


@kernel
def backward(
    table: Table,
    addresses: Addresses,
    work: Floats,
    deltas: Floats,
    slopes: Floats,
    samples: int,
    real_samples: int,
    grads: Floats,
    across: Floats,
    sums: Floats,
    codes: Codes,
    input_rows: int,
    team: Words,
    part: int,
    parts: int,
) -> None:
    """Gradients of the network that `forward` has just run, given those of its outputs in `deltas`.

    With `input_rows` 0 the weights' gradients are written to `grads`. Otherwise those are left alone, and the
    gradient of the network's last `input_rows` inputs is written to `deltas`, after the place of the last
    layer's output. `deltas` has the offsets of `work`. `across` has room for the transposed activations of a
    layer. `sums` and `codes` are for `backward_from_one_output`; threads must not share them.
    """
    not_inlined()
    last = table.shape[0] - 1
    top = last
    if has_one_output(table):
        backward_from_one_output(
            table, addresses, work, deltas, slopes, samples, real_samples, grads, across, sums, codes,
            input_rows == 0, team, part, parts,
        )  # fmt: skip
        top = last - 2
    for layer in range(top, -1, -1):
        inputs, outputs, tensor = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, TENSOR]
        source, out, below = table[layer, INPUT_AT], table[layer, OUTPUT_AT], table[layer, BELOW]
        weights = array_at(addresses[:, WEIGHTS], tensor, (outputs * inputs,), np.float32)
        after_head = layer < last and table[layer + 1, BELOW] == below
        before_head = layer > 0 and table[layer - 1, BELOW] == below
        wide = (inputs + LANES - 1) // LANES * LANES
        if input_rows == 0 and min(inputs, outputs) <= THIN:
            thin_gradient(
                deltas[out : out + outputs * samples], work[source : source + inputs * samples], samples,
                real_samples, grads[table[layer, GRADS_AT] :], wide, part, parts,
            )  # fmt: skip
        elif input_rows == 0:
            if not after_head or table[layer + 1, OUTPUTS] <= THIN:
                first, end = begin_of_share(inputs, part, parts), begin_of_share(inputs, part + 1, parts)
                transpose(work, source + first * samples, end - first, samples, across, first, wide)
                wait_for_all(team, parts)
            first, end = begin_of_share(outputs, part, parts), begin_of_share(outputs, part + 1, parts)
            at = table[layer, GRADS_AT]
            multiply(
                deltas, out + first * samples, samples, 1, across, int(np.int64(0)), wide,
                grads, at + first * wide, wide, end - first, wide, real_samples, False,
            )  # fmt: skip
            at += outputs * wide
            sum_rows(
                deltas[out + first * samples : out + end * samples], samples, real_samples,
                grads[at + first : at + end],
            )  # fmt: skip
        if below >= 0:
            first, end = begin_of_share(inputs, part, parts), begin_of_share(inputs, part + 1, parts)
            multiply(
                weights, first, 1, inputs, deltas, out, samples,
                deltas, source + first * samples, samples, end - first, samples, outputs, after_head,
            )  # fmt: skip
            if not before_head:
                at, stop = source + first * samples, source + end * samples
                through_activation(deltas[at:stop], work[at:stop], slopes[at:stop], table[below, ACTIVATION])
        elif input_rows > 0 and part == 0:
            after = table[last, OUTPUT_AT] + table[last, OUTPUTS] * samples
            multiply(
                weights, inputs - input_rows, 1, inputs, deltas, out, samples,
                deltas, after, samples, input_rows, samples, outputs, False,
            )  # fmt: skip
        wait_for_all(team, parts)


@inlined_kernel
def has_one_output(table: Table) -> bool:
    """Whether `backward_from_one_output` can begin the backward pass, in whole vectors."""
    last = table.shape[0] - 1
    if last < 2 or table[last, OUTPUTS] != 1 or table[last, BELOW] != last - 1:
        return False
    layer = table[last - 1]
    are_whole = layer[INPUTS] % LANES == 0 and layer[OUTPUTS] % BITS == 0
    return bool(layer[ACTIVATION] == RELU and are_whole)


@kernel
def backward_from_one_output(
    table: Table,
    addresses: Addresses,
    work: Floats,
    deltas: Floats,
    slopes: Floats,
    samples: int,
    real_samples: int,
    grads: Floats,
    across: Floats,
    sums: Floats,
    codes: Codes,
    with_weights: bool,
    team: Words,
    part: int,
    parts: int,
) -> None:
    """`backward` through the last two layers when the last one has a single output and reads ReLUs.

    The gradient by unit o for sample s is then v[o] d[s] if the unit is above 0, else 0, where v are the
    weights of the last layer and d the derivative of its output. So both products add up scaled rows that the
    units' signs select. With `with_weights` the weights' gradients are written to `grads`. Threads share the
    columns.
    """
    not_inlined()
    last = table.shape[0] - 1
    layer, below = last - 1, table[last - 1, BELOW]
    inputs, outputs = table[layer, INPUTS], table[layer, OUTPUTS]
    source, hidden, out = table[layer, INPUT_AT], table[layer, OUTPUT_AT], table[last, OUTPUT_AT]
    weights = array_at(addresses[:, WEIGHTS], table[layer, TENSOR], (outputs * inputs,), np.float32)
    of_last = array_at(addresses[:, WEIGHTS], table[last, TENSOR], (outputs,), np.float32)
    by_output = deltas[out : out + samples]
    first, end = begin_of_share(inputs, part, parts), begin_of_share(inputs, part + 1, parts)
    mine, width = first * samples, end - first  # this thread's part of `across`, and its columns
    if with_weights:
        thin_gradient(
            by_output, work[hidden : hidden + outputs * samples], samples, real_samples,
            grads[table[last, GRADS_AT] :], (outputs + LANES - 1) // LANES * LANES, part, parts,
        )  # fmt: skip
        at = table[layer, GRADS_AT]
        transpose(work, source + mine, width, samples, across, mine, width)
        codes_of_rows(work, hidden, outputs, samples, codes)
        multiply_selected(
            codes, samples // BITS, 1, across, mine, width, by_output,
            grads, at + first, inputs, of_last, outputs, width, samples, sums,
        )  # fmt: skip
        at += outputs * inputs
        begin, stop = begin_of_share(outputs, part, parts), begin_of_share(outputs, part + 1, parts)
        sum_selected(
            by_output[:real_samples], work[hidden + begin * samples : hidden + stop * samples], samples,
            of_last[begin:stop], grads[at + begin : at + stop],
        )  # fmt: skip
    codes_of_columns(work, hidden, outputs, samples, codes)
    multiply_selected(
        codes, 1, samples, weights, first, inputs, of_last,
        across, mine, width, by_output, samples, width, outputs, sums,
    )  # fmt: skip
    transpose(across, mine, samples, width, deltas, source + mine, samples)
    at, stop = source + mine, source + end * samples
    through_activation(deltas[at:stop], work[at:stop], slopes[at:stop], table[below, ACTIVATION])
    wait_for_all(team, parts)


@fast_kernel
def sum_selected(values: Floats, matrix: Floats, row: int, scales: Floats, sums: Floats) -> None:
    """For each row, the sum of those values whose number in the row is above 0, times the row's scale."""
    not_inlined()
    for i in range(sums.size):
        line = matrix[i * row : i * row + values.size]
        total = _ZERO
        for j in range(values.size):
            total += values[j] if line[j] > _ZERO else _ZERO
        sums[i] = total * scales[i]


@fast_kernel
def thin_gradient(
    deltas: Floats, inputs: Floats, row: int, count: int, grads: Floats, wide: int, part: int, parts: int
) -> None:
    """Gradients of a layer with few inputs or outputs, as scalar products of rows `row` apart.

    A product in blocks would fill vectors with padding, and need transposed inputs.
    """
    not_inlined()
    n_outputs, n_inputs = deltas.size // row, inputs.size // row
    for i in range(begin_of_share(n_outputs, part, parts), begin_of_share(n_outputs, part + 1, parts)):
        delta = deltas[i * row : i * row + count]
        total = _ZERO
        for k in range(count):
            total += delta[k]
        grads[n_outputs * wide + i] = total
        for j in range(n_inputs):
            values = inputs[j * row : j * row + count]
            total = _ZERO
            for k in range(count):
                total += delta[k] * values[k]
            grads[i * wide + j] = total


@fast_kernel
def sum_rows(matrix: Floats, row: int, count: int, sums: Floats) -> None:
    """The sum of the first `count` numbers of each row; rows are `row` apart."""
    not_inlined()
    for i in range(sums.size):
        line = matrix[i * row : i * row + count]
        total = _ZERO
        for j in range(count):
            total += line[j]
        sums[i] = total


@kernel
def adam(
    table: Table,
    addresses: Addresses,
    grads: Floats,
    settings: NDArray[np.float64],
    team: Words,
    part: int,
    parts: int,
) -> None:
    """One step of `torch.optim.Adam` for the tensors of the network, with the gradients from `backward`.

    `grads` become what the library leaves in `.grad`: [outputs, inputs] without gaps, clipped, not decayed.
    """
    not_inlined()
    if part == 0:
        tighten(table, grads)
    wait_for_all(team, parts)
    scale, largest = 1.0, settings[MAX_GRAD_NORM]
    decay = np.float32(settings[WEIGHT_DECAY])
    if largest >= 0.0:  # as torch.nn.utils.clip_grad_norm_
        total = 0.0
        for layer in range(table.shape[0]):
            total += sum_of_squares(grads, table[layer, GRADS_AT], grads_size(table, layer))
        scale = largest / (math.sqrt(total) + 1e-6)
        scale = min(scale, 1.0)
        wait_for_all(team, parts)
    for layer in range(table.shape[0]):
        inputs, outputs, at = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, GRADS_AT]
        for bias in range(2):
            size = outputs if bias else outputs * inputs
            tensor = table[layer, TENSOR] + bias
            begin, end = begin_of_share(size, part, parts), begin_of_share(size, part + 1, parts)
            weights = array_at(addresses[:, WEIGHTS], tensor, (size,), np.float32)[begin:end]
            first = array_at(addresses[:, FIRST], tensor, (size,), np.float32)[begin:end]
            second = array_at(addresses[:, SECOND], tensor, (size,), np.float32)[begin:end]
            step = int(array_at(addresses[:, STEPS], tensor, (1,), np.float32)[0]) + 1
            gradient = grads[at + begin : at + end]
            if scale < 1.0:
                for i in range(gradient.size):
                    gradient[i] *= np.float32(scale)
            if decay == _ZERO:
                layers.adam(
                    weights, gradient, first, second, step, settings[LEARNING_RATE],
                    settings[BETA1], settings[BETA2], settings[EPSILON], 1.0,
                )  # fmt: skip
            else:
                decayed_adam(weights, gradient, first, second, step, settings)
            at += size
    wait_for_all(team, parts)
    if part == 0:
        for layer in range(table.shape[0]):
            for tensor in range(table[layer, TENSOR], table[layer, TENSOR] + 2):
                array_at(addresses[:, STEPS], tensor, (1,), np.float32)[0] += _ONE


@kernel
def decayed_adam(
    weights: Floats,
    grads: Floats,
    first: Floats,
    second: Floats,
    step: int,
    settings: NDArray[np.float64],
) -> None:
    """`layers.adam` with weight decay, which does not change `grads`."""
    beta1, beta2, decay = settings[BETA1], settings[BETA2], np.float32(settings[WEIGHT_DECAY])
    rate = np.float32(settings[LEARNING_RATE] / (1.0 - beta1**step))
    root = np.float32(1.0 / math.sqrt(1.0 - beta2**step))
    keep1, new1 = np.float32(beta1), np.float32(1.0 - beta1)
    keep2, new2 = np.float32(beta2), np.float32(1.0 - beta2)
    small = np.float32(settings[EPSILON])
    for i in range(weights.size):
        g = fma(decay, weights[i], grads[i])
        m = fma(keep1, first[i], new1 * g)
        v = fma(keep2, second[i], new2 * g * g)
        first[i], second[i] = m, v
        weights[i] -= rate * m / fma(np.sqrt(v), root, small)


@inlined_kernel
def grads_size(table: Table, layer: int) -> int:
    """How many gradients a layer has once they are tightened."""
    return int(table[layer, OUTPUTS] * (table[layer, INPUTS] + 1))


@inlined_kernel
def tighten(table: Table, grads: Floats) -> None:
    """Close the gaps that padding left between the rows of `grads`, and before the bias."""
    for layer in range(table.shape[0]):
        inputs, outputs, at = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, GRADS_AT]
        wide = (inputs + LANES - 1) // LANES * LANES
        if wide != inputs:
            for i in range(1, outputs):
                for j in range(inputs):
                    grads[at + i * inputs + j] = grads[at + i * wide + j]
            for i in range(outputs):
                grads[at + outputs * inputs + i] = grads[at + outputs * wide + i]


@inlined_kernel
def sum_of_squares(values: Floats, at: int, size: int) -> float:
    """The sum of the squares, in a fixed order."""
    return float(squares(values[at : at + size], size))


@kernel
def update_targets(table: Table, addresses: Addresses, tau: float, part: int, parts: int) -> None:
    """`polyak_update` of Stable-Baselines3 for the tensors of the network; threads do not wait at its end."""
    not_inlined()
    keep, new = np.float32(1.0 - tau), np.float32(tau)
    for layer in range(table.shape[0]):
        inputs, outputs = table[layer, INPUTS], table[layer, OUTPUTS]
        for bias in range(2):
            size = outputs if bias else outputs * inputs
            tensor = table[layer, TENSOR] + bias
            begin, end = begin_of_share(size, part, parts), begin_of_share(size, part + 1, parts)
            weights = array_at(addresses[:, WEIGHTS], tensor, (size,), np.float32)[begin:end]
            target = array_at(addresses[:, TARGET], tensor, (size,), np.float32)[begin:end]
            for i in range(target.size):  # from 0 on slices: five times as fast
                target[i] = fma(new, weights[i], target[i] * keep)


@fast_kernel
def run_one(table: Table, addresses: Addresses, inputs: Floats, scratch: Floats, outputs: Floats) -> None:
    """The network's outputs [count] for a single observation; `scratch` [2, widest layer]."""
    not_inlined()
    half, last = scratch.size // 2, table.shape[0] - 1
    for layer in range(last + 1):
        wide, high, tensor = table[layer, INPUTS], table[layer, OUTPUTS], table[layer, TENSOR]
        below = table[layer, BELOW]
        weights = array_at(addresses[:, WEIGHTS], tensor, (high * wide,), np.float32)
        bias = array_at(addresses[:, WEIGHTS], tensor + 1, (high,), np.float32)
        reads = inputs if below < 0 else scratch[half * (below % 2) :]
        writes = scratch[half * (layer % 2) :]
        if layer == last or table[layer + 1, BELOW] == below:  # a head
            writes = outputs
        if layer > 0 and table[layer - 1, BELOW] == below:  # the second head
            writes = outputs[table[layer - 1, OUTPUTS] :]
        for i in range(high):
            line = weights[i * wide : (i + 1) * wide]
            total = _ZERO
            for j in range(wide):
                total += line[j] * reads[j]
            writes[i] = activated(total + bias[i], table[layer, ACTIVATION])


@inlined_kernel
def activated(value: np.float32, kind: int) -> np.float32:
    """The activation of one number."""
    if kind == RELU:
        return _ZERO if value < _ZERO else value
    if kind == TANH:
        return layers.tanh(value)
    if kind == ELU:
        half = layers.tanh(_HALF * value)
        return value if value > _ZERO else _TWO * half / (_ONE - half)
    if kind == SILU:
        return value * fma(_HALF, layers.tanh(_HALF * value), _HALF)
    return value
