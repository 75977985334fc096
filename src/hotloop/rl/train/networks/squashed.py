"""The dense networks of soft actor-critic: a Gaussian actor squashed by tanh, and two critics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotloop.rl.train.networks.mlp import mlp

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


class SquashedActor(nn.Module):
    """Actions tanh(mean + std * noise) in -1 .. 1 from observations [batch, ...], which are flattened.

    The last layer outputs the means, then the log standard deviations. Those start with zero weights and
    biases of `log_std_init`, so behaviour cloning, which trains the means only, leaves the noise unchanged.
    """

    def __init__(
        self,
        observation_size: int,
        n_actions: int,
        net_arch: Sequence[int] = (64, 64),
        activation: str = "relu",
        *,
        log_std_init: float = 0.0,
    ):
        super().__init__()
        self.sizes = (observation_size, *net_arch, 2 * n_actions)
        self.n_actions, self.activation = n_actions, activation
        self.layers = mlp(self.sizes, activation, last_gain=0.01)
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight[n_actions:] = 0.0
            last.bias[n_actions:] = log_std_init

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Means before squashing and log standard deviations, each [batch, actions]."""
        out: Tensor = self.layers(observations.flatten(1).to(torch.float32))
        return out[:, : self.n_actions], out[:, self.n_actions :].clamp(LOG_STD_MIN, LOG_STD_MAX)

    def greedy_actions(self, observations: Tensor) -> Tensor:
        """The squashed means [batch, actions]: the policy without noise."""
        return torch.tanh(self(observations)[0])

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions for standard normal `noise` [batch, actions], and their log probabilities [batch]."""
        means, log_stds = self(observations)
        raw = means + log_stds.exp() * noise
        return torch.tanh(raw), squashed_log_prob(raw, log_stds, noise)


def squashed_log_prob(raw: Tensor, log_stds: Tensor, noise: Tensor) -> Tensor:
    """Log probability [batch] of the actions tanh(raw), raw = mean + std * noise, summed over the actions.

    log(1 - tanh(x)^2) is written as 2 (log 2 - x - softplus(-2 x)), which does not overflow.
    Stable-Baselines3 computes log(1 - tanh(x)^2 + 1e-6), which differs where actions saturate.
    """
    log_slope = 2.0 * (math.log(2.0) - raw - nn.functional.softplus(-2.0 * raw))
    return (-0.5 * noise.square() - log_stds - _HALF_LOG_2_PI - log_slope).sum(dim=1)


class TwinCritics(nn.Module):
    """Two Q values [2, batch] of observations [batch, ...] and actions [batch, actions] in -1 .. 1."""

    def __init__(
        self,
        observation_size: int,
        n_actions: int,
        net_arch: Sequence[int] = (64, 64),
        activation: str = "relu",
    ):
        super().__init__()
        self.sizes, self.activation = (observation_size + n_actions, *net_arch, 1), activation
        self.first = mlp(self.sizes, activation)
        self.second = mlp(self.sizes, activation)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        joined = torch.cat([observations.flatten(1).to(torch.float32), actions], dim=1)
        return torch.cat([self.first(joined), self.second(joined)], dim=1).t()
