"""Our picture encoders in the form Stable-Baselines3 takes: a feature extractor without memory."""

from __future__ import annotations

from typing import Any, Literal

import torch
from gymnasium.spaces import Box
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from hotloop.rl.train.networks.conv import ConvEncoder
from hotloop.rl.train.networks.convlstm import ConvLSTMEncoder

FEATURES, LAYERS = 128, 2


class PictureExtractor(BaseFeaturesExtractor):
    """One of our encoders, its memory emptied at every step."""

    def __init__(self, observation_space: Box, encoder: Literal["convlstm", "conv"], channels: int):
        super().__init__(observation_space, FEATURES)
        shape = observation_space.shape
        self.encoder: ConvLSTMEncoder | ConvEncoder
        if encoder == "convlstm":
            self.encoder = ConvLSTMEncoder(shape, channels, FEATURES, LAYERS, repeats=1)
        else:
            self.encoder = ConvEncoder(shape, channels, FEATURES)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Features [batch, 128] of pictures [batch, channels, height, width], scaled to 0..1 already."""
        batch = len(observations)
        state = observations.new_zeros(batch, *self.encoder.state_shape)
        starts = torch.ones(1, batch, dtype=torch.bool, device=observations.device)
        features: torch.Tensor = self.encoder(observations[None], state, starts)[0]
        return features[0]


def extractor_for(encoder: Literal["convlstm", "conv"], channels: int) -> dict[str, Any]:
    """What goes into `policy_kwargs`."""
    settings = {"encoder": encoder, "channels": channels}
    return {"features_extractor_class": PictureExtractor, "features_extractor_kwargs": settings}
