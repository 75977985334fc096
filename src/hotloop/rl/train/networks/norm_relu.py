"""Batch normalisation by the statistics of the batch and ReLU, as one step, in bfloat16 on the CPU.

    if can_fuse(x):
        y = norm_relu(x, norm)

torch takes three passes over the values forward (statistics, normalisation, ReLU) and three backward, in
bfloat16 with conversions in between. The kernels here take two and two. Numbers are the same up to rounding:
sums are made in float32 over a few lines of an image and then in float64.

An image in channels last is a number of lines of [width, channels] numbers. Kernels see such a line as one
run of numbers, so that every number of a run has its own sums and factors, and the inner loops need no
horizontal sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop.rl.envs.compiled import INTERPRETED, allocation_free_kernel, inlined_part

LINES_IN_FLOAT32 = 64  # lines summed in float32 before the sums go to float64


def can_fuse(x: Tensor) -> bool:
    """Whether `norm_relu` takes this output of a convolution."""
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.is_contiguous(memory_format=torch.channels_last)
        and not torch.compiler.is_compiling()
    )


def norm_relu(x: Tensor, norm: nn.BatchNorm2d, update_running: bool = True) -> Tensor:
    """`relu(batch_norm(x))` [batch, channels, height, width], normalised by the statistics of the batch.

    Moves the running statistics of `norm` as torch does, unless `update_running` is off.
    """
    found: Tensor = _NormRelu.apply(x, norm.weight, norm.bias, norm, update_running)  # type: ignore[no-untyped-call]
    return found


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, update: bool
    ) -> Tensor:
        lines, count = _lines(x), x.numel() // x.shape[1]
        sums = np.zeros((2, lines.shape[1]))
        sums_kernel(lines, np.empty((2, lines.shape[1]), dtype=np.float32), sums)
        mean, squares = sums.reshape(2, -1, x.shape[1]).sum(axis=1) / count
        variance = np.maximum(squares - mean * mean, 0.0)
        inverse = 1.0 / np.sqrt(variance + norm.eps)
        if update:
            _move_running(norm, mean, variance * (count / max(count - 1, 1)))
        scale = inverse * weight.detach().numpy()
        factors = _by_place(x.shape[3], scale, bias.detach().numpy() - mean * scale)
        out = torch.empty_like(x)
        forward_kernel(lines, factors, _lines(out))
        ctx.save_for_backward(x)
        ctx.factors, ctx.mean, ctx.inverse, ctx.scale = factors, mean, inverse, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        lines, of_lines, count = _lines(x), _lines(gradient), x.numel() // x.shape[1]
        mean = _by_place(x.shape[3], ctx.mean)
        sums = np.zeros((2, lines.shape[1]))
        partial = np.empty((2, lines.shape[1]), dtype=np.float32)
        backward_sums_kernel(lines, of_lines, ctx.factors, mean, partial, sums)
        of_bias, of_centred = sums.reshape(2, -1, x.shape[1]).sum(axis=1)
        # dx = scale * (g - mean(g) - (x - mean) * inverse^2 * mean(g * (x - mean))), Ioffe and Szegedy (2015)
        slope = -ctx.scale * ctx.inverse**2 * of_centred / count
        offset = -ctx.scale * of_bias / count - slope * ctx.mean
        of_input = torch.empty_like(x)
        factors = np.concatenate([ctx.factors, _by_place(x.shape[3], slope, offset)])
        backward_kernel(lines, of_lines, factors, _lines(of_input))
        of_weight = torch.from_numpy((of_centred * ctx.inverse).astype(np.float32))
        return of_input, of_weight, torch.from_numpy(of_bias.astype(np.float32)), None, None


def _lines(x: Tensor) -> NDArray[np.uint16]:
    """The bits of images [batch, channels, height, width] in channels last, as [lines, width * channels]."""
    batch, channels, height, width = x.shape
    bits = x.detach().permute(0, 2, 3, 1).reshape(batch * height, width * channels).view(torch.int16)
    found: NDArray[np.uint16] = bits.numpy().view(np.uint16)
    return found


def _by_place(width: int, *by_channel: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers of each channel, repeated for all places of a line: [numbers, width * channels]."""
    return np.tile(np.stack(by_channel).astype(np.float32), (1, width))


def _move_running(norm: nn.BatchNorm2d, mean: NDArray[Any], variance: NDArray[Any]) -> None:
    momentum = 0.1 if norm.momentum is None else norm.momentum
    for running, new in ((norm.running_mean, mean), (norm.running_var, variance)):
        assert running is not None
        running.mul_(1.0 - momentum).add_(torch.from_numpy(new.astype(np.float32)), alpha=momentum)


# ---- bfloat16 is the upper half of float32


@intrinsic
def _compiled_float_of(_typing: Any, bits: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _compiled_bits_of(_typing: Any, number: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def _plain_float_of(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)


def _plain_bits_of(number: Any) -> Any:
    return np.float32(number).view(np.uint32)


_float_of: Any = _plain_float_of if INTERPRETED else _compiled_float_of
_bits_of: Any = _plain_bits_of if INTERPRETED else _compiled_bits_of


@inlined_part
def number_of(bits: Any) -> Any:
    """A bfloat16 number, given by its bits, as float32."""
    return _float_of(np.uint32(bits) << np.uint32(16))


@inlined_part
def rounded(number: Any) -> Any:
    """The bits of a float32 number rounded to bfloat16: to nearest, ties to even."""
    bits = _bits_of(number)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@allocation_free_kernel
def sums_kernel(lines: NDArray[np.uint16], partial: NDArray[np.float32], sums: NDArray[np.float64]) -> None:
    """Add sum and sum of squares of each place [2, places]; `partial` is scratch memory of that shape."""
    count, places = lines.shape
    for begin in range(0, count, LINES_IN_FLOAT32):
        partial[:] = np.float32(0.0)
        for line in range(begin, min(begin + LINES_IN_FLOAT32, count)):
            for place in range(places):
                x = number_of(lines[line, place])
                partial[0, place] += x
                partial[1, place] += x * x
        for place in range(places):
            sums[0, place] += partial[0, place]
            sums[1, place] += partial[1, place]


@allocation_free_kernel
def forward_kernel(lines: NDArray[np.uint16], factors: NDArray[np.float32], out: NDArray[np.uint16]) -> None:
    """Write relu(factors[0] * x + factors[1]); NaN stays NaN."""
    count, places = lines.shape
    for line in range(count):
        for place in range(places):
            y = factors[0, place] * number_of(lines[line, place]) + factors[1, place]
            out[line, place] = rounded(np.float32(0.0) if y <= np.float32(0.0) else y)


@allocation_free_kernel
def backward_sums_kernel(
    lines: NDArray[np.uint16],
    gradients: NDArray[np.uint16],
    factors: NDArray[np.float32],
    mean: NDArray[np.float32],
    partial: NDArray[np.float32],
    sums: NDArray[np.float64],
) -> None:
    """Add the sums of g and of g * (x - mean) of each place, g being the gradient where ReLU lets it pass."""
    count, places = lines.shape
    for begin in range(0, count, LINES_IN_FLOAT32):
        partial[:] = np.float32(0.0)
        for line in range(begin, min(begin + LINES_IN_FLOAT32, count)):
            for place in range(places):
                x = number_of(lines[line, place])
                y = factors[0, place] * x + factors[1, place]
                g = np.float32(0.0) if y <= np.float32(0.0) else number_of(gradients[line, place])
                partial[0, place] += g
                partial[1, place] += g * (x - mean[0, place])
        for place in range(places):
            sums[0, place] += partial[0, place]
            sums[1, place] += partial[1, place]


@allocation_free_kernel
def backward_kernel(
    lines: NDArray[np.uint16],
    gradients: NDArray[np.uint16],
    factors: NDArray[np.float32],
    out: NDArray[np.uint16],
) -> None:
    """Write the gradient of x: factors[0] * g + factors[2] * x + factors[3]."""
    count, places = lines.shape
    for line in range(count):
        for place in range(places):
            x = number_of(lines[line, place])
            y = factors[0, place] * x + factors[1, place]
            g = np.float32(0.0) if y <= np.float32(0.0) else number_of(gradients[line, place])
            out[line, place] = rounded(factors[0, place] * g + (factors[2, place] * x + factors[3, place]))
