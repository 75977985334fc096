"""Generates random levels: ground, pits, pipes, blocks, stairs, and the flag at the end.

Every obstacle can be passed by construction: the widest pit is shorter than a walking jump, the highest wall
lower than a standing jump. `kernels_level.py` generates the same levels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.platformer.config import (
    BEETLE,
    BLOB,
    ENEMY_SIZE,
    MOST_COLUMNS,
    MOST_ENEMIES,
    ROWS,
    TILE_BITS,
    LevelPlan,
    Tile,
)

LOWEST_GROUND = 13  # the row of the grass; rows count from the top
HIGHEST_GROUND = 11
START, END = 12, 26  # flat columns at the start; columns of the final stairs, flag and castle
LONGEST = 18  # most columns of a segment and the ground after it
SEGMENTS = 7


@dataclass
class Level:
    """A level in its initial state."""

    width: int
    """Number of columns in use."""
    flag: int = 0
    """Column of the flagpole."""
    tiles: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((MOST_COLUMNS, ROWS), dtype=np.uint8))
    """[column, row], row 0 at the top."""
    enemies: list[tuple[int, int, int]] = field(default_factory=list)
    """Kind, x and y (units) of each enemy, at most MOST_ENEMIES."""


class Builder:
    """Builds a level from left to right; only calls `rng.random()`."""

    def __init__(self, rng: np.random.Generator, plan: LevelPlan):
        self.rng, self.plan = rng, plan
        self.level = Level(plan.width)
        self.column = 0
        self.ground = LOWEST_GROUND

    def build(self) -> Level:
        """Build the whole level."""
        self.lay(START)
        while self.column < self.plan.width - END - LONGEST:
            self.add_segment(self.below(SEGMENTS))
            if self.plan.steps:
                self.ground = min(max(self.ground + self.below(3) - 1, HIGHEST_GROUND), LOWEST_GROUND)
            self.rest()
        self.finish()
        return self.level

    def below(self, bound: int) -> int:
        """Draw an integer from 0 to bound - 1."""
        return int(self.rng.random() * bound)

    # ---- pieces

    def put(self, column: int, row: int, tile: Tile) -> None:
        """Set one cell."""
        self.level.tiles[column, row] = tile

    def lay(self, columns: int) -> None:
        """Lay columns of flat ground."""
        for column in range(self.column, self.column + columns):
            self.put(column, self.ground, Tile.GRASS)
            for row in range(self.ground + 1, ROWS):
                self.put(column, row, Tile.DIRT)
        self.column += columns

    def add_enemy(self, column: int) -> None:
        """Place an enemy on the ground."""
        kind = BEETLE if self.plan.beetles and self.below(3) == 0 else BLOB
        if len(self.level.enemies) < MOST_ENEMIES:
            y = (self.ground << TILE_BITS) - ENEMY_SIZE
            self.level.enemies.append((kind, column << TILE_BITS, y))

    def rest(self) -> None:
        """Lay flat ground to land on, with plants."""
        columns = 3 + self.below(3)
        what = self.below(4)
        if what == 0:
            self.put(self.column, self.ground - 1, Tile.BUSH_LEFT)
            self.put(self.column + 1, self.ground - 1, Tile.BUSH_MIDDLE)
            self.put(self.column + 2, self.ground - 1, Tile.BUSH_RIGHT)
        elif what == 1:
            self.put(self.column + 1, self.ground - 1, Tile.FLOWER)
        self.lay(columns)

    # ---- segments

    def add_segment(self, kind: int) -> None:
        """Lay one of the seven kinds of segments."""
        segments = (self.pit, self.pipe, self.blocks, self.coins, self.group, self.stairs, self.bridge)
        segments[kind]()

    def pit(self) -> None:
        """Leave a pit, sometimes with coins above it."""
        columns = 2 + self.below(self.plan.pit - 1)
        if self.below(2) == 0:
            for column in range(self.column, self.column + columns):
                self.put(column, self.ground - 4, Tile.COIN)
        self.column += columns

    def pipe(self) -> None:
        """Build a pipe, two columns wide."""
        height = 1 + self.below(self.plan.pipe)
        left, top = self.column, self.ground - height
        self.lay(2)
        self.put(left, top, Tile.PIPE_TOP_LEFT)
        self.put(left + 1, top, Tile.PIPE_TOP_RIGHT)
        for row in range(top + 1, self.ground):
            self.put(left, row, Tile.PIPE_LEFT)
            self.put(left + 1, row, Tile.PIPE_RIGHT)

    def blocks(self) -> None:
        """Lay a row of bricks and blocks to hit from below."""
        columns = 3 + self.below(4)
        for column in range(self.column, self.column + columns):
            chance = self.below(8)
            tile = Tile.STAR_BLOCK if chance == 0 else Tile.COIN_BLOCK if chance < 4 else Tile.BRICK
            self.put(column, self.ground - 4, tile)
        if self.below(2) == 0:
            self.add_enemy(self.column + columns - 1)
        self.lay(columns)

    def coins(self) -> None:
        """Lay a row of coins, low or high."""
        columns = 3 + self.below(4)
        row = self.ground - 1 - self.below(3)
        for column in range(self.column, self.column + columns):
            self.put(column, row, Tile.COIN)
        self.lay(columns)

    def group(self) -> None:
        """Place enemies two columns apart."""
        count = 1 + self.below(self.plan.enemies)
        for number in range(count):
            self.add_enemy(self.column + 4 + 2 * number)
        self.lay(5 + 2 * count)

    def stairs(self) -> None:
        """Build stairs up and down."""
        height = 1 + self.below(self.plan.stairs)
        for step in range(1, height + 1):
            self.lay_steps(step)
        for step in range(height, 0, -1):
            self.lay_steps(step)

    def lay_steps(self, height: int) -> None:
        """Lay one column of ground with stones on it."""
        for row in range(self.ground - height, self.ground):
            self.put(self.column, row, Tile.STONE)
        self.lay(1)

    def bridge(self) -> None:
        """Lay a wide pit with planks; without bridges, a coin block over flat ground."""
        if not self.plan.bridges:
            self.put(self.column + 1, self.ground - 4, Tile.COIN_BLOCK)
            self.lay(3)
            return
        for _ in range(1 + self.below(2)):
            self.column += 2
            row = self.ground - self.below(3)
            for column in range(self.column, self.column + 3):
                self.put(column, row, Tile.PLANK)
            if self.below(2) == 0:
                self.put(self.column + 1, row - 3, Tile.COIN)
            self.column += 3
        self.column += 2

    def finish(self) -> None:
        """Build the last stairs, the flag and the castle."""
        self.ground = LOWEST_GROUND
        self.lay(self.plan.width - END - self.column)
        for step in range(1, self.plan.stairs + 1):
            self.lay_steps(step)
        self.lay(self.plan.width - 14 - self.column)
        flag = self.level.flag = self.column
        for row in range(4, self.ground):
            self.put(flag, row, Tile.POLE)
        self.put(flag, 3, Tile.POLE_TOP)
        self.put(flag, 4, Tile.POLE_FLAG)
        self.put(flag - 1, 4, Tile.FLAG)
        castle, ground = flag + 5, self.ground
        for column in range(castle, castle + 5):
            for row in range(ground - 3, ground):
                self.put(column, row, Tile.WALL)
            self.put(column, ground - 4, Tile.WALL_TOP)
        for column in range(castle + 1, castle + 4):
            self.put(column, ground - 4, Tile.WALL)
            self.put(column, ground - 5, Tile.WINDOW if column == castle + 2 else Tile.WALL)
            self.put(column, ground - 6, Tile.WALL_TOP)
        self.put(castle + 2, ground - 1, Tile.DOOR)
        self.lay(self.plan.width - self.column)


def build_level(rng: np.random.Generator, plan: LevelPlan) -> Level:
    """Generate a level."""
    return Builder(rng, plan).build()
