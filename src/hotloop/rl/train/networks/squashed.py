"""The dense networks of soft actor-critic: an actor whose actions are squashed by tanh, and two critics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotloop.rl.train.networks.mlp import mlp

LEAST_LOG_STD, MOST_LOG_STD = -20.0, 2.0
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


class SquashedActor(nn.Module):
    """Actions tanh(mean + std * noise) in -1 .. 1 from observations [batch, ...], flattened.

    The last layer gives the means and, after them, the logarithms of the standard deviations, whose weights
    begin at 0 and whose biases begin at `first_log_std`. So cloning, which moves the means only, leaves the
    noise as it was made.
    """

    def __init__(
        self,
        observation: int,
        actions: int,
        hidden: Sequence[int] = (64, 64),
        activation: str = "relu",
        *,
        first_log_std: float = 0.0,
    ):
        super().__init__()
        self.sizes = (observation, *hidden, 2 * actions)
        self.actions, self.activation = actions, activation
        self.layers = mlp(self.sizes, activation, last_gain=0.01)
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight[actions:] = 0.0
            last.bias[actions:] = first_log_std

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Means before squashing and log standard deviations, each [batch, actions]."""
        out: Tensor = self.layers(observations.flatten(1).to(torch.float32))
        return out[:, : self.actions], out[:, self.actions :].clamp(LEAST_LOG_STD, MOST_LOG_STD)

    def best(self, observations: Tensor) -> Tensor:
        """The squashed means [batch, actions]: what the policy does without noise."""
        return torch.tanh(self(observations)[0])

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions for standard normal `noise` [batch, actions], and their log probabilities [batch]."""
        means, log_stds = self(observations)
        raw = means + log_stds.exp() * noise
        return torch.tanh(raw), squashed_log_probability(raw, log_stds, noise)


def squashed_log_probability(raw: Tensor, log_stds: Tensor, noise: Tensor) -> Tensor:
    """log p of tanh(raw) where raw = mean + std * noise; sums over the actions.

    log(1 - tanh(x)^2) is written as 2 (log 2 - x - softplus(-2 x)), which does not overflow.
    """
    squash = 2.0 * (math.log(2.0) - raw - nn.functional.softplus(-2.0 * raw))
    return (-0.5 * noise.square() - log_stds - _HALF_LOG_2_PI - squash).sum(dim=1)


class TwinCritics(nn.Module):
    """Two values [2, batch] of observations [batch, ...] and actions [batch, actions] in -1 .. 1."""

    def __init__(
        self, observation: int, actions: int, hidden: Sequence[int] = (64, 64), activation: str = "relu"
    ):
        super().__init__()
        self.sizes, self.activation = (observation + actions, *hidden, 1), activation
        self.first = mlp(self.sizes, activation)
        self.second = mlp(self.sizes, activation)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values of both critics."""
        joined = torch.cat([observations.flatten(1).to(torch.float32), actions], dim=1)
        return torch.cat([self.first(joined), self.second(joined)], dim=1).t()
