"""Paints tiles and landscape of the platformer as pictures of packed colours; -1 is transparent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.frame_preprocessing import HEIGHT
from hotloop.rl.envs.platformer import art
from hotloop.rl.envs.platformer.art import COLOURS, Colour
from hotloop.rl.envs.platformer.config import TILE, Tile

Picture = NDArray[np.int32]  # [height, width], red << 16 | green << 8 | blue, or -1
CLEAR = -1
LANDSCAPE = 512  # pixels after which sky and hills repeat
ANIMATION = 4  # pictures of each tile

INK: Colour = COLOURS["k"]
EARTH: tuple[Colour, ...] = ((122, 72, 48), (164, 104, 62), (190, 130, 80))
LEAF: tuple[Colour, ...] = ((28, 104, 62), (56, 156, 70), (118, 204, 88))
CLAY: tuple[Colour, ...] = ((104, 44, 44), (184, 82, 54), (226, 128, 84))
ROCK: tuple[Colour, ...] = ((70, 74, 98), (124, 130, 156), (184, 190, 210))
WOOD: tuple[Colour, ...] = ((96, 56, 34), (160, 104, 56), (204, 150, 92))
PIPE: tuple[Colour, ...] = ((14, 82, 66), (30, 140, 92), (84, 196, 120), (190, 244, 190))
GOLD: tuple[Colour, ...] = ((150, 92, 20), (236, 170, 40), (255, 228, 130))
CASTLE: tuple[Colour, ...] = ((92, 80, 104), (150, 134, 160), (194, 180, 200))


def packed(colour: Colour) -> int:
    """Pack red, green and blue into one integer."""
    return colour[0] << 16 | colour[1] << 8 | colour[2]


def blank(height: int = TILE, width: int = TILE) -> Picture:
    """Return a transparent picture."""
    return np.full((height, width), CLEAR, dtype=np.int32)


def from_text(text: str, swap: Mapping[str, str] | None = None) -> Picture:
    """Paint a sprite of `art`, with some colours replaced."""
    lines = [line for line in text.split("\n") if line]
    picture = blank(len(lines), len(lines[0]))
    for y, line in enumerate(lines):
        for x, letter in enumerate(line):
            if letter != ".":
                picture[y, x] = packed(COLOURS[(swap or {}).get(letter, letter)])
    return picture


def box(picture: Picture, top: int, left: int, bottom: int, right: int, colour: Colour) -> None:
    """Fill rows `top` to `bottom - 1`, columns `left` to `right - 1`."""
    picture[top:bottom, left:right] = packed(colour)


def disc(picture: Picture, y: int, x: int, radius: int, colour: Colour) -> None:
    """Fill a circle that wraps around the left and right edges."""
    height, width = picture.shape
    down, along = np.mgrid[0:height, 0:width]
    across = np.abs(along - x % width)
    across = np.minimum(across, width - across)
    picture[(down - y) ** 2 + across**2 <= radius * radius] = packed(colour)


# ---- tiles


def bevelled(colours: tuple[Colour, ...]) -> Picture:
    """A block: light from the upper left, dark edges below and to the right."""
    picture = blank()
    box(picture, 0, 0, 16, 16, colours[0])
    box(picture, 0, 0, 15, 15, colours[2])
    box(picture, 1, 1, 15, 15, colours[1])
    return picture


def dirt() -> Picture:
    """Earth with pebbles."""
    picture = blank()
    box(picture, 0, 0, 16, 16, EARTH[1])
    for y, x in ((2, 3), (5, 11), (9, 6), (12, 13), (13, 2)):
        box(picture, y, x, y + 2, x + 3, EARTH[0])
        box(picture, y, x, y + 1, x + 2, EARTH[2])
    return picture


def grass() -> Picture:
    """Earth with grass on top."""
    picture = dirt()
    box(picture, 0, 0, 5, 16, LEAF[1])
    box(picture, 0, 0, 2, 16, LEAF[2])
    for x, depth in enumerate((7, 6, 5, 6, 7, 8, 7, 6, 5, 6, 8, 7, 6, 5, 6, 7)):
        box(picture, 5, x, depth, x + 1, LEAF[0])
    return picture


def brick(colours: tuple[Colour, ...]) -> Picture:
    """Four courses of bricks."""
    picture = blank()
    box(picture, 0, 0, 16, 16, colours[1])
    for course in range(4):
        top = 4 * course
        box(picture, top, 0, top + 1, 16, colours[2])
        box(picture, top + 3, 0, top + 4, 16, colours[0])
        for joint in (7, 15) if course % 2 == 0 else (3, 11):
            box(picture, top, joint, top + 4, joint + 1, colours[0])
    return picture


def coin_block(glow: int) -> Picture:
    """A golden block with a mark that pulses."""
    shade = ((236, 170, 40), (248, 190, 64), (255, 208, 92), (248, 190, 64))[glow]
    picture = bevelled((GOLD[0], shade, GOLD[2]))
    for y, x in ((2, 2), (2, 13), (13, 2), (13, 13)):
        box(picture, y, x, y + 1, x + 1, GOLD[0])
    box(picture, 3, 7, 10, 10, GOLD[0])
    box(picture, 3, 6, 9, 9, COLOURS["w"])
    box(picture, 11, 7, 14, 10, GOLD[0])
    box(picture, 11, 6, 13, 9, COLOURS["w"])
    return picture


def used_block() -> Picture:
    """A golden block after it was hit."""
    picture = bevelled(WOOD)
    for y, x in ((3, 3), (3, 12), (12, 3), (12, 12)):
        box(picture, y, x, y + 1, x + 1, WOOD[0])
    return picture


def plank() -> Picture:
    """A wooden platform."""
    picture = blank()
    box(picture, 0, 0, 12, 16, WOOD[1])
    box(picture, 0, 0, 2, 16, WOOD[2])
    box(picture, 5, 0, 6, 16, WOOD[0])
    box(picture, 10, 0, 12, 16, WOOD[0])
    box(picture, 12, 2, 16, 5, WOOD[0])
    box(picture, 12, 11, 16, 14, WOOD[0])
    box(picture, 3, 4, 4, 5, WOOD[0])
    box(picture, 7, 12, 8, 13, WOOD[0])
    return picture


def pipe(top: bool) -> Picture:
    """Both columns of a pipe, [16, 32]."""
    picture = blank(16, 32)
    left, right = (0, 32) if top else (2, 30)
    bands = ((0, 1, INK), (1, 4, PIPE[1]), (4, 7, PIPE[3]), (7, 12, PIPE[2]), (12, 22, PIPE[1]))
    box(picture, 0, left, 16, right, PIPE[0])
    for begin, end, colour in bands:
        box(picture, 0, left + begin, 16, left + end, colour)
    box(picture, 0, right - 1, 16, right, INK)
    if top:
        box(picture, 0, 0, 1, 32, INK)
        box(picture, 14, 0, 15, 32, PIPE[0])
        box(picture, 15, 0, 16, 32, INK)
    return picture


def bush() -> Picture:
    """Three tiles wide, [16, 48]."""
    picture = blank(16, 48)
    discs = ((13, 9, 8), (9, 20, 8), (11, 32, 8), (14, 40, 6))
    for grow, colour, shift in ((0, LEAF[0], 0), (-1, LEAF[1], 0), (-4, LEAF[2], -2)):
        for y, x, radius in discs:
            disc(picture, y + shift, x + shift, radius + grow, colour)
    return picture


def pole() -> Picture:
    """The flag's pole stands near the left of its tile."""
    picture = blank()
    box(picture, 0, 2, 16, 3, COLOURS["w"])
    box(picture, 0, 3, 16, 4, COLOURS["g"])
    box(picture, 0, 4, 16, 5, INK)
    return picture


def pole_top() -> Picture:
    """The pole with a golden ball."""
    picture = pole()
    picture[:8] = CLEAR
    down, along = np.mgrid[0:16, 0:16]
    for radius, colour in ((3, INK), (2, GOLD[1]), (1, GOLD[2])):
        picture[(down - 6) ** 2 + (along - 3) ** 2 <= radius * radius] = packed(colour)
    return picture


def flag(wave: int) -> Picture:
    """A pennant that waves from the pole, [16, 32]: the tile to its left, and the pole's own."""
    picture = np.concatenate([blank(), pole()], axis=1)
    for x in range(1, 18):
        swing = ((0, 1, 1, 0), (1, 1, 0, 0), (1, 0, 0, 1), (0, 0, 1, 1))[wave][x // 4 % 4]
        half = (x + 2) // 3
        box(picture, 6 + swing - half, x, 7 + swing + half, x + 1, COLOURS["r"])
        box(picture, 6 + swing - half, x, 7 + swing - half, x + 1, COLOURS["R"])
    disc(picture, 6, 11, 2, COLOURS["y"])
    return picture


def battlements() -> Picture:
    """The top of the castle's wall."""
    picture = brick(CASTLE)
    picture[0:6, 4:12] = CLEAR
    box(picture, 6, 0, 7, 16, CASTLE[2])
    return picture


def door() -> Picture:
    """An arch in the wall."""
    picture = brick(CASTLE)
    disc(picture, 8, 8, 6, INK)
    box(picture, 8, 2, 16, 15, INK)
    return picture


def window() -> Picture:
    """An opening in the wall."""
    picture = brick(CASTLE)
    box(picture, 4, 5, 13, 11, INK)
    box(picture, 6, 6, 12, 10, GOLD[1])
    return picture


def tile_pictures() -> list[list[Picture]]:
    """Return the four animation pictures of each tile, [16, 16] each."""
    top, below, shrub = pipe(True), pipe(False), bush()
    still = {
        Tile.EMPTY: blank(),
        Tile.GRASS: grass(),
        Tile.DIRT: dirt(),
        Tile.BRICK: brick(CLAY),
        Tile.USED_BLOCK: used_block(),
        Tile.STONE: bevelled(ROCK),
        Tile.PLANK: plank(),
        Tile.PIPE_TOP_LEFT: top[:, :16],
        Tile.PIPE_TOP_RIGHT: top[:, 16:],
        Tile.PIPE_LEFT: below[:, :16],
        Tile.PIPE_RIGHT: below[:, 16:],
        Tile.BUSH_LEFT: shrub[:, :16],
        Tile.BUSH_MIDDLE: shrub[:, 16:32],
        Tile.BUSH_RIGHT: shrub[:, 32:],
        Tile.FLOWER: from_text(art.FLOWER),
        Tile.POLE: pole(),
        Tile.POLE_TOP: pole_top(),
        Tile.WALL: brick(CASTLE),
        Tile.WALL_TOP: battlements(),
        Tile.DOOR: door(),
        Tile.WINDOW: window(),
    }
    moving = {
        Tile.COIN_BLOCK: [coin_block(turn) for turn in range(ANIMATION)],
        Tile.STAR_BLOCK: [coin_block(turn) for turn in range(ANIMATION)],
        Tile.COIN: [from_text(text) for text in art.COINS],
        Tile.FLAG: [flag(turn)[:, :16] for turn in range(ANIMATION)],
        Tile.POLE_FLAG: [flag(turn)[:, 16:] for turn in range(ANIMATION)],
    }
    return [moving[tile] if tile in moving else [still[tile]] * ANIMATION for tile in Tile]


# ---- the landscape behind


def sky() -> Picture:
    """Evening sky, distant mountains and clouds, [240, 512]; opaque."""
    picture = blank(HEIGHT, LANDSCAPE)
    high, low = np.array((72, 132, 222)), np.array((214, 232, 244))
    bands = 20
    for band in range(bands):
        colour = high + (low - high) * band // (bands - 1)
        box(
            picture, band * 12, 0, band * 12 + 12, LANDSCAPE, (int(colour[0]), int(colour[1]), int(colour[2]))
        )
    disc(picture, 58, 420, 21, (250, 240, 206))
    disc(picture, 58, 420, 17, (255, 250, 230))
    for x, peak, slope in (
        (40, 112, 2),
        (150, 92, 2),
        (230, 124, 3),
        (330, 100, 2),
        (450, 116, 2),
        (500, 132, 3),
    ):
        mountain(picture, x, peak, slope)
    for y, x, size in ((46, 60, 10), (78, 190, 8), (40, 300, 12), (92, 380, 7), (70, 490, 9)):
        cloud(picture, y, x, size)
    return picture


def mountain(picture: Picture, x: int, peak: int, slope: int) -> None:
    """A far mountain with snow, lit from the left."""
    for y in range(peak, HEIGHT):
        half = (y - peak) * slope // 2
        snow = y - peak < 12 + (y * 5 % 4)
        for along in range(x - half, x + half + 1):
            lit = along < x - half // 4
            if snow:
                colour = (236, 242, 252) if lit else (196, 212, 236)
            else:
                colour = (138, 164, 206) if lit else (116, 144, 190)
            picture[y, along % LANDSCAPE] = packed(colour)


def cloud(picture: Picture, y: int, x: int, size: int) -> None:
    """Four puffs, shaded below, with a flat base."""
    base = y + size
    for shift, colour in ((2, (188, 210, 238)), (0, (255, 255, 255))):
        puffs = blank(HEIGHT, LANDSCAPE)
        disc(puffs, y + shift, x, size, colour)
        disc(puffs, y + 3 + shift, x - size - 2, size * 2 // 3, colour)
        disc(puffs, y + 2 + shift, x + size + 2, size * 3 // 4, colour)
        disc(puffs, y + 5 + shift, x + 2 * size + 2, size // 2, colour)
        puffs[base - 2 + shift :] = CLEAR
        picture[puffs != CLEAR] = puffs[puffs != CLEAR]


def hills() -> Picture:
    """Rounded hills with trees and water, [240, 512]; transparent above."""
    picture = blank(HEIGHT, LANDSCAPE)
    for x, top, radius in ((70, 150, 110), (300, 158, 140), (430, 168, 100)):
        disc(picture, top + radius, x, radius, (52, 128, 96))
        disc(picture, top + radius + 2, x, radius - 1, (84, 164, 112))
        disc(picture, top + radius + 12, x - 6, radius - 10, (96, 176, 118))
    for x, top, radius in ((180, 172, 90), (500, 176, 80), (370, 182, 70)):
        disc(picture, top + radius, x, radius, (44, 112, 74))
        disc(picture, top + radius + 2, x, radius - 1, (70, 150, 84))
        disc(picture, top + radius + 10, x - 4, radius - 9, (82, 164, 88))
    for x, y in (
        (30, 168),
        (98, 162),
        (170, 184),
        (196, 186),
        (286, 170),
        (322, 170),
        (440, 182),
        (490, 188),
    ):
        tree(picture, x, y)
    box(picture, 216, 0, HEIGHT, LANDSCAPE, (30, 76, 150))
    box(picture, 216, 0, 218, LANDSCAPE, (58, 120, 196))
    for x in range(0, LANDSCAPE, 16):
        box(picture, 214, x, 216, x + 9, (58, 120, 196))
        box(picture, 214, x + 2, 215, x + 7, (206, 232, 250))
        box(picture, 225, x + 5, 226, x + 12, (46, 100, 176))
        box(picture, 233, x + 1, 234, x + 6, (46, 100, 176))
    return picture


def tree(picture: Picture, x: int, y: int) -> None:
    """A round tree with its foot at y."""
    box(picture, y - 6, x - 1, y + 3, x + 2, (84, 58, 48))
    disc(picture, y - 12, x, 8, (30, 92, 66))
    disc(picture, y - 13, x, 7, (46, 124, 74))
    disc(picture, y - 15, x - 2, 4, (76, 158, 88))
