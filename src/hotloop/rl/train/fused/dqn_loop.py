"""Whole DQN training in one kernel call: acting, the environments' kernel, storing, learning.

The loop does what `dqn.train` does in Python with the kernels of `fused.dqn`, from the same random numbers
and to the same bit. Each family of environments has its few lines, as in `rollout`, so that the compiled code
is kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.buffers import replay_kernels
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.buffers.replay_kernels import ReplayArrays
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.cartpole import kernels as cartpole
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.snake import kernels as snake
from hotloop.rl.envs.streams import Streams
from hotloop.rl.train.fused.dqn import (
    EPSILON_END,
    EPSILON_START,
    EPSILON_STEPS,
    TARGET_RATE,
    Batch,
    Bytes,
    Learner,
    Words,
    act,
    follow,
    learn,
)
from hotloop.rl.train.fused.tiles import Floats
from hotloop.rl.train.make_envs import EpisodeLog

# Places in `clock`, int64: vector steps and env steps done, then when to do what.
STEP, ENV_STEPS, LEARNING_STARTS, UPDATES_TOP, UPDATES_BOTTOM, TARGET_EVERY = range(6)
CLOCK = 6


class Envs(NamedTuple):
    """The arrays of a `BatchedEnv`; the second of each pair is the same memory as bytes."""

    actions: Words
    action_bytes: Bytes
    observations: Floats
    observation_bytes: Bytes
    final_bytes: Bytes
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


@kernel
def epsilon_at(settings: NDArray[np.float64], env_steps: int) -> float:
    """How often to explore after so many env steps."""
    done = min(env_steps / settings[EPSILON_STEPS], 1.0)
    return float(settings[EPSILON_START] + done * (settings[EPSILON_END] - settings[EPSILON_START]))


@kernel
def keep(envs: Envs, replay: ReplayArrays, episodes: EpisodeLog) -> None:
    """Store what a step gave, and note the episodes that ended."""
    replay_kernels.push(
        replay.memory, replay.numbers, replay.marks, replay.finals, replay.free, replay.ring,
        envs.action_bytes, envs.rewards, envs.terminated, envs.truncated,
        envs.observation_bytes, envs.final_bytes,
    )  # fmt: skip
    for row in range(envs.rewards.size):
        episodes.running_returns[row] += envs.rewards[row]
        episodes.running_lengths[row] += 1
        if envs.terminated[row] or envs.truncated[row]:
            at = episodes.count[0]
            episodes.returns[at] = episodes.running_returns[row]
            episodes.lengths[at] = episodes.running_lengths[row]
            episodes.count[0] = at + 1
            episodes.running_returns[row] = 0.0
            episodes.running_lengths[row] = 0


@kernel
def learn_on_time(
    learner: Learner,
    replay: ReplayArrays,
    batch: Batch,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
    clock: Words,
    rows: int,
) -> None:
    """Count one vector step, then the updates and the move of the target that are due after it."""
    clock[STEP] += 1
    clock[ENV_STEPS] += rows
    step, top, bottom = clock[STEP], clock[UPDATES_TOP], clock[UPDATES_BOTTOM]
    if clock[ENV_STEPS] >= clock[LEARNING_STARTS]:
        learn(learner, replay, batch, settings, statistics, step * top // bottom - (step - 1) * top // bottom)
    if step % clock[TARGET_EVERY] == 0:
        follow(learner, settings[TARGET_RATE])


@kernel
def cartpole_loop(
    learner: Learner,
    replay: ReplayArrays,
    batch: Batch,
    envs: Envs,
    episodes: EpisodeLog,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
    clock: Words,
    streams: Streams,
    count: int,
    table: Words,
) -> None:
    """`count` vector steps of `CartPoleVectorEnv` with everything that belongs to them."""
    rows = envs.actions.size
    for _ in range(count):
        act(
            learner,
            settings,
            envs.observations,
            epsilon_at(settings, clock[ENV_STEPS]),
            streams,
            envs.actions,
        )
        cartpole.step_batch(table, 0, rows)
        keep(envs, replay, episodes)
        learn_on_time(learner, replay, batch, settings, statistics, clock, rows)


@kernel
def snake_loop(
    learner: Learner,
    replay: ReplayArrays,
    batch: Batch,
    envs: Envs,
    episodes: EpisodeLog,
    settings: NDArray[np.float64],
    statistics: NDArray[np.float64],
    clock: Words,
    streams: Streams,
    count: int,
    table: Words,
    options: Words,
    payoffs: NDArray[np.float64],
) -> None:
    """`count` vector steps of `SnakeVectorEnv` with everything that belongs to them."""
    rows = envs.actions.size
    for _ in range(count):
        act(
            learner,
            settings,
            envs.observations,
            epsilon_at(settings, clock[ENV_STEPS]),
            streams,
            envs.actions,
        )
        snake.step_batch(table, envs.observations, options, payoffs, 0, rows, SAME_STEP)
        keep(envs, replay, episodes)
        learn_on_time(learner, replay, batch, settings, statistics, clock, rows)


def _cartpole(envs: Any) -> tuple[Any, ...] | None:
    return (envs._table,)


def _snake(envs: Any) -> tuple[Any, ...] | None:
    if envs._split:
        return None
    return envs._table, envs._options, envs._payoffs


# The class's name, its kernel, and what the kernel takes at the end (None when these settings cannot be).
LOOPS: dict[str, tuple[Callable[..., None], Callable[[Any], tuple[Any, ...] | None]]] = {
    "CartPoleVectorEnv": (cartpole_loop, _cartpole),
    "SnakeVectorEnv": (snake_loop, _snake),
}


def has_loop(envs: Any) -> bool:
    """Whether these environments can be trained on inside a kernel."""
    return (
        isinstance(envs, BatchedEnv)
        and type(envs).__name__ in LOOPS
        and type(envs).__module__.startswith("hotloop.rl.envs.")
        and envs.mode == SAME_STEP
        and envs.num_threads == 1
        and envs.observations.dtype == np.float32
        and LOOPS[type(envs).__name__][1](envs) is not None
    )


class FusedLoop:
    """A training kernel with its arguments at hand; environments, replay and learner stay the caller's."""

    def __init__(
        self,
        learner: Any,
        envs: BatchedEnv,
        buffer: ReplayBuffer,
        batch: ReplayBatch,
        episodes: EpisodeLog,
        streams: Streams,
    ):
        self._kernel, settings = LOOPS[type(envs).__name__]
        self._settings = settings(envs) or ()
        self._learner, self._buffer, self._batch = learner, buffer, batch
        self._episodes, self._streams = episodes, streams
        self._rows = envs.num_envs
        self._envs = Envs(
            envs.actions,
            envs.actions.view(np.uint8),
            envs.observations.reshape(envs.num_envs, -1),
            envs.observations.reshape(-1).view(np.uint8),
            envs.final_observations.reshape(-1).view(np.uint8),
            envs.rewards,
            envs.terminated,
            envs.truncated,
        )
        self._clock = np.zeros(CLOCK, dtype=np.int64)
        self.run(0, 0, 0, 0, Fraction(1), 1)  # compiles, so that no clock sees it

    def run(
        self, steps: int, env_steps: int, count: int, learning_starts: int, rate: Fraction, target_every: int
    ) -> tuple[int, int]:
        """`count` vector steps after `steps` of them; gives back the new numbers of vector and env steps."""
        self._buffer.make_room(count * self._rows)
        self._clock[:] = (steps, env_steps, learning_starts, rate.numerator, rate.denominator, target_every)
        learner = self._learner
        self._kernel(
            learner.kernel_state,
            self._buffer.kernel_arrays(self._batch),
            learner.batch_views(self._batch),
            self._envs,
            self._episodes,
            learner.settings,
            learner.statistics,
            self._clock,
            self._streams,
            count,
            *self._settings,
        )
        return int(self._clock[STEP]), int(self._clock[ENV_STEPS])
