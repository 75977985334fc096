"""Snake against independent facts: flood-fill counts and rule cases of public snakes, known outcomes.

Cells here are (row, column) with row 0 at the top; the sources' (x, y) is written as (y, x), and where their
y grows upwards "up" is the direction in which their y grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from hotloop.rl.envs.snake.config import DOWN, LEFT, RIGHT, UP, SnakeConfig
from hotloop.rl.envs.snake.env import SnakeVectorEnv
from hotloop.rl.envs.snake.flood import count_filled, fill_from
from hotloop.rl.envs.snake.kernels import observe_rows
from hotloop.rl.envs.snake.layout import (
    FOOD_AT,
    HEAD_AT,
    HEADING,
    LENGTH,
    OUTCOME,
    RING,
    body_of,
    make_boards,
)
from hotloop.rl.envs.snake.rules import Cell, SnakeRules, count_reachable, next_cell


def cells(*places: tuple[int, int]) -> list[Cell]:
    """The sources' (x, y) as (row, column)."""
    return [(y, x) for x, y in places]


def compiled_count(size: int, body: list[Cell], start: Cell, tail_leaves: bool) -> int:
    boards = make_boards(1, size)
    blocked = body[:-1] if tail_leaves else body
    if not (0 <= start[0] < size and 0 <= start[1] < size) or start in blocked:
        return 0
    for row, column in blocked:
        boards[0, row] |= np.uint64(1 << column)
    fill_from(boards, 0, size, *start)
    for row, column in body:
        boards[0, row] |= np.uint64(1 << column)
    return count_filled(boards, 0, size)


both = pytest.mark.parametrize("count", [count_reachable, compiled_count], ids=["python", "compiled"])

HOOK = cells((0, 1), (1, 1), (1, 0))
LONGER_HOOK = cells((0, 2), (1, 2), (1, 1), (1, 0))
COILED = cells((2, 2), (2, 1), (1, 1), (1, 2), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1))
WAYS = {"up": (1, 0), "down": (-1, 0), "left": (0, -1), "right": (0, 1)}  # y grows upwards there


@both
@pytest.mark.parametrize(
    ("body", "start", "expected"),
    [(HOOK, (0, 0), 1), (LONGER_HOOK, (1, 0), 2), (LONGER_HOOK, (3, 0), 19)],
)
def test_a_tail_that_stays_closes_the_pocket(
    count: Any, body: list[Cell], start: Cell, expected: int
) -> None:
    assert count(5, body, start, False) == expected


@both
@pytest.mark.parametrize(("body", "start"), [(HOOK, (0, 0)), (LONGER_HOOK, (1, 0)), (LONGER_HOOK, (3, 0))])
def test_a_tail_that_leaves_opens_it(count: Any, body: list[Cell], start: Cell) -> None:
    """The way leads through the tail's cell, which is not free and not counted."""
    assert count(5, body, start, True) == 25 - len(body)


@both
@pytest.mark.parametrize(
    ("size", "body", "expected"),
    [
        (3, cells((1, 1)), {"up": 8, "down": 8, "left": 8, "right": 8}),
        (3, cells((0, 0)), {"down": 0, "left": 0, "up": 8, "right": 8}),
        (5, COILED, {"up": 0, "down": 0, "left": 0, "right": 0}),
        (19, cells((9, 9)), {"up": 360}),
    ],
)
def test_counts_for_each_move(count: Any, size: int, body: list[Cell], expected: dict[str, int]) -> None:
    head = body[0]
    for way, number in expected.items():
        start = head[0] + WAYS[way][0], head[1] + WAYS[way][1]
        assert count(size, body, start, False) == number, way


def put(env: SnakeVectorEnv, body: list[Cell], heading: int, food: Cell) -> Any:
    """Set the only game of a batch; returns its observation."""
    env.reset(seed=0)
    env.boards[0] = 0
    for back, (row, column) in enumerate(body):
        env.snakes[0, RING + len(body) - 1 - back] = row * 64 + column
        env.boards[0, row] |= np.uint64(1 << column)
    env.snakes[0, [HEAD_AT, LENGTH, HEADING, FOOD_AT, OUTCOME]] = (
        len(body) - 1, len(body), heading, food[0] * 64 + food[1], 0
    )  # fmt: skip
    assert body_of(env.snakes, 0) == body
    observe_rows(env.snakes, env.boards, env._options, env.observations.reshape(1, -1), 0, 1)
    return env.observations[0].copy()


def put_both(config: dict[str, Any], body: list[Cell], heading: int, food: Cell) -> tuple[Any, SnakeRules]:
    """The same game in a batch and in the rules, which must look alike; the batch and the rules."""
    env = SnakeVectorEnv(1, autoreset_mode=AutoresetMode.DISABLED, **config)
    seen = put(env, body, heading, food)
    rules = SnakeRules(SnakeConfig(**config), 0)
    rules.reset()
    rules.body, rules.heading, rules.food = list(body), heading, food
    assert np.array_equal(seen, rules.observe())
    return env, rules


def test_dangers_and_food_of_a_published_snake() -> None:
    far = (0, 0)
    _, rules = put_both({}, cells((9, 5), (8, 5), (7, 5)), RIGHT, far)
    assert rules.observe()[0] == 1  # a wall straight ahead
    _, rules = put_both({}, cells((5, 5), (4, 5), (3, 5)), UP, far)
    assert rules.observe()[0] == 0
    _, rules = put_both({}, cells((5, 5), (4, 5), (3, 5)), RIGHT, (2, 8))
    assert rules.observe()[7:11].tolist() == [1, 1, 0, 0]  # up and right


@pytest.mark.parametrize(("tail_blocks", "danger"), [(True, 1), (False, 0)])
def test_the_tail_beside_the_head_is_a_danger_only_where_it_blocks(tail_blocks: bool, danger: int) -> None:
    """That snake's own rule counts the tail; by default ours lets the head follow it."""
    square = cells((5, 5), (5, 4), (4, 4), (4, 5))
    env, rules = put_both({"tail_blocks": tail_blocks}, square, UP, (9, 9))
    assert rules.observe()[1] == danger  # left
    for _, reward, terminated, _, _ in (rules.step(1), env.step(np.array([1]))):
        assert bool(terminated) is bool(danger)
        assert reward == (-10 if danger else -0.01)
    assert body_of(env.snakes, 0) == rules.body == (square if danger else [square[-1], *square[:-1]])


def test_absolute_moves_are_up_right_down_left() -> None:
    for action, expected in enumerate([(2, 5), (3, 6), (4, 5), (3, 4)]):
        body = [(3, 5), next_cell((3, 5), (action + 2) % 4)]  # the neck behind it
        env, rules = put_both({"actions": "absolute"}, body, action, (9, 9))
        rules.step(action)
        env.step(np.array([action]))
        assert body_of(env.snakes, 0)[0] == rules.body[0] == expected


def test_turning_back_into_the_neck_dies() -> None:
    env, rules = put_both({"actions": "absolute"}, [(4, 4), (4, 3), (4, 2)], RIGHT, (9, 9))
    assert rules.step(LEFT)[2]
    assert env.step(np.array([LEFT]))[2][0]


def test_growth_shows_at_once_and_the_tail_stays() -> None:
    """In Battlesnake the tail moves while eating and the new length appears one move later; not here."""
    body = cells((1, 1), (1, 2))
    env, rules = put_both({"actions": "absolute"}, body, UP, (0, 1))
    assert rules.step(UP)[1] == env.step(np.array([UP]))[1][0] == 10
    assert rules.body == body_of(env.snakes, 0) == cells((1, 0), (1, 1), (1, 2))
    assert rules.food not in rules.body


def test_five_planes_equal_jumanjis() -> None:
    """Values that jumanji 1.1.2's Snake gave for this snake of six, quotients rounded twice."""
    body = [(0, 4), (0, 3), (1, 3), (2, 3), (3, 3), (4, 3)]
    env, _ = put_both({"observation": "planes5", "size": 6}, body, RIGHT, (3, 0))
    snake, head, tail, food, order = env.observations[0]
    assert {(r, c) for r, c in np.argwhere(snake).tolist()} == set(body)
    assert np.argwhere(head).tolist() == [[0, 4]]
    assert np.argwhere(tail).tolist() == [[4, 3]]
    assert np.argwhere(food).tolist() == [[3, 0]]
    jumanji = [1.0, 0.8333333730697632, 0.6666666865348816, 0.5, 0.3333333432674408, 0.1666666716337204]
    assert np.allclose([order[cell] for cell in body], jumanji, rtol=1.2e-7, atol=0)
    assert np.count_nonzero(order) == 6


def cycle(size: int) -> dict[Cell, int]:
    """Directions along a closed way through every cell: up the first column, to and fro through the rest."""
    way = {}
    for row in range(size):
        for column in range(size):
            if column == 0:
                way[row, column] = UP if row > 0 else RIGHT
            elif row % 2 == 0:
                way[row, column] = RIGHT if column < size - 1 else DOWN
            elif row == size - 1:
                way[row, column] = LEFT
            else:
                way[row, column] = LEFT if column > 1 else DOWN
    return way


@pytest.mark.parametrize("size", [4, 6, 10])
@pytest.mark.parametrize("observation", ["features", "planes5", "grid"])
def test_going_round_a_closed_way_fills_the_board_and_wins(size: int, observation: str) -> None:
    """Even boards have a Hamiltonian cycle; the head follows the tail around it, which the rules allow."""
    env = SnakeVectorEnv(
        3,
        size=size,
        actions="absolute",
        observation=observation,
        max_episode_steps=size**4,
        autoreset_mode="SameStep",
    )
    env.reset(seed=5)
    way = cycle(size)
    # The snake begins heading right, in a row where the way leads left or right: it joins from above.
    lead = {4: [UP, UP], 6: [UP], 10: [UP]}[size]
    eaten = np.zeros(3, dtype=int)
    won = np.zeros(3, dtype=bool)
    for step in range(size**4):
        heads = [body_of(env.snakes, row)[0] for row in range(3)]
        actions = np.array([lead[step] if step < len(lead) else way[head] for head in heads])
        _, rewards, terminated, truncated, infos = env.step(actions)
        assert not truncated.any()
        eaten[~won] += rewards[~won] == 10
        for row in np.flatnonzero(terminated & ~won):
            assert rewards[row] == 10  # the last food, not a death
            assert infos["final_info"]["length"][row] == size * size
            assert eaten[row] == size * size - 3
            last = infos["final_obs"][row]
            if observation == "grid":
                assert not (last == 0).any() and not (last == 4).any()
            elif observation == "planes5":
                assert last[0].all() and not last[3].any()
            else:
                assert last[7:11].tolist() == [0, 0, 0, 0]
        won |= terminated
        if won.all():
            break
    assert won.all()


def test_food_is_uniform_over_the_free_cells() -> None:
    from scipy.stats import chisquare

    env = SnakeVectorEnv(20_000, size=5, observation="grid")
    grids, _ = env.reset(seed=0)
    counts = (grids == 4).sum(axis=0)
    assert counts.sum() == 20_000
    assert counts[2, :3].tolist() == [0, 0, 0]  # the snake
    free = np.delete(counts.ravel(), [10, 11, 12])
    assert chisquare(free).pvalue > 0.001
