"""Ricochet's rules one by one, generated boards, the expert, invalid boards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet.board import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    Position,
    add_wall,
    centre_cells,
    empty_walls,
    move,
    slide,
)
from hotloop.rl.envs.ricochet.config import RicochetConfig
from hotloop.rl.envs.ricochet.env import RicochetEnv, RicochetVectorEnv
from hotloop.rl.envs.ricochet.generator import draw_position
from hotloop.rl.envs.ricochet.rules import Ricochet
from hotloop.rl.envs.ricochet.solver import solve

# ---- rules


def small(robots: tuple[int, ...], target: int, *walls: tuple[int, int], whose: int = 0) -> Position:
    """A 5 x 5 board; walls as (cell, direction)."""
    bits = empty_walls(5)
    for cell, direction in walls:
        add_wall(bits, 5, cell, direction)
    return Position(5, tuple(bits), robots, target, whose)


def test_a_robot_slides_to_the_border() -> None:
    position = small((6,), 0)
    assert [slide(position, 0, side) for side in (UP, DOWN, LEFT, RIGHT)] == [1, 21, 5, 9]


def test_a_wall_stops_a_robot_from_both_sides() -> None:
    assert slide(small((0,), 24, (2, RIGHT)), 0, RIGHT) == 2
    assert slide(small((4,), 24, (2, RIGHT)), 0, LEFT) == 3


def test_another_robot_and_the_centre_stop_a_robot() -> None:
    assert slide(small((0, 3), 24), 0, RIGHT) == 2
    assert slide(small((10,), 24), 0, RIGHT) == 11
    assert centre_cells(5) == (12,)
    assert centre_cells(8) == (27, 28, 35, 36)


def place(env: RicochetVectorEnv, position: Position) -> None:
    """Put a position into the first row of a batch."""
    assert position.target_robot is not None
    robots = len(position.robots)
    env.walls[0] = position.walls
    env.pieces[0, :robots] = position.robots
    env.pieces[0, robots : robots + 2] = position.target, position.target_robot


def on_eight(robots: tuple[int, ...], target: int, whose: int = 0) -> Position:
    return Position(8, tuple(empty_walls(8)), robots, target, whose)


def both(position: Position, **setup: Any) -> tuple[Ricochet, RicochetVectorEnv]:
    """The plain and the compiled environment at the same position."""
    config = RicochetConfig(robots=len(position.robots), obs_mode="symbolic", **setup)
    plain = Ricochet(config)
    plain.position = position
    batch = RicochetVectorEnv(
        1, robots=len(position.robots), obs_mode="symbolic", autoreset_mode=AutoresetMode.DISABLED, **setup
    )
    batch.reset(seed=0)
    place(batch, position)
    return plain, batch


def step_both(plain: Ricochet, batch: RicochetVectorEnv, action: int) -> tuple[float, bool, bool]:
    _, reward, terminated, truncated, _ = plain.step(action)
    _, rewards, terminations, truncations, _ = batch.step(np.array([action]))
    assert (rewards[0], terminations[0], truncations[0]) == (reward, terminated, truncated)
    assert batch.position(0) == plain.position
    return reward, terminated, truncated


def test_passing_over_the_target_does_not_count_but_stopping_there_does() -> None:
    plain, batch = both(on_eight((0,), 4))
    assert step_both(plain, batch, RIGHT) == (-0.01, False, False)
    plain, batch = both(on_eight((0,), 7))
    assert step_both(plain, batch, RIGHT) == (-0.01 + 1.0, True, False)


def test_another_robot_on_the_target_does_not_count() -> None:
    plain, batch = both(on_eight((63, 0), 7))
    assert step_both(plain, batch, 4 + RIGHT) == (-0.01, False, False)


def test_a_move_that_moves_nothing_and_the_noop_cost_a_step() -> None:
    plain, batch = both(on_eight((0,), 63), noop=True, max_episode_steps=3)
    assert step_both(plain, batch, UP) == (-0.01, False, False)
    assert step_both(plain, batch, 4) == (-0.01, False, False)
    assert step_both(plain, batch, 4) == (-0.01, False, True)


def test_the_goal_on_the_last_step_is_terminated_not_truncated() -> None:
    plain, batch = both(on_eight((0,), 7), max_episode_steps=1)
    assert step_both(plain, batch, RIGHT)[1:] == (True, False)


# ---- boards


@pytest.mark.parametrize("size", range(7, 17))
def test_boards_are_as_described(size: int) -> None:
    config = RicochetConfig(board_size=size, robots=5)
    each = 2 if size < 10 else 4
    orientations = np.zeros(4, dtype=int)
    rng = np.random.default_rng(size)
    drawn = [draw_position(rng, config) for _ in range(40)]
    boards = [position for position in drawn if position is not None]
    assert len(boards) >= 20
    for position in boards:
        empty = empty_walls(size)
        added = [bits & ~none for bits, none in zip(position.walls, empty, strict=True)]
        inside = [
            cell for cell in range(size * size) if 0 < cell // size < size - 1 and 0 < cell % size < size - 1
        ]
        pieces = sum(bits.bit_count() for bits in added) // 2
        assert pieces == 4 * each + 2 * 4 * each  # an edge wall is one wall, an L is two
        target = position.walls[position.target]
        assert target & 0b0011 and target & 0b1100  # the target lies inside an L
        assert position.target in inside
        cells = (*position.robots, position.target)
        assert len(set(cells)) == 6
        assert not set(cells) & set(centre_cells(size))
        for turn, sides in enumerate((0b0101, 0b1001, 0b0110, 0b1010)):
            orientations[turn] += target & sides == sides
    assert (orientations > 0).all()


@pytest.mark.parametrize("limit", [1, 4, 6])
def test_every_board_has_a_solution_within_the_limit_and_the_info_is_its_length(limit: int) -> None:
    env = RicochetVectorEnv(30, obs_mode="symbolic", max_solution_moves=limit)
    _, infos = env.reset(seed=5)
    for row in range(30):
        solution = solve(env.position(row))
        assert solution is not None
        assert 1 <= len(solution) <= limit
        assert infos["optimal_moves"][row] == len(solution)


def test_the_expert_solves_every_board_in_the_optimal_number_of_moves() -> None:
    env = RicochetVectorEnv(20, obs_mode="symbolic", autoreset_mode=AutoresetMode.SAME_STEP)
    _, infos = env.reset(seed=1)
    optimal = infos["optimal_moves"]
    solved = np.zeros(20, dtype=bool)
    for step in range(6):
        actions, moves = env.expert_actions()
        assert (moves[~solved] == optimal[~solved] - step).all()
        _, _, terminated, _, _ = env.step(actions)
        assert (terminated[~solved] == (optimal[~solved] == step + 1)).all()
        solved |= terminated
    assert solved.all()


def test_the_single_expert_leads_to_the_goal() -> None:
    env = RicochetEnv(obs_mode="image")
    _, info = env.reset(seed=9)
    for _ in range(info["optimal_moves"]):
        action = env.expert_action()
        assert action is not None
        _, _, terminated, _, _ = env.step(action)
    assert terminated


def test_solving_gives_up_with_a_word_when_there_is_too_little_room() -> None:
    env = RicochetVectorEnv(1, board_size=16, max_solution_moves=1, obs_mode="symbolic")
    env.reset(seed=0)
    walls = tuple(empty_walls(16))
    with pytest.raises(HotloopError, match="lower max_moves or raise max_states"):
        solve(Position(16, walls, (0, 15, 240, 255), 50, 0), max_states=1)


@pytest.mark.parametrize(
    ("position", "word"),
    [
        (Position(17, (), (0,), 1, 0), "17 cells wide"),
        (small((0, 1, 2, 3, 4, 5), 9), "with 6 robots"),
        (Position(5, (0,) * 25, (0,), 1, 0), r"closed border; start from empty_walls\(5\)"),
        (Position(5, (15,) * 24, (0,), 1, 0), "closed border"),
        (small((0, 0), 9), "separate cells; cells are 0 to 24"),
        (small((25,), 9), "separate cells"),
        (small((0,), -1), "separate cells"),
        (small((0,), 9, whose=1), "target_robot=1 does not exist"),
    ],
)
def test_an_invalid_board_is_one_clear_error(position: Position, word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        solve(position)


def test_stepping_plain_rules_before_a_reset_or_out_of_range_is_an_error() -> None:
    plain = Ricochet(RicochetConfig(obs_mode="symbolic"))
    with pytest.raises(HotloopError, match="before reset"):
        plain.step(0)
    plain.position = on_eight((0, 1, 2, 3), 60)
    with pytest.raises(HotloopError, match="action 16"):
        plain.step(16)
    assert move(plain.position, 12 + DOWN).robots == (0, 1, 2, 19)
