"""The exact rank intervals against full enumeration and against scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from hotloop.analysis import rank_intervals
from hotloop.analysis.rank_intervals import (
    hodges_lehmann,
    order_distribution,
    rank_sum_cut,
    rank_sum_interval,
    signed_rank_cut,
    signed_rank_distribution,
    signed_rank_interval,
)
from hotloop.analysis.theil_sen import exact_theil_sen

LEVELS = (0.05, 0.0122, 1 / 128, 0.001)


def enumerated_signed_rank(n: int) -> np.ndarray:
    counts = np.zeros(n * (n + 1) // 2 + 1)
    for signs in itertools.product((0, 1), repeat=n):
        counts[sum(rank for rank, up in enumerate(signs, 1) if up)] += 1
    return counts / 2**n


@pytest.mark.parametrize("n", range(1, 11))
def test_the_signed_rank_distribution_is_the_enumerated_one(n: int) -> None:
    assert signed_rank_distribution(n) == pytest.approx(enumerated_signed_rank(n), abs=1e-15)


@pytest.mark.parametrize("n", [12, 40, 256])
def test_the_distribution_adds_up_and_has_the_known_moments(n: int) -> None:
    chance = signed_rank_distribution(n)
    w = np.arange(len(chance))
    mean = (w * chance).sum()
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    assert mean == pytest.approx(n * (n + 1) / 4)
    assert ((w - mean) ** 2 * chance).sum() == pytest.approx(n * (n + 1) * (2 * n + 1) / 24)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", range(1, 11))
def test_the_cut_is_the_largest_that_keeps_the_level(n: int, level: float) -> None:
    cumulative = np.cumsum(enumerated_signed_rank(n))
    allowed = [k for k in range(1, len(cumulative)) if 2 * cumulative[k - 1] <= level]
    assert signed_rank_cut(n, level) == max(allowed, default=0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [8, 12, 20, 40])
def test_the_interval_holds_exactly_the_shifts_scipy_does_not_reject(n: int, level: float) -> None:
    rng = np.random.default_rng(n)
    for _ in range(4):
        d = rng.standard_normal(n) + 0.3
        ends = signed_rank_interval(d, level)
        if ends is None:
            assert 2 / 2**n > level
            continue
        low, high = ends
        inside, outside = [low + 1e-9, high - 1e-9, hodges_lehmann(d)], [low - 1e-9, high + 1e-9]
        assert all(stats.wilcoxon(d - shift, method="exact").pvalue > level for shift in inside)
        assert all(stats.wilcoxon(d - shift, method="exact").pvalue <= level for shift in outside)


def test_an_interval_that_cannot_exist_is_none() -> None:
    five = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert signed_rank_interval(five, 0.0122) is None  # 2 / 32 is the least five pairs reach
    assert signed_rank_interval(five, 2 / 32) == (0.1, 0.5)
    assert signed_rank_interval(np.zeros(0), 0.5) is None


def test_eight_pairs_reach_the_level_of_short_segments() -> None:
    assert signed_rank_cut(8, 1 / 128) == 1
    assert signed_rank_cut(8, 0.0078) == 0


@pytest.mark.parametrize("n", [8, 9])
def test_ties_and_zeros_never_cost_coverage(n: int) -> None:
    """Every sign pattern of tied and zero sizes: the interval misses 0 in at most the level."""
    for sizes in ([0] * 2 + [1] * (n - 2), [1] * n, [0, 0, 0, 1, 1, 2, 2, 3, 3][:n]):
        missed = 0
        for signs in itertools.product((-1, 1), repeat=n):
            ends = signed_rank_interval(np.array(sizes, dtype=float) * np.array(signs), 0.05)
            assert ends is not None
            missed += not ends[0] <= 0 <= ends[1]
        assert missed / 2**n <= 0.05


@pytest.mark.parametrize("level", LEVELS)
def test_the_approximation_for_very_many_pairs_stays_just_outside_the_exact_one(
    level: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = signed_rank_cut.__wrapped__(300, level)
    monkeypatch.setattr(rank_intervals, "MOST_EXACT", 299)
    close = signed_rank_cut.__wrapped__(300, level)
    assert 0 <= exact - close <= 25  # of 45,150 Walsh averages; never the narrower interval


@pytest.mark.parametrize("sizes", [(3, 4), (5, 5), (2, 2, 2), (1, 1, 1, 1, 1), (1, 3, 2)])
def test_the_order_distribution_is_the_enumerated_one(sizes: tuple[int, ...]) -> None:
    labels = [group for group, size in enumerate(sizes) for _ in range(size)]
    pairs = sum(a * b for a, b in itertools.combinations(sizes, 2))
    counts = np.zeros(pairs + 1)
    orders = set(itertools.permutations(labels)) if len(labels) < 8 else distinct_orders(sizes)
    for order in orders:
        counts[sum(x < y for x, y in itertools.combinations(order, 2))] += 1
    assert order_distribution(sizes) == pytest.approx(counts / counts.sum(), abs=1e-14)


def distinct_orders(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    total = sum(sizes)
    assert len(sizes) == 2
    return [
        tuple(int(i in chosen) for i in range(total))
        for chosen in itertools.combinations(range(total), sizes[1])
    ]


@pytest.mark.parametrize("m, n", [(5, 5), (8, 6), (12, 15)])
def test_the_rank_sum_interval_contains_what_scipy_does_not_reject(m: int, n: int) -> None:
    rng = np.random.default_rng(m * n)
    a, b = rng.standard_normal(m), rng.standard_normal(n) + 0.5
    ends = rank_sum_interval(a, b, 0.05)
    assert ends is not None

    def p(shift: float) -> float:
        return float(stats.mannwhitneyu(b - shift, a, method="exact").pvalue)

    assert min(p(ends[0] + 1e-9), p(ends[1] - 1e-9)) > 0.05
    assert max(p(ends[0] - 1e-9), p(ends[1] + 1e-9)) <= 0.05


def test_five_against_five_all_apart_has_the_chance_used_for_the_first_look() -> None:
    assert order_distribution((5, 5))[0] * 2 == pytest.approx(2 / math.comb(10, 5))
    assert rank_sum_cut((5, 5), 0.0122) == 1
    assert rank_sum_cut((4, 4), 0.0122) == 0


def test_large_groups_use_an_approximation_close_to_the_exact_cut() -> None:
    exact = rank_intervals._cut(order_distribution((150, 150)), 0.05)
    assert abs(rank_sum_cut((150, 150), 0.05) - exact) <= 3  # 22,500 pairs: beyond the exact limit


def test_the_slope_is_theil_sens_and_covers_with_repeats() -> None:
    rng = np.random.default_rng(5)
    x = np.repeat(np.log([100, 200, 400, 800]), 3)
    missed = 0
    for _ in range(1500):
        y = 1.5 * x + 0.2 * rng.standard_t(3, len(x))
        found = exact_theil_sen(x, y, 0.05)
        assert found is not None
        missed += not found[1] <= 1.5 <= found[2]
    assert 0.02 <= missed / 1500 <= 0.06
    assert found[0] == pytest.approx(stats.theilslopes(y, x)[0])


def test_a_slope_needs_enough_orders_for_an_interval() -> None:
    x, y = np.log([1.0, 2.0, 4.0, 8.0]), np.array([0.0, 1.0, 2.1, 2.9])
    assert exact_theil_sen(x, y, 0.05)[1:] == (-math.inf, math.inf)
    assert exact_theil_sen(np.zeros(3), np.arange(3.0), 0.05) is None
