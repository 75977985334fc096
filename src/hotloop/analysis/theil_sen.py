"""The Theil-Sen slope, which outliers cannot bend, with two kinds of interval.

`theil_sen` is for many points in time order (windows of one run): Sen's interval, widened for correlated
neighbours, and Kendall's test. `exact_theil_sen` is for few points with repeats (runs of several sizes): an
exact interval. scipy has the slope without these intervals and takes a second to import; the tests compare
with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.rank_intervals import rank_sum_cut

Z95 = 1.959963984540054

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slope:
    """Slope of y on x with its 95 % interval, and Kendall's p value of "no trend"."""

    value: float
    low: float
    high: float
    kendall_p: float


def theil_sen(x: Floats, y: Floats, *, inflation: float = 1.0) -> Slope | None:
    """Median slope over all pairs of points; None when all x are equal.

    The interval is Sen's, from the variance of Kendall's S. `inflation` multiplies that variance to allow for
    correlated neighbours (see `variance_inflation`). The p value is the plain one.
    """
    slopes = pairwise_slopes(x, y)
    if not len(slopes):
        return None
    first, second = np.triu_indices(len(x), k=1)
    score = float(np.sign((x[second] - x[first]) * (y[second] - y[first])).sum())
    variance = _variance_of_s(x, y)
    p = math.erfc(abs(score) / math.sqrt(2 * variance)) if variance > 0 else 1.0
    reach = Z95 * math.sqrt(max(variance, 0.0) * inflation)
    low = max(round((len(slopes) - reach) / 2), 0)
    high = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), p)


def exact_theil_sen(x: Floats, y: Floats, level: float) -> tuple[float, float, float] | None:
    """Slope and the ends of its exact interval; x may repeat.

    The ends come from Jonckheere's statistic: at the true slope all orders of the residuals are equally
    likely. None with fewer than two different x; the ends are infinite with too few points for `level`.
    """
    slopes = pairwise_slopes(x, y)
    if not len(slopes):
        return None
    repeats = tuple(int(c) for c in np.unique(x, return_counts=True)[1])
    cut = rank_sum_cut(repeats, level)
    low, high = (float(slopes[cut - 1]), float(slopes[-cut])) if cut else (-math.inf, math.inf)
    return float(np.median(slopes)), low, high


def pairwise_slopes(x: Floats, y: Floats) -> Floats:
    """Slopes of all pairs of points with different x, sorted."""
    first, second = np.triu_indices(len(x), k=1)
    apart = x[first] != x[second]
    first, second = first[apart], second[apart]
    return np.sort((y[second] - y[first]) / (x[second] - x[first]))


def variance_inflation(x: Floats, y: Floats) -> float:
    """How much correlated neighbours increase the variance of a slope, at least 1.

    (1 + r) / (1 - r) with r the lag-1 correlation around a parabola, so that a trend which is not quite a
    straight line does not count as noise.
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
    r = min(r + (1 + 3 * r) / len(y), 0.95)  # the sample correlation is biased low by about this much
    return (1 + r) / (1 - r)


def _variance_of_s(x: Floats, y: Floats) -> float:
    """Variance of Kendall's S under "no trend", with ties in x and y."""
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
