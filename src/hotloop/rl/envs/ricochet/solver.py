"""Finds shortest solutions: a readable breadth-first search, and a wrapper of the compiled one."""

from __future__ import annotations

from collections import deque

import numpy as np

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet.board import LEFT, Position, is_solved, move, neighbour

Moves = tuple[int, ...]


def solve_plainly(position: Position, max_moves: int = 64, *, must_turn: bool = False) -> Moves | None:
    """Return the actions of the first shortest solution, in the order of actions; None within `max_moves`.

    Robots other than the target's are interchangeable: positions that differ only in which of them is where
    count as one. With `must_turn`, the target's robot must have moved both vertically and horizontally when
    it stops on the target.
    """
    if is_solved(position) and not must_turn:
        return ()
    axes_before: frozenset[bool] = frozenset()
    seen = {_key(position, axes_before)}
    queue: deque[tuple[Position, frozenset[bool], Moves]] = deque([(position, axes_before, ())])
    while queue:
        before, axes_before, moves = queue.popleft()
        if len(moves) == max_moves:
            return None
        for action in range(4 * len(position.robots)):
            after = move(before, action)
            axes = axes_before
            if after == before:
                continue
            if must_turn and action // 4 == position.target_robot:
                axes = axes_before | {action % 4 >= LEFT}
            key = _key(after, axes)
            if key in seen:
                continue
            if is_solved(after) and (not must_turn or len(axes) == 2):
                return (*moves, action)
            seen.add(key)
            queue.append((after, axes, (*moves, action)))
    return None


def _key(position: Position, axes: frozenset[bool]) -> tuple[int, tuple[int, ...], frozenset[bool]]:
    others = list(position.robots)
    target_robot = others.pop(position.target_robot)
    return target_robot, tuple(sorted(others)), axes


def solve(
    position: Position, max_moves: int = 64, *, must_turn: bool = False, max_states: int = 1 << 24
) -> Moves | None:
    """`solve_plainly`, compiled. Raises HotloopError if the search needs more than `max_states` positions.

    A position takes 28 bytes. `max_states` is capped at 2^26.
    """
    # Imported here so that the plain search, and with it the reference environment, does not load numba.
    from hotloop.rl.envs.ricochet import kernels
    from hotloop.rl.envs.ricochet.kernels_solve import GAVE_UP, LONGEST, MOST_STATES, make_scratch

    _check(position)
    robots = len(position.robots)
    limits = (position.size, robots, min(max_moves, LONGEST), min(max_states, MOST_STATES), must_turn)
    moves, actions = np.zeros(1, dtype=np.int64), np.zeros((1, LONGEST), dtype=np.int64)
    kernels.solve_rows(
        np.array([position.walls], dtype=np.uint8),
        np.array([[*position.robots, position.target, position.target_robot]], dtype=np.int32),
        np.array(limits, dtype=np.int64),
        kernels.Scratch(*make_scratch()),
        moves,
        actions,
    )
    found = int(moves[0])
    if found == GAVE_UP:
        raise HotloopError(
            f"no solution among the first {max_states} positions; lower max_moves or raise max_states."
        )
    return tuple(actions[0, :found].tolist()) if found >= 0 else None


def _check(position: Position) -> None:
    """Raise if the board is invalid: the compiled search relies on walls around the border."""
    size, cells = position.size, range(position.size**2)
    if not 1 <= size <= 16 or not 1 <= len(position.robots) <= 5:
        raise HotloopError(
            f"a board {size} cells wide with {len(position.robots)} robots is not supported; "
            "use boards up to 16 x 16 with 1 to 5 robots."
        )
    if len(position.walls) != len(cells) or any(
        neighbour(size, cell, side) is None and not position.walls[cell] & 1 << side
        for cell in cells
        for side in range(4)
    ):
        raise HotloopError(
            f"the walls of this board are not {size} x {size} cells with a closed border; "
            f"start from empty_walls({size}) and use add_wall."
        )
    places = (*position.robots, position.target)
    if any(cell not in cells for cell in places) or len(set(position.robots)) < len(position.robots):
        raise HotloopError(
            f"robots on {position.robots} and target on {position.target} do not have separate cells; "
            f"cells are 0 to {len(cells) - 1}."
        )
    last = len(position.robots) - 1
    if not 0 <= position.target_robot <= last:
        raise HotloopError(f"target_robot={position.target_robot} does not exist; use 0 to {last}.")
