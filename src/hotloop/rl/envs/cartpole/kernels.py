"""CartPole for batches; the same operations in the same order as `rules.py`.

The state is [6, rows]: position, velocity, angle, angular velocity, then scratch for the angle's cosine and
sine. With one array row per quantity and unsigned indices (so that the compiler need not handle negative
ones), the arithmetic between the calls of cos and sin is vectorised: 18 ns per row instead of 28 ns when
each row was finished before the next (Xeon at 2.8 GHz; cos and sin take 9 ns of it).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.batch import SAME_STEP
from hotloop.rl.envs.cartpole.rules import (
    ANGLE_LIMIT,
    FORCE,
    GRAVITY,
    HALF_LENGTH,
    POLE_MASS,
    POLE_MASS_LENGTH,
    POSITION_LIMIT,
    START_HIGH,
    START_LOW,
    TIMESTEP_S,
    TOTAL_MASS,
)
from hotloop.rl.envs.compiled import array_at, kernel
from hotloop.rl.envs.streams import Streams, next_double

COLUMNS = 6  # of the state:
POSITION, VELOCITY, ANGLE, SPIN, COSINE, SINE = range(COLUMNS)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@kernel
def step_batch(table: NDArray[np.int64], start: int, stop: int) -> int:
    """`step_rows` with all inputs as one argument: a call costs 0.4 us instead of 1.3 us.

    The table: number of rows, max_episode_steps, 1 for sutton_barto_reward, autoreset mode, then the
    addresses of the arrays in the order of `step_rows`.
    """
    rows, mode = table[0], table[3]
    return step_rows(
        array_at(table, 4, (COLUMNS, rows), np.float64),
        array_at(table, 5, (rows, 4), np.uint64),
        array_at(table, 6, (rows,), np.int64),
        array_at(table, 7, (rows, 4), np.float32),
        array_at(table, 8, (rows if mode == SAME_STEP else 1, 4), np.float32),
        array_at(table, 9, (rows,), np.float64),
        array_at(table, 10, (rows,), np.bool_),
        array_at(table, 11, (rows,), np.bool_),
        array_at(table, 12, (rows,), np.bool_),
        array_at(table, 13, (rows,), np.int32),
        table[1],
        table[2] == 1,
        start,
        stop,
        mode,
    )


@kernel
def step_rows(
    state: Floats,
    streams: Streams,
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
    final_observations: NDArray[np.float32],
    rewards: Floats,
    terminated: Bools,
    truncated: Bools,
    over: Bools,
    elapsed: NDArray[np.int32],
    most_steps: int,
    sutton_barto: bool,
    start: int,
    stop: int,
    mode: int,
) -> int:
    """Step rows `start` to `stop - 1`. Return -1, or the first invalid row with nothing changed."""
    wrong = first_wrong(actions)
    if wrong >= 0:
        return wrong
    push(state, actions, start, stop)
    # Rows that are over are stepped too, then reset below: cheaper than skipping them in the loops.
    any_over = set_flags_and_rewards(
        state, rewards, terminated, truncated, over, elapsed, most_steps, sutton_barto, start, stop
    )
    observe(state, observations, start, stop)
    if not any_over:
        return -1
    for row in range(start, stop):
        if over[row]:
            reset_row(state, streams, observations, row, START_LOW, START_HIGH)
            rewards[row], terminated[row], truncated[row] = 0.0, False, False
            over[row], elapsed[row] = False, 0
        elif terminated[row] or truncated[row]:
            if mode == SAME_STEP:
                for column in range(4):
                    final_observations[row, column] = observations[row, column]
                reset_row(state, streams, observations, row, START_LOW, START_HIGH)
                elapsed[row] = 0
            else:
                over[row] = True
    return -1


@kernel
def reset_rows(
    state: Floats, streams: Streams, observations: NDArray[np.float32], rows: Bools, low: float, high: float
) -> None:
    """Start an episode in the marked rows."""
    for row in range(rows.size):
        if rows[row]:
            reset_row(state, streams, observations, row, low, high)


@kernel
def reset_row(
    state: Floats, streams: Streams, observations: NDArray[np.float32], row: int, low: float, high: float
) -> None:
    """Draw each number of the row's state uniformly from [low, high)."""
    for column in range(4):
        value = low + (high - low) * next_double(streams, row)
        state[column, row] = value
        observations[row, column] = value


@kernel
def first_wrong(actions: NDArray[np.int64]) -> int:
    """Return the first row whose action is neither 0 nor 1, or -1."""
    bits = np.int64(0)
    for row in range(actions.size):
        bits |= actions[row]
    if bits == 0 or bits == 1:
        return -1
    for row in range(actions.size):
        if actions[row] != 0 and actions[row] != 1:
            return row
    return -1


@kernel
def push(state: Floats, actions: NDArray[np.int64], start: int, stop: int) -> None:
    """`rules.pushed` for rows `start` to `stop - 1`."""
    for row in range(np.uint64(start), np.uint64(stop)):
        state[COSINE, row] = math.cos(state[ANGLE, row])
        state[SINE, row] = math.sin(state[ANGLE, row])
    for row in range(np.uint64(start), np.uint64(stop)):
        velocity, spin = state[VELOCITY, row], state[SPIN, row]
        cosine, sine = state[COSINE, row], state[SINE, row]
        force = FORCE if actions[row] == 1 else -FORCE
        push = (force + POLE_MASS_LENGTH * (spin * spin) * sine) / TOTAL_MASS
        spin_change = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS)
        )
        acceleration = push - POLE_MASS_LENGTH * spin_change * cosine / TOTAL_MASS
        state[POSITION, row] += TIMESTEP_S * velocity
        state[VELOCITY, row] += TIMESTEP_S * acceleration
        state[ANGLE, row] += TIMESTEP_S * spin
        state[SPIN, row] += TIMESTEP_S * spin_change


@kernel
def set_flags_and_rewards(
    state: Floats,
    rewards: Floats,
    terminated: Bools,
    truncated: Bools,
    over: Bools,
    elapsed: NDArray[np.int32],
    most_steps: int,
    sutton_barto: bool,
    start: int,
    stop: int,
) -> bool:
    """Set flags and rewards of rows `start` to `stop - 1`; return whether any ended or needs a reset."""
    any_over = False
    for row in range(np.uint64(start), np.uint64(stop)):
        fell = (abs(state[POSITION, row]) > POSITION_LIMIT) | (abs(state[ANGLE, row]) > ANGLE_LIMIT)
        elapsed[row] += 1
        late = elapsed[row] >= most_steps
        terminated[row] = fell
        truncated[row] = late
        any_over |= fell | late | over[row]
    if sutton_barto:
        for row in range(np.uint64(start), np.uint64(stop)):
            rewards[row] = -1.0 if terminated[row] else 0.0
    else:
        for row in range(np.uint64(start), np.uint64(stop)):
            rewards[row] = 1.0
    return any_over


@kernel
def observe(state: Floats, observations: NDArray[np.float32], start: int, stop: int) -> None:
    """Write the observations of rows `start` to `stop - 1`, rounded to float32."""
    for row in range(np.uint64(start), np.uint64(stop)):
        observations[row, 0] = state[POSITION, row]
        observations[row, 1] = state[VELOCITY, row]
        observations[row, 2] = state[ANGLE, row]
        observations[row, 3] = state[SPIN, row]
