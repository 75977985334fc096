"""Shortest solutions: the obvious breadth-first search, and the door to the compiled one."""

from __future__ import annotations

from collections import deque

import numpy as np

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet.board import LEFT, Position, is_solved, move, neighbour

Moves = tuple[int, ...]


def solve_plainly(position: Position, max_moves: int = 64, *, must_turn: bool = False) -> Moves | None:
    """The first shortest solution in the order of actions, as actions; None when there is none so short.

    Robots other than the target's are interchangeable: positions that differ only in which of them
    stands where are looked at once. With `must_turn` the target's robot must have moved both up or
    down and left or right when it stops on the target.
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
    """As `solve_plainly`, compiled. Raises when more than `max_states` positions would have to be kept.

    A position kept takes 28 bytes; there is never room for more than 2^26.
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
            f"no solution among the first {max_states} positions; give fewer max_moves or more max_states."
        )
    return tuple(actions[0, :found].tolist()) if found >= 0 else None


def _check(position: Position) -> None:
    """Raise when the compiled search could not walk on this board: it trusts that walls close the border."""
    size, cells = position.size, range(position.size**2)
    if not 1 <= size <= 16 or not 1 <= len(position.robots) <= 5:
        raise HotloopError(
            f"a board {size} cells wide with {len(position.robots)} robots cannot be solved here; "
            "boards go up to 16 x 16, with 1 to 5 robots."
        )
    if len(position.walls) != len(cells) or any(
        neighbour(size, cell, side) is None and not position.walls[cell] & 1 << side
        for cell in cells
        for side in range(4)
    ):
        raise HotloopError(
            f"the walls of this board are not {size} x {size} cells with a closed border; "
            f"begin with empty_walls({size}) and add_wall."
        )
    places = (*position.robots, position.target)
    if any(cell not in cells for cell in places) or len(set(position.robots)) < len(position.robots):
        raise HotloopError(
            f"robots on {position.robots} and the target on {position.target} are not on cells of their own; "
            f"cells are 0 to {len(cells) - 1}."
        )
    last = len(position.robots) - 1
    if not 0 <= position.target_robot <= last:
        raise HotloopError(f"target_robot={position.target_robot} is none of the robots; use 0 to {last}.")
