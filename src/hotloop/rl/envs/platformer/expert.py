"""A player that reaches the flag: tries button sequences on a copy of the game and takes the best.

A sequence goes right (running or walking), holds A for some steps, then continues without A; some stand still
or go back first. Each is played until the player is on the ground again. The expert takes the one that loses
least compared with a run without obstacles; sequences that die come last. The most promising come first, and
the search stops at one that is good enough. The expert simulates the game, so its result says nothing about
what an agent could do from observations alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import allocation_free_kernel, kernel_part
from hotloop.rl.envs.platformer import config as c
from hotloop.rl.envs.platformer.env import PlatformerVectorEnv
from hotloop.rl.envs.platformer.kernels import (
    ALONG,
    DEAD,
    ENEMY_COUNT,
    FLAG_GET,
    ON_GROUND,
    PX,
    Rows,
    frame_row,
)

LEAST_FRAMES, MOST_FRAMES = 24, 120  # lookahead
NOTHING, RIGHT, RIGHT_A, RIGHT_B, RIGHT_AB, LEFT = 0, 1, 2, 3, 4, 6
_DEATH, _STUCK = 1 << 28, 1 << 20  # larger than any other loss

# A sequence: action of the first frames and their number; frames with A held; running (1) or walking (0);
# sixteenths of a free run that are good enough to stop the search. What remains of a running sequence after a
# step of four frames is in the list too, so that the expert can stick to a good plan.
_HOLDING = [[RIGHT_B, 0, hold, 1, 15] for hold in (0, *range(40, 0, -4))]
_RUNNING = [[RIGHT_B, wait, hold, 1, 15] for wait in range(4, 28, 4) for hold in (40, 24, 8)]
_WALKING = [[RIGHT, wait, hold, 0, 15] for wait in (0, 4, 8) for hold in (0, 40, 24, 8)]
_WAITING = [[NOTHING, wait, hold, 1, 15] for wait in range(4, 60, 4) for hold in (0, 40)]
_BACK = [[LEFT, wait, hold, 1, 15] for wait in range(4, 60, 4) for hold in (0, 40)]
_RUNNING[-1][4] = _WALKING[-1][4] = _WAITING[-1][4] = 1
SEQUENCES = np.array(_HOLDING + _RUNNING + _WALKING + _WAITING + _BACK, dtype=np.int64)


@kernel_part
def copy_game(rows: Rows, row: int, trial: Rows) -> None:
    """Copy the row's game to the only row of `trial`."""
    for column in range(rows.games.shape[1]):
        trial.games[0, column] = rows.games[row, column]
    for column in range(c.MOST_COLUMNS):
        for at in range(c.ROWS):
            trial.tiles[0, column, at] = rows.tiles[row, column, at]
    for number in range(rows.games[row, ENEMY_COUNT]):
        for column in range(rows.enemies.shape[2]):
            trial.enemies[0, number, column] = rows.enemies[row, number, column]


@kernel_part
def action_at(sequence: Any, frame: int) -> int:
    """Return a sequence's action in a frame."""
    if frame < sequence[1]:
        return int(sequence[0])
    jumping = frame < sequence[1] + sequence[2]
    if sequence[3]:
        return RIGHT_AB if jumping else RIGHT_B
    return RIGHT_A if jumping else RIGHT


@kernel_part
def try_sequence(trial: Rows, sequence: Any) -> tuple[int, int]:
    """Return the sequence's loss compared with a free run of as many frames, and the length of that run.

    Reaching the flag loses nothing. No progress loses more than any progress, a death more than anything
    else, and an early death more than a late one.
    """
    game = trial.games[0]
    start, pace, free = int(game[PX]), int(game[ALONG]), 0
    least = max(LEAST_FRAMES, int(sequence[1] + sequence[2]) + 4)
    for frame in range(MOST_FRAMES):
        frame_row(trial, 0, action_at(sequence, frame))
        pace = min(pace + c.PUSH, c.RUN_SPEED)
        free += pace
        if game[DEAD]:
            return _DEATH - frame, free
        if game[FLAG_GET]:
            return 0, free
        if frame >= least and game[ON_GROUND]:
            break
    gained = int(game[PX]) - start
    return (free - gained if gained > 0 else _STUCK - gained), free


@allocation_free_kernel
def choose_actions(rows: Rows, trial: Rows, sequences: Any, actions: Any) -> None:
    """Write an action for every row to `actions`."""
    for row in range(actions.shape[0]):
        best = 2 * _DEATH
        for number in range(sequences.shape[0]):
            copy_game(rows, row, trial)
            lost, free = try_sequence(trial, sequences[number])
            if lost < best:
                best = lost
                actions[row] = action_at(sequences[number], 0)
            if 16 * best <= (16 - sequences[number, 4]) * free:
                break


def expert_actions(env: PlatformerVectorEnv) -> NDArray[np.int64]:
    """Return an action for every row of the environment, as a new array."""
    trial = Rows(
        np.zeros_like(env.games[:1]),
        np.zeros_like(env.tiles[:1]),
        np.zeros_like(env.enemies[:1]),
        np.zeros_like(env.streams[:1]),
    )
    actions = np.zeros(env.num_envs, dtype=np.int64)
    choose_actions(env.rows, trial, SEQUENCES, actions)
    return actions
