"""The dense Q-network of DQN, plain or dueling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from hotloop._util.errors import HotloopError
from hotloop.rl.train.networks.mlp import ACTIVATIONS


class QNetwork(nn.Module):
    """Action values [batch, actions] of observations [batch, ...], which are flattened.

    Dueling (Wang et al., 2016, equation 9): the last layer returns the advantages of the actions, then one
    state value; an action value is the state value plus its advantage minus the mean advantage.
    Weights are initialised as torch does for linear layers, from its global generator.
    """

    def __init__(
        self,
        observation: int,
        actions: int,
        net_arch: Sequence[int] = (64, 64),
        activation: str = "relu",
        *,
        dueling: bool = False,
    ):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise HotloopError(f"activation={activation!r} is unknown; use one of {', '.join(ACTIVATIONS)}.")
        self.actions, self.activation, self.dueling = actions, activation, dueling
        self.sizes = (observation, *net_arch, actions + dueling)
        parts: list[nn.Module] = []
        for inputs, outputs in pairwise(self.sizes):
            parts += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, observations: Tensor) -> Tensor:
        out: Tensor = self.layers(observations.flatten(1).to(torch.float32))
        if not self.dueling:
            return out
        advantages, values = out[:, : self.actions], out[:, self.actions :]
        return values + advantages - advantages.mean(dim=1, keepdim=True)
