"""What one rollout saw, [steps, envs, ...], and the advantages computed from it.

All memory is made once and owned by the buffer; trainers and kernels write into it.
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
    """The steps of one rollout, first index the step, second the environment.

    `observations` [steps + 1, envs, ...]: the last row is what the next rollout starts from.
    `valid` is False where an environment with next-step autoreset only reset: such rows are not samples.
    `final_values`: the critic's value of the last observation of an episode, where it was truncated.
    `masks` [steps, envs, actions], or [0, 0, actions] without masks.
    """

    def __init__(
        self,
        steps: int,
        envs: int,
        observation_shape: Sequence[int],
        actions: int,
        *,
        observation_dtype: Any = np.float32,
        masked: bool = False,
    ):
        if steps < 1 or envs < 1:
            raise HotloopError(f"a rollout of {steps} steps x {envs} envs holds nothing; both must be >= 1.")
        self.steps, self.envs, self.actions_allowed = steps, envs, actions
        self.observations: NDArray[Any] = np.zeros(
            (steps + 1, envs, *observation_shape), dtype=observation_dtype
        )
        self.actions = np.zeros((steps, envs), dtype=np.int64)
        self.log_probabilities: Floats = np.zeros((steps, envs), dtype=np.float32)
        self.rewards: Floats = np.zeros((steps, envs), dtype=np.float32)
        self.terminated: Bools = np.zeros((steps, envs), dtype=np.bool_)
        self.truncated: Bools = np.zeros((steps, envs), dtype=np.bool_)
        self.valid: Bools = np.ones((steps, envs), dtype=np.bool_)
        self.values: Floats = np.zeros((steps + 1, envs), dtype=np.float32)
        self.final_values: Floats = np.zeros((steps, envs), dtype=np.float32)
        self.advantages: Floats = np.zeros((steps, envs), dtype=np.float32)
        self.returns: Floats = np.zeros((steps, envs), dtype=np.float32)
        shape = (steps, envs, actions) if masked else (0, 0, actions)
        self.masks: Bools = np.ones(shape, dtype=np.bool_)

    @property
    def masked(self) -> bool:
        """Whether some actions may be forbidden."""
        return self.masks.size > 0

    def compute_advantages(self, discount: float, trace: float) -> None:
        """Fill `advantages` and `returns` from rewards and values (generalised advantage estimation)."""
        gae_kernel(
            self.rewards,
            self.values,
            self.terminated,
            self.truncated,
            self.final_values,
            discount,
            trace,
            self.advantages,
            self.returns,
        )

    def samples(self) -> NDArray[np.int64]:
        """Indices step * envs + env of the valid rows, in order."""
        return np.flatnonzero(self.valid)


def compute_gae(
    rewards: NDArray[Any],
    values: NDArray[Any],
    terminated: Bools,
    truncated: Bools,
    final_values: NDArray[Any],
    discount: float,
    trace: float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Advantages and returns [steps, envs]: the plain loop, in the precision of its input.

    A_t = d_t + discount * trace * A_{t+1}, with d_t = r_t + discount * V_{t+1} - V_t. `values` is
    [steps + 1, envs]. Where the episode was terminated, nothing follows; where it was truncated, V_{t+1}
    is `final_values` and A_{t+1} belongs to another episode. Returns are advantages + values.
    """
    steps = rewards.shape[0]
    advantages = np.zeros_like(rewards)
    following = np.zeros_like(rewards[0])
    for t in range(steps - 1, -1, -1):
        next_values = np.where(truncated[t], final_values[t], values[t + 1])
        next_values = np.where(terminated[t], 0.0, next_values)
        errors = rewards[t] + discount * next_values - values[t]
        goes_on = ~(terminated[t] | truncated[t])
        following = errors + discount * trace * goes_on * following
        advantages[t] = following
    return advantages, advantages + values[:steps]


@kernel
def gae_kernel(
    rewards: Floats,
    values: Floats,
    terminated: Bools,
    truncated: Bools,
    final_values: Floats,
    discount: float,
    trace: float,
    advantages: Floats,
    returns: Floats,
) -> None:
    """`compute_gae` in one pass, in double precision inside, into the caller's arrays."""
    steps, envs = rewards.shape
    for env in range(envs):
        following = 0.0
        for back in range(steps):
            t = steps - 1 - back
            after = float(values[t + 1, env])
            if truncated[t, env]:
                after, following = float(final_values[t, env]), 0.0
            if terminated[t, env]:
                after, following = 0.0, 0.0
            error = rewards[t, env] + discount * after - values[t, env]
            following = error + discount * trace * following
            advantages[t, env] = following
            returns[t, env] = following + values[t, env]
