"""The policy over an encoder with memory: what to do and what it is worth, one step or whole sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hotloop.rl.train.networks.conv import ConvEncoder
from hotloop.rl.train.networks.convlstm import ConvLSTMEncoder
from hotloop.rl.train.networks.regions import ModelRegion

_forward = ModelRegion("recurrent_policy_forward")
_action_value = ModelRegion("recurrent_policy_action_value")


class Acted(NamedTuple):
    """What acting on one step of a batch gives, each [batch] but the state."""

    actions: Tensor
    log_probs: Tensor
    values: Tensor
    state: Tensor


class RecurrentActorCritic(nn.Module):
    """Actor and critic heads over one encoder; all tensors lead with [steps, batch]."""

    def __init__(self, encoder: ConvLSTMEncoder | ConvEncoder, actions: int):
        super().__init__()
        self.encoder = encoder
        self.actor = nn.Linear(encoder.features, actions)
        self.critic = nn.Linear(encoder.features, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)
        nn.init.orthogonal_(self.critic.weight, 1.0)
        nn.init.zeros_(self.actor.bias)
        nn.init.zeros_(self.critic.bias)

    def initial_state(self, batch: int) -> Tensor:
        """An empty memory for each of a batch of rows."""
        return torch.zeros(batch, *self.encoder.state_shape, device=self.actor.weight.device)

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [steps, batch, actions], values [steps, batch] and the state after the last step."""
        with _forward():
            features, state = self.encoder(observations, state, starts)
            return self.actor(features), self.critic(features).squeeze(-1), state

    def act(self, observations: Tensor, state: Tensor, starts: Tensor, uniforms: Tensor) -> Acted:
        """Sample one step of actions for observations [batch, ...] by uniform numbers [batch] in [0, 1)."""
        with _action_value():
            logits, values, state = self(observations[None], state, starts[None])
            log_probs = torch.log_softmax(logits[0], dim=-1)
            summed = log_probs.exp().cumsum(dim=-1)
            actions = (
                (summed <= uniforms[:, None] * summed[:, -1:]).sum(dim=-1).clamp_(max=logits.shape[-1] - 1)
            )
            chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
            return Acted(actions, chosen, values[0], state)
