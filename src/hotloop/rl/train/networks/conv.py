"""Convolutional encoders: from pictures to a small map of features, and from there to a vector."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from hotloop._util.errors import HotloopError

RELU_GAIN = math.sqrt(2.0)


def init_orthogonal(module: nn.Conv2d | nn.Linear, gain: float = RELU_GAIN) -> None:
    """Orthogonal weights and zero bias.

    With torch's default weights the signal shrinks in every layer: after three convolutions and the gates of
    a ConvLSTM hardly anything of the picture was left for the heads to learn from.
    """
    nn.init.orthogonal_(module.weight, gain)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


class PictureEncoder(nn.Module):
    """Three strided convolutions: pictures [batch, channels, height, width] to maps 1/16 as high and wide.

    uint8 pixels are scaled to 0..1 here, so that buffers and transfers carry bytes. The mean colour of each
    picture is subtracted, so that the background is about 0 and the objects on it stand out.
    """

    def __init__(self, shape: tuple[int, ...], channels: int):
        super().__init__()
        if len(shape) != 3 or shape[1] % 16 or shape[2] % 16:
            raise HotloopError(
                f"Observations of shape {shape} do not fit this encoder; it takes pictures "
                "[channels, height, width] whose height and width are multiples of 16."
            )
        self.convolutions = nn.Sequential(
            nn.Conv2d(shape[0], channels // 2, kernel_size=8, stride=4, padding=2),
            nn.ReLU(),
            nn.Conv2d(channels // 2, channels, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
        )
        for module in self.convolutions:
            if isinstance(module, nn.Conv2d):
                init_orthogonal(module)
        self.map_shape = (channels, shape[1] // 16, shape[2] // 16)

    def forward(self, observations: Tensor) -> Tensor:
        if observations.dtype == torch.uint8:
            observations = observations * (1 / 255)  # to float32 in one pass
        return cast(Tensor, self.convolutions(observations - observations.mean(dim=(2, 3), keepdim=True)))


class ConvEncoder(nn.Module):
    """Pictures to a vector, without memory; an empty state passes through, as recurrent encoders have one."""

    def __init__(self, shape: tuple[int, ...], channels: int, features: int):
        super().__init__()
        self.pictures = PictureEncoder(shape, channels)
        size = math.prod(self.pictures.map_shape)
        linear = nn.Linear(size, features)
        init_orthogonal(linear)
        self.head = nn.Sequential(nn.Flatten(), nn.LayerNorm(size), linear, nn.ReLU())
        self.features = features
        self.state_shape: tuple[int, ...] = (0,)

    def forward(self, observations: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor]:
        """Features [steps, batch, features] of observations [steps, batch, ...], and the unchanged state."""
        steps, batch = observations.shape[:2]
        maps = self.pictures(observations.flatten(0, 1))
        return self.head(maps).view(steps, batch, self.features), state
