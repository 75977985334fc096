"""Generates levels inside kernels: the same levels as `levels.py`.

Arrays of one row: `tiles` uint8 [MOST_COLUMNS, ROWS], `enemies` int32 [MOST_ENEMIES, 7], columns as below.
`work` int64 [3]: the builder's position.
"""

from __future__ import annotations

from typing import Any

from hotloop.rl.envs.compiled import kernel_part
from hotloop.rl.envs.platformer.config import (
    BEETLE,
    BLOB,
    ENEMY_SIZE,
    ENEMY_SPEED,
    MOST_COLUMNS,
    MOST_ENEMIES,
    ROWS,
    TILE_BITS,
    WAITING,
    Tile,
)
from hotloop.rl.envs.platformer.levels import END, HIGHEST_GROUND, LONGEST, LOWEST_GROUND, SEGMENTS, START
from hotloop.rl.envs.streams import Streams, next_below

# Entries of `plan`, int64, as `env.packed_plan` fills them.
WIDTH, PIT, PIPE, STAIRS, GROUP, BEETLES, STEPS, BRIDGES = range(8)
# Columns of an enemy.
KIND, X, Y, SPEED, FALL, STATE, TIMER = range(7)
# Entries of `work`.
COLUMN, GROUND, ENEMIES = range(3)

# Tiles as plain integers: enum members compile slowly.
GRASS, DIRT, BRICK, STONE, PLANK, COIN = map(
    int, (Tile.GRASS, Tile.DIRT, Tile.BRICK, Tile.STONE, Tile.PLANK, Tile.COIN)
)
COIN_BLOCK, STAR_BLOCK = int(Tile.COIN_BLOCK), int(Tile.STAR_BLOCK)
PIPE_TOP_LEFT, PIPE_LEFT = int(Tile.PIPE_TOP_LEFT), int(Tile.PIPE_LEFT)  # the right half is one more
BUSH_LEFT, FLOWER, POLE, POLE_TOP, FLAG = map(
    int, (Tile.BUSH_LEFT, Tile.FLOWER, Tile.POLE, Tile.POLE_TOP, Tile.FLAG)
)
WALL, WALL_TOP, DOOR, WINDOW = map(int, (Tile.WALL, Tile.WALL_TOP, Tile.DOOR, Tile.WINDOW))
POLE_FLAG = int(Tile.POLE_FLAG)


@kernel_part
def lay(tiles: Any, work: Any, columns: int) -> None:
    """Lay columns of flat ground."""
    column, ground = work[COLUMN], work[GROUND]
    for at in range(column, column + columns):
        tiles[at, ground] = GRASS
        for row in range(ground + 1, ROWS):
            tiles[at, row] = DIRT
    work[COLUMN] = column + columns


@kernel_part
def lay_steps(tiles: Any, work: Any, height: int) -> None:
    """Lay one column of ground with stones on it."""
    for row in range(work[GROUND] - height, work[GROUND]):
        tiles[work[COLUMN], row] = STONE
    lay(tiles, work, 1)


@kernel_part
def add_enemy(enemies: Any, work: Any, streams: Streams, row: int, plan: Any, column: int) -> None:
    """Place an enemy on the ground."""
    kind = BEETLE if plan[BEETLES] and next_below(streams, row, 3) == 0 else BLOB
    count = work[ENEMIES]
    if count < MOST_ENEMIES:
        enemies[count, KIND] = kind
        enemies[count, X] = column << TILE_BITS
        enemies[count, Y] = (work[GROUND] << TILE_BITS) - ENEMY_SIZE
        enemies[count, SPEED] = -ENEMY_SPEED
        enemies[count, FALL] = 0
        enemies[count, STATE] = WAITING
        enemies[count, TIMER] = 0
        work[ENEMIES] = count + 1


@kernel_part
def rest(tiles: Any, work: Any, streams: Streams, row: int) -> None:
    """Lay flat ground to land on, with plants."""
    columns = 3 + next_below(streams, row, 3)
    what = next_below(streams, row, 4)
    column, above = work[COLUMN], work[GROUND] - 1
    if what == 0:
        for part in range(3):
            tiles[column + part, above] = BUSH_LEFT + part
    elif what == 1:
        tiles[column + 1, above] = FLOWER
    lay(tiles, work, columns)


@kernel_part
def low_segment(tiles: Any, work: Any, streams: Streams, row: int, plan: Any, kind: int) -> None:
    """Lay a pit, a pipe, coins or stairs."""
    column, ground = work[COLUMN], work[GROUND]
    if kind == 0:
        columns = 2 + next_below(streams, row, plan[PIT] - 1)
        if next_below(streams, row, 2) == 0:
            for at in range(column, column + columns):
                tiles[at, ground - 4] = COIN
        work[COLUMN] = column + columns
    elif kind == 1:
        top = ground - 1 - next_below(streams, row, plan[PIPE])
        lay(tiles, work, 2)
        for half in range(2):
            tiles[column + half, top] = PIPE_TOP_LEFT + half
            for at in range(top + 1, ground):
                tiles[column + half, at] = PIPE_LEFT + half
    elif kind == 3:
        columns = 3 + next_below(streams, row, 4)
        height = ground - 1 - next_below(streams, row, 3)
        for at in range(column, column + columns):
            tiles[at, height] = COIN
        lay(tiles, work, columns)
    else:
        height = 1 + next_below(streams, row, plan[STAIRS])
        for step in range(1, height + 1):
            lay_steps(tiles, work, step)
        for step in range(height, 0, -1):
            lay_steps(tiles, work, step)


@kernel_part
def blocks(tiles: Any, enemies: Any, work: Any, streams: Streams, row: int, plan: Any) -> None:
    """Lay a row of bricks and blocks to hit from below."""
    column, ground = work[COLUMN], work[GROUND]
    columns = 3 + next_below(streams, row, 4)
    for at in range(column, column + columns):
        chance = next_below(streams, row, 8)
        tiles[at, ground - 4] = STAR_BLOCK if chance == 0 else COIN_BLOCK if chance < 4 else BRICK
    if next_below(streams, row, 2) == 0:
        add_enemy(enemies, work, streams, row, plan, column + columns - 1)
    lay(tiles, work, columns)


@kernel_part
def bridge(tiles: Any, work: Any, streams: Streams, row: int, plan: Any) -> None:
    """Lay a wide pit with planks; without bridges, a coin block over flat ground."""
    ground = work[GROUND]
    if not plan[BRIDGES]:
        tiles[work[COLUMN] + 1, ground - 4] = COIN_BLOCK
        lay(tiles, work, 3)
        return
    for _ in range(1 + next_below(streams, row, 2)):
        column = work[COLUMN] + 2
        height = ground - next_below(streams, row, 3)
        for at in range(column, column + 3):
            tiles[at, height] = PLANK
        if next_below(streams, row, 2) == 0:
            tiles[column + 1, height - 3] = COIN
        work[COLUMN] = column + 3
    work[COLUMN] += 2


@kernel_part
def finish(tiles: Any, work: Any, plan: Any) -> int:
    """Lay the last stairs, the flag and the castle; return the flag's column."""
    width, ground = plan[WIDTH], LOWEST_GROUND
    work[GROUND] = ground
    lay(tiles, work, width - END - work[COLUMN])
    for step in range(1, plan[STAIRS] + 1):
        lay_steps(tiles, work, step)
    lay(tiles, work, width - 14 - work[COLUMN])
    flag = work[COLUMN]
    for at in range(4, ground):
        tiles[flag, at] = POLE
    tiles[flag, 3] = POLE_TOP
    tiles[flag, 4] = POLE_FLAG
    tiles[flag - 1, 4] = FLAG
    castle = flag + 5
    for at in range(castle, castle + 5):
        for height in range(1, 4):
            tiles[at, ground - height] = WALL
        tiles[at, ground - 4] = WALL_TOP
    for at in range(castle + 1, castle + 4):
        tiles[at, ground - 4] = WALL
        tiles[at, ground - 5] = WINDOW if at == castle + 2 else WALL
        tiles[at, ground - 6] = WALL_TOP
    tiles[castle + 2, ground - 1] = DOOR
    lay(tiles, work, width - work[COLUMN])
    return int(flag)


@kernel_part
def build_level(tiles: Any, enemies: Any, work: Any, streams: Streams, row: int, plan: Any) -> int:
    """Generate a level in the arrays, count its enemies in `work`, return the flag's column."""
    for column in range(MOST_COLUMNS):
        for at in range(ROWS):
            tiles[column, at] = 0
    work[COLUMN], work[GROUND], work[ENEMIES] = 0, LOWEST_GROUND, 0
    lay(tiles, work, START)
    while work[COLUMN] < plan[WIDTH] - END - LONGEST:
        kind = next_below(streams, row, SEGMENTS)
        if kind == 2:
            blocks(tiles, enemies, work, streams, row, plan)
        elif kind == 4:
            count = 1 + next_below(streams, row, plan[GROUP])
            for number in range(count):
                add_enemy(enemies, work, streams, row, plan, work[COLUMN] + 4 + 2 * number)
            lay(tiles, work, 5 + 2 * count)
        elif kind == 6:
            bridge(tiles, work, streams, row, plan)
        else:
            low_segment(tiles, work, streams, row, plan, kind)
        if plan[STEPS]:
            ground = work[GROUND] + next_below(streams, row, 3) - 1
            work[GROUND] = min(max(ground, HIGHEST_GROUND), LOWEST_GROUND)
        rest(tiles, work, streams, row)
    return finish(tiles, work, plan)
