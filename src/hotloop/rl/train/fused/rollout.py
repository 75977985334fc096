"""Whole rollouts in one call: for each step forward and sampling, the environments' kernel, and storing.

A fused rollout is a loop of three calls, `act`, the environments' own step kernel, `keep`. Each family of
environments has its few lines here, written out, so that the compiled code can be kept on disk (numba
does not keep functions that were handed in as arguments).
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
from hotloop.rl.train.fused.acting import act, values
from hotloop.rl.train.fused.compiled import fast_kernel
from hotloop.rl.train.fused.layers import HIDDEN
from hotloop.rl.train.fused.ppo import Learner
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


class Trace(NamedTuple):
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
def keep(learner: Learner, envs: Envs, trace: Trace, episodes: EpisodeLog, step: int) -> None:
    """Store what a step gave, and the value of the last observation where an episode was truncated."""
    rows, width = envs.observations.shape
    for row in range(rows):
        for j in range(width):
            trace.observations[step + 1, row, j] = envs.observations[row, j]
    for row in range(rows):
        terminated, truncated = envs.terminated[row], envs.truncated[row]
        trace.rewards[step, row] = envs.rewards[row]
        trace.terminated[step, row] = terminated
        trace.truncated[step, row] = truncated
        trace.final_values[step, row] = 0.0
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
            trace.final_values[step, row] = learner.hidden[table[last, HIDDEN]]


@fast_kernel
def value_all(learner: Learner, trace: Trace) -> None:
    """The critic's values of all observations of the rollout, in large batches."""
    steps, envs, width = trace.observations.shape
    values(learner, trace.observations.reshape(steps * envs, width), trace.values.reshape(-1))


@fast_kernel
def cartpole_rollout(
    learner: Learner,
    envs: Envs,
    trace: Trace,
    episodes: EpisodeLog,
    uniforms: Floats,
    table: NDArray[np.int64],
) -> int:
    """A rollout of `CartPoleVectorEnv`; -1, or the row whose action the environment refused."""
    rows = envs.actions.size
    for step in range(uniforms.shape[0]):
        act(
            learner, trace.observations[step], uniforms[step], trace.masks[0:0, 0],
            envs.actions, trace.log_probabilities[step],
        )  # fmt: skip
        trace.actions[step] = envs.actions
        wrong = cartpole.step_batch(table, 0, rows)
        if wrong >= 0:
            return wrong
        keep(learner, envs, trace, episodes, step)
    value_all(learner, trace)
    return -1


def _cartpole(envs: Any) -> tuple[Any, ...]:
    return (envs._table,)


# The class's name, its kernel, and what the kernel takes after the uniform numbers.
ROLLOUTS: dict[str, tuple[Callable[..., int], Callable[[Any], tuple[Any, ...]]]] = {
    "CartPoleVectorEnv": (cartpole_rollout, _cartpole),
}


def has_rollout(envs: Any) -> bool:
    """Whether these environments can be stepped inside a fused rollout."""
    return (
        isinstance(envs, BatchedEnv)
        and type(envs).__name__ in ROLLOUTS
        and type(envs).__module__.startswith("hotloop.rl.envs.")
        and envs.mode == SAME_STEP
        and envs.num_threads == 1
    )


class FusedRollout:
    """A rollout kernel with its arguments at hand; the environments and the buffer stay the caller's."""

    def __init__(self, learner: Learner, envs: BatchedEnv, buffer: RolloutBuffer, episodes: EpisodeLog):
        self._kernel, settings = ROLLOUTS[type(envs).__name__]
        width = envs.observations[0].size
        shape = (buffer.steps + 1, buffer.envs, width)
        arrays = Envs(
            envs.actions,
            envs.observations.reshape(buffer.envs, width),
            envs.final_observations.reshape(buffer.envs, width),
            envs.rewards,
            envs.terminated,
            envs.truncated,
        )
        trace = Trace(
            buffer.observations.reshape(shape),
            buffer.actions,
            buffer.log_probabilities,
            buffer.rewards,
            buffer.terminated,
            buffer.truncated,
            buffer.values,
            buffer.final_values,
            buffer.masks,
        )
        self._arguments = (learner, arrays, trace, episodes)
        self._settings = settings(envs)

    def run(self, uniforms: Floats) -> None:
        """Fill the buffer, from its last observations on, with actions drawn by `uniforms` [steps, envs]."""
        trace, episodes = self._arguments[2], self._arguments[3]
        trace.observations[0] = trace.observations[-1]
        episodes.count[0] = 0
        wrong = self._kernel(*self._arguments, uniforms, *self._settings)
        if wrong >= 0:
            raise HotloopError(f"the environment in row {wrong} refused the policy's action.")
