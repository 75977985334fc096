"""Exact rank intervals for a shift: paired (signed-rank), unpaired (rank-sum), and a slope over sizes.

All three invert a rank test: its null distribution is counted, not approximated, and the ends of the
interval are order statistics of the pairwise estimates. Ties and zeros need no rule of their own: the
intervals are closed, so equal values can only make them cover more often than stated.
scipy has the tests but not the intervals, and it takes a second to import; the tests hold these
against scipy's and against full enumeration.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MOST_EXACT = 300  # pairs; above, the normal approximation, which there is wider by a few ranks of 45,150
Floats = NDArray[np.float64]


def walsh_averages(d: Floats) -> Floats:
    """Means of all pairs of values, each with itself included, sorted: n (n + 1) / 2 of them."""
    first, second = np.triu_indices(len(d))
    return np.sort((d[first] + d[second]) / 2)


def hodges_lehmann(d: Floats) -> float:
    """Median of the Walsh averages: the shift at which the signed ranks balance."""
    return float(np.median(walsh_averages(d)))


def signed_rank_interval(d: Floats, level: float) -> tuple[float, float] | None:
    """Interval for the centre of symmetric differences that misses it with a chance of at most `level`.

    None when there are too few differences for any interval at that level.
    """
    rank = signed_rank_cut(len(d), level)
    if rank == 0:
        return None
    averages = walsh_averages(d)
    return float(averages[rank - 1]), float(averages[-rank])


@lru_cache(maxsize=4096)
def signed_rank_cut(n: int, level: float) -> int:
    """Largest k such that 2 P(W <= k - 1) <= level under "no difference"; 0 when there is none."""
    if n < 1:
        return 0
    if n > MOST_EXACT:
        mean = n * (n + 1) / 4
        sd = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(math.floor(mean - 0.5 - normal_quantile(1 - level / 2) * sd) + 1, 0)
    return _cut(signed_rank_distribution(n), level)


@lru_cache(maxsize=64)
def signed_rank_distribution(n: int) -> Floats:
    """P(W = w) for w = 0 .. n (n + 1) / 2: the sum of the ranks with a positive sign, by fair coins."""
    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    top = 0
    for rank in range(1, n + 1):
        # The rank's coin: half of what was stays, half moves up by the rank.
        moved = chance[: top + 1] / 2
        chance[: top + 1] /= 2
        chance[rank : top + rank + 1] += moved
        top += rank
    chance.setflags(write=False)
    return chance


def rank_sum_interval(a: Floats, b: Floats, level: float) -> tuple[float, float] | None:
    """Interval for the shift from a to b, not paired; None when there are too few values."""
    return _ends(differences(a, b), rank_sum_cut((len(a), len(b)), level))


def differences(a: Floats, b: Floats) -> Floats:
    """All differences b_j - a_i, sorted; their median is the Hodges-Lehmann shift."""
    return np.sort((b[None, :] - a[:, None]).ravel())


@lru_cache(maxsize=4096)
def rank_sum_cut(sizes: tuple[int, ...], level: float) -> int:
    """Largest k such that 2 P(J <= k - 1) <= level; 0 when there is none.

    J counts the pairs from different groups that stand in the groups' order, under "all orders alike":
    Mann-Whitney's U for two groups, Jonckheere's statistic for more.
    """
    if min(sizes, default=0) < 1 or len(sizes) < 2:
        return 0
    pairs = (sum(sizes) ** 2 - sum(s * s for s in sizes)) // 2
    if pairs > 20_000:
        total = sum(sizes)
        variance = total**2 * (2 * total + 3) - sum(s * s * (2 * s + 3) for s in sizes)
        reach = normal_quantile(1 - level / 2) * math.sqrt(variance / 72)
        return max(math.floor(pairs / 2 - 0.5 - reach) + 1, 0)
    return _cut(order_distribution(sizes), level)


@lru_cache(maxsize=64)
def order_distribution(sizes: tuple[int, ...]) -> Floats:
    """P(J = j), J as in `rank_sum_cut`: group after group joins those before it."""
    chance = np.ones(1)
    before = sizes[0]
    for size in sizes[1:]:
        chance = np.convolve(chance, _two_groups(before, size))
        before += size
    return chance


def _two_groups(m: int, n: int) -> Floats:
    """P(U = u) of Mann-Whitney for groups of m and n: the Gaussian binomial, scaled to add up to 1."""
    chance = np.zeros(m * n + 1)
    chance[0] = 1.0
    for i in range(1, n + 1):
        # Multiply by (1 - q^(m + i)) / (1 - q^i), scaled by i / (m + i) to stay a distribution.
        if m + i <= m * n:
            chance[m + i :] -= chance[: -(m + i)].copy()
        for start in range(i):
            chance[start::i] = np.cumsum(chance[start::i])
        chance *= i / (m + i)
    return np.maximum(chance, 0.0)


def slope_interval(x: Floats, y: Floats, level: float) -> tuple[float, float, float] | None:
    """Theil-Sen slope of y on x with its exact interval, repeats at the same x allowed.

    The slopes are those of all pairs of points at different x; the ends come from Jonckheere's
    statistic: at the true slope the residuals stand in any order with the same chance. None with
    fewer than two different x; the ends are infinite when there are too few points for `level`.
    """
    first, second = np.triu_indices(len(x), k=1)
    apart = x[first] != x[second]
    if not apart.any():
        return None
    first, second = first[apart], second[apart]
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    sizes = tuple(int(c) for c in np.unique(x, return_counts=True)[1])
    ends = _ends(slopes, rank_sum_cut(sizes, level))
    low, high = ends if ends is not None else (-math.inf, math.inf)
    return float(np.median(slopes)), low, high


def _ends(ordered: Floats, rank: int) -> tuple[float, float] | None:
    return None if rank == 0 else (float(ordered[rank - 1]), float(ordered[-rank]))


def _cut(chance: Floats, level: float) -> int:
    # The slack is for the last digits of the sums, not for the level.
    return int(np.searchsorted(2 * np.cumsum(chance), level * (1 + 1e-9), side="right"))


@lru_cache(maxsize=64)
def normal_quantile(p: float) -> float:
    """The point a standard normal value stays below with chance p."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)
