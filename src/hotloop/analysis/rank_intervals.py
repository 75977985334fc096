"""Exact rank intervals for a shift: paired (signed-rank) and unpaired (rank-sum).

Both invert a rank test: the null distribution is counted, not approximated, and the ends of the interval
are order statistics of the pairwise estimates. Ties and zeros need no special treatment: the intervals are
closed, so equal values can only make them cover more often than stated. scipy has the tests but not the
intervals, and takes a second to import; the unit tests compare with scipy and with full enumeration.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

MOST_EXACT = 300  # pairs; beyond, the normal approximation, wider by a few of 45,150 ranks
Floats = NDArray[np.float64]


def walsh_averages(d: Floats) -> Floats:
    """Means of all n (n + 1) / 2 pairs of values, each value also paired with itself, sorted."""
    first, second = np.triu_indices(len(d))
    return np.sort((d[first] + d[second]) / 2)


def hodges_lehmann(d: Floats) -> float:
    """Median of the Walsh averages: the robust estimate of the centre."""
    return float(np.median(walsh_averages(d)))


def signed_rank_interval(d: Floats, level: float) -> tuple[float, float] | None:
    """Interval for the centre of symmetric differences with error rate at most `level`.

    None when there are too few differences for that level.
    """
    rank = signed_rank_cut(len(d), level)
    if rank == 0:
        return None
    averages = walsh_averages(d)
    return float(averages[rank - 1]), float(averages[-rank])


@lru_cache(maxsize=4096)
def signed_rank_cut(n: int, level: float) -> int:
    """Largest k such that 2 P(W <= k - 1) <= level under the null hypothesis; 0 when there is none."""
    if n < 1:
        return 0
    if n > MOST_EXACT:
        mean = n * (n + 1) / 4
        sd = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(math.floor(mean - 0.5 - normal_quantile(1 - level / 2) * sd) + 1, 0)
    return _cut(signed_rank_distribution(n), level)


@lru_cache(maxsize=64)
def signed_rank_distribution(n: int) -> Floats:
    """P(W = w) for w = 0 .. n (n + 1) / 2, W the sum of the ranks 1 .. n that a fair coin makes positive."""
    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    top = 0
    for rank in range(1, n + 1):
        # Half of the probability stays, half moves up by this rank.
        moved = chance[: top + 1] / 2
        chance[: top + 1] /= 2
        chance[rank : top + rank + 1] += moved
        top += rank
    chance.setflags(write=False)
    return chance


def rank_sum_interval(a: Floats, b: Floats, level: float) -> tuple[float, float] | None:
    """Interval for the shift from a to b, unpaired; None when there are too few values."""
    return _ends(differences(a, b), rank_sum_cut((len(a), len(b)), level))


def differences(a: Floats, b: Floats) -> Floats:
    """All differences b_j - a_i, sorted; their median is the Hodges-Lehmann shift."""
    return np.sort((b[None, :] - a[:, None]).ravel())


@lru_cache(maxsize=4096)
def rank_sum_cut(sizes: tuple[int, ...], level: float) -> int:
    """Largest k such that 2 P(J <= k - 1) <= level; 0 when there is none.

    J counts the pairs of values from different groups that are in the groups' order, when all orders are
    equally likely: Mann-Whitney's U for two groups, Jonckheere's statistic for more.
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
    """P(J = j), J as in `rank_sum_cut`: adds one group after the other."""
    chance = np.ones(1)
    before = sizes[0]
    for size in sizes[1:]:
        chance = np.convolve(chance, _two_groups(before, size))
        before += size
    return chance


def _two_groups(m: int, n: int) -> Floats:
    """P(U = u) of Mann-Whitney for groups of m and n: the Gaussian binomial, normalised."""
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


def _ends(ordered: Floats, rank: int) -> tuple[float, float] | None:
    return None if rank == 0 else (float(ordered[rank - 1]), float(ordered[-rank]))


def _cut(chance: Floats, level: float) -> int:
    # The slack absorbs rounding of the sums.
    return int(np.searchsorted(2 * np.cumsum(chance), level * (1 + 1e-9), side="right"))


@lru_cache(maxsize=64)
def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(p)
