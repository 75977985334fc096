"""Dense networks: separate actor and critic, as PPO uses them on small observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from hotloop._util.errors import HotloopError

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def mlp(sizes: Sequence[int], activation: str = "tanh", *, last_gain: float = 1.0) -> nn.Sequential:
    """Linear layers of these sizes with the activation between them.

    Weights are orthogonal with gain sqrt(2), in the last layer with `last_gain`, from torch's global RNG;
    biases are zero.
    """
    if activation not in ACTIVATIONS:
        raise HotloopError(f"activation={activation!r} is unknown; use {' or '.join(ACTIVATIONS)}.")
    parts: list[nn.Module] = []
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        last = layer == len(sizes) - 2
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, last_gain if last else math.sqrt(2.0))
        nn.init.zeros_(linear.bias)
        parts += [linear] if last else [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*parts)


class ActorCritic(nn.Module):
    """Logits and values of observations [batch, ...]; actor and critic share no weights."""

    def __init__(
        self, observation: int, actions: int, net_arch: Sequence[int] = (64, 64), activation: str = "tanh"
    ):
        super().__init__()
        self.sizes = (observation, *net_arch)
        self.actions = actions
        self.activation = activation
        self.actor = mlp((*self.sizes, actions), activation, last_gain=0.01)
        self.critic = mlp((*self.sizes, 1), activation, last_gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [batch, actions] and values [batch]."""
        flat = observations.flatten(1).to(torch.float32)
        return self.actor(flat), self.critic(flat).squeeze(1)

    def logits(self, observations: Tensor) -> Tensor:
        """Logits [batch, actions] only, for acting."""
        found: Tensor = self.actor(observations.flatten(1).to(torch.float32))
        return found

    def values(self, observations: Tensor) -> Tensor:
        """Values [batch] only."""
        found: Tensor = self.critic(observations.flatten(1).to(torch.float32)).squeeze(1)
        return found
