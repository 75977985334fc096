"""Compiled observations. Images of the board are updated, not redrawn: a step writes only changed cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import inlined_part
from hotloop.rl.envs.snake.config import BODY, FOOD, FREE, HEAD, TAIL
from hotloop.rl.envs.snake.directions import column_step, row_step, turned
from hotloop.rl.envs.snake.flood import flood_row
from hotloop.rl.envs.snake.layout import (
    BEGUN,
    COLUMN_MASK,
    DIED,
    FEATURES,
    FLOOD,
    FOOD_AT,
    GRID,
    HEAD_AT,
    HEADING,
    LEFT_AT,
    LENGTH,
    NOWHERE,
    OBSERVATION,
    OUTCOME,
    PLANES3,
    RING,
    ROW_SHIFT,
    SIZE,
    TAIL_BLOCKS,
    Boards,
    Options,
    Snakes,
)

_ONE = np.uint64(1)


@inlined_part
def _place_of(cell: int, size: int) -> int:
    """Return the index of a cell in a plane stored row by row."""
    return (cell >> ROW_SHIFT) * size + (cell & COLUMN_MASK)


@inlined_part
def _cell_back(snakes: Snakes, row: int, size: int, back: int) -> int:
    """Return the cell `back` places behind the head."""
    at = snakes[row, HEAD_AT] - back
    return int(snakes[row, RING + (at if at >= 0 else at + size * size)])


@inlined_part
def _features_row(
    snakes: Snakes, boards: Boards, options: Options, row: int, observations: NDArray[Any]
) -> None:
    """Write danger straight, left, right; heading; direction of the food (up, right, down, left)."""
    size = options[SIZE]
    head, heading, food = _cell_back(snakes, row, size, 0), snakes[row, HEADING], snakes[row, FOOD_AT]
    head_y, head_x = head >> ROW_SHIFT, head & COLUMN_MASK
    tail = NOWHERE if options[TAIL_BLOCKS] else _cell_back(snakes, row, size, snakes[row, LENGTH] - 1)
    for i in range(3):
        direction = turned(heading, i)
        y, x = head_y + row_step(direction), head_x + column_step(direction)
        danger = y < 0 or y >= size or x < 0 or x >= size
        if not danger and (boards[row, y] >> np.uint64(x)) & _ONE:
            danger = ((y << ROW_SHIFT) | x) != tail
        observations[row, i] = 1.0 if danger else 0.0
    for direction in range(4):
        observations[row, 3 + direction] = 1.0 if direction == heading else 0.0
    there = food != NOWHERE
    food_y, food_x = food >> ROW_SHIFT, food & COLUMN_MASK
    observations[row, 7] = 1.0 if there and food_y < head_y else 0.0
    observations[row, 8] = 1.0 if there and food_x > head_x else 0.0
    observations[row, 9] = 1.0 if there and food_y > head_y else 0.0
    observations[row, 10] = 1.0 if there and food_x < head_x else 0.0
    if options[FLOOD]:
        flood_row(snakes, boards, options, row, observations)


@inlined_part
def _update_grid(snakes: Snakes, size: int, row: int, observations: NDArray[Any]) -> None:
    """Update one row's grid after a move."""
    left = snakes[row, LEFT_AT]
    if left != NOWHERE:
        observations[row, _place_of(left, size)] = FREE
        observations[row, _place_of(_cell_back(snakes, row, size, snakes[row, LENGTH] - 1), size)] = TAIL
    observations[row, _place_of(_cell_back(snakes, row, size, 1), size)] = BODY
    observations[row, _place_of(_cell_back(snakes, row, size, 0), size)] = HEAD
    if left == NOWHERE and snakes[row, FOOD_AT] != NOWHERE:
        observations[row, _place_of(snakes[row, FOOD_AT], size)] = FOOD


@inlined_part
def _update_planes(
    snakes: Snakes,
    size: int,
    row: int,
    observations: NDArray[Any],
    head_plane: int,
    body_plane: int,
    food_plane: int,
) -> None:
    """Update the head, body and food planes, which start at these offsets, after a move."""
    left = snakes[row, LEFT_AT]
    new = _place_of(_cell_back(snakes, row, size, 0), size)
    if left != NOWHERE:
        observations[row, body_plane + _place_of(left, size)] = 0.0
    else:
        observations[row, food_plane + new] = 0.0
        if snakes[row, FOOD_AT] != NOWHERE:
            observations[row, food_plane + _place_of(snakes[row, FOOD_AT], size)] = 1.0
    observations[row, head_plane + _place_of(_cell_back(snakes, row, size, 1), size)] = 0.0
    observations[row, head_plane + new] = 1.0
    observations[row, body_plane + new] = 1.0


@inlined_part
def _update_tail_and_order(snakes: Snakes, size: int, row: int, observations: NDArray[Any]) -> None:
    """Update the third and fifth of five planes after a move: every cell of the snake changes."""
    tail_plane, order_plane = 2 * size * size, 4 * size * size
    left, length = snakes[row, LEFT_AT], snakes[row, LENGTH]
    if left != NOWHERE:
        observations[row, tail_plane + _place_of(left, size)] = 0.0
        observations[row, order_plane + _place_of(left, size)] = 0.0
    observations[row, tail_plane + _place_of(_cell_back(snakes, row, size, length - 1), size)] = 1.0
    for back in range(length):
        place = _place_of(_cell_back(snakes, row, size, back), size)
        observations[row, order_plane + place] = (length - back) / length


@inlined_part
def _draw_row(snakes: Snakes, options: Options, row: int, observations: NDArray[Any]) -> None:
    """Draw one row's board from scratch, after a reset."""
    size, kind = options[SIZE], options[OBSERVATION]
    area, length = size * size, snakes[row, LENGTH]
    for i in range(observations.shape[1]):
        observations[row, i] = 0
    food = _place_of(snakes[row, FOOD_AT], size)
    head = _place_of(_cell_back(snakes, row, size, 0), size)
    tail = _place_of(_cell_back(snakes, row, size, length - 1), size)
    body_plane = area if kind == PLANES3 else 0
    for back in range(length):
        place = _place_of(_cell_back(snakes, row, size, back), size)
        observations[row, body_plane + place] = 1  # also the grid's value for a body cell
    if kind == GRID:
        observations[row, tail], observations[row, head], observations[row, food] = TAIL, HEAD, FOOD
    elif kind == PLANES3:
        observations[row, head] = 1
        observations[row, 2 * area + food] = 1
    else:
        observations[row, area + head] = 1
        observations[row, 3 * area + food] = 1
        _update_tail_and_order(snakes, size, row, observations)


@inlined_part
def observe_row(
    snakes: Snakes, boards: Boards, options: Options, row: int, observations: NDArray[Any]
) -> None:
    """Update one row's flat observation after a reset or a step.

    Must be called exactly once after each: images are updated incrementally.
    """
    size, kind, outcome = options[SIZE], options[OBSERVATION], snakes[row, OUTCOME]
    if outcome == DIED:
        return  # nothing moved
    if kind == FEATURES:
        _features_row(snakes, boards, options, row, observations)
    elif outcome == BEGUN:
        _draw_row(snakes, options, row, observations)
    elif kind == GRID:
        _update_grid(snakes, size, row, observations)
    elif kind == PLANES3:
        _update_planes(snakes, size, row, observations, 0, size * size, 2 * size * size)
    else:
        _update_planes(snakes, size, row, observations, size * size, 0, 3 * size * size)
        _update_tail_and_order(snakes, size, row, observations)
