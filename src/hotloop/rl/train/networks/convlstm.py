"""The recurrent encoder of pixel agents: convolutions, then a deep ConvLSTM that ticks several times a step.

After Guez et al. 2019 ("An investigation of model-free planning"): every layer sees the encoded picture
and the layer below it, the first also the top layer of the tick before; a channel marks the border of the
map, so that convolutions know where it ends; each layer's own state, pooled over the whole map, is injected
back into it, so that news crosses the map in one tick.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hotloop.rl.train.networks.conv import PictureEncoder
from hotloop.rl.train.networks.regions import ModelRegion

_forward_pass = ModelRegion("convlstm_forward_pass")
_boundary_padding = ModelRegion("convlstm_boundary_padding")
_conv_encoder = ModelRegion("convlstm_conv_encoder")
_layers = ModelRegion("convlstm_layers")
_global_pooling = ModelRegion("convlstm_global_pooling")


class ConvLSTMLayer(nn.Module):
    """One convolutional LSTM layer with its pooled state injected."""

    def __init__(self, inputs: int, channels: int):
        super().__init__()
        self.gates = nn.Conv2d(inputs + 2 * channels, 4 * channels, kernel_size=3, padding=1)
        self.inject = nn.Linear(2 * channels, channels)
        with torch.no_grad():  # remember by default: the forget gate begins open
            self.gates.bias[channels : 2 * channels] = 1.0  # type: ignore[index]

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden and cell state, [batch, channels, h, w] each."""
        pooled = torch.cat([hidden.mean(dim=(2, 3)), hidden.amax(dim=(2, 3))], dim=1)
        injected = self.inject(pooled)[:, :, None, None].expand_as(hidden)
        gates = self.gates(torch.cat([inputs, hidden, injected], dim=1))
        enter, forget, leave, news = gates.chunk(4, dim=1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(news)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


class ConvLSTMEncoder(nn.Module):
    """Pictures [steps, batch, channels, height, width] to features [steps, batch, features], with memory.

    The state is one tensor [batch, layers, 2, channels, h, w] (hidden and cell); rows where `starts` is
    true begin the step with an empty one.
    """

    def __init__(self, shape: tuple[int, ...], channels: int, features: int, layers: int, repeats: int):
        super().__init__()
        self.pictures = PictureEncoder(shape, channels)
        _, height, width = self.pictures.map_shape
        # a layer's inputs: encoded picture, border channel, the layer below (or the top of the last tick)
        self.layers = nn.ModuleList(ConvLSTMLayer(channels + 1 + channels, channels) for _ in range(layers))
        self.repeats = repeats
        self.features = features
        self.state_shape: tuple[int, ...] = (layers, 2, channels, height, width)
        self.pooling = nn.Linear(2 * channels, features)
        self.head = nn.Linear(channels * height * width, features)
        border = torch.ones(1, 1, height, width)
        border[:, :, 1:-1, 1:-1] = 0.0
        self.register_buffer("border", border, persistent=False)

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Features of every step and the state after the last; convolutions run over all steps at once."""
        with _forward_pass():
            steps, batch = observations.shape[:2]
            with _conv_encoder():
                maps = self.pictures(observations.flatten(0, 1))
            with _boundary_padding():
                border = cast(Tensor, self.border).expand(steps * batch, -1, -1, -1)
                maps = torch.cat([maps, border], dim=1)
                maps = maps.view(steps, batch, *maps.shape[1:])
            with _layers():
                tops = []
                for step in range(steps):
                    state = state * (~starts[step]).to(state.dtype)[:, None, None, None, None, None]
                    state = self._tick(maps[step], state)
                    tops.append(state[:, -1, 0])
                top = torch.stack(tops).flatten(0, 1)
            with _global_pooling():
                pooled = torch.cat([top.mean(dim=(2, 3)), top.amax(dim=(2, 3))], dim=1)
                features = torch.relu(self.head(top.flatten(1)) + self.pooling(pooled))
            return features.view(steps, batch, self.features), state

    def _tick(self, inputs: Tensor, state: Tensor) -> Tensor:
        """The state after one step's ticks."""
        states = [(pair[:, 0], pair[:, 1]) for pair in state.unbind(dim=1)]
        for _ in range(self.repeats):
            below = states[-1][0]
            for index, layer in enumerate(self.layers):
                states[index] = layer(torch.cat([inputs, below], dim=1), *states[index])
                below = states[index][0]
        return torch.stack([torch.stack(pair, dim=1) for pair in states], dim=1)
