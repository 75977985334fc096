"""How far is the learner of `async_dqn` from its convolutions and matrix products alone?

    limit = measure_learner(config, shape=(4, 84, 84), actions=7)
    print(limit.over_products)

A batch takes three passes forward (the observations; the next ones by the target and, with double Q-learning,
by the online network) and one backward. Their convolutions and products are run by themselves, in the same
process, shapes, memory layout, precision and rows at once, in turn with whole batches of the learner.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hotloop.rl.train.async_dqn import AsyncDQNConfig, FrameLearner
from hotloop.rl.train.networks.frame_q import KERNELS, ROWS_AT_ONCE, STRIDES, FrameQNetwork
from hotloop.rl.train.networks.space_to_depth import BLOCK
from hotloop.rl.train.runs import freed_memory_kept, torch_threads

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class LearnerLimit:
    """CPU times for learning from one transition, medians."""

    learner_s: float
    """Of the whole learner: targets, loss, gradient, and its share of an update."""
    products_s: float
    """Of its convolutions and matrix products alone."""
    forward_passes: int
    """Passes forward for each batch; there is one backward."""
    precision: str

    @property
    def over_products(self) -> float:
        """Time of the learner as a multiple of its convolutions and products alone."""
        return self.learner_s / self.products_s


def measure_learner(
    config: AsyncDQNConfig, shape: tuple[int, int, int], actions: int, rounds: int = ROUNDS
) -> LearnerLimit:
    """Measure the learner on the CPU with batches of noise; the first round is warm-up."""
    config = replace(config, device="cpu", compile=False, data_parallel=False)
    memory = freed_memory_kept() if config.layout == "fast" else nullcontext()
    with torch.random.fork_rng(devices=[]), torch_threads(config.threads), memory:
        torch.manual_seed(0)
        network = FrameQNetwork(
            shape,
            actions,
            channels=config.channels,
            features_dim=config.features_dim,
            batch_norm=config.batch_norm,
        )
        learner = FrameLearner(network, config)
        batch = noise(config, shape, actions)
        products = products_of(network, config, learner.precision)

        def learn() -> None:
            for _ in range(config.accumulate_grad_batches):
                learner.add_gradient(batch)
            learner.update()

        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds + 1):
            times[0].append(_cpu_s(learn) / config.accumulate_grad_batches)
            times[1].append(_cpu_s(products))
    learner_s, products_s = (statistics.median(side[1:]) / config.batch_size for side in times)
    return LearnerLimit(learner_s, products_s, 3 if config.double else 2, learner.precision)


def _cpu_s(call: Callable[[], None]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def noise(config: AsyncDQNConfig, shape: tuple[int, int, int], actions: int) -> dict[str, Tensor]:
    rows, (stack, height, width) = config.batch_size, shape
    frames = torch.randint(0, 256, (rows, stack + 1, height, width), dtype=torch.uint8)
    return {
        "observations": frames[:, :stack],
        "next_observations": frames[:, 1:],
        "actions": torch.randint(0, actions, (rows,)),
        "rewards": torch.rand(rows),
        "discounts": torch.full((rows,), config.gamma),
    }


def products_of(network: FrameQNetwork, config: AsyncDQNConfig, precision: str) -> Callable[[], None]:
    """A function that runs the convolutions and products of one batch, and nothing else."""
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision, torch.float32)
    fast = config.layout == "fast" and all(side % BLOCK == 0 for side in network.shape[1:])
    form = torch.channels_last if fast else torch.contiguous_format
    stack, height, width = network.shape
    layers: list[tuple[Tensor, Tensor, int]] = []  # input, weight, stride
    size, channels = (height, width), stack
    kernels, strides = list(KERNELS), list(STRIDES)
    if fast:  # the first convolution on blocks of pixels
        size, channels = (height // BLOCK, width // BLOCK), stack * BLOCK * BLOCK
        kernels[0], strides[0] = KERNELS[0] // BLOCK, 1
    for kernel, stride, layer in zip(kernels, strides, network.convolutions, strict=True):
        wide = cast(nn.Conv2d, layer).out_channels
        x = torch.rand(config.batch_size, channels, *size).to(dtype, memory_format=form)
        weight = torch.rand(wide, channels, kernel, kernel).to(dtype, memory_format=form)
        layers.append((x, weight, stride))
        size, channels = ((size[0] - kernel) // stride + 1, (size[1] - kernel) // stride + 1), wide
    dense = [
        (torch.rand(config.batch_size, part.in_features).to(dtype), part.weight.detach().to(dtype))
        for part in (network.hidden, network.values)
    ]
    rows_at_once = ROWS_AT_ONCE if fast else config.batch_size

    def forward(rows: int) -> None:
        for begin in range(0, config.batch_size, rows):
            for x, weight, stride in layers:
                functional.conv2d(x[begin : begin + rows], weight, None, stride)
            for x, weight in dense:
                x[begin : begin + rows] @ weight.T

    outputs = [functional.conv2d(x, weight, None, stride) for x, weight, stride in layers]
    dense_outputs = [x @ weight.T for x, weight in dense]

    def backward() -> None:
        for place, ((x, weight, stride), out) in enumerate(zip(layers, outputs, strict=True)):
            mask = [place > 0, True, False]  # nothing needs the gradient of the pixels
            torch.ops.aten.convolution_backward(
                out, x, weight, None, [stride, stride], [0, 0], [1, 1], False, [0, 0], 1, mask
            )
        for (x, weight), out in zip(dense, dense_outputs, strict=True):
            out.T @ x
            out @ weight

    def run() -> None:
        with torch.no_grad():
            for _ in range(2 if config.double else 1):
                forward(rows_at_once)
            forward(config.batch_size)
            backward()

    return run
