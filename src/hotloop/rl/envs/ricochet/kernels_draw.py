"""Compiled drawing: the same pixels as `render.rgb_image`, but only changed areas are drawn.

Each row keeps its drawn board, one byte per pixel (an index into PALETTE). Painting copies sprites that PIL
drew once. `refresh` then resizes a part of the board as PIL does: one pass along rows and one along
columns, each rounded to 8 bits, so the result is bit-identical.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.ricochet import render
from hotloop.rl.envs.ricochet.board import empty_walls
from hotloop.rl.envs.ricochet.config import PICTURE
from hotloop.rl.envs.ricochet.kernels import CAME_FROM, FRESH, MOVED, NEW, SHOWN, TARGET, TARGET_ROBOT, Rows

CELL = render.OBSERVED.cell
# Palette indices; robots follow FIRST_ROBOT. In the star's sprite, FIRST_ROBOT stands for its colour.
_NOTHING, _FLOOR, _GRID, _WALL, _CENTRE, _OUTLINE, _FIRST_ROBOT = range(7)
PALETTE = ((0, 0, 0), render.FLOOR, render.GRID, render.WALL, render.CENTRE, render.OUTLINE, *render.ROBOTS)
# Distance in pixels of robots and stars from the lines around their cell.
_INSET = 2
# Weights are 22-bit integers. A weighted sum of bytes plus the half for rounding fits 31 bits, so two
# channels are summed in one 64-bit integer: red in the lower half, green in the upper half.
_BITS = 22
_SHIFT, _LANE = np.uint64(_BITS), np.uint64(32)
_HALF = np.uint64(1 << (_BITS - 1) | 1 << (_BITS - 1 + 32))
_BYTE, _BYTES = np.uint64(0xFF), np.uint64(0xFF000000FF)


class Assets(NamedTuple):
    """Read-only inputs of drawing for one board size."""

    palette: NDArray[np.uint64]  # [colours, 2], red and green in one integer, then blue
    disc: NDArray[np.uint8]  # [21, 21], FIRST_ROBOT where a robot is
    star: NDArray[np.uint8]  # [21, 21], FIRST_ROBOT or OUTLINE where a star is
    # Boards with only a border: [0] with an open centre, [1] with a walled one.
    empty_walls: NDArray[np.uint8]  # [2, size * size]
    empty_board: NDArray[np.uint8]  # [2, width, width] as drawn
    empty_picture: NDArray[np.uint8]  # [2, 3, 128, 128] the same resized
    first: NDArray[np.int32]  # [128] first pixel that an output pixel covers
    weights: NDArray[np.uint64]  # [128, taps], 0 beyond what it covers
    touched: NDArray[np.int32]  # [width, 2] first and last output pixel that cover a pixel


@cache
def make_assets(size: int) -> Assets:
    """Draw the sprites and the empty board with PIL; compute PIL's resize weights."""
    width = size * CELL + 1
    tile = Image.new("RGB", (CELL + 1, CELL + 1), PALETTE[_NOTHING])
    render.draw_disc(ImageDraw.Draw(tile), 0, 0, render.ROBOTS[0], render.OBSERVED)
    disc = _numbered(tile)
    tile = Image.new("RGB", (CELL + 1, CELL + 1), PALETTE[_NOTHING])
    render.draw_star(ImageDraw.Draw(tile), 0, 0, render.ROBOTS[0], render.OBSERVED)
    star = _numbered(tile)
    walls = [tuple(empty_walls(size, walled_centre=walled)) for walled in (False, True)]
    boards = [Image.new("RGB", (width, width), render.FLOOR) for _ in walls]
    for walled, board in enumerate(boards):
        pen = ImageDraw.Draw(board)
        render.draw_grid(pen, size, render.OBSERVED, bool(walled))
        render.draw_walls(pen, walls[walled], size, render.OBSERVED)
    small = [np.asarray(board.resize((PICTURE, PICTURE), render.FILTER)) for board in boards]
    first, weights = bilinear_weights(width, PICTURE)
    covers = [np.flatnonzero((first <= at) & (at < first + weights.shape[1])) for at in range(width)]
    return Assets(
        palette=np.array([(red | green << 32, blue) for red, green, blue in PALETTE], dtype=np.uint64),
        disc=disc,
        star=star,
        empty_walls=np.array(walls, dtype=np.uint8),
        empty_board=np.stack([_numbered(board) for board in boards]),
        empty_picture=np.ascontiguousarray(np.stack(small).transpose(0, 3, 1, 2)),
        first=first,
        weights=weights,
        touched=np.array([(one[0], one[-1]) for one in covers], dtype=np.int32),
    )


def _numbered(picture: Image.Image) -> NDArray[np.uint8]:
    """Convert a picture to palette indices."""
    pixels = np.asarray(picture)
    numbers = np.full(pixels.shape[:2], 255, dtype=np.uint8)
    for number, colour in enumerate(PALETTE):
        numbers[(pixels == colour).all(axis=2)] = number
    assert (numbers < len(PALETTE)).all()
    return numbers


def bilinear_weights(width: int, out: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Return the first pixel of each output pixel [out], and integer weights [out, taps] that add to 2^22.

    The filter is a triangle two output pixels wide, evaluated at pixel centres, for downscaling (width >=
    out). If an output pixel covers fewer pixels than there are taps, its first pixel moves back to keep all
    taps inside.
    """
    scale = width / out
    taps = 0
    rows = []
    for number in range(out):
        centre = (number + 0.5) * scale
        low = max(int(centre - scale + 0.5), 0)
        high = min(int(centre + scale + 0.5), width)
        shares = [max(0.0, 1.0 - abs((at - centre + 0.5) * (1.0 / scale))) for at in range(low, high)]
        total = sum(shares)
        rows.append((low, [int(0.5 + share / total * (1 << _BITS)) for share in shares]))
        taps = max(taps, high - low)
    first = np.zeros(out, dtype=np.int32)
    weights = np.zeros((out, taps), dtype=np.uint64)
    for number, (low, shares_22) in enumerate(rows):
        first[number] = min(low, width - taps)
        begin = low - first[number]
        weights[number, begin : begin + len(shares_22)] = shares_22
    return first, weights


@kernel
def draw_rows(
    rows: Rows,
    boards: NDArray[np.uint8],
    pictures: NDArray[np.uint8],
    band: NDArray[np.uint64],
    assets: Assets,
    size: int,
    robots: int,
    only_new: bool,
    start: int,
    stop: int,
) -> None:
    """Update the pictures [rows, 3, 128, 128] of rows `start` to `stop - 1` after a step or a reset.

    boards uint8 [rows, width, width] are the drawn boards; band uint64 [64, 64, 2] is scratch memory.
    """
    for row in range(start, stop):
        if rows.pieces[row, robots + FRESH] == NEW:
            draw_new_row(rows, row, boards, pictures, band, assets, size, robots)
            rows.pieces[row, robots + FRESH] = SHOWN
        elif not only_new and rows.pieces[row, robots + MOVED] >= 0:
            draw_moved_row(rows, row, boards, pictures, band, assets, size, robots)


@kernel
def draw_new_row(
    rows: Rows,
    row: int,
    boards: NDArray[np.uint8],
    pictures: NDArray[np.uint8],
    band: NDArray[np.uint64],
    assets: Assets,
    size: int,
    robots: int,
) -> None:
    """Draw a new board: the empty one, then walls, robots and target, each resized in place."""
    board, picture = boards[row], pictures[row]
    walled = 1
    for cell in range(size * size):
        if assets.empty_walls[1, cell] & ~rows.walls[row, cell] != 0:
            walled = 0
    _copy(assets.empty_board[walled], board)
    for channel in range(3):
        _copy(assets.empty_picture[walled, channel], picture[channel])
    for cell in range(size * size):
        top, left = cell // size * CELL, cell % size * CELL
        added = rows.walls[row, cell] & ~assets.empty_walls[walled, cell]
        if added & 1:
            _fill(board, top - 1, top + 1, left - 1, left + CELL + 1)
        if added & 4:
            _fill(board, top - 1, top + CELL + 1, left - 1, left + 1)
    for robot in range(robots):
        _paint_cell(rows.pieces[row, robot], robot, board, assets, size)
    target = rows.pieces[row, robots + TARGET]
    _paint_target(rows, row, board, assets, size, robots)
    for cell in range(size * size):
        top, left = cell // size * CELL, cell % size * CELL
        added = rows.walls[row, cell] & ~assets.empty_walls[walled, cell]
        if added & 1:
            refresh(board, picture, band, assets, top - 1, top + 1, left - 1, left + CELL + 1)
        if added & 4:
            refresh(board, picture, band, assets, top - 1, top + CELL + 1, left - 1, left + 1)
    for robot in range(robots):
        _refresh_cell(rows.pieces[row, robot], board, picture, band, assets, size)
    _refresh_cell(target, board, picture, band, assets, size)


@kernel
def draw_moved_row(
    rows: Rows,
    row: int,
    boards: NDArray[np.uint8],
    pictures: NDArray[np.uint8],
    band: NDArray[np.uint64],
    assets: Assets,
    size: int,
    robots: int,
) -> None:
    """Move the robot that moved from its old cell to its new one."""
    board, picture = boards[row], pictures[row]
    moved = rows.pieces[row, robots + MOVED]
    came_from, cell = rows.pieces[row, robots + CAME_FROM], rows.pieces[row, moved]
    _paint_cell(came_from, -1, board, assets, size)
    _paint_cell(cell, moved, board, assets, size)
    target = rows.pieces[row, robots + TARGET]
    if target in (came_from, cell):
        _paint_target(rows, row, board, assets, size, robots)
    _refresh_cell(came_from, board, picture, band, assets, size)
    _refresh_cell(cell, board, picture, band, assets, size)


# Plain loops: slice assignments compile five times as long and run no faster.
@kernel
def _copy(source: NDArray[np.uint8], to: NDArray[np.uint8]) -> None:
    for y in range(source.shape[0]):
        for x in range(source.shape[1]):
            to[y, x] = source[y, x]


@kernel
def _fill(board: NDArray[np.uint8], top: int, bottom: int, left: int, right: int) -> None:
    """Draw a wall, clipped to the board."""
    for y in range(max(top, 0), min(bottom + 1, board.shape[0])):
        for x in range(max(left, 0), min(right + 1, board.shape[1])):
            board[y, x] = _WALL


@kernel
def _paint_cell(cell: int, robot: int, board: NDArray[np.uint8], assets: Assets, size: int) -> None:
    """Draw the inside of a cell: floor, and a robot unless it is -1."""
    top, left = cell // size * CELL, cell % size * CELL
    for y in range(_INSET, CELL + 1 - _INSET):
        for x in range(_INSET, CELL + 1 - _INSET):
            colour = _FLOOR
            if robot >= 0 and assets.disc[y, x] != _NOTHING:
                colour = _FIRST_ROBOT + robot
            board[top + y, left + x] = colour


@kernel
def _paint_target(
    rows: Rows, row: int, board: NDArray[np.uint8], assets: Assets, size: int, robots: int
) -> None:
    """Draw the star on top."""
    cell, whose = rows.pieces[row, robots + TARGET], rows.pieces[row, robots + TARGET_ROBOT]
    top, left = cell // size * CELL, cell % size * CELL
    for y in range(_INSET, CELL + 1 - _INSET):
        for x in range(_INSET, CELL + 1 - _INSET):
            colour = assets.star[y, x]
            if colour == _FIRST_ROBOT:
                board[top + y, left + x] = _WALL if whose < 0 else _FIRST_ROBOT + whose
            elif colour != _NOTHING:
                board[top + y, left + x] = colour


@kernel
def _refresh_cell(
    cell: int,
    board: NDArray[np.uint8],
    picture: NDArray[np.uint8],
    band: NDArray[np.uint64],
    assets: Assets,
    size: int,
) -> None:
    top, left = cell // size * CELL, cell % size * CELL
    last = CELL - _INSET
    refresh(board, picture, band, assets, top + _INSET, top + last, left + _INSET, left + last)


@kernel
def refresh(
    board: NDArray[np.uint8],
    picture: NDArray[np.uint8],
    band: NDArray[np.uint64],
    assets: Assets,
    top: int,
    bottom: int,
    left: int,
    right: int,
) -> None:
    """Resize every output pixel that covers any pixel in rows top to bottom, columns left to right."""
    limit = board.shape[0] - 1
    y_first, y_last = assets.touched[max(top, 0), 0], assets.touched[min(bottom, limit), 1]
    x_first, x_last = assets.touched[max(left, 0), 0], assets.touched[min(right, limit), 1]
    taps = assets.weights.shape[1]
    base = assets.first[y_first]
    for y in range(assets.first[y_last] + taps - base):
        line, out = board[base + y], band[y]
        for x in range(x_first, x_last + 1):
            begin, weights = assets.first[x], assets.weights[x]
            red_green, blue = _HALF, _HALF
            for tap in range(taps):
                colour, weight = line[begin + tap], weights[tap]
                red_green += assets.palette[colour, 0] * weight
                blue += assets.palette[colour, 1] * weight
            out[x - x_first, 0] = (red_green >> _SHIFT) & _BYTES
            out[x - x_first, 1] = (blue >> _SHIFT) & _BYTES
    for y in range(y_first, y_last + 1):
        begin, weights = assets.first[y] - base, assets.weights[y]
        for x in range(x_first, x_last + 1):
            red_green, blue = _HALF, _HALF
            for tap in range(taps):
                red_green += band[begin + tap, x - x_first, 0] * weights[tap]
                blue += band[begin + tap, x - x_first, 1] * weights[tap]
            picture[0, y, x] = (red_green >> _SHIFT) & _BYTE
            picture[1, y, x] = (red_green >> (_SHIFT + _LANE)) & _BYTE
            picture[2, y, x] = (blue >> _SHIFT) & _BYTE
