"""Slopes that outliers cannot bend: Theil-Sen with its interval, and Kendall's test.

scipy has both; it also takes a second to import, which is more than everything else here.
The tests hold these against scipy's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slope:
    """Slope of y on x with its 95 % interval, and the chance of such a trend without one."""

    value: float
    low: float
    high: float
    kendall_p: float


def theil_sen(x: Floats, y: Floats, *, inflation: float = 1.0) -> Slope | None:
    """Median slope of all pairs of points; None when all x are the same.

    The interval is Sen's, from the variance of Kendall's S; `inflation` multiplies that variance
    for neighbours that are alike (see `inflation_by_neighbours`). The p value is the plain one.
    """
    above, below = np.triu_indices(len(x), k=1)
    dx, dy = x[below] - x[above], y[below] - y[above]
    apart = dx != 0
    slopes = np.sort(dy[apart] / dx[apart])
    if not len(slopes):
        return None
    variance = _variance_of_s(x, y)
    score = float(np.sign(dx * dy).sum())
    p = math.erfc(abs(score) / math.sqrt(2 * variance)) if variance > 0 else 1.0
    reach = Z95 * math.sqrt(max(variance, 0.0) * inflation)
    low = max(round((len(slopes) - reach) / 2), 0)
    high = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), p)


def inflation_by_neighbours(x: Floats, y: Floats) -> float:
    """By how much neighbouring points that are alike widen the variance of a slope, at least 1.

    (1 + r) / (1 - r) with r the correlation of neighbours about a smooth curve (a parabola), so
    that a trend which is not quite a straight line does not count as noise.
    """
    if len(y) < 8:
        return 1.0
    rest = y - np.polyval(np.polyfit(x, y, 2), x)
    spread = float(np.dot(rest, rest))
    if spread <= 1e-18 * max(float(np.dot(y, y)), 1e-300):
        return 1.0
    r = float(np.dot(rest[1:], rest[:-1])) / spread
    if r <= 0:
        return 1.0
    r = min(r + (1 + 3 * r) / len(y), 0.95)  # the estimate is too small by about that much
    return (1 + r) / (1 - r)


def _variance_of_s(x: Floats, y: Floats) -> float:
    """Variance of Kendall's S under "no trend", ties on both sides allowed for."""
    n = len(x)
    x_ties, y_ties = (_ties(v) for v in (x, y))
    pairs = n * (n - 1.0)
    variance = pairs * (2 * n + 5)
    for t in (x_ties, y_ties):
        variance -= float((t * (t - 1) * (2 * t + 5)).sum())
    variance /= 18
    if n > 2:
        both = [float((t * (t - 1) * (t - 2)).sum()) for t in (x_ties, y_ties)]
        variance += both[0] * both[1] / (9 * pairs * (n - 2))
    twos = [float((t * (t - 1)).sum()) for t in (x_ties, y_ties)]
    return variance + twos[0] * twos[1] / (2 * pairs) if pairs else 0.0


def _ties(values: Floats) -> Floats:
    return np.unique(values, return_counts=True)[1].astype(np.float64)
