"""Draws the board with distance fields in numpy: smooth edges at any size, no image library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.snake.config import COLUMN_STEP, ROW_STEP

Cell = tuple[int, int]
Color = tuple[float, float, float]
Picture = NDArray[np.float64]

_DARK: Color = (24, 29, 38)
_LIGHT: Color = (31, 38, 50)
_HEAD: Color = (132, 224, 110)
_TAIL: Color = (30, 122, 104)
_FOOD: Color = (235, 87, 87)
_SHINE: Color = (255, 176, 160)
_LEAF: Color = (120, 200, 100)
_WHITE: Color = (250, 252, 250)
_PUPIL: Color = (20, 28, 32)
_SHADES = 4  # from one cell of the body to the next


def draw_board(size: int, body: Sequence[Cell], heading: int, food: Cell | None) -> NDArray[np.uint8]:
    """Draw the board, uint8 [height, width, 3]; cells are (row, column), the body head first."""
    scale = max(8, 320 // size)
    picture = _checkered(size, scale)
    if food is not None:
        _draw_food(picture, food, scale)
    for back in range(len(body) - 1, -1, -1):  # the head comes last, on top
        toward = body[back - 1] if back > 0 else body[back]
        for i in range(_SHADES):
            fraction = max(back - i / _SHADES, 0) / (len(body) - 1)
            place = _between(body[back], toward, i / _SHADES)
            end = _between(body[back], toward, (i + 1) / _SHADES)
            _stroke(picture, place, end, 0.40 - 0.12 * fraction, _mix(_HEAD, _TAIL, fraction), scale)
    _draw_face(picture, body[0], heading, scale)
    return np.clip(picture + 0.5, 0, 255).astype(np.uint8)


def _checkered(size: int, scale: int) -> Picture:
    board = np.add.outer(np.arange(size), np.arange(size)) % 2
    colors = np.array([_DARK, _LIGHT])
    return np.kron(colors[board].transpose(2, 0, 1), np.ones((1, scale, scale))).transpose(1, 2, 0).copy()


def _mix(one: Color, other: Color, fraction: float) -> Color:
    a, b, c = (x + (y - x) * fraction for x, y in zip(one, other, strict=True))
    return a, b, c


def _between(begin: Cell, end: Cell, fraction: float) -> tuple[float, float]:
    """Interpolate between the centres of two cells."""
    down, right = (a + (b - a) * fraction + 0.5 for a, b in zip(begin, end, strict=True))
    return down, right


def _stroke(
    picture: Picture,
    begin: tuple[float, float],
    end: tuple[float, float],
    radius: float,
    color: Color,
    scale: int,
) -> None:
    """Blend all pixels closer to the line than `radius`; coordinates in cells, (down, right)."""
    reach = radius + 2 / scale
    top, left = (max(int((min(a, b) - reach) * scale), 0) for a, b in zip(begin, end, strict=True))
    bottom, right = (int((max(a, b) + reach) * scale) + 1 for a, b in zip(begin, end, strict=True))
    part = picture[top:bottom, left:right]
    down = (np.arange(top, top + part.shape[0])[:, None] + 0.5) / scale - begin[0]
    across = (np.arange(left, left + part.shape[1])[None, :] + 0.5) / scale - begin[1]
    along_down, along_right = end[0] - begin[0], end[1] - begin[1]
    squared = along_down**2 + along_right**2
    place = np.clip((down * along_down + across * along_right) / squared, 0, 1) if squared else 0.0
    distance = np.hypot(down - place * along_down, across - place * along_right)
    cover = np.clip((radius - distance) * scale + 0.5, 0, 1)[..., None]
    part += cover * (np.array(color) - part)


def _draw_food(picture: Picture, food: Cell, scale: int) -> None:
    down, right = food[0] + 0.54, food[1] + 0.5
    _stroke(picture, (down, right), (down, right), 0.31, _FOOD, scale)
    _stroke(picture, (down - 0.11, right - 0.12), (down - 0.11, right - 0.12), 0.07, _SHINE, scale)
    _stroke(picture, (down - 0.32, right + 0.02), (down - 0.40, right + 0.14), 0.06, _LEAF, scale)


def _draw_face(picture: Picture, head: Cell, heading: int, scale: int) -> None:
    ahead = ROW_STEP[heading], COLUMN_STEP[heading]
    for side in (-1, 1):
        down = head[0] + 0.5 + 0.10 * ahead[0] + side * 0.17 * ahead[1]
        right = head[1] + 0.5 + 0.10 * ahead[1] + side * 0.17 * ahead[0]
        _stroke(picture, (down, right), (down, right), 0.115, _WHITE, scale)
        down, right = down + 0.045 * ahead[0], right + 0.045 * ahead[1]
        _stroke(picture, (down, right), (down, right), 0.06, _PUPIL, scale)
