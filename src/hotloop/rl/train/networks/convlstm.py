"""Networks for agents that see pictures and remember: a ConvLSTM encoder, and actor and critic heads on top.

The encoder follows Guez et al. 2019 ("An investigation of model-free planning"): convolutions, then a stack
of ConvLSTM layers that may tick several times per env step. Every layer sees the encoded picture and the
layer below, the first one also the top layer of the tick before. One channel marks the border of the map, so
that convolutions know where it ends. Each layer's own state, pooled over the whole map, is fed back into it,
so that information crosses the map in one tick. The heads see the encoded picture next to the memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from hotloop import profile
from hotloop.rl.train.networks.conv import ConvEncoder, PictureEncoder, init_orthogonal
from hotloop.rl.train.networks.gated_scan import GatedScanEncoder


class ModelRegion:
    """A profiled part of a forward pass, left out while torch compiles the module.

    >>> _layers = ModelRegion("convlstm_layers")
    >>> with _layers():
    ...     pass
    """

    def __init__(self, name: str):
        self._region: AbstractContextManager[Any] = profile(name)

    def __call__(self) -> AbstractContextManager[Any]:
        """The region; nothing while torch traces the module."""
        return nullcontext() if torch.compiler.is_compiling() else self._region


_forward_pass = ModelRegion("convlstm_forward_pass")
_boundary_padding = ModelRegion("convlstm_boundary_padding")
_conv_encoder = ModelRegion("convlstm_conv_encoder")
_layers = ModelRegion("convlstm_layers")
_global_pooling = ModelRegion("convlstm_global_pooling")
_policy_forward = ModelRegion("recurrent_policy_forward")
_action_value = ModelRegion("recurrent_policy_action_value")


class ConvLSTMLayer(nn.Module):
    """One convolutional LSTM layer whose own pooled state is fed back into its gates.

    The gates are a sum of three parts: of the picture (`seen`, which depends on no state and is computed for
    all steps of a sequence at once), of the maps below and its own (`gates`), of its pooled state (`inject`).
    """

    def __init__(self, inputs: int, channels: int):
        super().__init__()
        self.seen = nn.Conv2d(inputs, 4 * channels, kernel_size=3, padding=1)
        self.gates = nn.Conv2d(2 * channels, 4 * channels, kernel_size=3, padding=1, bias=False)
        self.inject = nn.Linear(2 * channels, 4 * channels, bias=False)
        init_orthogonal(self.seen, 1.0)
        init_orthogonal(self.gates, 1.0)
        with torch.no_grad():  # remember by default: the forget gate starts open
            self.seen.bias[channels : 2 * channels] = 1.0  # type: ignore[index]

    def forward(self, seen: Tensor, below: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden and cell state, [batch, channels, h, w] each; `seen` is that of one step."""
        pooled = torch.cat([hidden.mean(dim=(2, 3)), hidden.amax(dim=(2, 3))], dim=1)
        gates = seen + self.gates(torch.cat([below, hidden], dim=1)) + self.inject(pooled)[:, :, None, None]
        input_gate, forget_gate, output_gate, candidate = gates.chunk(4, dim=1)
        cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(candidate)
        return torch.sigmoid(output_gate) * torch.tanh(cell), cell


class ConvLSTMEncoder(nn.Module):
    """Pictures [steps, batch, channels, height, width] to features [steps, batch, features], with memory.

    The LSTM state is one tensor [batch, layers, 2, channels, h, w] (hidden and cell); where `episode_starts`
    [steps, batch] is true, the step begins with a zero state.
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
        init_orthogonal(self.head)
        border = torch.ones(1, 1, height, width)
        border[:, :, 1:-1, 1:-1] = 0.0
        self.register_buffer("border", border, persistent=False)

    def forward(self, observations: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor]:
        """Features of every step and the state after the last; convolutions run over all steps at once."""
        with _forward_pass():
            steps, batch = observations.shape[:2]
            with _conv_encoder():
                maps = self.pictures(observations.flatten(0, 1))
            with _boundary_padding():
                border = cast(Tensor, self.border).expand(steps * batch, -1, -1, -1)
                bordered = torch.cat([maps, border], dim=1)
            with _layers():
                tops, state = self._remember(bordered, state, episode_starts)
            with _global_pooling():
                pooled = torch.cat([tops.mean(dim=(2, 3)), tops.amax(dim=(2, 3))], dim=1)
                places = torch.cat([tops, maps], dim=1).flatten(1)
                features = torch.relu(self.head(self.norm(places)) + self.pooling(pooled))
            return features.view(steps, batch, self.features), state

    def _remember(self, maps: Tensor, state: Tensor, episode_starts: Tensor) -> tuple[Tensor, Tensor]:
        """The top layer's hidden maps [steps * batch, channels, h, w] and the state after the last step."""
        steps, batch = episode_starts.shape
        layers = [cast(ConvLSTMLayer, layer) for layer in self.layers]
        seen = [layer.seen(maps).unflatten(0, (steps, batch)) for layer in layers]
        continues = (~episode_starts).to(state.dtype)[:, :, None, None, None]
        states = [(pair[:, 0], pair[:, 1]) for pair in state.unbind(dim=1)]
        tops = []
        for step in range(steps):
            states = [(hidden * continues[step], cell * continues[step]) for hidden, cell in states]
            for _ in range(self.repeats):
                below = states[-1][0]
                for index, layer in enumerate(layers):
                    states[index] = layer(seen[index][step], below, *states[index])
                    below = states[index][0]
            tops.append(states[-1][0])
        last = torch.stack([torch.stack(pair, dim=1) for pair in states], dim=1)
        return torch.stack(tops).flatten(0, 1), last


class ActorOutput(NamedTuple):
    """Actions for one step of a batch and what belongs to them, each [batch] but the state."""

    actions: Tensor
    log_probabilities: Tensor
    values: Tensor
    state: Tensor


class RecurrentActorCritic(nn.Module):
    """Actor and critic heads on one encoder; tensors are [steps, batch, ...]."""

    def __init__(self, encoder: ConvLSTMEncoder | ConvEncoder | GatedScanEncoder, actions: int):
        super().__init__()
        self.encoder = encoder
        self.actor = nn.Linear(encoder.features, actions)
        self.critic = nn.Linear(encoder.features, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)
        nn.init.orthogonal_(self.critic.weight, 1.0)
        nn.init.zeros_(self.actor.bias)
        nn.init.zeros_(self.critic.bias)

    def initial_state(self, batch: int) -> Tensor:
        """Zero LSTM states [batch, ...]."""
        return torch.zeros(batch, *self.encoder.state_shape, device=self.actor.weight.device)

    def forward(
        self, observations: Tensor, state: Tensor, episode_starts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [steps, batch, actions], values [steps, batch] and the state after the last step."""
        with _policy_forward():
            features, state = self.encoder(observations, state, episode_starts)
            return self.actor(features), self.critic(features).squeeze(-1), state

    def act(
        self, observations: Tensor, state: Tensor, episode_starts: Tensor, uniforms: Tensor
    ) -> ActorOutput:
        """Sample an action for each of the observations [batch, ...] with its uniform number in [0, 1)."""
        with _action_value():
            logits, values, state = self(observations[None], state, episode_starts[None])
            log_p = torch.log_softmax(logits[0], dim=-1)
            cumulated = log_p.exp().cumsum(dim=-1)
            actions = (
                (cumulated <= uniforms[:, None] * cumulated[:, -1:])
                .sum(dim=-1)
                .clamp_(max=logits.shape[-1] - 1)
            )
            chosen = log_p.gather(1, actions[:, None]).squeeze(1)
            return ActorOutput(actions, chosen, values[0], state)
