"""Frames in the form that the fast convolutions take: 4 x 4 blocks of pixels become channels.

Bytes become numbers in 0 .. 1, channels innermost (channels last). On blocks, with 16 times the channels, the
first convolution of the network (8 x 8 with stride 4) becomes 2 x 2 with stride 1, which is faster on CPUs.
One kernel pass on the CPU; the plain twin in torch also serves GPUs and torch.compile.
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


def has_whole_blocks(shape: Sequence[int]) -> bool:
    """Whether frames [..., height, width] divide into blocks."""
    return shape[-2] % BLOCK == 0 and shape[-1] % BLOCK == 0


def space_to_depth(observations: Tensor, out: Tensor | None = None) -> Tensor:
    """uint8 stacks [batch, stack, height, width] -> float32 [batch, stack * 16, height / 4, width / 4].

    The result is channels last. `out` [at least batch rows, height / 4, width / 4, stack * 16] is memory to
    write to; without it a new tensor is allocated.
    """
    if observations.device.type != "cpu" or torch.compiler.is_compiling():
        return plain_space_to_depth(observations)
    batch, stack, height, width = observations.shape
    if observations[0].stride() != (height * width, width, 1):
        observations = observations.contiguous()
    shape = (batch, height // BLOCK, width // BLOCK, stack * BLOCK * BLOCK)
    found = torch.empty(shape) if out is None else out[:batch]
    step = observations.stride(0)
    count = (batch - 1) * step + stack * height * width
    pixels = observations.as_strided((count,), (1,)).numpy()  # contiguous memory; rows may overlap
    space_to_depth_kernel(pixels, step, stack, found.numpy())
    return found.permute(0, 3, 1, 2)


def plain_space_to_depth(observations: Tensor) -> Tensor:
    """Twin of `space_to_depth` in torch."""
    batch, stack, height, width = observations.shape
    down, across = height // BLOCK, width // BLOCK
    blocks = observations.reshape(batch, stack, down, BLOCK, across, BLOCK).permute(0, 2, 4, 1, 3, 5)
    return (blocks.reshape(batch, down, across, stack * BLOCK * BLOCK) * PIXEL).permute(0, 3, 1, 2)


@kernel
def space_to_depth_kernel(pixels: NDArray[np.uint8], step: int, stack: int, out: NDArray[np.float32]) -> None:
    """Write stacks that begin every `step` bytes of `pixels` to `out` [batch, down, across, stack * 16]."""
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
