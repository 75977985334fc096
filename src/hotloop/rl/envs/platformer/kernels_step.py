"""Steps a batch in one kernel: skipped frames, the observed frame, the frame stack, resets.

Observations are passed flat, uint8 [rows, stack, bytes of a frame], so that gray, coloured and raw frames
have the same type.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP
from hotloop.rl.envs.compiled import allocation_free_kernel, kernel_part
from hotloop.rl.envs.platformer.atlas import Atlas
from hotloop.rl.envs.platformer.config import ACTIONS
from hotloop.rl.envs.platformer.kernels import (
    DEAD,
    FLAG_GET,
    HELD_JUMP,
    INFOS,
    FixedLevel,
    Rows,
    frame_row,
    reset_game,
)
from hotloop.rl.envs.platformer.kernels_draw import Scratch, observe_row

# Entries of `settings`, int64.
SEEN, SKIP, MOST_STEPS, MODE, BAR_BYTES = range(5)


class Results(NamedTuple):
    """Outputs of a step; the first index is the row."""

    observations: NDArray[np.uint8]  # [rows, stack, bytes]
    final_observations: NDArray[np.uint8]
    final_infos: NDArray[np.int32]  # [rows, INFOS]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    over: NDArray[np.bool_]
    elapsed: NDArray[np.int32]


class SharedInputs(NamedTuple):
    """Inputs to games and frames that all rows share."""

    settings: NDArray[np.int64]
    plan: NDArray[np.int64]
    fixed: FixedLevel
    atlas: Atlas
    palette: NDArray[np.uint8]


@kernel_part
def fill_stack(stack: Any) -> None:
    """Fill the stack with the newest frame."""
    newest = stack[stack.shape[0] - 1]
    for number in range(stack.shape[0] - 1):
        older = stack[number]
        for at in range(newest.shape[0]):
            older[at] = newest[at]


@kernel_part
def move_stack(stack: Any) -> None:
    """Shift the stack by one frame to make room for the newest."""
    for number in range(stack.shape[0] - 1):
        older, younger = stack[number], stack[number + 1]
        for at in range(older.shape[0]):
            older[at] = younger[at]


@kernel_part
def play_row(rows: Rows, row: int, action: int, results: Results, settings: Any) -> bool:
    """Repeat the action for `skip` frames; return True if the episode has ended."""
    game = rows.games[row]
    reward, ended = 0, False
    for _ in range(settings[SKIP]):
        reward += frame_row(rows, row, action)
        ended = bool(game[DEAD] or game[FLAG_GET])
        if ended:
            break
    results.elapsed[row] += 1
    results.rewards[row] = reward
    results.terminated[row] = ended
    most = settings[MOST_STEPS]
    results.truncated[row] = not ended and most > 0 and results.elapsed[row] >= most
    return bool(ended or results.truncated[row])


@kernel_part
def keep_final(rows: Rows, row: int, results: Results) -> None:
    """Save the final observation and infos before the row is reset."""
    stack, final = results.observations[row], results.final_observations[row]
    for number in range(stack.shape[0]):
        frame, kept = stack[number], final[number]
        for at in range(frame.shape[0]):
            kept[at] = frame[at]
    for column in range(INFOS):
        results.final_infos[row, column] = rows.games[row, column]


@allocation_free_kernel
def run_rows(
    chosen: Any,
    actions: Any,
    rows: Rows,
    results: Results,
    shared: SharedInputs,
    scratch: Scratch,
    start: int,
    stop: int,
) -> int:
    """Step rows `start` to `stop - 1`; or, if `chosen` is not empty, start new games in its marked rows.

    Returns -1, or the first row with an invalid action, with nothing changed. One kernel does both and calls
    every part once, to limit compile time.
    """
    resetting = chosen.shape[0] > 0
    if not resetting:
        for row in range(actions.shape[0]):
            if actions[row] < 0 or actions[row] >= ACTIONS:
                return row
    settings = shared.settings
    for row in range(start, stop):
        if resetting and not chosen[row]:
            continue
        fresh = resetting or (results.over[row] and settings[MODE] == NEXT_STEP)
        ended = False
        if fresh:
            results.rewards[row], results.over[row] = 0.0, False
            results.terminated[row], results.truncated[row] = False, False
        else:
            ended = play_row(rows, row, actions[row], results, settings)
        stack = results.observations[row]
        newest = stack[stack.shape[0] - 1]
        while True:
            if fresh:
                reset_game(rows, row, shared.plan, shared.fixed, scratch.work)
                results.elapsed[row] = 0
            else:
                move_stack(stack)
            observe_row(rows, row, settings[SEEN], shared.atlas, shared.palette, scratch, newest)
            for at in range(settings[BAR_BYTES]):
                newest[at] = 255 if rows.games[row, HELD_JUMP] else 0
            if fresh:
                fill_stack(stack)
                break
            if not ended:
                break
            if settings[MODE] != SAME_STEP:
                results.over[row] = True
                break
            keep_final(rows, row, results)
            fresh = True
    return -1
