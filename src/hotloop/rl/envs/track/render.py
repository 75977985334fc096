"""Draws the track and its car."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hotloop.rl.envs.track.line import Line
from hotloop.rl.envs.track.rules import TrackConfig

SIZE = 480
_GRASS, _ROAD, _EDGE, _DASH = (94, 140, 84), (72, 74, 80), (235, 235, 230), (210, 190, 90)
_CAR, _GLASS, _START = (214, 60, 52), (40, 46, 60), (245, 245, 245)


def draw_track(line: Line, config: TrackConfig, car: NDArray[Any]) -> NDArray[np.uint8]:
    """Draw the track from above, uint8 [480, 480, 3]; the car is enlarged to twice its size."""
    fine = 2  # supersampling, for smooth edges
    low, high = line.points.min(axis=0), line.points.max(axis=0)
    margin = config.crash_m + 2.0
    scale = fine * SIZE / float((high - low).max() + 2 * margin)
    middle = (low + high) / 2

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            fine * SIZE / 2 + (x - float(middle[0])) * scale,
            fine * SIZE / 2 - (y - float(middle[1])) * scale,
        )

    image = Image.new("RGB", (fine * SIZE, fine * SIZE), _GRASS)
    draw = ImageDraw.Draw(image)
    corners = [at(x, y) for x, y in line.points.tolist()]
    for wide, colour in ((config.half_width_m + 0.35, _EDGE), (config.half_width_m, _ROAD)):
        reach = wide * scale
        for x, y in corners:  # overlapping discs: a road without gaps
            draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=colour)
    for first in range(0, len(corners), 8):
        draw.line(corners[first : first + 4], fill=_DASH, width=max(1, round(0.25 * scale)))

    x, y, heading = (float(value) for value in car[:3])
    draw.polygon(_box(at, x, y, heading, 4.2, 2.0), fill=_CAR, outline=_START)
    ahead_x, ahead_y = x + 0.9 * math.cos(heading), y + 0.9 * math.sin(heading)
    draw.polygon(_box(at, ahead_x, ahead_y, heading, 1.2, 1.5), fill=_GLASS)
    small = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.uint8).copy()


def _box(at: Any, x: float, y: float, heading: float, long: float, wide: float) -> list[tuple[float, float]]:
    """Return the corners of a rectangle rotated by `heading` about its centre."""
    corners = []
    for along, aside in ((1, 1), (1, -1), (-1, -1), (-1, 1)):
        dx, dy = along * long / 2, aside * wide / 2
        corners.append(
            at(
                x + dx * math.cos(heading) - dy * math.sin(heading),
                y + dx * math.sin(heading) + dy * math.cos(heading),
            )
        )
    return corners
