"""The rules of Ricochet Robots, compiled for batches; `rules.Ricochet` is the readable reference.

The state of a batch is two arrays, first index the row:
walls   uint8 [rows, size * size], bits as in `board.Position`;
pieces  int32 [rows, robots + 7], columns: the cell of each robot, then at `robots` + TARGET .. FRESH.

The functions on one row (`step_row`, `reset_row`, `observe_row`) may be called from other kernels. Those
on batches keep steps and resets apart: rows that need a new board are marked DUE by a step, and only
`reset_rows` contains the generator, which takes the compiler longest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.ricochet.kernels_generate import generate_row
from hotloop.rl.envs.ricochet.kernels_solve import PATH, solve_board
from hotloop.rl.envs.streams import Streams

# Columns of `pieces` after the robots.
TARGET, TARGET_ROBOT, OPTIMAL_MOVES, FINAL_OPTIMAL_MOVES, MOVED, CAME_FROM, FRESH = range(7)
COLUMNS = 7
# Values of the column FRESH: the observation misses only the last move; it misses a new board; the row
# needs a new board.
SHOWN, NEW, DUE = range(3)
# Return values of a batch step if all actions are valid.
DONE, RESETS_DUE = -1, -2
# Entries of `options`, int64.
SIZE, ROBOTS, ACTIONS, MAX_STEPS, MAX_MOVES, PLANES, MODE, LOOKAHEAD = range(8)


class Rows(NamedTuple):
    """State, random streams and step results of a batch."""

    walls: NDArray[np.uint8]
    pieces: NDArray[np.int32]
    streams: Streams
    elapsed: NDArray[np.int32]
    over: NDArray[np.bool_]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class Scratch(NamedTuple):
    """Scratch memory of one thread."""

    words: NDArray[np.uint64]
    numbers: NDArray[np.int32]


@kernel
def first_bad_action(actions: NDArray[np.int64], count: int) -> int:
    """Return the first row whose action is not in 0 to count - 1, or -1."""
    for row in range(actions.shape[0]):
        if actions[row] < 0 or actions[row] >= count:
            return row
    return -1


@kernel
def reset_row(rows: Rows, row: int, options: NDArray[np.int64], scratch: Scratch) -> None:
    """Generate a new board from the row's stream; save the previous board's optimum."""
    robots = options[ROBOTS]
    pieces = rows.pieces[row]
    pieces[robots + FINAL_OPTIMAL_MOVES] = pieces[robots + OPTIMAL_MOVES]
    pieces[robots + OPTIMAL_MOVES] = generate_row(
        rows.streams,
        row,
        rows.walls[row],
        pieces,
        options[SIZE],
        robots,
        options[MAX_MOVES],
        scratch.words,
        scratch.numbers,
    )
    pieces[robots + MOVED] = -1
    pieces[robots + FRESH] = NEW
    rows.elapsed[row] = 0


@kernel
def slide_row(rows: Rows, row: int, size: int, robots: int, robot: int, direction: int) -> int:
    """Return the cell where a sliding robot stops: at a wall or another robot."""
    step = -size if direction == 0 else size if direction == 1 else -1 if direction == 2 else 1
    cell = int(rows.pieces[row, robot])
    while rows.walls[row, cell] & (1 << direction) == 0:
        ahead = cell + step
        for other in range(robots):
            if rows.pieces[row, other] == ahead:
                return cell
        cell = ahead
    return cell


@kernel
def is_targets(pieces: NDArray[np.int32], robots: int, robot: int) -> bool:
    """Whether the target is for this robot, or for any."""
    return bool(pieces[robots + TARGET_ROBOT] == robot or pieces[robots + TARGET_ROBOT] < 0)


@kernel
def step_row(
    rows: Rows, row: int, action: int, options: NDArray[np.int64], values: NDArray[np.float64]
) -> bool:
    """Move one robot, set reward and flags; return True at an episode's end. values: step, goal reward."""
    robots = options[ROBOTS]
    pieces = rows.pieces[row]
    pieces[robots + MOVED] = -1
    pieces[robots + FRESH] = SHOWN
    if action < 4 * robots:
        robot = action // 4
        stop = slide_row(rows, row, options[SIZE], robots, robot, action % 4)
        if stop != pieces[robot]:
            pieces[robots + MOVED] = robot
            pieces[robots + CAME_FROM] = pieces[robot]
            pieces[robot] = stop
    rows.elapsed[row] += 1
    terminated = False
    for robot in range(robots):
        if is_targets(pieces, robots, robot) and pieces[robot] == pieces[robots + TARGET]:
            terminated = True
    truncated = not terminated and rows.elapsed[row] >= options[MAX_STEPS]
    rows.rewards[row] = values[0] + (values[1] if terminated else 0.0)
    rows.terminated[row] = terminated
    rows.truncated[row] = truncated
    return bool(terminated or truncated)


# ---- symbolic and image observations; `observations` float32 [rows, ...]


@kernel
def observe_symbolic_row(rows: Rows, row: int, size: int, robots: int, observations: Any) -> None:
    """Write the vector of `board.symbolic`; after a step, only what changed."""
    pieces = rows.pieces[row]
    last = np.float32(size - 1)
    if pieces[robots + FRESH] != NEW:
        moved = pieces[robots + MOVED]
        if moved >= 0:
            observations[row, 2 * moved] = np.float32(pieces[moved] // size) / last
            observations[row, 2 * moved + 1] = np.float32(pieces[moved] % size) / last
        return
    for place in range(robots + 1):
        observations[row, 2 * place] = np.float32(pieces[place] // size) / last
        observations[row, 2 * place + 1] = np.float32(pieces[place] % size) / last
    at = 2 * robots + 2
    for robot in range(robots):
        observations[row, at + robot] = 1.0 if is_targets(pieces, robots, robot) else 0.0
    at += robots
    for cell in range(size * size):
        observations[row, at + 2 * cell] = (rows.walls[row, cell] >> 1) & 1
        observations[row, at + 2 * cell + 1] = (rows.walls[row, cell] >> 3) & 1


@kernel
def observe_ahead_row(rows: Rows, row: int, size: int, robots: int, further: bool, observations: Any) -> None:
    """Append the values of `board.ahead` to the vector; any move may change all of them."""
    pieces = rows.pieces[row]
    target = pieces[robots + TARGET]
    last, at = np.float32(size - 1), 3 * robots + 2 + 2 * size * size
    for robot in range(robots):
        start = pieces[robot]
        for direction in range(4):
            end = slide_row(rows, row, size, robots, robot, direction)
            observations[row, at] = np.float32(end // size - target // size) / last
            observations[row, at + 1] = np.float32(end % size - target % size) / last
            observations[row, at + 2] = 1.0 if is_targets(pieces, robots, robot) and end == target else 0.0
            at += 3
            if further:
                pieces[robot] = end
                observations[row, at] = 0.0
                for second in range(4 * robots):
                    second_robot = second // 4
                    if (
                        is_targets(pieces, robots, second_robot)
                        and slide_row(rows, row, size, robots, second_robot, second % 4) == target
                    ):
                        observations[row, at] = 1.0
                pieces[robot] = start
                at += 1


@kernel
def observe_image_row(rows: Rows, row: int, size: int, robots: int, observations: Any) -> None:
    """Write the planes of `board.image`, flat [rows, planes * size^2]; after a step, only what changed."""
    pieces = rows.pieces[row]
    cells = size * size
    if pieces[robots + FRESH] != NEW:
        moved = pieces[robots + MOVED]
        if moved >= 0:
            observations[row, moved * cells + pieces[robots + CAME_FROM]] = 0.0
            observations[row, moved * cells + pieces[moved]] = 1.0
            if is_targets(pieces, robots, moved):
                observations[row, (robots + 1) * cells + pieces[robots + CAME_FROM]] = 0.0
                observations[row, (robots + 1) * cells + pieces[moved]] = 1.0
        return
    for at in range((robots + 2) * cells):
        observations[row, at] = 0.0
    for place in range(robots + 1):
        observations[row, place * cells + pieces[place]] = 1.0
    for robot in range(robots):
        if is_targets(pieces, robots, robot):
            observations[row, (robots + 1) * cells + pieces[robot]] = 1.0
    for direction in range(4):
        at = (robots + 2 + direction) * cells
        for cell in range(cells):
            observations[row, at + cell] = (rows.walls[row, cell] >> direction) & 1


@kernel
def observe_row(rows: Rows, row: int, options: NDArray[np.int64], observations: Any) -> None:
    """Write the row's observation, planes or vector; after a step, only what changed."""
    if options[PLANES] == 1:
        observe_image_row(rows, row, options[SIZE], options[ROBOTS], observations)
    else:
        size, robots = options[SIZE], options[ROBOTS]
        observe_symbolic_row(rows, row, size, robots, observations)
        if options[LOOKAHEAD] > 0:
            observe_ahead_row(rows, row, size, robots, options[LOOKAHEAD] > 1, observations)
    if rows.pieces[row, options[ROBOTS] + FRESH] == NEW:
        rows.pieces[row, options[ROBOTS] + FRESH] = SHOWN


# ---- batches


@kernel
def step_rows(
    rows: Rows,
    actions: NDArray[np.int64],
    observations: Any,
    final_observations: Any,
    options: NDArray[np.int64],
    values: NDArray[np.float64],
    start: int,
    stop: int,
) -> int:
    """Step rows `start` to `stop - 1`, with symbolic or image observations.

    Returns the first row with an invalid action (then nothing has changed), DONE or RESETS_DUE.
    """
    wrong = first_bad_action(actions, options[ACTIONS])
    if wrong >= 0:
        return wrong
    answer = DONE
    for row in range(start, stop):
        ended = advance_row(rows, row, actions[row], options, values)
        observe_row(rows, row, options, observations)
        if rows.pieces[row, options[ROBOTS] + FRESH] == DUE:
            answer = RESETS_DUE
            if ended:
                for at in range(observations.shape[1]):
                    final_observations[row, at] = observations[row, at]
    return answer


@kernel
def advance_row(
    rows: Rows, row: int, action: int, options: NDArray[np.int64], values: NDArray[np.float64]
) -> bool:
    """Step a row, or with NEXT_STEP mark it for a new board; return True if its episode has just ended."""
    robots = options[ROBOTS]
    if rows.over[row] and options[MODE] == NEXT_STEP:
        rows.pieces[row, robots + FRESH] = DUE
        rows.pieces[row, robots + MOVED] = -1
        rows.over[row] = False
        rows.rewards[row] = 0.0
        rows.terminated[row] = False
        rows.truncated[row] = False
        return False
    ended = step_row(rows, row, action, options, values)
    if ended and options[MODE] == SAME_STEP:
        rows.pieces[row, robots + FRESH] = DUE
    elif ended:
        rows.over[row] = True
    return ended


@kernel
def advance_rows(
    rows: Rows,
    actions: NDArray[np.int64],
    options: NDArray[np.int64],
    values: NDArray[np.float64],
    start: int,
    stop: int,
) -> int:
    """`step_rows` for pictures, which are drawn afterwards and before any reset."""
    wrong = first_bad_action(actions, options[ACTIONS])
    if wrong >= 0:
        return wrong
    answer = DONE
    for row in range(start, stop):
        advance_row(rows, row, actions[row], options, values)
        if rows.pieces[row, options[ROBOTS] + FRESH] == DUE:
            answer = RESETS_DUE
    return answer


@kernel
def reset_rows(rows: Rows, options: NDArray[np.int64], scratch: Scratch, start: int, stop: int) -> None:
    """Generate new boards for rows `start` to `stop - 1` that need one."""
    for row in range(start, stop):
        if rows.pieces[row, options[ROBOTS] + FRESH] == DUE:
            reset_row(rows, row, options, scratch)


@kernel
def observe_new_rows(
    rows: Rows, observations: Any, options: NDArray[np.int64], start: int, stop: int
) -> None:
    """Write the first observations of the rows with a new board."""
    for row in range(start, stop):
        if rows.pieces[row, options[ROBOTS] + FRESH] == NEW:
            observe_row(rows, row, options, observations)


@kernel
def solve_rows(
    walls: NDArray[np.uint8],
    pieces: NDArray[np.int32],
    limits: NDArray[np.int64],
    scratch: Scratch,
    moves: NDArray[np.int64],
    actions: NDArray[np.int64],
) -> None:
    """Find a shortest solution for each row: its number of moves (see `solve_board`) and its actions.

    limits: size, robots, most moves, most positions kept, whether the target's robot must turn.
    moves [rows]; actions [rows, n], -1 where there is none.
    """
    for row in range(moves.shape[0]):
        found = solve_board(
            walls[row],
            pieces[row],
            limits[0],
            limits[1],
            limits[2],
            limits[4] != 0,
            limits[3],
            scratch.words,
            scratch.numbers,
        )
        moves[row] = found
        for at in range(actions.shape[1]):
            actions[row, at] = scratch.numbers[PATH + at] if at < found else -1


@kernel
def move_ends_rows(rows: Rows, options: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Write the cell where the robot of each action would stop; ends [rows, 4 * robots]."""
    for row in range(ends.shape[0]):
        for action in range(ends.shape[1]):
            ends[row, action] = slide_row(rows, row, options[SIZE], options[ROBOTS], action // 4, action % 4)


@kernel
def moves_by_action_rows(
    rows: Rows, limits: NDArray[np.int64], scratch: Scratch, moves: NDArray[np.int64]
) -> None:
    """Find the length of a shortest solution that begins with each action; moves [rows, 4 * robots].

    It is -1 if the action moves nothing, or if no solution was found. limits: see `solve_rows`.
    """
    size, robots = limits[0], limits[1]
    for row in range(moves.shape[0]):
        pieces = rows.pieces[row]
        for action in range(moves.shape[1]):
            robot, before = action // 4, pieces[action // 4]
            end = slide_row(rows, row, size, robots, robot, action % 4)
            moves[row, action] = -1
            if end == before:
                continue
            pieces[robot] = end
            found = solve_board(
                rows.walls[row],
                pieces,
                size,
                robots,
                limits[2] - 1,
                limits[4] != 0,
                limits[3],
                scratch.words,
                scratch.numbers,
            )
            pieces[robot] = before
            if found >= 0:
                moves[row, action] = found + 1
