"""Frames in the form that the fast convolutions take: 4 x 4 blocks of pixels become channels.

Bytes become numbers in 0 .. 1, channels innermost (channels last). On blocks, with 16 times the channels, the
first convolution of the network (8 x 8 with stride 4) becomes 2 x 2 with stride 1, which is faster on CPUs.
One kernel pass on the CPU, straight to float32 or bfloat16; the plain twin in torch also serves GPUs and
torch.compile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotloop.rl.envs.compiled import allocation_free_kernel, inlined_part

BLOCK = 4
PIXEL = 1.0 / 255.0


def has_whole_blocks(shape: Sequence[int]) -> bool:
    """Whether frames [..., height, width] divide into blocks."""
    return shape[-2] % BLOCK == 0 and shape[-1] % BLOCK == 0


def space_to_depth(
    observations: Tensor, out: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """uint8 stacks [batch, stack, height, width] -> `dtype` [batch, stack * 16, height / 4, width / 4].

    The result is channels last. `out` [at least batch rows, height / 4, width / 4, stack * 16] of that dtype
    is memory to write to; without it a new tensor is allocated.
    """
    if observations.device.type != "cpu" or torch.compiler.is_compiling():
        return plain_space_to_depth(observations).to(dtype)
    batch, stack, height, width = observations.shape
    in_order = observations[0].stride() == (height * width, width, 1)
    if not in_order or observations.stride(0) % BLOCK or observations.data_ptr() % BLOCK:
        observations = observations.clone(memory_format=torch.contiguous_format)
    down, across, channels = height // BLOCK, width // BLOCK, stack * BLOCK * BLOCK
    found = torch.empty((batch, down, across, channels), dtype=dtype) if out is None else out[:batch]
    step = observations.stride(0)
    count = (batch - 1) * step + stack * height * width
    pixels = observations.as_strided((count,), (1,)).numpy()  # contiguous memory; rows may overlap
    blocks = np.empty((across, stack * BLOCK), dtype=np.uint32)  # one line of them
    given = pixels.view(np.uint32), step // BLOCK, blocks, blocks.view(np.uint8).reshape(-1)
    lines = found.view(batch, down, across * channels)
    if found.dtype == torch.bfloat16:
        numbers = np.empty(across * channels, dtype=np.float32)
        bits: NDArray[np.uint16] = lines.view(torch.int16).numpy().view(np.uint16)
        bfloat16_kernel(*given, numbers, numbers.view(np.uint32), bits)
    else:
        float32_kernel(*given, lines.numpy())
    return found.permute(0, 3, 1, 2)


def plain_space_to_depth(observations: Tensor) -> Tensor:
    """Twin of `space_to_depth` in torch, in float32."""
    batch, stack, height, width = observations.shape
    down, across = height // BLOCK, width // BLOCK
    blocks = observations.reshape(batch, stack, down, BLOCK, across, BLOCK).permute(0, 2, 4, 1, 3, 5)
    return (blocks.reshape(batch, down, across, stack * BLOCK * BLOCK) * PIXEL).permute(0, 3, 1, 2)


@inlined_part
def gather_line(words: NDArray[np.uint32], begin: int, down: int, blocks: NDArray[np.uint32]) -> None:
    """Write a line of blocks [across, stack * 4]; `words` are 4 pixels each, `begin` is the line's first.

    Four lines of pixels at once, with unsigned places, which numba does not check for being negative: twice
    as fast as line by line.
    """
    across, parts = blocks.shape
    one, line = np.uint64(1), np.uint64(across)
    for frame in range(parts // 4):
        part, first = np.uint64(4 * frame), np.uint64(begin + 4 * frame * down * across)
        for place in range(across):
            block = np.uint64(place)
            word = first + block
            blocks[block, part] = words[word]
            blocks[block, part + one] = words[word + line]
            blocks[block, part + one + one] = words[word + line + line]
            blocks[block, part + one + one + one] = words[word + line + line + line]


@allocation_free_kernel
def float32_kernel(
    words: NDArray[np.uint32],
    step: int,
    blocks: NDArray[np.uint32],
    line_bytes: NDArray[np.uint8],
    out: NDArray[np.float32],
) -> None:
    """Write stacks that begin every `step` words to `out` [batch, down, across * stack * 16].

    `blocks` [across, stack * 4] is scratch memory for a line of blocks, `line_bytes` the same as bytes.
    """
    batch, down, count = out.shape
    scale = np.float32(1.0 / 255.0)
    for row in range(batch):
        for line in range(down):
            gather_line(words, row * step + 4 * line * blocks.shape[0], down, blocks)
            for place in range(count):
                out[row, line, place] = np.float32(line_bytes[place]) * scale


@allocation_free_kernel
def bfloat16_kernel(
    words: NDArray[np.uint32],
    step: int,
    blocks: NDArray[np.uint32],
    line_bytes: NDArray[np.uint8],
    numbers: NDArray[np.float32],
    number_bits: NDArray[np.uint32],
    out: NDArray[np.uint16],
) -> None:
    """`float32_kernel`, rounded to bfloat16 (to nearest, ties to even), whose bits are written.

    `numbers` [across * stack * 16] is scratch memory for a line, `number_bits` the same as integers.
    """
    batch, down, count = out.shape
    scale = np.float32(1.0 / 255.0)
    for row in range(batch):
        for line in range(down):
            gather_line(words, row * step + 4 * line * blocks.shape[0], down, blocks)
            for place in range(count):
                numbers[place] = np.float32(line_bytes[place]) * scale
            for place in range(count):
                bits = number_bits[place]
                odd = (bits >> np.uint32(16)) & np.uint32(1)
                out[row, line, place] = np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
