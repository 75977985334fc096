"""Bytes of frames into the form that the fast networks take.

Every 4 x 4 block of pixels becomes one place with 16 times the channels, channels innermost (channels last),
bytes become numbers 0..1. So the first convolution, 8 x 8 with stride 4, is one of 2 x 2 with stride 1. One
pass of a kernel on the CPU; `prepared_plain` says the same in torch, for GPUs and inside torch.compile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotloop.rl.envs.compiled import kernel

BLOCK = 4
PIXEL = 1.0 / 255.0


def is_preparable(shape: Sequence[int]) -> bool:
    """Whether frames [..., height, width] can be taken apart into blocks."""
    return shape[-2] % BLOCK == 0 and shape[-1] % BLOCK == 0


def prepared(observations: Tensor, out: Tensor | None = None) -> Tensor:
    """uint8 stacks [batch, stack, height, width] as float32 [batch, stack * 16, height / 4, width / 4].

    The result is channels last. `out`: memory [rows, height / 4, width / 4, stack * 16] with rows enough to
    write to; without it a new tensor is made.
    """
    if observations.device.type != "cpu" or torch.compiler.is_compiling():
        return prepared_plain(observations)
    batch, stack, height, width = observations.shape
    if observations[0].stride() != (height * width, width, 1):
        observations = observations.contiguous()
    shape = (batch, height // BLOCK, width // BLOCK, stack * BLOCK * BLOCK)
    found = torch.empty(shape) if out is None else out[:batch]
    step = observations.stride(0)
    count = (batch - 1) * step + stack * height * width
    pixels = observations.as_strided((count,), (1,)).numpy()  # one run of memory; rows may overlap others
    prepare_kernel(pixels, step, stack, found.numpy())
    return found.permute(0, 3, 1, 2)


def prepared_plain(observations: Tensor) -> Tensor:
    """The same in torch."""
    batch, stack, height, width = observations.shape
    down, across = height // BLOCK, width // BLOCK
    blocks = observations.reshape(batch, stack, down, BLOCK, across, BLOCK).permute(0, 2, 4, 1, 3, 5)
    return (blocks.reshape(batch, down, across, stack * BLOCK * BLOCK) * PIXEL).permute(0, 3, 1, 2)


@kernel
def prepare_kernel(pixels: NDArray[np.uint8], step: int, stack: int, out: NDArray[np.float32]) -> None:
    """Frames that begin every `step` bytes in `pixels` into `out` [batch, down, across, stack * 16]."""
    batch, down, across = out.shape[0], out.shape[1], out.shape[2]
    scale = np.float32(1.0 / 255.0)
    for row in range(batch):
        for frame in range(stack):
            for line in range(4 * down):
                begin = row * step + (frame * 4 * down + line) * 4 * across
                channel = 16 * frame + 4 * (line % 4)
                for block in range(across):
                    for column in range(4):
                        out[row, line // 4, block, channel + column] = (
                            np.float32(pixels[begin + 4 * block + column]) * scale
                        )
