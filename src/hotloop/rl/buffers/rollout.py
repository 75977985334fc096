"""The rollout buffer of on-policy algorithms, and generalized advantage estimation.

The buffer allocates its arrays once; trainers and kernels write into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.compiled import kernel

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class RolloutBuffer:
    """The steps of one rollout; the first index is the step, the second the environment.

    `observations` [steps + 1, envs, ...]: the last row is where the next rollout starts.
    `valid` is False where an environment with next-step autoreset only reset: such rows are not samples.
    `final_values`: the critic's value of the final observation, where an episode was truncated.
    `masks` [steps, envs, actions], or [0, 0, actions] without masks.
    """

    def __init__(
        self,
        n_steps: int,
        n_envs: int,
        observation_shape: Sequence[int],
        n_actions: int,
        *,
        observation_dtype: Any = np.float32,
        masked: bool = False,
    ):
        if n_steps < 1 or n_envs < 1:
            raise HotloopError(f"n_steps={n_steps} and n_envs={n_envs} must both be at least 1.")
        self.n_steps, self.n_envs, self.n_actions = n_steps, n_envs, n_actions
        shape = (n_steps, n_envs)
        self.observations: NDArray[Any] = np.zeros(
            (n_steps + 1, n_envs, *observation_shape), dtype=observation_dtype
        )
        self.actions = np.zeros(shape, dtype=np.int64)
        self.log_probabilities: Floats = np.zeros(shape, dtype=np.float32)
        self.rewards: Floats = np.zeros(shape, dtype=np.float32)
        self.terminated: Bools = np.zeros(shape, dtype=np.bool_)
        self.truncated: Bools = np.zeros(shape, dtype=np.bool_)
        self.valid: Bools = np.ones(shape, dtype=np.bool_)
        self.values: Floats = np.zeros((n_steps + 1, n_envs), dtype=np.float32)
        self.final_values: Floats = np.zeros(shape, dtype=np.float32)
        self.advantages: Floats = np.zeros(shape, dtype=np.float32)
        self.returns: Floats = np.zeros(shape, dtype=np.float32)
        self.masks: Bools = np.ones((*shape, n_actions) if masked else (0, 0, n_actions), dtype=np.bool_)

    @property
    def masked(self) -> bool:
        """Whether actions are masked."""
        return self.masks.size > 0

    def empty_copy(self) -> RolloutBuffer:
        """A new buffer of the same shape."""
        return RolloutBuffer(
            self.n_steps,
            self.n_envs,
            self.observations.shape[2:],
            self.n_actions,
            observation_dtype=self.observations.dtype,
            masked=self.masked,
        )

    def compute_advantages(self, gamma: float, gae_lambda: float) -> None:
        """Fill `advantages` and `returns` from rewards and values; see `compute_gae`."""
        gae_kernel(
            self.rewards,
            self.values,
            self.terminated,
            self.truncated,
            self.final_values,
            gamma,
            gae_lambda,
            self.advantages,
            self.returns,
        )


def compute_gae(
    rewards: NDArray[Any],
    values: NDArray[Any],
    terminated: Bools,
    truncated: Bools,
    final_values: NDArray[Any],
    gamma: float,
    gae_lambda: float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Advantages and returns [steps, envs] (Schulman et al., 2016), in the precision of the input.

    A_t = d_t + gamma * gae_lambda * A_{t+1}, with d_t = r_t + gamma * V_{t+1} - V_t; `values` is
    [steps + 1, envs]. V_{t+1} is 0 where the episode terminated and `final_values` where it was truncated;
    A_{t+1} is 0 at both ends. Returns are advantages + values.
    """
    n_steps = rewards.shape[0]
    advantages = np.zeros_like(rewards)
    following = np.zeros_like(rewards[0])
    for t in range(n_steps - 1, -1, -1):
        next_values = np.where(truncated[t], final_values[t], values[t + 1])
        next_values = np.where(terminated[t], 0.0, next_values)
        errors = rewards[t] + gamma * next_values - values[t]
        continues = ~(terminated[t] | truncated[t])
        following = errors + gamma * gae_lambda * continues * following
        advantages[t] = following
    return advantages, advantages + values[:n_steps]


@kernel
def gae_kernel(
    rewards: Floats,
    values: Floats,
    terminated: Bools,
    truncated: Bools,
    final_values: Floats,
    gamma: float,
    gae_lambda: float,
    advantages: Floats,
    returns: Floats,
) -> None:
    """`compute_gae` in one pass, computed in float64, into the caller's arrays."""
    steps, envs = rewards.shape
    for env in range(envs):
        following = 0.0
        for back in range(steps):
            t = steps - 1 - back
            value, next_value = float(values[t, env]), float(values[t + 1, env])
            if truncated[t, env]:
                next_value, following = float(final_values[t, env]), 0.0
            if terminated[t, env]:
                next_value, following = 0.0, 0.0
            error = float(rewards[t, env]) + gamma * next_value - value
            following = error + gamma * gae_lambda * following
            advantages[t, env] = following
            returns[t, env] = following + value
