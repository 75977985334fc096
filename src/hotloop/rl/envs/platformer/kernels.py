"""The platformer's rules, compiled for batches; `rules.Platformer` is the readable reference.

The state of a batch is three arrays, first index the row:
games    int32 [rows, COLUMNS], see below;
tiles    uint8 [rows, MOST_COLUMNS, ROWS], the current level;
enemies  int32 [rows, MOST_ENEMIES, 7], columns as in `kernels_level.py`.

`frame_row` plays one frame of one row and may be called from other kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import kernel_part
from hotloop.rl.envs.frame_preprocessing import HEIGHT
from hotloop.rl.envs.frame_preprocessing import WIDTH as SCREEN
from hotloop.rl.envs.platformer import config as c
from hotloop.rl.envs.platformer.config import Tile
from hotloop.rl.envs.platformer.kernels_level import (
    ENEMIES,
    FALL,
    KIND,
    SPEED,
    STATE,
    TIMER,
    WIDTH,
    X,
    Y,
    build_level,
)
from hotloop.rl.envs.platformer.levels import LOWEST_GROUND
from hotloop.rl.envs.streams import Streams

# Columns of a game: eight infos, then the state of the player's motion.
X_POS, Y_POS, COINS, SCORE, TIME, LIFE, FLAG_GET, STATUS = range(8)
INFOS = 8
(PX, PY, ALONG, DOWN, ON_GROUND, FACES_LEFT, HELD_JUMP, SAFE, CAMERA, FRAMES, DEAD) = range(8, 19)
POP_X, POP_Y, POP_FRAMES, POP_STAR, LEVEL_WIDTH, FLAG_COLUMN, ENEMY_COUNT = range(19, 26)
COLUMNS = 26

EMPTY, BRICK, USED_BLOCK, STONE = int(Tile.EMPTY), int(Tile.BRICK), int(Tile.USED_BLOCK), int(Tile.STONE)
COIN_BLOCK, STAR_BLOCK, COIN = int(Tile.COIN_BLOCK), int(Tile.STAR_BLOCK), int(Tile.COIN)
DIRECTIONS, JUMPS, RUNS = np.array(c.DIRECTIONS), np.array(c.JUMPS), np.array(c.RUNS)


class Rows(NamedTuple):
    """State and random streams of a batch."""

    games: NDArray[np.int32]
    tiles: NDArray[np.uint8]
    enemies: NDArray[np.int32]
    streams: Streams


class FixedLevel(NamedTuple):
    """The level that all rows share; `flag` below 0: none, every episode draws its own."""

    tiles: NDArray[np.uint8]  # [MOST_COLUMNS, ROWS]
    enemies: NDArray[np.int32]  # [MOST_ENEMIES, 7]
    facts: NDArray[np.int64]  # the flag's column, the number of enemies


@kernel_part
def tile_at(tiles: Any, width: int, column: int, row: int) -> int:
    """Return the tile of a cell: EMPTY above and below the screen, STONE beyond the level's ends."""
    if row < 0 or row >= c.ROWS:
        return EMPTY
    if column < 0 or column >= width:
        return STONE
    return int(tiles[column, row])


@kernel_part
def solid(tiles: Any, width: int, column: int, row: int) -> bool:
    """Whether a cell is solid."""
    return c.FIRST_SOLID <= tile_at(tiles, width, column, row) <= c.LAST_SOLID


@kernel_part
def wall_in(tiles: Any, width: int, column: int, begin: int, length: int) -> bool:
    """Whether any cell of a column that a box covers is solid."""
    for row in range(begin >> c.TILE_BITS, ((begin + length - 1) >> c.TILE_BITS) + 1):
        if solid(tiles, width, column, row):
            return True
    return False


@kernel_part
def floor_in(tiles: Any, width: int, row: int, begin: int, length: int) -> int:
    """Return the first column under a box whose cell in this row is solid, or -1."""
    for column in range(begin >> c.TILE_BITS, ((begin + length - 1) >> c.TILE_BITS) + 1):
        if solid(tiles, width, column, row):
            return column
    return -1


# ---- the player


@kernel_part
def steer(game: Any, direction: int, run: bool) -> None:
    """Update the horizontal speed."""
    speed = int(game[ALONG])
    if direction == 0:
        if speed > 0:
            speed -= c.FRICTION
        elif speed < 0:
            speed += c.FRICTION
        game[ALONG] = speed
        return
    game[FACES_LEFT] = direction < 0
    limit = c.RUN_SPEED if run else c.WALK_SPEED
    forward = speed * direction
    if forward < limit:
        forward = min(forward + (c.TURN_PUSH if forward < 0 else c.PUSH), limit)
    elif forward > limit:
        forward -= c.FRICTION
    game[ALONG] = forward * direction


@kernel_part
def jump(game: Any, pressed: bool) -> None:
    """Update the vertical speed."""
    fall = int(game[DOWN])
    if pressed and not game[HELD_JUMP] and game[ON_GROUND]:
        fall = -(c.JUMP_SPEED + abs(int(game[ALONG])) // 4)
    game[HELD_JUMP] = pressed
    fall += c.HELD_GRAVITY if fall < 0 and pressed else c.GRAVITY
    game[DOWN] = min(fall, c.FALL_SPEED)


@kernel_part
def move_along(game: Any, tiles: Any) -> None:
    """Move horizontally; walls and the left edge of the screen stop the player."""
    speed, width = int(game[ALONG]), int(game[LEVEL_WIDTH])
    x, y, edge = int(game[PX]) + speed, int(game[PY]), int(game[CAMERA]) << c.UNIT_BITS
    if x < edge:
        x, speed = edge, max(speed, 0)
    if speed > 0:
        column = (x + c.BOX_WIDTH - 1) >> c.TILE_BITS
        if wall_in(tiles, width, column, y, c.BOX_HEIGHT):
            x, speed = (column << c.TILE_BITS) - c.BOX_WIDTH, 0
    elif speed < 0:
        column = x >> c.TILE_BITS
        if wall_in(tiles, width, column, y, c.BOX_HEIGHT):
            x, speed = (column + 1) << c.TILE_BITS, 0
    game[PX], game[ALONG] = x, speed


@kernel_part
def move_down(game: Any, tiles: Any) -> None:
    """Move vertically: land on solid cells below, hit blocks above."""
    fall, width, x = int(game[DOWN]), int(game[LEVEL_WIDTH]), int(game[PX])
    y = int(game[PY]) + fall
    game[ON_GROUND] = False
    if fall > 0:
        row = (y + c.BOX_HEIGHT - 1) >> c.TILE_BITS
        if floor_in(tiles, width, row, x, c.BOX_WIDTH) >= 0:
            y, fall = (row << c.TILE_BITS) - c.BOX_HEIGHT, 0
            game[ON_GROUND] = True
    elif fall < 0:
        row = y >> c.TILE_BITS
        first = floor_in(tiles, width, row, x, c.BOX_WIDTH)
        if first >= 0:
            y, fall = (row + 1) << c.TILE_BITS, 0
            middle = (x + c.BOX_WIDTH // 2) >> c.TILE_BITS
            hit_block(game, tiles, middle if solid(tiles, width, middle, row) else first, row)
    game[PY], game[DOWN] = y, fall


@kernel_part
def hit_block(game: Any, tiles: Any, column: int, row: int) -> None:
    """Break a brick, or open a block: a coin, or a star that makes the player tall."""
    tile = tile_at(tiles, int(game[LEVEL_WIDTH]), column, row)
    if tile == BRICK:
        tiles[column, row] = EMPTY
        game[SCORE] += c.BRICK_POINTS
    elif tile in (COIN_BLOCK, STAR_BLOCK):
        tiles[column, row] = USED_BLOCK
        if tile == STAR_BLOCK:
            game[STATUS] = c.TALL
            game[SCORE] += c.STAR_POINTS
        else:
            game[COINS] += 1
            game[SCORE] += c.COIN_POINTS
        game[POP_X], game[POP_Y] = column * c.TILE, (row - 1) * c.TILE
        game[POP_FRAMES], game[POP_STAR] = c.POP_FRAMES, tile == STAR_BLOCK


@kernel_part
def take_coins(game: Any, tiles: Any) -> None:
    """Collect coins in the cells that the player covers."""
    x, y, width = int(game[PX]), int(game[PY]), int(game[LEVEL_WIDTH])
    for column in range(x >> c.TILE_BITS, ((x + c.BOX_WIDTH - 1) >> c.TILE_BITS) + 1):
        for row in range(y >> c.TILE_BITS, ((y + c.BOX_HEIGHT - 1) >> c.TILE_BITS) + 1):
            if tile_at(tiles, width, column, row) == COIN:
                tiles[column, row] = EMPTY
                game[COINS] += 1
                game[SCORE] += c.COIN_POINTS


# ---- enemies


@kernel_part
def move_enemy(game: Any, tiles: Any, enemy: Any) -> None:
    """Wake an enemy near the screen, move it, turn it at walls, remove it once it has left."""
    left, width = int(game[CAMERA]) << c.UNIT_BITS, int(game[LEVEL_WIDTH])
    if enemy[STATE] == c.WAITING and enemy[X] < left + c.WAKE_DISTANCE:
        enemy[STATE] = c.WALKING
    if enemy[STATE] == c.SQUASHED:
        enemy[TIMER] -= 1
        if enemy[TIMER] == 0:
            enemy[STATE] = c.GONE
    if enemy[STATE] != c.WALKING:
        return
    speed, fall, y = int(enemy[SPEED]), int(enemy[FALL]), int(enemy[Y])
    x = int(enemy[X]) + speed
    column = (x + c.ENEMY_SIZE - 1 if speed > 0 else x) >> c.TILE_BITS
    below = (y + c.ENEMY_SIZE) >> c.TILE_BITS
    at_edge = enemy[KIND] == c.BEETLE and fall == 0 and not solid(tiles, width, column, below)
    if at_edge or wall_in(tiles, width, column, y, c.ENEMY_SIZE):
        x -= speed
        speed = -speed
    fall = min(fall + c.ENEMY_GRAVITY, c.ENEMY_FALL_SPEED)
    y += fall
    row = (y + c.ENEMY_SIZE - 1) >> c.TILE_BITS
    if floor_in(tiles, width, row, x, c.ENEMY_SIZE) >= 0:
        y, fall = (row << c.TILE_BITS) - c.ENEMY_SIZE, 0
    if y > HEIGHT << c.UNIT_BITS or x < left - c.LEAVE_DISTANCE:
        enemy[STATE] = c.GONE
    enemy[X], enemy[Y], enemy[SPEED], enemy[FALL] = x, y, speed, fall


@kernel_part
def meet(game: Any, enemy: Any, falling: bool) -> None:
    """Squash an enemy hit from above; any other contact costs the star or the life."""
    x, y = int(game[PX]), int(game[PY])
    if enemy[STATE] != c.WALKING or game[DEAD]:
        return
    if enemy[X] >= x + c.BOX_WIDTH or enemy[X] + c.ENEMY_SIZE <= x:
        return
    if enemy[Y] >= y + c.BOX_HEIGHT or enemy[Y] + c.ENEMY_SIZE <= y:
        return
    if falling and y + c.BOX_HEIGHT - enemy[Y] <= c.STOMP_DEPTH:
        enemy[STATE], enemy[TIMER] = c.SQUASHED, c.SQUASHED_FRAMES
        game[DOWN] = -(c.HELD_BOUNCE_SPEED if game[HELD_JUMP] else c.BOUNCE_SPEED)
        game[SCORE] += c.STOMP_POINTS
    elif game[SAFE] == 0:
        if game[STATUS] == c.TALL:
            game[STATUS], game[SAFE] = c.SMALL, c.SAFE_FRAMES
        else:
            game[DEAD] = True


# ---- frames and resets


@kernel_part
def frame_row(rows: Rows, row: int, action: int) -> int:
    """Play one frame and return its reward; the episode ends with `game[DEAD] | game[FLAG_GET]`."""
    game, tiles = rows.games[row], rows.tiles[row]
    x_before, time_before = int(game[PX]) >> c.UNIT_BITS, int(game[TIME])
    game[FRAMES] += 1
    game[SAFE] = max(game[SAFE] - 1, 0)
    game[POP_FRAMES] = max(game[POP_FRAMES] - 1, 0)
    steer(game, DIRECTIONS[action], RUNS[action])
    jump(game, JUMPS[action])
    move_along(game, tiles)
    move_down(game, tiles)
    take_coins(game, tiles)
    ahead = min((int(game[PX]) >> c.UNIT_BITS) - c.CAMERA_LEAD, int(game[LEVEL_WIDTH]) * c.TILE - SCREEN)
    game[CAMERA] = max(int(game[CAMERA]), ahead)
    for number in range(game[ENEMY_COUNT]):
        move_enemy(game, tiles, rows.enemies[row, number])
    falling = game[DOWN] > 0
    for number in range(game[ENEMY_COUNT]):
        meet(game, rows.enemies[row, number], falling)
    return end_frame(game, x_before, time_before)


@kernel_part
def end_frame(game: Any, x_before: int, time_before: int) -> int:
    """Update the clock, deaths, the flag and the infos at the end of a frame; return its reward."""
    if game[FRAMES] % c.FRAMES_PER_TICK == 0:
        game[TIME] -= 1
    if game[TIME] == 0 or game[PY] > HEIGHT << c.UNIT_BITS:
        game[DEAD] = True
    x = int(game[PX]) >> c.UNIT_BITS
    reward = x - x_before + int(game[TIME]) - time_before
    if game[DEAD]:
        game[LIFE] -= 1
        reward += c.DEATH_REWARD
    elif game[PX] + c.BOX_WIDTH // 2 >= game[FLAG_COLUMN] << c.TILE_BITS:
        game[FLAG_GET] = True
        game[SCORE] += c.CLOCK_POINTS * game[TIME]
    game[X_POS], game[Y_POS] = x, HEIGHT - ((int(game[PY]) + c.BOX_HEIGHT) >> c.UNIT_BITS)
    return int(min(max(reward, -c.MOST_REWARD), c.MOST_REWARD))


@kernel_part
def reset_game(rows: Rows, row: int, plan: Any, fixed: FixedLevel, work: Any) -> None:
    """Start an episode on a new or the fixed level, player at the left end; `work` int64 [3] is scratch."""
    game = rows.games[row]
    for column in range(COLUMNS):
        game[column] = 0
    if fixed.facts[0] < 0:
        game[FLAG_COLUMN] = build_level(rows.tiles[row], rows.enemies[row], work, rows.streams, row, plan)
        game[ENEMY_COUNT] = work[ENEMIES]
    else:
        for at in range(c.MOST_COLUMNS):
            for height in range(c.ROWS):
                rows.tiles[row, at, height] = fixed.tiles[at, height]
        game[FLAG_COLUMN], game[ENEMY_COUNT] = fixed.facts[0], fixed.facts[1]
        for number in range(game[ENEMY_COUNT]):
            for column in range(7):
                rows.enemies[row, number, column] = fixed.enemies[number, column]
    game[LEVEL_WIDTH] = plan[WIDTH]
    game[PX] = c.START_COLUMN << c.TILE_BITS
    game[PY] = (LOWEST_GROUND << c.TILE_BITS) - c.BOX_HEIGHT
    game[ON_GROUND] = True
    game[TIME], game[LIFE] = c.CLOCK, c.LIVES
    game[X_POS], game[Y_POS] = c.START_COLUMN * c.TILE, HEIGHT - LOWEST_GROUND * c.TILE
