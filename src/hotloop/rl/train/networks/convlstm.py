"""The recurrent encoder of pixel agents: convolutions, then a deep ConvLSTM that ticks several times a step.

After Guez et al. 2019 ("An investigation of model-free planning"): every layer sees the encoded picture
and the layer below it, the first also the top layer of the tick before; a channel marks the border of the
map, so that convolutions know where it ends; each layer's own state, pooled over the whole map, is injected
back into it, so that news crosses the map in one tick. The heads see the encoded picture beside the memory.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hotloop.rl.train.networks.conv import PictureEncoder, begin_orthogonal
from hotloop.rl.train.networks.regions import ModelRegion

_forward_pass = ModelRegion("convlstm_forward_pass")
_boundary_padding = ModelRegion("convlstm_boundary_padding")
_conv_encoder = ModelRegion("convlstm_conv_encoder")
_layers = ModelRegion("convlstm_layers")
_global_pooling = ModelRegion("convlstm_global_pooling")


class ConvLSTMLayer(nn.Module):
    """One convolutional LSTM layer with its pooled state injected.

    Its gates are a sum of three parts: of the picture (`seen`, which needs no memory and is made for all
    steps of a sequence at once), of the maps below and of its own (`gates`), of its pooled state (`inject`).
    """

    def __init__(self, inputs: int, channels: int):
        super().__init__()
        self.seen = nn.Conv2d(inputs, 4 * channels, kernel_size=3, padding=1)
        self.gates = nn.Conv2d(2 * channels, 4 * channels, kernel_size=3, padding=1, bias=False)
        self.inject = nn.Linear(2 * channels, 4 * channels, bias=False)
        begin_orthogonal(self.seen, 1.0)
        begin_orthogonal(self.gates, 1.0)
        with torch.no_grad():  # remember by default: the forget gate begins open
            self.seen.bias[channels : 2 * channels] = 1.0  # type: ignore[index]

    def forward(self, seen: Tensor, below: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden and cell state, [batch, channels, h, w] each; of `seen`, one step's part."""
        pooled = torch.cat([hidden.mean(dim=(2, 3)), hidden.amax(dim=(2, 3))], dim=1)
        gates = seen + self.gates(torch.cat([below, hidden], dim=1)) + self.inject(pooled)[:, :, None, None]
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
        self.layers = nn.ModuleList(ConvLSTMLayer(channels + 1, channels) for _ in range(layers))
        self.repeats = repeats
        self.features = features
        self.state_shape: tuple[int, ...] = (layers, 2, channels, height, width)
        self.pooling = nn.Linear(2 * channels, features)
        self.head = nn.Linear(2 * channels * height * width, features)
        self.norm = nn.LayerNorm(self.head.in_features)
        begin_orthogonal(self.head)
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
                bordered = torch.cat([maps, border], dim=1)
            with _layers():
                tops, state = self._remember(bordered, state, starts)
            with _global_pooling():
                pooled = torch.cat([tops.mean(dim=(2, 3)), tops.amax(dim=(2, 3))], dim=1)
                places = torch.cat([tops, maps], dim=1).flatten(1)
                features = torch.relu(self.head(self.norm(places)) + self.pooling(pooled))
            return features.view(steps, batch, self.features), state

    def _remember(self, maps: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The top layer's hidden maps [steps * batch, channels, h, w] and the state after the last step."""
        steps, batch = starts.shape
        layers = [cast(ConvLSTMLayer, layer) for layer in self.layers]
        seen = [layer.seen(maps).unflatten(0, (steps, batch)) for layer in layers]
        goes_on = (~starts).to(state.dtype)[:, :, None, None, None]
        states = [(pair[:, 0], pair[:, 1]) for pair in state.unbind(dim=1)]
        tops = []
        for step in range(steps):
            states = [(hidden * goes_on[step], cell * goes_on[step]) for hidden, cell in states]
            for _ in range(self.repeats):
                below = states[-1][0]
                for index, layer in enumerate(layers):
                    states[index] = layer(seen[index][step], below, *states[index])
                    below = states[index][0]
            tops.append(states[-1][0])
        last = torch.stack([torch.stack(pair, dim=1) for pair in states], dim=1)
        return torch.stack(tops).flatten(0, 1), last
