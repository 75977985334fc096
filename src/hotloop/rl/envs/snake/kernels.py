"""Snake, compiled: many games in the caller's arrays, without allocation.

`reset_row`, `step_row` and `observe_row` work on one game and may be called from other kernels. `step_rows`
runs them over a slice of the batch, with the resets of the autoreset mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs import compiled
from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP
from hotloop.rl.envs.compiled import allocation_free_kernel, array_at, inlined_part
from hotloop.rl.envs.snake.config import RIGHT, START_LENGTH
from hotloop.rl.envs.snake.directions import column_step, row_step, turned
from hotloop.rl.envs.snake.flood import count_bits, full_row
from hotloop.rl.envs.snake.layout import (
    ABSOLUTE,
    ATE,
    BEGUN,
    COLUMN_MASK,
    DEATH_PAYS,
    DIED,
    FINAL_LENGTH,
    FOOD_AT,
    FOOD_PAYS,
    HEAD_AT,
    HEADING,
    LEFT_AT,
    LENGTH,
    MAX_STEPS,
    MOVED,
    NOWHERE,
    OUTCOME,
    RING,
    ROW_SHIFT,
    SHAPING,
    SIZE,
    STEP_PAYS,
    TAIL_BLOCKS,
    WON,
    Boards,
    Options,
    Payoffs,
    Snakes,
)
from hotloop.rl.envs.snake.observe import observe_row
from hotloop.rl.envs.streams import Streams, next_below

Flags = NDArray[np.bool_]

_ONE = np.uint64(1)


@inlined_part
def _place_food(snakes: Snakes, boards: Boards, streams: Streams, size: int, row: int) -> None:
    """Place food on the k-th free cell in reading order, k drawn uniformly; there must be a free cell."""
    left = next_below(streams, row, size * size - snakes[row, LENGTH])
    full = full_row(size)
    for r in range(size):
        free = ~boards[row, r] & full
        count = count_bits(free)
        if left < count:
            for _ in range(left):
                free &= free - _ONE
            column = count_bits((free & (~free + _ONE)) - _ONE)
            snakes[row, FOOD_AT] = (r << ROW_SHIFT) | column
            return
        left -= count


@inlined_part
def reset_row(
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    options: Options,
    row: int,
) -> None:
    """Start a game: length 3, head in the centre, heading right, one food."""
    size = options[SIZE]
    middle = size // 2
    for r in range(size):
        boards[row, r] = np.uint64(0)
    for i in range(START_LENGTH):
        snakes[row, RING + START_LENGTH - 1 - i] = (middle << ROW_SHIFT) | (middle - i)
        boards[row, middle] |= _ONE << np.uint64(middle - i)
    snakes[row, HEAD_AT] = START_LENGTH - 1
    snakes[row, LENGTH] = START_LENGTH
    snakes[row, HEADING] = RIGHT
    snakes[row, LEFT_AT] = NOWHERE
    snakes[row, OUTCOME] = BEGUN
    elapsed[row] = 0
    _place_food(snakes, boards, streams, size, row)


@inlined_part
def step_row(
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    options: Options,
    payoffs: Payoffs,
    row: int,
    action: int,
) -> float:
    """Move one snake by a valid action; return the reward and set OUTCOME.

    The episode is terminated if OUTCOME >= DIED, and otherwise truncated once `elapsed` has reached the
    limit. A fatal move leaves the snake where it was.
    """
    size = options[SIZE]
    elapsed[row] += 1
    head_at, length = snakes[row, HEAD_AT], snakes[row, LENGTH]
    old = snakes[row, RING + head_at]
    heading = action if options[ABSOLUTE] else turned(snakes[row, HEADING], action)
    old_y, old_x = old >> ROW_SHIFT, old & COLUMN_MASK
    y, x = old_y + row_step(heading), old_x + column_step(heading)
    if y < 0 or y >= size or x < 0 or x >= size:
        snakes[row, OUTCOME] = DIED
        return float(payoffs[DEATH_PAYS])
    cell = (y << ROW_SHIFT) | x
    tail_at = head_at - length + 1
    tail = snakes[row, RING + (tail_at if tail_at >= 0 else tail_at + size * size)]
    if (boards[row, y] >> np.uint64(x)) & _ONE and (options[TAIL_BLOCKS] or cell != tail):
        snakes[row, OUTCOME] = DIED
        return float(payoffs[DEATH_PAYS])

    food = snakes[row, FOOD_AT]
    if cell != food:
        boards[row, tail >> ROW_SHIFT] &= ~(_ONE << np.uint64(tail & COLUMN_MASK))
        snakes[row, LEFT_AT] = tail
    else:
        snakes[row, LENGTH] = length + 1
        snakes[row, LEFT_AT] = NOWHERE
    head_at = head_at + 1 if head_at + 1 < size * size else 0
    snakes[row, HEAD_AT] = head_at
    snakes[row, RING + head_at] = cell
    snakes[row, HEADING] = heading
    boards[row, y] |= _ONE << np.uint64(x)
    if cell != food:
        snakes[row, OUTCOME] = MOVED
        food_y, food_x = food >> ROW_SHIFT, food & COLUMN_MASK
        nearer = abs(old_y - food_y) + abs(old_x - food_x) - (abs(y - food_y) + abs(x - food_x))
        return float(payoffs[STEP_PAYS] + payoffs[SHAPING] * nearer)
    if length + 1 == size * size:
        snakes[row, OUTCOME] = WON
        snakes[row, FOOD_AT] = NOWHERE
    else:
        snakes[row, OUTCOME] = ATE
        _place_food(snakes, boards, streams, size, row)
    return float(payoffs[FOOD_PAYS])


@inlined_part
def find_wrong_action(actions: NDArray[np.int64], options: Options) -> int:
    """Return the first row of the batch with an invalid action, or -1."""
    count = 4 if options[ABSOLUTE] else 3
    wrong = False
    for row in range(actions.shape[0]):  # without an early exit the loop is vectorised
        wrong |= (actions[row] < 0) | (actions[row] >= count)
    if wrong:
        for row in range(actions.shape[0]):
            if actions[row] < 0 or actions[row] >= count:
                return row
    return -1


@inlined_part
def _advance_or_reset(
    actions: NDArray[np.int64],
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    over: Flags,
    rewards: NDArray[np.float64],
    terminated: Flags,
    truncated: Flags,
    options: Options,
    payoffs: Payoffs,
    row: int,
    mode: int,
) -> bool:
    """Step one row without its observation; return whether its episode has ended."""
    if over[row] and mode == NEXT_STEP:
        reset_row(snakes, boards, streams, elapsed, options, row)
        rewards[row], terminated[row], truncated[row], over[row] = 0.0, False, False, False
        return False
    rewards[row] = step_row(snakes, boards, streams, elapsed, options, payoffs, row, actions[row])
    died_or_won = snakes[row, OUTCOME] >= DIED
    cut = not died_or_won and elapsed[row] >= options[MAX_STEPS]
    terminated[row], truncated[row] = died_or_won, cut
    ended = died_or_won or cut
    over[row] = ended and mode != SAME_STEP
    return ended


@inlined_part
def _restart_row(
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    options: Options,
    row: int,
    observations: NDArray[Any],
    final_observations: NDArray[Any],
) -> None:
    """Save the final observation and length of an ended episode, then start the next one."""
    for i in range(observations.shape[1]):
        final_observations[row, i] = observations[row, i]
    snakes[row, FINAL_LENGTH] = snakes[row, LENGTH]
    reset_row(snakes, boards, streams, elapsed, options, row)
    observe_row(snakes, boards, options, row, observations)


@allocation_free_kernel
def step_rows(
    actions: NDArray[np.int64],
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    over: Flags,
    rewards: NDArray[np.float64],
    terminated: Flags,
    truncated: Flags,
    options: Options,
    payoffs: Payoffs,
    observations: NDArray[Any],
    final_observations: NDArray[Any],
    start: int,
    stop: int,
    mode: int,
) -> int:
    """Step rows `start` to `stop - 1` in one pass; observations are flat, [rows, values].

    Returns the first row of the batch with an invalid action, with nothing changed, or -1.
    """
    wrong = find_wrong_action(actions, options)
    if wrong >= 0:
        return wrong
    for row in range(start, stop):
        ended = _advance_or_reset(
            actions, snakes, boards, streams, elapsed, over, rewards, terminated, truncated,
            options, payoffs, row, mode,
        )  # fmt: skip
        observe_row(snakes, boards, options, row, observations)
        if ended and mode == SAME_STEP:
            _restart_row(snakes, boards, streams, elapsed, options, row, observations, final_observations)
    return -1


@compiled.kernel
def step_batch(
    table: NDArray[np.int64],
    observations: NDArray[Any],
    options: Options,
    payoffs: Payoffs,
    start: int,
    stop: int,
    mode: int,
) -> int:
    """`step_rows` with most arrays passed as one `table` of addresses, in the order of `step_rows`."""
    rows, values = observations.shape
    size = options[SIZE]
    return step_rows(
        array_at(table, 0, (rows,), np.int64),
        array_at(table, 1, (rows, RING + size * size), np.int16),
        array_at(table, 2, (rows, 2 * size), np.uint64),
        array_at(table, 3, (rows, 4), np.uint64),
        array_at(table, 4, (rows,), np.int32),
        array_at(table, 5, (rows,), np.bool_),
        array_at(table, 6, (rows,), np.float64),
        array_at(table, 7, (rows,), np.bool_),
        array_at(table, 8, (rows,), np.bool_),
        options,
        payoffs,
        observations,
        array_at(table, 9, (rows if mode == SAME_STEP else 1, values), observations.dtype),
        start,
        stop,
        mode,
    )


# ---- the same step in parts, so that each can be measured


@allocation_free_kernel
def advance_rows(
    actions: NDArray[np.int64],
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    over: Flags,
    rewards: NDArray[np.float64],
    terminated: Flags,
    truncated: Flags,
    options: Options,
    payoffs: Payoffs,
    start: int,
    stop: int,
    mode: int,
) -> int:
    """The first part of `step_rows`: moves, collisions, food, rewards, flags."""
    wrong = find_wrong_action(actions, options)
    if wrong >= 0:
        return wrong
    for row in range(start, stop):
        _advance_or_reset(
            actions, snakes, boards, streams, elapsed, over, rewards, terminated, truncated,
            options, payoffs, row, mode,
        )  # fmt: skip
    return -1


@allocation_free_kernel
def observe_rows(
    snakes: Snakes, boards: Boards, options: Options, observations: NDArray[Any], start: int, stop: int
) -> None:
    """The second part: observations, after `advance_rows`."""
    for row in range(start, stop):
        observe_row(snakes, boards, options, row, observations)


@allocation_free_kernel
def restart_rows(
    ended: NDArray[np.int64],
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    options: Options,
    observations: NDArray[Any],
    final_observations: NDArray[Any],
) -> None:
    """The last part, with SAME_STEP: save the final observations of these rows and reset them."""
    for row in ended:
        _restart_row(snakes, boards, streams, elapsed, options, row, observations, final_observations)


@allocation_free_kernel
def reset_rows(
    chosen: Flags,
    snakes: Snakes,
    boards: Boards,
    streams: Streams,
    elapsed: NDArray[np.int32],
    options: Options,
    observations: NDArray[Any],
) -> None:
    """Start a game in the chosen rows."""
    for row in range(chosen.shape[0]):
        if chosen[row]:
            reset_row(snakes, boards, streams, elapsed, options, row)
            observe_row(snakes, boards, options, row, observations)
