"""A convolutional network of action values for stacks of frames, and the same network folded for acting.

The layers are those of Mnih et al. (2015): three convolutions, one dense layer. Under batch normalisation a
convolution needs no bias: the next operation takes the mean out again.

`FrameQNetwork` is the obvious form. `learning_values` and `Folded` give the same values up to rounding with
less work: the first convolution, 8 x 8 with stride 4 over few channels, becomes 2 x 2 with stride 1 over
sixteen times as many, which processors do better; where no gradient is needed (acting, targets),
normalisation by running statistics is worked into the convolutions' weights.
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
from hotloop.rl.train.networks.prepare import PIXEL, prepared

KERNELS, STRIDES = (8, 4, 3), (4, 2, 1)
LEAST_SIDE = 36  # a smaller frame leaves nothing after three convolutions
ROWS_AT_ONCE = 256  # without gradient: fewer bytes are on their way at once, and memory is used again


class FrameQNetwork(nn.Module):
    """Values [batch, actions] of stacks of frames [batch, stack, height, width], uint8.

    `norm`: batch normalisation after each convolution, which then has no bias. Weights are drawn as He et al.
    (2015) do, from torch's global generator.
    """

    def __init__(
        self,
        shape: Sequence[int],
        actions: int,
        *,
        channels: Sequence[int] = (32, 64, 64),
        hidden: int = 512,
        norm: bool = True,
    ):
        super().__init__()
        self.shape, self.actions, self.norm = check_frames(shape), int(actions), norm
        sizes = list(self.shape[1:])
        for kernel, stride in zip(KERNELS, STRIDES, strict=True):
            sizes = [(side - kernel) // stride + 1 for side in sizes]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel, stride, bias=not norm)
            for inputs, outputs, kernel, stride in zip(
                (self.shape[0], *channels), channels, KERNELS, STRIDES, strict=False
            )
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in channels) if norm else nn.ModuleList()
        self.hidden = nn.Linear(channels[-1] * sizes[0] * sizes[1], hidden)
        self.values = nn.Linear(hidden, self.actions)
        for layer in (*self.convolutions, self.hidden):
            nn.init.kaiming_normal_(cast(Tensor, layer.weight), nonlinearity="relu")
        nn.init.kaiming_normal_(self.values.weight, nonlinearity="linear")
        for layer in (*self.convolutions, self.hidden, self.values):
            if layer.bias is not None:
                nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(self, observations: Tensor, batch_statistics: bool = False) -> Tensor:
        """Values of every action.

        `batch_statistics`: normalise by this batch's mean and variance and let the running ones follow,
        as learning does; else by the running ones, as acting does. The module's own train() and eval() do
        not matter.
        """
        x = pixels(observations)
        for place, convolution in enumerate(self.convolutions):
            x = convolution(x)
            if self.norm:
                x = _normalised(x, cast(nn.BatchNorm2d, self.norms[place]), batch_statistics)
            x = functional.relu_(x)
        x = functional.relu_(self.hidden(x.flatten(1)))
        return cast(Tensor, self.values(x))


def check_frames(shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape [stack, height, width], if it is one of frames that are large enough."""
    if len(shape) != 3 or min(shape[1:]) < LEAST_SIDE:
        raise HotloopError(
            f"observations of shape {tuple(shape)} are no stacks of frames this network takes; it takes "
            f"[stack, height, width] with at least {LEAST_SIDE} x {LEAST_SIDE} pixels."
        )
    return int(shape[0]), int(shape[1]), int(shape[2])


def pixels(observations: Tensor) -> Tensor:
    """Bytes as numbers 0..1; what is no uint8 goes through."""
    return observations * PIXEL if observations.dtype == torch.uint8 else observations


def _normalised(x: Tensor, norm: nn.BatchNorm2d, batch_statistics: bool) -> Tensor:
    momentum = 0.1 if norm.momentum is None else norm.momentum
    return functional.batch_norm(
        x, norm.running_mean, norm.running_var, norm.weight, norm.bias, batch_statistics, momentum, norm.eps
    )


# ---- all weights as one vector, as they travel to collectors


def state_tensors(network: nn.Module) -> list[Tensor]:
    """Parameters, then running statistics: every float tensor that decides the network's values."""
    return [*network.parameters(), *(b for b in network.buffers() if b.is_floating_point())]


def flat_size(network: nn.Module) -> int:
    """Numbers in the flat vector."""
    return sum(tensor.numel() for tensor in state_tensors(network))


def flatten_into(network: nn.Module, out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Write everything into `out` [flat_size] and give it back."""
    begin, whole = 0, torch.from_numpy(out)
    with torch.no_grad():
        for tensor in state_tensors(network):
            whole[begin : begin + tensor.numel()].copy_(tensor.reshape(-1))
            begin += tensor.numel()
    return out


def load_flat(network: nn.Module, vector: NDArray[np.float32]) -> None:
    """Take up what `flatten_into` of the same network wrote."""
    if vector.size != flat_size(network):
        raise HotloopError(
            f"a vector of {vector.size} weights does not fit a network of {flat_size(network)}; "
            "use the network it was made from."
        )
    begin, whole = 0, torch.from_numpy(np.ascontiguousarray(vector))
    with torch.no_grad():
        for tensor in state_tensors(network):
            tensor.copy_(whole[begin : begin + tensor.numel()].view(tensor.shape))
            begin += tensor.numel()


# ---- the same values with less work


def _first_weight(weight: Tensor) -> Tensor:
    """Weights [out, stack, 8, 8] of the first convolution for prepared pixels: [out, stack * 16, 2, 2]."""
    out, stack = weight.shape[:2]
    parts = weight.reshape(out, stack, 2, 4, 2, 4).permute(0, 1, 3, 5, 2, 4)
    return parts.reshape(out, stack * 16, 2, 2)


def learning_values(network: FrameQNetwork, x: Tensor) -> Tensor:
    """What `network(observations, batch_statistics=True)` gives, of prepared observations."""
    for place, layer in enumerate(network.convolutions):
        weight, bias = cast(Tensor, layer.weight), cast("Tensor | None", layer.bias)
        if place == 0:
            weight = _first_weight(weight)
        x = functional.conv2d(x, weight, bias, 1 if place == 0 else STRIDES[place])
        if network.norm:
            x = _normalised(x, cast(nn.BatchNorm2d, network.norms[place]), batch_statistics=True)
        x = functional.relu_(x)
    x = functional.relu_(network.hidden(x.flatten(1)))
    return cast(Tensor, network.values(x))


class Folded:
    """A network's values by running statistics, where no gradient is needed.

    Same values as `network(observations)` up to rounding. It copies the weights: call `load` whenever the
    network has changed.
    """

    def __init__(self, network: FrameQNetwork):
        self.load(network)

    def load(self, network: FrameQNetwork) -> None:
        """Take up the network's weights and statistics."""
        with torch.no_grad():
            self.weights = folded(network)

    def __call__(self, observations: Tensor) -> Tensor:
        """Values [batch, actions] of uint8 stacks."""
        return values_of((self.weights,), observations)[0]


Weights = tuple[Tensor, ...]


def folded(network: FrameQNetwork) -> Weights:
    """Weight and bias of every layer for prepared pixels, normalisation worked in; new tensors."""
    found: list[Tensor] = []
    for place, layer in enumerate(network.convolutions):
        weight, bias = cast(Tensor, layer.weight), cast("Tensor | None", layer.bias)
        if network.norm:
            norm: Any = network.norms[place]
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            weight, bias = weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale
        assert bias is not None
        weight = _first_weight(weight) if place == 0 else weight
        found += [weight.contiguous(memory_format=torch.channels_last), bias.clone()]
    for dense in (network.hidden, network.values):
        found += [dense.weight.detach().clone(), dense.bias.detach().clone()]
    return tuple(found)


def values_of(networks: Sequence[Weights], observations: Tensor) -> list[Tensor]:
    """Values [batch, actions] of the same uint8 stacks by several folded networks.

    On the CPU a few rows at a time, prepared once for all networks; at once elsewhere.
    """
    rows = len(observations)
    at_once = ROWS_AT_ONCE if observations.device.type == "cpu" else rows
    if rows <= at_once or torch.compiler.is_compiling():
        x = prepared(observations)
        return [folded_values(weights, x) for weights in networks]
    found: list[list[Tensor]] = [[] for _ in networks]
    for begin in range(0, rows, at_once):
        x = prepared(observations[begin : begin + at_once])
        for values, weights in zip(found, networks, strict=True):
            values.append(folded_values(weights, x))
    return [torch.cat(values) for values in found]


def folded_values(weights: Weights, x: Tensor) -> Tensor:
    """Values of prepared observations by weights that `folded` gave."""
    for place in range(3):
        stride = 1 if place == 0 else STRIDES[place]
        x = functional.relu_(functional.conv2d(x, weights[2 * place], weights[2 * place + 1], stride))
    x = functional.relu_(functional.linear(x.flatten(1), weights[6], weights[7]))
    return functional.linear(x, weights[8], weights[9])
