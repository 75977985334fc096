"""The rules of Snake for one game in plain Python: the reference for the compiled batch.

Cells are (row, column), row 0 at the top. The snake is a list of cells, head first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.snake.config import (
    BODY,
    COLUMN_STEP,
    EVERY_K,
    FOOD,
    HEAD,
    RIGHT,
    ROW_STEP,
    START_LENGTH,
    TAIL,
    TURNS,
    SnakeConfig,
)

Cell = tuple[int, int]
Step = tuple[NDArray[Any], float, bool, bool, dict[str, Any]]


def next_cell(cell: Cell, direction: int) -> Cell:
    """Return the adjacent cell in a direction; it may be outside the board."""
    return cell[0] + ROW_STEP[direction], cell[1] + COLUMN_STEP[direction]


def count_reachable(size: int, body: Sequence[Cell], start: Cell, tail_leaves: bool) -> int:
    """Count the free cells reachable from `start` through the four neighbours, `start` included.

    Free cells are those without snake. If the tail leaves, paths may pass through its cell, which is not free
    and does not count. The result is 0 if `start` is outside or blocked.
    """
    occupied = set(body)
    blocked = occupied - {body[-1]} if tail_leaves else occupied
    unseen = {(row, column) for row in range(size) for column in range(size)} - blocked
    if start not in unseen:
        return 0
    unseen.remove(start)
    waiting, count = deque([start]), 0
    while waiting:
        row, column = cell = waiting.popleft()
        if cell not in occupied:
            count += 1
        for neighbour in ((row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1)):
            if neighbour in unseen:
                unseen.remove(neighbour)
                waiting.append(neighbour)
    return count


def reachable_areas(size: int, body: Sequence[Cell], heading: int, tail_leaves: bool) -> list[float]:
    """Return the fractions of free cells reachable after a step straight, left and right."""
    free = size * size - len(body)
    if free == 0:
        return [0.0, 0.0, 0.0]
    starts = (next_cell(body[0], (heading + turn) % 4) for turn in TURNS)
    return [count_reachable(size, body, start, tail_leaves) / free for start in starts]


class SnakeRules:
    """One game. `rng` is a numpy generator or a seed; the game only calls `rng.random()`."""

    def __init__(self, config: SnakeConfig | None = None, rng: np.random.Generator | int | None = None):
        self.config = config if config is not None else SnakeConfig()
        self.rng = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
        self.body: list[Cell] = []
        self.food: Cell | None = None  # None on a full board
        self.heading = RIGHT
        self.elapsed = 0
        self._areas = [0.0, 0.0, 0.0]

    def reset(self) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start with a snake of length 3, head in the centre, heading right, and one food."""
        middle = self.config.size // 2
        self.body = [(middle, middle - back) for back in range(START_LENGTH)]
        self.heading = RIGHT
        self.elapsed = 0
        self._place_food()
        return self.observe(), {"length": len(self.body)}

    def step(self, action: int) -> Step:
        """Move one cell. A fatal move leaves the snake where it was."""
        if not 0 <= action < self.config.action_count:
            raise HotloopError(f"invalid action {action}; use 0 to {self.config.action_count - 1}.")
        config = self.config
        self.elapsed += 1
        heading = action if config.actions == "absolute" else (self.heading + TURNS[action]) % 4
        head = next_cell(self.body[0], heading)
        if self.blocks(head):
            reward, terminated = config.death_reward, True
        elif head == self.food:
            self.heading = heading
            self.body = [head, *self.body]
            self._place_food()
            reward, terminated = config.food_reward, self.food is None
        else:
            before = self._distance_to_food()
            self.heading = heading
            self.body = [head, *self.body[:-1]]
            nearer = before - self._distance_to_food()
            reward, terminated = config.step_reward + config.distance_shaping * nearer, False
        truncated = not terminated and self.elapsed >= config.max_episode_steps
        return self.observe(), reward, terminated, truncated, {"length": len(self.body)}

    def blocks(self, cell: Cell) -> bool:
        """Whether the snake dies if its head moves there."""
        size = self.config.size
        inside = 0 <= cell[0] < size and 0 <= cell[1] < size
        stays = self.body if self.config.tail_blocks else self.body[:-1]
        return not inside or cell in stays

    def _place_food(self) -> None:
        """Place food on the k-th free cell in reading order, k drawn uniformly."""
        size = self.config.size
        free = [
            (row, column) for row in range(size) for column in range(size) if (row, column) not in self.body
        ]
        self.food = free[int(self.rng.random() * len(free))] if free else None

    def _distance_to_food(self) -> int:
        assert self.food is not None
        return abs(self.body[0][0] - self.food[0]) + abs(self.body[0][1] - self.food[1])

    # ---- observations

    def observe(self) -> NDArray[Any]:
        """Return the configured observation."""
        match self.config.observation:
            case "features":
                return self._features()
            case "grid":
                return self._grid()
            case "planes":
                body, head, _, food, _ = self._planes()
                return np.stack([head, body, food])
            case "planes5":
                return self._planes()

    def _features(self) -> NDArray[np.float32]:
        """Danger straight, left, right; heading; direction of the food (up, right, down, left); areas."""
        (row, column), found = self.body[0], []
        found += [float(self.blocks(next_cell((row, column), (self.heading + turn) % 4))) for turn in TURNS]
        found += [float(direction == self.heading) for direction in range(4)]
        if self.food is None:
            found += [0.0] * 4
        else:
            food_row, food_column = self.food
            found += [
                float(food_row < row),
                float(food_column > column),
                float(food_row > row),
                float(food_column < column),
            ]
        return np.array(found + self._flood_fill(), dtype=np.float32)

    def _flood_fill(self) -> list[float]:
        config = self.config
        if config.flood_fill == "off":
            return []
        if config.flood_fill not in EVERY_K or self.elapsed % config.flood_every == 0:
            self._areas = reachable_areas(config.size, self.body, self.heading, not config.tail_blocks)
        return self._areas

    def _grid(self) -> NDArray[np.uint8]:
        grid = np.zeros((self.config.size, self.config.size), dtype=np.uint8)
        for cell in self.body:
            grid[cell] = BODY
        grid[self.body[-1]] = TAIL
        grid[self.body[0]] = HEAD
        if self.food is not None:
            grid[self.food] = FOOD
        return grid

    def _planes(self) -> NDArray[np.float32]:
        """Body (head included), head, tail, food, and the order: 1 at the head down to 1/length."""
        planes = np.zeros((5, self.config.size, self.config.size), dtype=np.float32)
        length = len(self.body)
        for back, cell in enumerate(self.body):
            planes[0][cell] = 1.0
            planes[4][cell] = (length - back) / length
        planes[1][self.body[0]] = 1.0
        planes[2][self.body[-1]] = 1.0
        if self.food is not None:
            planes[3][self.food] = 1.0
        return planes
