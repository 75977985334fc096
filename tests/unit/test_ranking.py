"""The learning check, the work check and the order of the ranked table."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotloop.analysis.ranking import VariantFacts, compare_returns, rank
from hotloop.analysis.verdict import VariantVerdict, judge
from hotloop.analysis.work_counters import WorkDifference, work_differences


def returns(shift: float, n: int = 12, spread: float = 1.0, seed: int = 0) -> list[tuple[float, float]]:
    rng = np.random.default_rng(seed)
    common = 100 + 20 * rng.standard_normal(n)
    noise = spread * rng.standard_normal((2, n))
    return [(float(c + x), float(c + shift + y)) for c, x, y in zip(common, *noise, strict=True)]


@pytest.mark.parametrize(
    "shift, spread, word", [(-20, 1, "worse"), (20, 1, "better"), (0, 1, "not_worse"), (0, 60, "undecided")]
)
def test_returns_are_compared_with_an_interval(shift: float, spread: float, word: str) -> None:
    found = compare_returns(returns(shift, spread=spread))
    assert found.word == word and found.summary.startswith(f"{word.replace('_', ' ')}: ")
    assert found.difference is not None and found.difference.low <= shift <= found.difference.high
    assert found.tolerance == pytest.approx(0.1 * 100, rel=0.2)


def test_negative_returns_are_compared_too() -> None:
    found = compare_returns([(a - 300, b - 300) for a, b in returns(-30)])
    assert found.word == "worse" and found.a_median is not None and found.a_median < 0


def test_few_returns_give_no_interval() -> None:
    found = compare_returns(returns(-50, n=4))
    assert (found.word, found.difference) == ("undecided", None) and "of the 5 pairs needed" in found.summary
    assert compare_returns([]).summary == "no returns to compare"
    assert compare_returns([(math.nan, 1.0)]).pairs == 0
    assert compare_returns(returns(-200, n=5)).word == "worse"


def test_a_false_alarm_about_learning_is_rare() -> None:
    words = [compare_returns(returns(0, n=8, spread=30, seed=seed)).word for seed in range(400)]
    assert 0 < sum(word in ("worse", "better") for word in words) / 400 <= 0.06


def test_different_work_is_named_and_uncounted_work_is_not_called_the_same() -> None:
    same = {"env steps": 1000.0, "updates": 250.0}
    fewer = {"env steps": 1000.0, "updates": 220.0}
    assert work_differences([(same, same)] * 3) == ()
    assert work_differences([(same, fewer)] * 3) == (WorkDifference("updates", 250.0, 220.0, 0.88),)
    assert work_differences([({}, {})] * 3) is None
    assert work_differences([({"episodes": 0.0}, {"episodes": 0.0})]) is None
    assert work_differences([({"episodes": 0.0}, {"episodes": 5.0})]) == (
        WorkDifference("episodes", 0.0, 5.0, None),
    )


def variant(name: str, ratio: float, spread: float = 0.01) -> VariantVerdict:
    pairs = [(1.0, ratio * math.exp(spread * (i - 5.5))) for i in range(12)]
    return VariantVerdict(name, judge(pairs))


def test_the_table_has_clear_gains_first_and_the_combination_apart() -> None:
    variants = [
        variant("slower", 1.3),
        variant("same", 1.0, 0.001),
        variant("wild", 0.9, 0.2),
        variant("good", 0.9),
        variant("best", 0.7),
        variant("both", 0.6),
    ]
    found = rank(variants, "base", 12, {"best": VariantFacts("faster", "safe", ())}, combination="both")
    assert [row.name for row in found.rows] == ["best", "good", "wild", "same", "slower"]
    assert found.combination is not None and found.combination.name == "both"
    assert found.summary.startswith("The largest gain is best: faster by 30")
    assert "1 more is faster" in found.summary and "combined (both): faster by 40" in found.summary
    assert "1 is undecided" in found.summary
    assert found.rows[0].expected == "faster" and found.rows[0].work == () and found.rows[1].work is None
    assert found.noise_floor == max(v.verdict.noise_floor or 0 for v in variants)


def test_without_a_gain_the_table_says_so() -> None:
    assert rank([variant("same", 1.0, 0.001)], "base", 12).summary == (
        "No variant is clearly faster than the baseline."
    )
    assert rank([], "base", 0).noise_floor is None
