"""Shapes and colours that both pictures of a net share; coordinates are pixels of the result."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

from PIL import ImageDraw, ImageFont

Colour = tuple[int, int, int]

SCALE = 2
PAPER: Colour = (250, 250, 247)
CHAMBER: Colour = (255, 255, 255)
LINE: Colour = (203, 207, 214)
INK: Colour = (38, 44, 56)
FAINT: Colour = (120, 127, 140)
WORKING: Colour = (58, 122, 214)
READY: Colour = (232, 152, 24)
LATE: Colour = (206, 48, 42)
ROBOT: Colour = (92, 101, 118)
FLOOR: Colour = (236, 238, 240)
# Token colours, which differ in lightness as well as in hue.
WAFERS: tuple[Colour, ...] = (
    (120, 170, 226),
    (246, 190, 96),
    (126, 200, 160),
    (214, 142, 190),
    (178, 164, 226),
    (236, 150, 120),
    (150, 206, 214),
    (204, 204, 120),
)


@lru_cache(maxsize=16)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


class Canvas:
    """A PIL drawing with positions and sizes multiplied by `SCALE`."""

    def __init__(self, draw: ImageDraw.ImageDraw):
        self._draw = draw

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Colour, *, radius: float = 8) -> None:
        """Fill a box with round corners."""
        corners = [SCALE * value for value in (x0, y0, x1, y1)]
        self._draw.rounded_rectangle(corners, radius * SCALE, fill=fill)

    def frame(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, radius: float = 8) -> None:
        """Draw a white box with a coloured edge."""
        self.box(x0, y0, x1, y1, colour, radius=radius)
        self.box(x0 + 2, y0 + 2, x1 - 2, y1 - 2, CHAMBER, radius=radius - 2)

    def disc(self, x: float, y: float, radius: float, fill: Colour, *, outline: Colour | None = None) -> None:
        """Fill a circle."""
        corners = [SCALE * value for value in (x - radius, y - radius, x + radius, y + radius)]
        self._draw.ellipse(corners, fill=fill, outline=outline, width=SCALE)

    def ring(self, x: float, y: float, radius: float, fraction: float, colour: Colour) -> None:
        """Draw a fraction of a circle, clockwise from the top."""
        corners = [SCALE * value for value in (x - radius, y - radius, x + radius, y + radius)]
        share = min(max(fraction, 0.0), 1.0)
        self._draw.arc(corners, -90, -90 + 360 * share, fill=colour, width=4 * SCALE)

    def line(
        self, start: tuple[float, float], end: tuple[float, float], colour: Colour, width: float
    ) -> None:
        """Draw a straight line with round ends."""
        points = [SCALE * value for value in (*start, *end)]
        self._draw.line(points, fill=colour, width=int(width * SCALE))
        for x, y in (start, end):
            self.disc(x, y, width / 2, colour)

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        *,
        gap: float = 15,
        resource: bool,
        head: Literal["arrow", "circle", "double"] = "arrow",
    ) -> None:
        """Draw an arc of the net that stops short of its target's centre; arcs of resources are lighter.

        As usual, an inhibitor arc ends in a circle and a reset arc in a double arrow.
        """
        colour = (226, 228, 232) if resource else (160, 166, 176)
        length = math.dist(start, end) or 1.0
        away = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
        tip = (end[0] - gap * away[0], end[1] - gap * away[1])
        back = (tip[0] - 6 * away[0], tip[1] - 6 * away[1])
        self._draw.line([SCALE * value for value in (*start, *back)], fill=colour, width=SCALE)
        if head == "circle":
            self.disc(tip[0] - 3 * away[0], tip[1] - 3 * away[1], 3, PAPER, outline=colour)
            return
        for behind in (0, 6) if head == "double" else (0,):
            point, foot = ((x - behind * away[0], y - behind * away[1]) for x, y in (tip, back))
            left = (foot[0] - 3 * away[1], foot[1] + 3 * away[0])
            right = (foot[0] + 3 * away[1], foot[1] - 3 * away[0])
            self._draw.polygon([SCALE * value for one in (point, left, right) for value in one], fill=colour)

    def text(self, x: float, y: float, text: str, colour: Colour, size: int, *, anchor: str = "mm") -> None:
        """Draw text, centred unless `anchor` says otherwise."""
        self._draw.text((SCALE * x, SCALE * y), text, fill=colour, font=_font(size * SCALE), anchor=anchor)

    def wafer(self, x: float, y: float, radius: float, slot: int) -> None:
        """Draw a token with its slot number, counted from 1, if it has a slot."""
        self.disc(x, y, radius, WAFERS[slot % len(WAFERS)] if slot >= 0 else FAINT, outline=INK)
        if slot >= 0:
            self.text(x, y, str(slot + 1), INK, max(8, int(radius)))
