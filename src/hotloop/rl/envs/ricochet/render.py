"""Draws boards with PIL: the reference for `rgb_image` observations, and the larger picture of `render()`.

A board is n * 20 + 1 pixels wide, with a grid line on every 20th pixel. It is resized to 128 x 128 with PIL's
bilinear filter, which averages over all pixels that an output pixel covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hotloop import profile
from hotloop.rl.envs.ricochet.board import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    Position,
    centre_cells,
    has_walled_centre,
)
from hotloop.rl.envs.ricochet.config import PICTURE

Colour = tuple[int, int, int]
FLOOR: Colour = (245, 241, 232)
GRID: Colour = (205, 197, 182)
WALL: Colour = (38, 40, 48)
CENTRE: Colour = (140, 134, 124)
OUTLINE: Colour = (18, 18, 24)
ROBOTS: tuple[Colour, ...] = (
    (214, 40, 57),
    (36, 104, 220),
    (30, 154, 72),
    (246, 186, 20),
    (146, 62, 190),
)
FILTER = Image.Resampling.BILINEAR

_observing = profile("env_rgb_observation_generation")
_rendering = profile("env_rgb_rendering")
_resizing = profile("env_rgb_resizing")
_drawing_grid = profile("env_rgb_draw_grid")
_drawing_walls = profile("env_rgb_draw_walls")
_drawing_robots = profile("env_rgb_draw_robots")
_drawing_target = profile("env_rgb_draw_target")


@dataclass(frozen=True, slots=True)
class PixelSizes:
    """Sizes in pixels."""

    cell: int
    """Distance between grid lines."""
    grid: int
    """Width of a grid line."""
    wall: int
    """Width of a wall; odd, so that it is centred on its line."""
    outline: int
    """Width of the star's outline."""

    @property
    def disc_radius(self) -> int:
        """Radius of a robot: 0.35 of a cell."""
        return round(0.35 * self.cell)

    @property
    def star_radius(self) -> int:
        """Outer radius of the target's star: 0.4 of a cell."""
        return round(0.4 * self.cell)


OBSERVED = PixelSizes(cell=20, grid=1, wall=3, outline=1)


def rgb_image(position: Position) -> NDArray[np.uint8]:
    """Return the `rgb_image` observation as a new array, uint8 [3, 128, 128]."""
    with _observing:
        with _rendering:
            picture = draw(position, OBSERVED)
        with _resizing:
            picture = picture.resize((PICTURE, PICTURE), FILTER)
        return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def rgb_array(position: Position) -> NDArray[np.uint8]:
    """Return a picture for people, uint8 [height, width, 3], about 500 pixels wide, antialiased."""
    cell = 60 if position.size <= 10 else 40
    picture = draw(position, PixelSizes(cell=4 * cell, grid=4, wall=4 * cell // 10 + 1, outline=cell // 6))
    width = position.size * cell + 1
    return np.asarray(picture.resize((width, width), Image.Resampling.LANCZOS))


def draw(position: Position, pixels: PixelSizes) -> Image.Image:
    """Draw the board: grid, walls, robots, and the target on top, so that it shows on a robot."""
    width = position.size * pixels.cell + 1
    picture = Image.new("RGB", (width, width), FLOOR)
    pen = ImageDraw.Draw(picture)
    with _drawing_grid:
        draw_grid(pen, position.size, pixels, has_walled_centre(position.walls, position.size))
    with _drawing_walls:
        draw_walls(pen, position.walls, position.size, pixels)
    with _drawing_robots:
        for robot, cell in enumerate(position.robots):
            row, column = divmod(cell, position.size)
            draw_disc(pen, row, column, ROBOTS[robot], pixels)
    with _drawing_target:
        row, column = divmod(position.target, position.size)
        colour = WALL if position.target_robot is None else ROBOTS[position.target_robot]
        draw_star(pen, row, column, colour, pixels)
    return picture


def draw_grid(pen: ImageDraw.ImageDraw, size: int, pixels: PixelSizes, walled_centre: bool = True) -> None:
    """Draw the grid lines and fill the centre, if it is walled."""
    last = size * pixels.cell
    for line in range(size + 1):
        at = line * pixels.cell
        pen.line((at, 0, at, last), fill=GRID, width=pixels.grid)
        pen.line((0, at, last, at), fill=GRID, width=pixels.grid)
    if not walled_centre:
        return
    centre = centre_cells(size)
    top, bottom = centre[0] // size * pixels.cell, (centre[-1] // size + 1) * pixels.cell
    pen.rectangle((top, top, bottom, bottom), fill=CENTRE)


def draw_walls(pen: ImageDraw.ImageDraw, walls: tuple[int, ...], size: int, pixels: PixelSizes) -> None:
    """Draw every wall once: above and left of each cell, and the border's other two sides."""
    for cell, bits in enumerate(walls):
        row, column = divmod(cell, size)
        for direction in (UP, LEFT, DOWN, RIGHT):
            at_end = (direction == DOWN and row == size - 1) or (direction == RIGHT and column == size - 1)
            if bits & 1 << direction and (direction in (UP, LEFT) or at_end):
                pen.rectangle(wall_box(row, column, direction, pixels), fill=WALL)


def wall_box(row: int, column: int, direction: int, pixels: PixelSizes) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom (inclusive) of a wall, which extends half its width past its ends."""
    half = pixels.wall // 2
    left, top = column * pixels.cell, row * pixels.cell
    right, bottom = left + pixels.cell, top + pixels.cell
    if direction == UP:
        bottom = top
    elif direction == DOWN:
        top = bottom
    elif direction == LEFT:
        right = left
    else:
        left = right
    return left - half, top - half, right + half, bottom + half


def draw_disc(pen: ImageDraw.ImageDraw, row: int, column: int, colour: Colour, pixels: PixelSizes) -> None:
    """Draw a robot."""
    x, y, radius = _middle(column, pixels), _middle(row, pixels), pixels.disc_radius
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def draw_star(pen: ImageDraw.ImageDraw, row: int, column: int, colour: Colour, pixels: PixelSizes) -> None:
    """Draw the target: a five-pointed star in its robot's colour (dark: any robot), with a dark outline."""
    x, y = _middle(column, pixels), _middle(row, pixels)
    points = []
    for number in range(10):
        radius = pixels.star_radius * (1.0 if number % 2 == 0 else 0.5)
        angle = math.pi * number / 5
        points.append((x + round(radius * math.sin(angle)), y - round(radius * math.cos(angle))))
    pen.polygon(points, fill=colour, outline=OUTLINE, width=pixels.outline)


def _middle(cell: int, pixels: PixelSizes) -> int:
    return cell * pixels.cell + pixels.cell // 2
