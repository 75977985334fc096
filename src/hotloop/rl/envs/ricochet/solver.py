"""Finds shortest solutions: a readable breadth-first search, and a wrapper of the compiled one."""

from __future__ import annotations

from collections import deque

import numpy as np

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet.board import LEFT, Position, check_position, is_solved, move

Moves = tuple[int, ...]

_SHALLOW = 1 << 20  # positions after which the deep search takes over


def solve_plainly(position: Position, max_moves: int = 64, *, must_turn: bool = False) -> Moves | None:
    """Return the actions of the first shortest solution, in the order of actions; None within `max_moves`.

    Robots other than the target's are interchangeable: positions that differ only in which of them is where
    count as one; so are all robots if any may reach the target. With `must_turn`, the target's robot must
    have moved both vertically and horizontally when it stops on the target.
    """
    _check_turn(position, must_turn)
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


def _key(position: Position, axes: frozenset[bool]) -> tuple[int | None, tuple[int, ...], frozenset[bool]]:
    others = list(position.robots)
    own = None if position.target_robot is None else others.pop(position.target_robot)
    return own, tuple(sorted(others)), axes


def solve(
    position: Position, max_moves: int = 64, *, must_turn: bool = False, max_states: int = 1 << 28
) -> Moves | None:
    """`solve_plainly`, compiled. Raises HotloopError if the search needs more than `max_states` positions.

    Most boards take microseconds to milliseconds. Two to four robots and a target for one of them: solutions
    of more than 20 moves take seconds and some 500 MB (deep_search.py). Otherwise a position takes 28 bytes,
    and at most 2^26 are searched.
    """
    # Imported here so that the plain search, and with it the reference environment, does not load numba.
    from hotloop.rl.envs.ricochet import kernels
    from hotloop.rl.envs.ricochet.kernels_solve import GAVE_UP, LONGEST, MOST_STATES, make_scratch

    check_position(position)
    _check_turn(position, must_turn)
    robots = len(position.robots)
    goes_deeper = 2 <= robots <= 4 and not must_turn and position.target_robot is not None
    most = min(max_states, _SHALLOW if goes_deeper else MOST_STATES)
    limits = (position.size, robots, min(max_moves, LONGEST), most, must_turn)
    moves, actions = np.zeros(1, dtype=np.int64), np.zeros((1, LONGEST), dtype=np.int64)
    whose = -1 if position.target_robot is None else position.target_robot
    kernels.solve_rows(
        np.array([position.walls], dtype=np.uint8),
        np.array([[*position.robots, position.target, whose]], dtype=np.int32),
        np.array(limits, dtype=np.int64),
        kernels.Scratch(*make_scratch()),
        moves,
        actions,
    )
    found = int(moves[0])
    if found == GAVE_UP and goes_deeper and max_states > _SHALLOW:
        from hotloop.rl.envs.ricochet import deep_search

        deep = deep_search.search(position, max_moves, max_states)
        if deep is not False:
            return deep
    if found == GAVE_UP:
        raise HotloopError(
            f"no solution among the first {max_states} positions; lower max_moves or raise max_states."
        )
    return tuple(actions[0, :found].tolist()) if found >= 0 else None


def _check_turn(position: Position, must_turn: bool) -> None:
    if must_turn and position.target_robot is None:
        raise HotloopError(
            "must_turn=True needs a target for one robot; if any robot may reach it, solve it once for each "
            "robot with dataclasses.replace(position, target_robot=robot)."
        )
