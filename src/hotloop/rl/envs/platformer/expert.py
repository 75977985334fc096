"""A player that reaches the flag: tries a list of button sequences on a copy of the game, takes the best.

The sequences: go right (running or walking), after some steps hold A for some steps, then go on without A; or
stand still or go back first. Each is played until the player stands on the ground again; the one that loses
least against a run without obstacles is taken, dead ones last. The list is in the order of hope and is left
as soon as one is good enough. It knows the rules, so it is no measure of what can be seen.
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

LEAST_FRAMES, MOST_FRAMES = 24, 120  # that are looked ahead
NOTHING, RIGHT, RIGHT_A, RIGHT_B, RIGHT_AB, LEFT = 0, 1, 2, 3, 4, 6
_DEATH, _STUCK = 1 << 28, 1 << 20  # losses greater than any other

# A sequence: the action of the first frames and how many; then frames of A; running (1) or walking (0); and
# how many sixteenths of a free run are enough, once it was tried, to look no further. What is left of a
# running sequence after a step of four frames is in the list too, so a good plan can be kept.
_HOLDING = [[RIGHT_B, 0, hold, 1, 15] for hold in (0, *range(40, 0, -4))]
_RUNNING = [[RIGHT_B, wait, hold, 1, 15] for wait in range(4, 28, 4) for hold in (40, 24, 8)]
_WALKING = [[RIGHT, wait, hold, 0, 15] for wait in (0, 4, 8) for hold in (0, 40, 24, 8)]
_WAITING = [[NOTHING, wait, hold, 1, 15] for wait in range(4, 60, 4) for hold in (0, 40)]
_BACK = [[LEFT, wait, hold, 1, 15] for wait in range(4, 60, 4) for hold in (0, 40)]
_RUNNING[-1][4] = _WALKING[-1][4] = _WAITING[-1][4] = 1
SEQUENCES = np.array(_HOLDING + _RUNNING + _WALKING + _WAITING + _BACK, dtype=np.int64)


@kernel_part
def copy_game(rows: Rows, row: int, trial: Rows) -> None:
    """The row's game into the only row of `trial`."""
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
    """Which action a sequence holds in a frame."""
    if frame < sequence[1]:
        return int(sequence[0])
    jumping = frame < sequence[1] + sequence[2]
    if sequence[3]:
        return RIGHT_AB if jumping else RIGHT_B
    return RIGHT_A if jumping else RIGHT


@kernel_part
def try_sequence(trial: Rows, sequence: Any) -> tuple[int, int]:
    """What the sequence loses against a free run of as many frames, and how far that would have led.

    The flag loses nothing; no progress loses more than any, a death more than everything else, the earlier
    the more.
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
    """An action for every row, into `actions`."""
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
    """An action for every row of the environment, the caller's to keep."""
    trial = Rows(
        np.zeros_like(env.games[:1]),
        np.zeros_like(env.tiles[:1]),
        np.zeros_like(env.enemies[:1]),
        np.zeros_like(env.streams[:1]),
    )
    actions = np.zeros(env.num_envs, dtype=np.int64)
    choose_actions(env.rows, trial, SEQUENCES, actions)
    return actions
