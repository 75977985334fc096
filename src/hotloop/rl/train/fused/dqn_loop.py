"""DQN's whole training loop in one compiled call: act, step the envs' own kernel, store, learn.

It does what the Python loop in `dqn.py` does with the kernels of `dqn_kernels.py`: same random numbers, same
results to the last bit. Each family of envs has its own few lines here, written out, because numba cannot
cache a kernel that gets another one as an argument. The file is apart from `dqn_kernels.py` so that a change
to an environment recompiles the loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.buffers import replay_kernels
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.buffers.replay_kernels import Bytes, ReplayArrays, Words
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.cartpole import kernels as cartpole
from hotloop.rl.envs.snake import kernels as snake
from hotloop.rl.envs.streams import Streams, copy_stream_from, copy_stream_to, make_streams, next_double
from hotloop.rl.train.fused.compiled import kernel
from hotloop.rl.train.fused.dqn_kernels import (
    EXPLORATION_STEPS,
    FINAL_EPS,
    INITIAL_EPS,
    TAU,
    Batch,
    Learner,
    act,
    update,
    update_target,
)
from hotloop.rl.train.fused.tiles import Floats
from hotloop.rl.train.make_envs import EpisodeLog

if TYPE_CHECKING:
    from hotloop.rl.train.dqn import DQNConfig

# Indices into `clock`, int64: vector steps and env steps so far, then what is due when.
STEP, ENV_STEPS, LEARNING_STARTS, TRAIN_FREQ, GRADIENT_STEPS, TARGET_INTERVAL = range(6)
NONFINITE, ALLOW_NONFINITE = 6, 7  # numbers that were NaN or infinite; whether to go on then


class Training(NamedTuple):
    """What the loop trains with, whatever the envs."""

    learner: Learner
    batch: Batch
    episodes: EpisodeLog
    settings: NDArray[np.float64]
    statistics: NDArray[np.float64]


class Envs(NamedTuple):
    """The arrays of a `BatchedEnv`; names with `_bytes` are the same memory as bytes."""

    actions: Words
    action_bytes: Bytes
    observations: Floats
    observation_bytes: Bytes
    finals: Floats
    final_bytes: Bytes
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


@kernel
def choose_actions(
    training: Training, envs: Envs, clock: Words, streams: Streams, uniforms: NDArray[np.float64]
) -> None:
    """Draw `uniforms` [envs, 2] and write epsilon-greedy actions."""
    settings = training.settings
    for row in range(uniforms.shape[0]):
        uniforms[row, 0] = next_double(streams, 0)
        uniforms[row, 1] = next_double(streams, 0)
    done = min(clock[ENV_STEPS] / settings[EXPLORATION_STEPS], 1.0)
    epsilon = settings[INITIAL_EPS] + done * (settings[FINAL_EPS] - settings[INITIAL_EPS])
    act(training.learner, settings, envs.observations, epsilon, uniforms, envs.actions)


@kernel
def must_stop(envs: Envs, clock: Words) -> bool:
    """Count numbers of the last step that are NaN or infinite; True if there are some, unless allowed."""
    found = 0
    for row in range(envs.rewards.size):
        found += not np.isfinite(envs.rewards[row])
        for value in envs.observations[row]:
            found += not np.isfinite(value)
        if envs.terminated[row] or envs.truncated[row]:
            for value in envs.finals[row]:
                found += not np.isfinite(value)
    clock[NONFINITE] += found
    return found > 0 and not clock[ALLOW_NONFINITE]


@kernel
def store_step(training: Training, envs: Envs, replay: ReplayArrays) -> None:
    """Push a vector step to the replay buffer and log the episodes that ended."""
    episodes = training.episodes
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
def learn(training: Training, replay: ReplayArrays, clock: Words, n_envs: int) -> None:
    """Count one vector step, then make the gradient steps and the target update that are due."""
    clock[STEP] += 1
    clock[ENV_STEPS] += n_envs
    if clock[ENV_STEPS] >= clock[LEARNING_STARTS] and clock[STEP] % clock[TRAIN_FREQ] == 0:
        update(
            training.learner, replay, training.batch, training.settings, training.statistics,
            clock[GRADIENT_STEPS],
        )  # fmt: skip
    if clock[STEP] % clock[TARGET_INTERVAL] == 0:
        update_target(training.learner, training.settings[TAU])


@kernel
def cartpole_loop(
    training: Training,
    replay: ReplayArrays,
    envs: Envs,
    clock: Words,
    streams: Streams,
    uniforms: NDArray[np.float64],
    count: int,
    table: Words,
) -> None:
    """`count` vector steps of `CartPoleVectorEnv`."""
    for _ in range(count):
        choose_actions(training, envs, clock, streams, uniforms)
        cartpole.step_batch(table, 0, envs.actions.size)
        if must_stop(envs, clock):
            return
        store_step(training, envs, replay)
        learn(training, replay, clock, envs.actions.size)


@kernel
def snake_loop(
    training: Training,
    replay: ReplayArrays,
    envs: Envs,
    clock: Words,
    streams: Streams,
    uniforms: NDArray[np.float64],
    count: int,
    table: Words,
    options: Words,
    payoffs: NDArray[np.float64],
) -> None:
    """`count` vector steps of `SnakeVectorEnv`."""
    for _ in range(count):
        choose_actions(training, envs, clock, streams, uniforms)
        snake.step_batch(table, envs.observations, options, payoffs, 0, envs.actions.size, SAME_STEP)
        if must_stop(envs, clock):
            return
        store_step(training, envs, replay)
        learn(training, replay, clock, envs.actions.size)


def _cartpole(envs: Any) -> tuple[Any, ...] | None:
    return (envs._table,)


def _snake(envs: Any) -> tuple[Any, ...] | None:
    return None if envs._split else (envs._table, envs._options, envs._payoffs)


# Name of the env class -> its loop, and what that takes of the env (None for settings it does not support).
LOOPS: dict[str, tuple[Callable[..., None], Callable[[Any], tuple[Any, ...] | None]]] = {
    "CartPoleVectorEnv": (cartpole_loop, _cartpole),
    "SnakeVectorEnv": (snake_loop, _snake),
}


def compiled_loop(
    config: DQNConfig,
    training: Training,
    envs: Any,
    buffer: ReplayBuffer,
    batch: ReplayBatch,
    rng: np.random.Generator,
) -> Callable[[int, int, int], tuple[int, int, int]] | None:
    """See `dqn.make_compiled_loop`; None for envs that have no loop here."""
    if not (
        isinstance(envs, BatchedEnv)
        and type(envs).__name__ in LOOPS
        and type(envs).__module__.startswith("hotloop.rl.envs.")
        and envs.mode == SAME_STEP
        and envs.num_threads == 1
        and envs.observations.dtype == np.float32
    ):
        return None
    loop, env_arguments = LOOPS[type(envs).__name__]
    of_env = env_arguments(envs)
    if of_env is None:
        return None
    n_envs = envs.num_envs
    arrays = Envs(
        envs.actions,
        envs.actions.view(np.uint8),
        envs.observations.reshape(n_envs, -1),
        envs.observations.reshape(-1).view(np.uint8),
        envs.final_observations.reshape(n_envs, -1),
        envs.final_observations.reshape(-1).view(np.uint8),
        envs.rewards,
        envs.terminated,
        envs.truncated,
    )
    streams, uniforms = make_streams(1), np.zeros((n_envs, 2))
    gradient_steps = config.train_freq * n_envs if config.gradient_steps == -1 else config.gradient_steps
    target_interval = max(config.target_update_interval // n_envs, 1)
    when = (config.learning_starts, config.train_freq, gradient_steps, target_interval)

    def run(steps: int, env_steps: int, count: int) -> tuple[int, int, int]:
        clock = np.array([steps, env_steps, *when, 0, config.allow_nonfinite], dtype=np.int64)
        buffer.make_room(count * n_envs)
        copy_stream_from(rng, streams, 0)
        loop(training, buffer.kernel_arrays(batch), arrays, clock, streams, uniforms, count, *of_env)
        copy_stream_to(streams, 0, rng)
        return int(clock[STEP]), int(clock[ENV_STEPS]), int(clock[NONFINITE])

    run(0, 0, 0)  # compile before any clock runs
    return run
