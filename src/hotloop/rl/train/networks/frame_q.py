"""The convolutional Q-network for stacks of frames, and faster forms of the same network.

The layers are those of Mnih et al. (2015): three convolutions and one dense layer. A convolution followed by
batch normalisation needs no bias, because normalisation subtracts the mean.

`FrameQNetwork` is the plain form. `training_values` and `FoldedNetwork` return the same values up to rounding
with less work: the first convolution, 8 x 8 with stride 4, runs on blocks of pixels (`space_to_depth.py`).
Where no gradient is needed (acting, targets), normalisation by running statistics is folded into the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hotloop._util.errors import HotloopError
from hotloop.rl.train.networks.norm_relu import can_fuse, norm_relu
from hotloop.rl.train.networks.space_to_depth import PIXEL, space_to_depth

KERNELS, STRIDES = (8, 4, 3), (4, 2, 1)
MIN_SIDE = 36  # a smaller frame leaves nothing after three convolutions
ROWS_AT_ONCE = 128  # without gradient: keeps intermediate results in the cache


class FrameQNetwork(nn.Module):
    """Action values [batch, actions] of uint8 stacks of frames [batch, stack, height, width].

    `batch_norm`: normalise after each convolution, which then has no bias. Weights are initialised as in He
    et al. (2015), from torch's global generator.
    """

    def __init__(
        self,
        shape: Sequence[int],
        actions: int,
        *,
        channels: Sequence[int] = (32, 64, 64),
        features_dim: int = 512,
        batch_norm: bool = True,
    ):
        super().__init__()
        self.shape, self.actions, self.batch_norm = check_frames(shape), int(actions), batch_norm
        sizes = list(self.shape[1:])
        for kernel, stride in zip(KERNELS, STRIDES, strict=True):
            sizes = [(side - kernel) // stride + 1 for side in sizes]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel, stride, bias=not batch_norm)
            for inputs, outputs, kernel, stride in zip(
                (self.shape[0], *channels), channels, KERNELS, STRIDES, strict=False
            )
        )
        self.norms = (
            nn.ModuleList(nn.BatchNorm2d(width) for width in channels) if batch_norm else nn.ModuleList()
        )
        self.hidden = nn.Linear(channels[-1] * sizes[0] * sizes[1], features_dim)
        self.values = nn.Linear(features_dim, self.actions)
        for layer in (*self.convolutions, self.hidden):
            nn.init.kaiming_normal_(cast(Tensor, layer.weight), nonlinearity="relu")
        nn.init.kaiming_normal_(self.values.weight, nonlinearity="linear")
        for layer in (*self.convolutions, self.hidden, self.values):
            if layer.bias is not None:
                nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(
        self, observations: Tensor, batch_statistics: bool = False, update_running: bool = True
    ) -> Tensor:
        """Action values.

        `batch_statistics`: normalise by the statistics of this batch, as learning does, and update the
        running ones unless `update_running` is off; otherwise by the running ones, as acting does. The
        module's train() and eval() have no effect.
        """
        x = pixels(observations)
        for place, convolution in enumerate(self.convolutions):
            x = convolution(x)
            if self.batch_norm:
                norm = cast(nn.BatchNorm2d, self.norms[place])
                x = _normalize(x, norm, batch_statistics, update_running)
            x = functional.relu_(x)
        x = functional.relu_(self.hidden(x.flatten(1)))
        return cast(Tensor, self.values(x))


def check_frames(shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape [stack, height, width] as three numbers; raises HotloopError if frames are too small."""
    if len(shape) != 3 or min(shape[1:]) < MIN_SIDE:
        raise HotloopError(
            f"Observations of shape {tuple(shape)} are not supported; this network takes stacks of frames "
            f"[stack, height, width] of at least {MIN_SIDE} x {MIN_SIDE} pixels."
        )
    return int(shape[0]), int(shape[1]), int(shape[2])


def pixels(observations: Tensor) -> Tensor:
    """Bytes as numbers in 0 .. 1; other dtypes are returned as they are."""
    return observations * PIXEL if observations.dtype == torch.uint8 else observations


def _normalize(x: Tensor, norm: nn.BatchNorm2d, batch_statistics: bool, update_running: bool) -> Tensor:
    momentum = 0.1 if norm.momentum is None else norm.momentum
    running = (
        (None, None) if batch_statistics and not update_running else (norm.running_mean, norm.running_var)
    )
    return functional.batch_norm(x, *running, norm.weight, norm.bias, batch_statistics, momentum, norm.eps)


# ---- all weights as one vector, as they are sent to collectors


def state_tensors(network: nn.Module) -> list[Tensor]:
    """Parameters, then running statistics: every float tensor that the network's values depend on."""
    return [*network.parameters(), *(b for b in network.buffers() if b.is_floating_point())]


def flat_size(network: nn.Module) -> int:
    return sum(tensor.numel() for tensor in state_tensors(network))


def flatten_into(network: nn.Module, out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Write all of them to `out` [flat_size], and return it."""
    begin, whole = 0, torch.from_numpy(out)
    with torch.no_grad():
        for tensor in state_tensors(network):
            whole[begin : begin + tensor.numel()].copy_(tensor.reshape(-1))
            begin += tensor.numel()
    return out


def load_flat(network: nn.Module, vector: NDArray[np.float32]) -> None:
    """Load what `flatten_into` wrote for a network of the same shape."""
    if vector.size != flat_size(network):
        raise HotloopError(
            f"A vector of {vector.size} weights does not fit a network of {flat_size(network)}; "
            "use a network of the same shape."
        )
    begin, whole = 0, torch.from_numpy(np.ascontiguousarray(vector))
    with torch.no_grad():
        for tensor in state_tensors(network):
            tensor.copy_(whole[begin : begin + tensor.numel()].view(tensor.shape))
            begin += tensor.numel()


# ---- faster forms


def _first_weight(weight: Tensor) -> Tensor:
    """Weights [out, stack, 8, 8] of the first convolution for blocks of pixels: [out, stack * 16, 2, 2]."""
    out, stack = weight.shape[:2]
    parts = weight.reshape(out, stack, 2, 4, 2, 4).permute(0, 1, 3, 5, 2, 4)
    return parts.reshape(out, stack * 16, 2, 2)


def training_values(network: FrameQNetwork, x: Tensor, update_running: bool = True) -> Tensor:
    """`network(observations, True, update_running)` for `x = space_to_depth(observations)`.

    In bfloat16 on the CPU, normalisation and ReLU are one kernel (`norm_relu.py`).
    """
    for place, layer in enumerate(network.convolutions):
        weight, bias = cast(Tensor, layer.weight), cast("Tensor | None", layer.bias)
        if place == 0:
            weight = _first_weight(weight)
        x = functional.conv2d(x, weight, bias, 1 if place == 0 else STRIDES[place])
        norm = cast(nn.BatchNorm2d, network.norms[place]) if network.batch_norm else None
        if norm is not None and can_fuse(x):
            x = norm_relu(x, norm, update_running)
            continue
        if norm is not None:
            x = _normalize(x, norm, True, update_running)
        x = functional.relu_(x)
    x = functional.relu_(network.hidden(x.flatten(1)))
    return cast(Tensor, network.values(x))


class FoldedNetwork:
    """The values of `network(observations)` up to rounding, without a gradient.

    Holds a copy of the weights in `dtype`, those of the last layer in `values_dtype` (by default the same):
    call `load` whenever the network has changed.
    """

    def __init__(
        self,
        network: FrameQNetwork,
        dtype: torch.dtype = torch.float32,
        values_dtype: torch.dtype | None = None,
    ):
        self._dtypes = dtype, values_dtype or dtype
        self.load(network)

    def load(self, network: FrameQNetwork) -> None:
        with torch.no_grad():
            self.weights = fold_batch_norm(network, *self._dtypes)

    def __call__(self, observations: Tensor) -> Tensor:
        """Action values [batch, actions] of uint8 stacks."""
        return folded_values((self.weights,), observations)[0]


FoldedWeights = tuple[Tensor, ...]


def fold_batch_norm(
    network: FrameQNetwork, dtype: torch.dtype = torch.float32, values_dtype: torch.dtype | None = None
) -> FoldedWeights:
    """Copies of weight and bias of every layer, for blocks of pixels, with normalisation folded in.

    `values_dtype` is that of the last layer, and so of the values; by default it is `dtype`.
    """
    found: list[Tensor] = []
    for place, layer in enumerate(network.convolutions):
        weight, bias = cast(Tensor, layer.weight), cast("Tensor | None", layer.bias)
        if network.batch_norm:
            norm: Any = network.norms[place]
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            weight, bias = weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale
        assert bias is not None
        weight = _first_weight(weight) if place == 0 else weight
        found += [weight.to(dtype, memory_format=torch.channels_last), bias.to(dtype, copy=True)]
    for dense, kind in ((network.hidden, dtype), (network.values, values_dtype or dtype)):
        found += [dense.weight.detach().to(kind, copy=True), dense.bias.detach().to(kind, copy=True)]
    return tuple(found)


def folded_values(
    networks: Sequence[FoldedWeights], observations: Tensor, memory: Tensor | None = None
) -> list[Tensor]:
    """Action values [batch, actions] of the same uint8 stacks by each of several folded networks.

    On the CPU a few rows at a time, converted once for all networks; elsewhere all rows at once. `memory`
    (see `space_to_depth`) is for the converted pixels.
    """
    dtype = networks[0][0].dtype
    rows = len(observations)
    at_once = ROWS_AT_ONCE if observations.device.type == "cpu" else rows
    if rows <= at_once or torch.compiler.is_compiling():
        x = space_to_depth(observations, memory, dtype)
        return [_folded_forward(weights, x) for weights in networks]
    found: list[list[Tensor]] = [[] for _ in networks]
    for begin in range(0, rows, at_once):
        x = space_to_depth(observations[begin : begin + at_once], memory, dtype)
        for values, weights in zip(found, networks, strict=True):
            values.append(_folded_forward(weights, x))
    return [torch.cat(values) for values in found]


def _folded_forward(weights: FoldedWeights, x: Tensor) -> Tensor:
    for place in range(3):
        stride = 1 if place == 0 else STRIDES[place]
        x = functional.relu_(functional.conv2d(x, weights[2 * place], weights[2 * place + 1], stride))
    x = functional.relu_(functional.linear(x.flatten(1), weights[6], weights[7]))
    return functional.linear(x.to(weights[8].dtype), weights[8], weights[9])
