"""From pictures to a small map of features, and the plain convolutional encoder built on it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hotloop._util.errors import HotloopError


class PictureEncoder(nn.Module):
    """Three strided convolutions: pictures [batch, channels, height, width] to maps 1/16 as high and wide.

    uint8 pixels are scaled to 0..1 here, so that buffers and transfers carry bytes.
    """

    def __init__(self, shape: tuple[int, ...], channels: int):
        super().__init__()
        if len(shape) != 3 or shape[1] % 16 or shape[2] % 16:
            raise HotloopError(
                f"observations of shape {shape} are no pictures this encoder takes; "
                "it takes [channels, height, width] with height and width multiples of 16."
            )
        self.convolutions = nn.Sequential(
            nn.Conv2d(shape[0], channels // 2, kernel_size=8, stride=4, padding=2),
            nn.ReLU(),
            nn.Conv2d(channels // 2, channels, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
        )
        self.map_shape = (channels, shape[1] // 16, shape[2] // 16)

    def forward(self, observations: Tensor) -> Tensor:
        """The map of features of each picture."""
        if observations.dtype == torch.uint8:
            observations = observations.float().mul_(1 / 255)
        return cast(Tensor, self.convolutions(observations))


class ConvEncoder(nn.Module):
    """Pictures to a vector without memory; an empty state goes in and out, as in a recurrent encoder."""

    def __init__(self, shape: tuple[int, ...], channels: int, features: int):
        super().__init__()
        self.pictures = PictureEncoder(shape, channels)
        size = self.pictures.map_shape[0] * self.pictures.map_shape[1] * self.pictures.map_shape[2]
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(size, features), nn.ReLU())
        self.features = features
        self.state_shape: tuple[int, ...] = (0,)

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Features [steps, batch, features] of observations [steps, batch, ...]; the state goes through."""
        steps, batch = observations.shape[:2]
        maps = self.pictures(observations.flatten(0, 1))
        return self.head(maps).view(steps, batch, self.features), state
