"""The search over sets of positions finds the same solutions as the plain one, and long ones."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.rl.envs.ricochet import deep_search
from hotloop.rl.envs.ricochet.board import Position, add_wall, empty_walls, is_solved
from hotloop.rl.envs.ricochet.solver import solve, solve_plainly
from tests.oracle.test_ricochet_facts import BLUE, CORNERS, RED, YELLOW, published, replay


@pytest.mark.long
def test_small_boards_have_the_solutions_of_the_plain_search() -> None:
    rng = np.random.default_rng(0)
    lengths = set()
    for robots in (2, 3, 4):
        for size in (4, 5, 6):
            for _ in range(6):
                walls = empty_walls(size)
                inner = [cell for cell in range(size * size) if walls[cell] != 15]
                for _ in range(size):
                    add_wall(walls, size, int(rng.choice(inner)), int(rng.integers(4)))
                *cells, target = (int(cell) for cell in rng.permutation(inner)[: robots + 1])
                position = Position(size, tuple(walls), tuple(cells), target, int(rng.integers(robots)))
                if is_solved(position):
                    continue
                found = deep_search.search(position, 5, 1 << 30)
                assert found == solve_plainly(position, 5)
                lengths.add(None if found is None else len(found or ()))
    assert len(lengths) > 4


@pytest.mark.long
def test_long_solutions_are_those_of_the_search_over_positions() -> None:
    position = published(CORNERS, (5, 5), YELLOW)
    found = deep_search.search(position, 64, 1 << 30)
    assert found == solve(position)
    assert len(found or ()) == 13
    assert deep_search.search(position, 12, 1 << 30) is None
    assert deep_search.search(position, 64, 1000) is False


@pytest.mark.long
@pytest.mark.parametrize(("target", "whose", "moves"), [((3, 7), BLUE, 25), ((1, 8), RED, 22)])
def test_the_longest_solutions_on_the_published_board(
    target: tuple[int, int], whose: int, moves: int
) -> None:
    position = published(CORNERS, target, whose)
    solution = solve(position)
    assert solution is not None
    assert len(solution) == moves
    assert is_solved(replay(position, solution))
    assert solve(position, moves - 1) is None
