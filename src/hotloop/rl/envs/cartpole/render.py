"""Draws a cart-pole with PIL at three times the size and scales it down, for smooth edges."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hotloop.rl.envs.cartpole.rules import ANGLE_LIMIT, HALF_LENGTH, POSITION_LIMIT

WIDTH, HEIGHT = 600, 400  # as in Gymnasium
_FINE = 3
_PIXELS = WIDTH * _FINE / (2.2 * POSITION_LIMIT)  # per unit of length
_TRACK_Y = 300 * _FINE
_CART = (58 * _FINE, 30 * _FINE)
_POLE_LENGTH, _POLE_WIDTH = 2 * HALF_LENGTH * _PIXELS, 9 * _FINE

_PAPER, _INK, _RAIL = (250, 249, 246), (38, 43, 56), (196, 194, 188)
_LIMIT, _CART_COLOUR, _WHEEL = (214, 92, 76), (52, 101, 164), (38, 43, 56)
_POLE, _POLE_LEANING, _AXLE = (222, 165, 76), (214, 92, 76), (250, 249, 246)


def draw(position: float, angle: float) -> NDArray[np.uint8]:
    """Draw the cart at `position` and the pole at `angle` radians from upright, uint8 [400, 600, 3]."""
    picture = _stage().copy()
    pen = ImageDraw.Draw(picture)
    x = WIDTH * _FINE / 2 + position * _PIXELS
    half, height = _CART[0] / 2, _CART[1]
    wheel = 8 * _FINE
    top = _TRACK_Y - wheel - height
    pen.rounded_rectangle((x - half, top, x + half, top + height), radius=6 * _FINE, fill=_CART_COLOUR)
    for side in (-0.55, 0.55):
        _disc(pen, x + side * half, _TRACK_Y - wheel, wheel, _WHEEL)
        _disc(pen, x + side * half, _TRACK_Y - wheel, wheel * 0.35, _RAIL)
    axle = top + 6 * _FINE
    tip = (x + math.sin(angle) * _POLE_LENGTH, axle - math.cos(angle) * _POLE_LENGTH)
    colour = _mixed(_POLE, _POLE_LEANING, min(abs(angle) / ANGLE_LIMIT, 1.0) ** 2)
    pen.line((x, axle, *tip), fill=colour, width=_POLE_WIDTH)
    _disc(pen, *tip, _POLE_WIDTH / 2, colour)
    _disc(pen, x, axle, _POLE_WIDTH * 0.75, _INK)
    _disc(pen, x, axle, _POLE_WIDTH * 0.3, _AXLE)
    return np.array(picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX))


@cache
def _stage() -> Image.Image:
    """Draw what never moves: the rail, its ticks, and the limits of an episode."""
    picture = Image.new("RGB", (WIDTH * _FINE, HEIGHT * _FINE), _PAPER)
    pen = ImageDraw.Draw(picture)
    pen.rectangle((0, _TRACK_Y, WIDTH * _FINE, _TRACK_Y + 2 * _FINE), fill=_INK)
    for tick in range(-2, 3):
        x = WIDTH * _FINE / 2 + tick * _PIXELS
        pen.rectangle((x - _FINE / 2, _TRACK_Y + 8 * _FINE, x + _FINE / 2, _TRACK_Y + 16 * _FINE), fill=_RAIL)
    for side in (-1, 1):
        x = WIDTH * _FINE / 2 + side * POSITION_LIMIT * _PIXELS
        pen.rectangle((x - _FINE, _TRACK_Y - 44 * _FINE, x + _FINE, _TRACK_Y), fill=_LIMIT)
    return picture


def _disc(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, colour: tuple[int, int, int]) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _mixed(one: tuple[int, int, int], other: tuple[int, int, int], share: float) -> tuple[int, int, int]:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue
