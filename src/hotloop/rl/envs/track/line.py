"""Generates closed centre lines from a seed: evenly spaced points, never close to itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError

LEAST_RADIUS_M = 9.0  # well above the car's turning radius
CLEARANCE_M = 14.0  # between parts of the line that are not adjacent


@dataclass(frozen=True)
class Line:
    """A closed polygon of `points`; segment i runs from point i to point i + 1."""

    points: NDArray[np.float64]
    """[n, 2], metres, in driving order (counter-clockwise)."""
    tangents: NDArray[np.float64]
    """[n, 2], unit direction of each segment."""
    lengths: NDArray[np.float64]
    """[n], metres, of each segment."""

    @property
    def lap_m(self) -> float:
        """Length of one lap."""
        return float(self.lengths.sum())


def closed_line(points: NDArray[np.float64]) -> Line:
    """Create a line from its corner points [n, 2]."""
    steps = np.roll(points, -1, axis=0) - points
    lengths = np.sqrt(steps[:, 0] ** 2 + steps[:, 1] ** 2)
    return Line(np.ascontiguousarray(points), steps / lengths[:, None], lengths)


def draw_line(seed: int, count: int = 600, lap_m: float = 300.0) -> Line:
    """Generate a smooth closed line of `count` points; retried until clearance and curvature are fine."""
    if count < 60:
        raise HotloopError(f"a track of {count} points is too coarse; use track_points of at least 60.")
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        line = closed_line(_even(_outline(rng), count, lap_m))
        if _least_radius(line) >= LEAST_RADIUS_M and _clearance(line) >= CLEARANCE_M:
            return line
    raise HotloopError(f"no track of {lap_m} m could be generated from seed {seed}; use a longer lap.")


def _outline(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a fine outline: a circle with a few waves."""
    angles = np.linspace(0.0, 2 * math.pi, 6000, endpoint=False)
    radius = np.ones_like(angles)
    for wave in (2, 3, 4, 5):
        height, turn = 0.35 * rng.random() / wave, 2 * math.pi * rng.random()
        radius += height * np.cos(wave * angles + turn)
    return np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=1)


def _even(outline: NDArray[np.float64], count: int, lap_m: float) -> NDArray[np.float64]:
    """Return `count` evenly spaced points along an outline, scaled to the lap's length."""
    closed = np.vstack([outline, outline[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))])
    places = np.linspace(0.0, along[-1], count, endpoint=False)
    even = np.stack([np.interp(places, along, closed[:, axis]) for axis in (0, 1)], axis=1)
    return np.asarray(even * (lap_m / along[-1]))


def _least_radius(line: Line) -> float:
    following = np.roll(line.tangents, -1, axis=0)
    turns = np.abs(line.tangents[:, 0] * following[:, 1] - line.tangents[:, 1] * following[:, 0])
    return float((line.lengths / np.maximum(turns, 1e-12)).min())


def _clearance(line: Line) -> float:
    """Return the smallest distance between points more than a tenth of a lap apart along the line."""
    count = len(line.points)
    apart = np.linalg.norm(line.points[:, None] - line.points[None], axis=2)
    order = np.arange(count)
    along = np.abs(order[:, None] - order[None])
    along = np.minimum(along, count - along)
    return float(apart[along > count // 10].min())
