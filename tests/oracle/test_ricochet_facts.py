"""Ricochet against what is known: published optima, and an independent search on small boards."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.rl.envs.ricochet.board import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    Position,
    add_wall,
    empty_walls,
    is_solved,
    move,
)
from hotloop.rl.envs.ricochet.solver import solve, solve_plainly

# The board that the tests and benchmarks of Lireer/ricochet-robot-solver use (four quadrants of the real
# game): for each row the columns of the cells with a wall on their right, and below.
EAST = {
    0: (1, 11), 1: (4,), 2: (11,), 3: (0, 13), 4: (9,), 5: (4, 11), 6: (3,), 7: (6, 8), 8: (2, 6, 8),
    9: (4, 10), 10: (1,), 11: (14,), 12: (4, 8), 14: (5, 12), 15: (3, 13),
}  # fmt: skip
SOUTH = {
    0: (4,), 2: (11, 13), 3: (1,), 4: (5, 10, 12), 5: (0, 15), 6: (3, 7, 8), 7: (2,), 8: (7, 8, 15),
    9: (5, 11), 10: (1, 14), 11: (4, 9), 12: (0,), 13: (6,), 14: (12,),
}  # fmt: skip
RED, BLUE, GREEN, YELLOW = range(4)
CORNERS = ((15, 15), (0, 15), (15, 0), (0, 0))


def published(robots: tuple[tuple[int, int], ...], target: tuple[int, int], whose: int) -> Position:
    walls = empty_walls(16)
    for sides, direction in ((EAST, RIGHT), (SOUTH, DOWN)):
        for row, columns in sides.items():
            for column in columns:
                add_wall(walls, 16, row * 16 + column, direction)
    cells = tuple(row * 16 + column for row, column in robots)
    return Position(16, tuple(walls), cells, target[0] * 16 + target[1], whose)


def replay(position: Position, actions: tuple[int, ...]) -> Position:
    for action in actions:
        assert not is_solved(position)
        assert move(position, action) != position
        position = move(position, action)
    return position


@pytest.mark.parametrize(
    ("target", "whose", "moves"),
    [
        ((5, 12), BLUE, 2),
        ((3, 13), YELLOW, 3),
        ((3, 1), RED, 4),
        ((12, 4), RED, 5),
        ((14, 12), GREEN, 7),
        ((2, 11), RED, 8),
        ((4, 10), GREEN, 9),
        ((12, 9), YELLOW, 11),
        ((14, 6), YELLOW, 12),
        ((5, 5), YELLOW, 13),
    ],
)
def test_published_optima_with_the_robots_in_the_corners(
    target: tuple[int, int], whose: int, moves: int
) -> None:
    position = published(CORNERS, target, whose)
    solution = solve(position)
    assert solution is not None
    assert len(solution) == moves
    assert is_solved(replay(position, solution))
    assert solve(position, moves - 1) is None
    if moves <= 5:
        assert solve_plainly(position) == solution


def test_published_optimum_of_the_target_that_any_robot_may_reach() -> None:
    found = [solve(published(CORNERS, (8, 2), whose), 12) for whose in range(4)]
    assert min(len(one) for one in found if one is not None) == 6


def test_published_solution_of_nine_moves() -> None:
    position = published(((1, 0), (4, 5), (1, 7), (15, 7)), (12, 9), YELLOW)
    steps = (
        (RED, RIGHT), (RED, DOWN), (RED, RIGHT), (BLUE, RIGHT), (BLUE, DOWN),
        (RED, LEFT), (RED, DOWN), (YELLOW, RIGHT), (YELLOW, UP),
    )  # fmt: skip
    solution = tuple(robot * 4 + direction for robot, direction in steps)
    assert replay(position, solution).robots == (15 * 16 + 10, 11 * 16 + 9, 16 + 7, 12 * 16 + 9)
    found = solve(position)
    assert found is not None
    assert len(found) == len(solution)


def test_published_solution_of_thirteen_moves() -> None:
    position = published(((2, 3), (12, 4), (0, 14), (9, 12)), (5, 5), YELLOW)
    steps = (
        (RED, DOWN), (RED, LEFT), (BLUE, LEFT), (BLUE, UP), (BLUE, RIGHT), (YELLOW, RIGHT), (YELLOW, DOWN),
        (YELLOW, LEFT), (YELLOW, UP), (YELLOW, LEFT), (YELLOW, UP), (YELLOW, RIGHT), (YELLOW, UP),
    )  # fmt: skip
    solution = tuple(robot * 4 + direction for robot, direction in steps)
    assert replay(position, solution).robots == (6 * 16, 7 * 16 + 6, 14, 5 * 16 + 5)
    found = solve(position)
    assert found is not None
    assert len(found) == len(solution)


# ---- a third opinion: depth-first with growing depth, over sets of blocked steps, no memory


def by_deepening(
    size: int, blocked: set[tuple[int, int, int, int]], robots: list[tuple[int, int]],
    target: tuple[int, int], whose: int, depth: int, axes: frozenset[bool] | None,
) -> bool:  # fmt: skip
    if robots[whose] == target and (axes is None or len(axes) == 2):
        return True
    if depth == 0:
        return False
    for robot, (row, column) in enumerate(robots):
        for down, along in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            y, x = row, column
            while (
                0 <= y + down < size
                and 0 <= x + along < size
                and (y, x, y + down, x + along) not in blocked
                and (y + down, x + along) not in robots
            ):
                y, x = y + down, x + along
            if (y, x) != (row, column):
                moved = [*robots[:robot], (y, x), *robots[robot + 1 :]]
                turned = axes | {down == 0} if axes is not None and robot == whose else axes
                if by_deepening(size, blocked, moved, target, whose, depth - 1, turned):
                    return True
    return False


@pytest.mark.parametrize("must_turn", [False, True])
@pytest.mark.parametrize(("size", "robots", "depth"), [(4, 1, 6), (5, 2, 4), (6, 3, 3), (3, 2, 5)])
def test_small_boards_against_a_search_without_memory(
    size: int, robots: int, depth: int, must_turn: bool
) -> None:
    rng = np.random.default_rng(size)
    lengths = set()
    for _ in range(25):
        walls = empty_walls(size)
        inner = [cell for cell in range(size * size) if walls[cell] != 15]
        for _ in range(size):
            add_wall(walls, size, int(rng.choice(inner)), int(rng.integers(4)))
        *cells, target = (int(cell) for cell in rng.permutation(inner)[: robots + 1])
        position = Position(size, tuple(walls), tuple(cells), target, int(rng.integers(robots)))
        blocked = set()
        for cell, bits in enumerate(walls):
            y, x = divmod(cell, size)
            ahead = ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
            blocked |= {(y, x, *ahead[side]) for side in range(4) if bits >> side & 1}
        places = [divmod(cell, size) for cell in cells]
        axes: frozenset[bool] | None = frozenset() if must_turn else None
        goal, whose = divmod(target, size), position.target_robot or 0
        shortest = None
        for limit in range(depth + 1):
            if by_deepening(size, blocked, places, goal, whose, limit, axes):
                shortest = limit
                break
        found = solve(position, depth, must_turn=must_turn)
        assert (None if found is None else len(found)) == shortest
        assert solve_plainly(position, depth, must_turn=must_turn) == found
        lengths.add(shortest)
    assert len(lengths) > 2


def test_must_turn_takes_the_longer_way() -> None:
    # An empty 5 x 5 board: straight right along row 0 reaches the corner.
    position = Position(5, tuple(empty_walls(5)), (0,), 4, 0)
    assert solve(position) == (RIGHT,)
    assert solve(position, must_turn=True) == (DOWN, UP, RIGHT)
