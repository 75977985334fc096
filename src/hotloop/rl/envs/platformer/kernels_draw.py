"""Draws frames inside kernels, with the same pixels as `render.py`.

The canvas has 240 x 272 bytes and starts at a tile's edge, so that a row of a tile is two 64-bit words. The
screen is 256 of its columns, from `offset`. Bytes are gray levels or palette indices, depending on the atlas.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import allocation_free_kernel, kernel_part
from hotloop.rl.envs.frame_preprocessing import HEIGHT, WIDTH
from hotloop.rl.envs.frame_preprocessing_kernels import Taps, make_taps, shrink_into
from hotloop.rl.envs.platformer import config as c
from hotloop.rl.envs.platformer import kernels as k
from hotloop.rl.envs.platformer.atlas import (
    BEETLE_A,
    BLOB_A,
    BUFFER_WIDTH,
    COIN,
    GLYPH,
    GLYPHS,
    HURT,
    JUMP,
    PLAYER_SPRITES,
    RUN_A,
    RUN_B,
    STAND,
    STAR,
    Atlas,
)
from hotloop.rl.envs.platformer.kernels import Rows
from hotloop.rl.envs.platformer.kernels_level import KIND, SPEED, STATE, X, Y
from hotloop.rl.envs.platformer.paint import ANIMATION, LANDSCAPE

DISPLAY_TOP = 8
SCORE_WORD, TIME_WORD, COIN_WORD = (
    np.array([GLYPHS.index(letter) for letter in word]) for word in ("SCORE", "TIME", "cx")
)
RAW, GRAYS, COLOURS = range(3)  # kinds of observations


class Scratch(NamedTuple):
    """Scratch memory of one thread."""

    canvas: NDArray[np.uint8]  # [240, 272]
    words: NDArray[np.uint64]  # [240, 34], the same memory
    plane: NDArray[np.uint8]  # [240, 256], one colour channel
    work: NDArray[np.int64]  # for the level builder
    taps: Taps


def make_scratch(size: int) -> Scratch:
    """Allocate scratch memory for frames resized to size x size."""
    words = np.zeros((HEIGHT, BUFFER_WIDTH // 8), dtype=np.uint64)
    plane = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    return Scratch(words.view(np.uint8), words, plane, np.zeros(3, dtype=np.int64), make_taps(size))


@kernel_part
def put(canvas: Any, top: int, left: int, ink: Any, keep: Any) -> None:
    """Draw a sprite or glyph, clipped to the canvas."""
    for y in range(max(-top, 0), min(ink.shape[0], HEIGHT - top)):
        for x in range(max(-left, 0), min(ink.shape[1], BUFFER_WIDTH - left)):
            canvas[top + y, left + x] = canvas[top + y, left + x] & keep[y, x] | ink[y, x]


@kernel_part
def draw_landscape(canvas: Any, camera: int, offset: int, atlas: Atlas) -> None:
    """Draw sky and hills, which scroll at a quarter and half of the speed."""
    at = (camera // 4 - offset) % LANDSCAPE
    sky_rows = HEIGHT - atlas.hills_ink.shape[0]
    for y in range(sky_rows):
        for x in range(BUFFER_WIDTH):
            canvas[y, x] = atlas.sky[y, at + x]
    near = (camera // 2 - offset) % LANDSCAPE
    for y in range(sky_rows, HEIGHT):
        line, sky = canvas[y], atlas.sky[y, at:]
        ink, keep = atlas.hills_ink[y - sky_rows, near:], atlas.hills_keep[y - sky_rows, near:]
        for x in range(BUFFER_WIDTH):
            line[x] = sky[x] & keep[x] | ink[x]


@kernel_part
def draw_tiles(words: Any, tiles: Any, first: int, width: int, turn: int, atlas: Atlas) -> None:
    """Draw the 17 columns of the level on the canvas."""
    for column in range(min(BUFFER_WIDTH // c.TILE, width - first)):
        for row in range(c.ROWS):
            tile = tiles[first + column, row]
            if tile != 0:
                ink, keep = (
                    atlas.tiles_ink[tile * ANIMATION + turn],
                    atlas.tiles_keep[tile * ANIMATION + turn],
                )
                for y in range(c.TILE):
                    line = words[row * c.TILE + y]
                    line[2 * column] = line[2 * column] & keep[y, 0] | ink[y, 0]
                    line[2 * column + 1] = line[2 * column + 1] & keep[y, 1] | ink[y, 1]


@kernel_part
def draw_player(canvas: Any, game: Any, left: int, atlas: Atlas) -> None:
    """Draw the player standing, running, in the air or hurt; `left` is the canvas's x in the level."""
    x = int(game[k.PX]) >> c.UNIT_BITS
    if game[k.DEAD]:
        sprite = HURT
    elif not game[k.ON_GROUND]:
        sprite = JUMP
    elif game[k.ALONG] == 0 or x // 8 % 2 == 1:
        sprite = STAND
    else:
        sprite = RUN_A if x // 8 % 4 == 0 else RUN_B
    shown = 2 * (int(game[k.STATUS]) * PLAYER_SPRITES + sprite) + int(game[k.FACES_LEFT])
    top = (int(game[k.PY]) >> c.UNIT_BITS) - 1
    put(canvas, top, x - 2 - left, atlas.sprites_ink[shown], atlas.sprites_keep[shown])


@kernel_part
def draw_enemy(canvas: Any, enemy: Any, frames: int, left: int, atlas: Atlas) -> None:
    """Draw an enemy walking (two alternating sprites) or squashed."""
    sprite = BLOB_A if enemy[KIND] == c.BLOB else BEETLE_A
    sprite += 2 if enemy[STATE] == c.SQUASHED else frames // 8 % 2
    shown = 2 * sprite + (1 if enemy[SPEED] < 0 else 0)
    top, along = (int(enemy[Y]) >> c.UNIT_BITS) - 2, (int(enemy[X]) >> c.UNIT_BITS) - 1
    put(canvas, top, along - left, atlas.sprites_ink[shown], atlas.sprites_keep[shown])


@kernel_part
def write_number(canvas: Any, left: int, digits: int, number: int, atlas: Atlas) -> None:
    """Draw a number with leading zeros."""
    for place in range(digits - 1, -1, -1):
        glyph = number % 10
        number //= 10
        put(canvas, DISPLAY_TOP, left + GLYPH * place, atlas.glyphs_ink[glyph], atlas.glyphs_keep[glyph])


@kernel_part
def write_word(canvas: Any, left: int, word: Any, atlas: Atlas) -> None:
    """Draw a line of glyphs."""
    for place in range(word.shape[0]):
        glyph = word[place]
        put(canvas, DISPLAY_TOP, left + GLYPH * place, atlas.glyphs_ink[glyph], atlas.glyphs_keep[glyph])


@kernel_part
def draw_game(rows: Rows, row: int, canvas: Any, words: Any, atlas: Atlas) -> int:
    """Draw the row's game; return the column of the canvas where the screen starts."""
    game = rows.games[row]
    camera, frames = int(game[k.CAMERA]), int(game[k.FRAMES])
    first = camera // c.TILE
    offset, left = camera % c.TILE, first * c.TILE
    draw_landscape(canvas, camera, offset, atlas)
    turn = frames // 8 % ANIMATION
    draw_tiles(words, rows.tiles[row], first, int(game[k.LEVEL_WIDTH]), turn, atlas)
    if game[k.POP_FRAMES] > 0:
        shown = 2 * (STAR if game[k.POP_STAR] else COIN + frames // 2 % ANIMATION)
        top = int(game[k.POP_Y]) - (c.POP_FRAMES - int(game[k.POP_FRAMES]))
        put(canvas, top, int(game[k.POP_X]) - left, atlas.sprites_ink[shown], atlas.sprites_keep[shown])
    for number in range(game[k.ENEMY_COUNT]):
        state = rows.enemies[row, number, STATE]
        if state in (c.WALKING, c.SQUASHED):
            draw_enemy(canvas, rows.enemies[row, number], frames, left, atlas)
    if game[k.SAFE] % 8 < 4:
        draw_player(canvas, game, left, atlas)
    write_word(canvas, offset + 8, SCORE_WORD, atlas)
    write_number(canvas, offset + 56, 6, int(game[k.SCORE]), atlas)
    write_word(canvas, offset + 120, COIN_WORD, atlas)
    write_number(canvas, offset + 136, 2, int(game[k.COINS]) % 100, atlas)
    write_word(canvas, offset + 184, TIME_WORD, atlas)
    write_number(canvas, offset + 224, 3, int(game[k.TIME]), atlas)
    return offset


@allocation_free_kernel
def observe_row(
    rows: Rows, row: int, seen: int, atlas: Atlas, palette: Any, scratch: Scratch, newest: Any
) -> None:
    """Draw the row's game to `newest`, a flat uint8 frame of the kind `seen`: RAW, GRAYS or COLOURS."""
    offset = draw_game(rows, row, scratch.canvas, scratch.words, atlas)
    if seen == GRAYS:
        shrink_into(scratch.canvas, offset, scratch.taps, newest, 0, 1)
    elif seen == RAW:
        at = 0
        for y in range(HEIGHT):
            for x in range(WIDTH):
                number = scratch.canvas[y, offset + x]
                newest[at], newest[at + 1], newest[at + 2] = (
                    palette[number, 0],
                    palette[number, 1],
                    palette[number, 2],
                )
                at += 3
    else:
        for colour in range(3):
            for y in range(HEIGHT):
                for x in range(WIDTH):
                    scratch.plane[y, x] = palette[scratch.canvas[y, offset + x], colour]
            shrink_into(scratch.plane, 0, scratch.taps, newest, colour, 3)
