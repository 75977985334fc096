"""Whole PPO rollouts in one compiled call: act, step the envs' own kernel, store the step.

Each family of envs has its own few lines here, written out, because numba cannot cache a kernel that gets
another one as an argument. The file is apart from `ppo_kernels.py` so that a change to an environment
recompiles the rollout only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.cartpole import kernels as cartpole
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel
from hotloop.rl.train.fused.layers import HIDDEN
from hotloop.rl.train.fused.ppo_kernels import Learner, act, values
from hotloop.rl.train.fused.tiles import Floats
from hotloop.rl.train.make_envs import EpisodeLog

Bools = NDArray[np.bool_]


class Envs(NamedTuple):
    """The arrays of a `BatchedEnv` that a rollout reads and writes."""

    actions: NDArray[np.int64]
    observations: Floats
    final_observations: Floats
    rewards: NDArray[np.float64]
    terminated: Bools
    truncated: Bools


class Rollout(NamedTuple):
    """The arrays of a `RolloutBuffer` with observations as [steps + 1, envs, width]."""

    observations: Floats
    actions: NDArray[np.int64]
    log_probabilities: Floats
    rewards: Floats
    terminated: Bools
    truncated: Bools
    values: Floats
    final_values: Floats
    masks: Bools


@fast_kernel
def store_step(learner: Learner, envs: Envs, rollout: Rollout, episodes: EpisodeLog, step: int) -> None:
    """Store one step of all envs, with the value of the final observation where an episode was truncated."""
    rows, width = envs.observations.shape
    for row in range(rows):
        for j in range(width):
            rollout.observations[step + 1, row, j] = envs.observations[row, j]
    for row in range(rows):
        terminated, truncated = envs.terminated[row], envs.truncated[row]
        rollout.rewards[step, row] = envs.rewards[row]
        rollout.terminated[step, row] = terminated
        rollout.truncated[step, row] = truncated
        rollout.final_values[step, row] = 0.0
        episodes.running_returns[row] += envs.rewards[row]
        episodes.running_lengths[row] += 1
        if terminated or truncated:
            at = episodes.count[0]
            episodes.returns[at] = episodes.running_returns[row]
            episodes.lengths[at] = episodes.running_lengths[row]
            episodes.count[0] = at + 1
            episodes.running_returns[row] = 0.0
            episodes.running_lengths[row] = 0
        if truncated and not terminated:
            table = learner.critic
            last = table.shape[0] - 1
            for j in range(width):
                learner.inputs[j] = envs.final_observations[row, j]
            layers.forward(table, learner.packed, learner.inputs, 0, learner.hidden, 1)
            rollout.final_values[step, row] = learner.hidden[table[last, HIDDEN]]


@fast_kernel
def value_observations(learner: Learner, rollout: Rollout) -> None:
    """The critic's values of all observations of the rollout, in large batches."""
    steps, envs, width = rollout.observations.shape
    values(learner, rollout.observations.reshape(steps * envs, width), rollout.values.reshape(-1))


@fast_kernel
def cartpole_rollout(
    learner: Learner,
    envs: Envs,
    rollout: Rollout,
    episodes: EpisodeLog,
    uniforms: Floats,
    table: NDArray[np.int64],
) -> int:
    """A rollout of `CartPoleVectorEnv`; returns -1, or the row whose action the environment refused."""
    rows = envs.actions.size
    for step in range(uniforms.shape[0]):
        act(
            learner, rollout.observations[step], uniforms[step], rollout.masks[0:0, 0],
            envs.actions, rollout.log_probabilities[step],
        )  # fmt: skip
        rollout.actions[step] = envs.actions
        wrong = cartpole.step_batch(table, 0, rows)
        if wrong >= 0:
            return wrong
        store_step(learner, envs, rollout, episodes, step)
    value_observations(learner, rollout)
    return -1


# Vector env class -> its kernel, and the arguments that the kernel takes after the uniform numbers.
ROLLOUTS: dict[str, tuple[Callable[..., int], Callable[[Any], tuple[Any, ...]]]] = {
    "CartPoleVectorEnv": (cartpole_rollout, lambda envs: (envs._table,)),
}


def compiled_rollout(
    learner: Learner, envs: Any, buffer: RolloutBuffer, episodes: EpisodeLog
) -> Callable[[Floats], None] | None:
    """A function that fills `buffer` in one kernel call, or None where these envs have no such kernel.

    It continues from the buffer's last observations and takes uniform numbers [steps, envs], one for each
    action. The envs, the buffer and the episode log stay the caller's.
    """
    if (
        not isinstance(envs, BatchedEnv)
        or type(envs).__name__ not in ROLLOUTS
        or not type(envs).__module__.startswith("hotloop.rl.envs.")
        or envs.mode != SAME_STEP
        or envs.num_threads != 1
        or buffer.masked
    ):
        return None
    kernel, arguments_of = ROLLOUTS[type(envs).__name__]
    more = arguments_of(envs)
    width = envs.observations[0].size
    arrays = Envs(
        envs.actions,
        envs.observations.reshape(buffer.envs, width),
        envs.final_observations.reshape(buffer.envs, width),
        envs.rewards,
        envs.terminated,
        envs.truncated,
    )
    rollout = Rollout(
        buffer.observations.reshape(buffer.steps + 1, buffer.envs, width),
        buffer.actions,
        buffer.log_probabilities,
        buffer.rewards,
        buffer.terminated,
        buffer.truncated,
        buffer.values,
        buffer.final_values,
        buffer.masks,
    )

    def run(uniforms: Floats) -> None:
        rollout.observations[0] = rollout.observations[-1]
        episodes.count[0] = 0
        wrong = kernel(learner, arrays, rollout, episodes, uniforms, *more)
        if wrong >= 0:
            raise HotloopError(f"The environment in row {wrong} refused the policy's action.")

    return run
