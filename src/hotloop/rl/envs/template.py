"""A template for new environments: rules in plain Python, the same rules as a kernel, the Gymnasium class.

The game is Catch: balls fall down a grid, and a paddle at the bottom moves left, stays or moves right. Copy
this file, change the rules, then the kernel, and let `hotloop.testing.conformance` check that the two agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP, BatchedEnv
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.streams import Streams, next_below

WIDTH, HEIGHT, MOST_STEPS = 7, 10, 200

# ---- 1. the rules: one readable environment without autoreset; random numbers only from rng.random()


class CatchRules:
    """A ball falls one row per step. Caught: +1 and the next ball. Missed: -1 and the game is over."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def reset(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start with the paddle in the middle and a ball at the top."""
        self.paddle, self.column, self.height, self.elapsed = WIDTH // 2, self.drop(), HEIGHT, 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move the paddle: 0 left, 1 stay, 2 right."""
        self.paddle = min(max(self.paddle + action - 1, 0), WIDTH - 1)
        self.height -= 1
        self.elapsed += 1
        landed, caught = self.height == 0, self.paddle == self.column
        if landed and caught:
            self.column, self.height = self.drop(), HEIGHT
        reward = 0.0 if not landed else 1.0 if caught else -1.0
        return self.observation(), reward, landed and not caught, self.elapsed >= MOST_STEPS, {}

    def drop(self) -> int:
        """Draw the column of the next ball."""
        return int(self.rng.random() * WIDTH)

    def observation(self) -> NDArray[np.float32]:
        """Return the paddle's column, the ball's column and its height."""
        return np.array([self.paddle, self.column, self.height], dtype=np.float32)


# ---- 2. the kernels: the same rules on rows of the caller's arrays; here the observations are the state


@kernel
def reset_row(streams: Streams, observations: NDArray[np.float32], row: int) -> None:
    """Start an episode in one row."""
    observations[row, 0] = WIDTH // 2
    observations[row, 1] = next_below(streams, row, WIDTH)
    observations[row, 2] = HEIGHT


@kernel
def reset_rows(streams: Streams, observations: NDArray[np.float32], rows: NDArray[np.bool_]) -> None:
    """Start an episode in the marked rows."""
    for row in range(rows.size):
        if rows[row]:
            reset_row(streams, observations, row)


@kernel
def step_rows(
    streams: Streams,
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
    final_observations: NDArray[np.float32],
    rewards: NDArray[np.float64],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    over: NDArray[np.bool_],
    elapsed: NDArray[np.int32],
    start: int,
    stop: int,
    mode: int,
) -> int:
    """Step rows `start` to `stop - 1`. Return -1, or the first invalid row with nothing changed."""
    for row in range(actions.size):
        if actions[row] < 0 or actions[row] > 2:
            return row
    for row in range(start, stop):
        rewards[row], terminated[row], truncated[row] = 0.0, False, False
        if over[row] and mode == NEXT_STEP:
            reset_row(streams, observations, row)
            over[row], elapsed[row] = False, 0
            continue
        paddle = min(max(observations[row, 0] + actions[row] - 1, 0), WIDTH - 1)
        observations[row, 0] = paddle
        observations[row, 2] -= 1
        elapsed[row] += 1
        if observations[row, 2] == 0:
            if paddle == observations[row, 1]:
                rewards[row] = 1.0
                observations[row, 1] = next_below(streams, row, WIDTH)
                observations[row, 2] = HEIGHT
            else:
                rewards[row] = -1.0
                terminated[row] = True
        truncated[row] = elapsed[row] >= MOST_STEPS
        if terminated[row] or truncated[row]:
            if mode == SAME_STEP:
                for part in range(observations.shape[1]):
                    final_observations[row, part] = observations[row, part]
                reset_row(streams, observations, row)
                elapsed[row] = 0
            else:
                over[row] = True
    return -1


# ---- 3. the Gymnasium class: its spaces, and the arrays for each kernel


class CatchVectorEnv(BatchedEnv):
    """Many games of Catch; takes the settings of `BatchedEnv`."""

    def __init__(self, num_envs: int = 1, **settings: Any):
        high = np.array([WIDTH - 1, WIDTH - 1, HEIGHT], dtype=np.float32)
        super().__init__(num_envs, Box(np.zeros_like(high), high, dtype=np.float32), Discrete(3), **settings)

    def _step_rows(self, start: int, stop: int) -> int:
        return step_rows(
            self.streams,
            self.actions,
            self.observations,
            self.final_observations,
            self.rewards,
            self.terminated,
            self.truncated,
            self.over,
            self.elapsed,
            start,
            stop,
            self.mode,
        )

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        reset_rows(self.streams, self.observations, rows)
