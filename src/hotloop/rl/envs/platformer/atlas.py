"""All pictures as arrays of indices into one palette.

For gray frames, the same pictures hold gray levels instead of indices, so that gray frames are drawn without
drawing colours first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.frame_preprocessing import WIDTH, to_gray
from hotloop.rl.envs.platformer import art, paint
from hotloop.rl.envs.platformer.config import TILE
from hotloop.rl.envs.platformer.paint import CLEAR, Picture

Bytes = NDArray[np.uint8]

# Indices of sprites.
STAND, RUN_A, RUN_B, JUMP, HURT = range(5)
PLAYER_SPRITES = 5  # each for small and tall
BLOB_A, BLOB_B, BLOB_FLAT, BEETLE_A, BEETLE_B, BEETLE_FLAT, STAR, COIN = range(10, 18)
GLYPHS = "".join(art.GLYPHS)  # a character's position is the index of its glyph; digits first
GLYPH = 8  # pixels
BUFFER_WIDTH = WIDTH + TILE  # the screen and the tile that scrolls in


@dataclass(frozen=True, slots=True)
class Art:
    """Pictures as palette indices; 0 is transparent."""

    palette: Bytes  # [colours, 3], the first is unused
    sky: Bytes  # [240, 512]
    hills: Bytes  # [240, 512]
    tiles: Bytes  # [tile, turn, 16, 16]
    sprites: Bytes  # [sprite, 16, 16], facing right
    glyphs: Bytes  # [glyph, 8, 8]


class Atlas(NamedTuple):
    """Inputs of the drawing kernel, which draws a picture with `below & keep | ink`, byte by byte.

    Values are palette indices or gray levels. Sky and hills are repeated to the right so that a screen never
    wraps around. A row of a tile is two 64-bit words. Sprites exist in both directions.
    """

    sky: Bytes  # [240, 512 + 272]
    hills_ink: Bytes  # [rows, 512 + 272], from the top of the highest hill down
    hills_keep: Bytes
    tiles_ink: NDArray[np.uint64]  # [tile * 4 + turn, 16, 2]
    tiles_keep: NDArray[np.uint64]
    sprites_ink: Bytes  # [sprite * 2 + faces left, 16, 16]
    sprites_keep: Bytes
    glyphs_ink: Bytes  # [glyph, 8, 8]
    glyphs_keep: Bytes


def _glyph(rows: tuple[int, ...]) -> Picture:
    """Draw a glyph in white with a dark shadow below and to the right."""
    picture = paint.blank(GLYPH, GLYPH)
    lit = [(y, x) for y, bits in enumerate(rows) for x in range(5) if bits & (16 >> x)]
    for y, x in lit:
        picture[y + 1, x + 2] = paint.packed(art.COLOURS["k"])
    for y, x in lit:
        picture[y, x + 1] = paint.packed(art.COLOURS["w"])
    return picture


def _sprites() -> list[Picture]:
    player = (art.STAND, art.RUN_A, art.RUN_B, art.JUMP, art.HURT)
    others = (
        *(art.BLOB_A, art.BLOB_B, art.BLOB_FLAT, art.BEETLE_A, art.BEETLE_B, art.BEETLE_FLAT),
        *(art.STAR, *art.COINS),
    )
    return [
        *(paint.from_text(text) for text in player),
        *(paint.from_text(text, art.GOLDEN) for text in player),
        *(paint.from_text(text) for text in others),
    ]


@functools.cache
def make_art() -> Art:
    """Paint everything; cached per process."""
    sky, hills = paint.sky(), paint.hills()
    tiles, sprites = np.array(paint.tile_pictures()), np.array(_sprites())
    glyphs = np.array([_glyph(rows) for rows in art.GLYPHS.values()])
    every = np.concatenate([part.ravel() for part in (sky, hills, tiles, sprites, glyphs)])
    colours = np.unique(every)  # CLEAR is the smallest, so it becomes index 0
    assert colours[0] == CLEAR and len(colours) <= 256

    def numbered(pictures: Picture) -> Bytes:
        return np.searchsorted(colours, pictures).astype(np.uint8)

    palette = np.stack([colours >> 16 & 255, colours >> 8 & 255, colours & 255], axis=1).astype(np.uint8)
    return Art(palette, *(numbered(part) for part in (sky, hills, tiles, sprites, glyphs)))


@functools.cache
def make_atlas(gray: bool) -> Atlas:
    """Return the arrays for the drawing kernel, as gray levels or palette indices."""
    drawn = make_art()
    values = to_gray(drawn.palette[None])[0] if gray else np.arange(len(drawn.palette), dtype=np.uint8)

    def ink(numbers: Bytes) -> Bytes:
        return np.ascontiguousarray(np.where(numbers == 0, 0, values[numbers]).astype(np.uint8))

    def keep(numbers: Bytes) -> Bytes:
        return np.ascontiguousarray(np.where(numbers == 0, 255, 0).astype(np.uint8))

    def repeated(numbers: Bytes) -> Bytes:
        return np.concatenate([numbers, numbers[:, :BUFFER_WIDTH]], axis=1)

    tiles = drawn.tiles.reshape(-1, TILE, TILE)
    both_ways = np.stack([drawn.sprites, drawn.sprites[:, :, ::-1]], axis=1).reshape(-1, TILE, TILE)
    top = int((drawn.hills != 0).any(axis=1).argmax())
    hills = repeated(drawn.hills)[top:]
    return Atlas(
        ink(repeated(drawn.sky)),
        ink(hills),
        keep(hills),
        ink(tiles).view(np.uint64),
        keep(tiles).view(np.uint64),
        ink(both_ways),
        keep(both_ways),
        ink(drawn.glyphs),
        keep(drawn.glyphs),
    )
