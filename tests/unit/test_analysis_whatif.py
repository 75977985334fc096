"""Gains with intervals, the bottleneck score, and their statistics compared with scipy."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hotloop.analysis.bottleneck import Operation, bottlenecks, operations, score, score_terms
from hotloop.analysis.categories import Resolver
from hotloop.analysis.findings import Estimate
from hotloop.analysis.theil_sen import theil_sen, variance_inflation
from hotloop.analysis.tree import flatten
from hotloop.analysis.whatif import amdahl, block_counts, gains, shares_by_name, widened
from hotloop.analysis.windows import UNATTRIBUTED, Spans, spans_by_category, spans_by_name
from hotloop.capture.model import Capture
from hotloop.testing.captures import Spec, ThreadSpec, make_capture


def flat_and_spans(capture: Capture) -> tuple[Any, ...]:
    thread = capture.threads[0]
    return flatten(thread.root, Resolver(), capture.region_cost_ns), spans_by_name(thread)


def spans(own: np.ndarray, span: np.ndarray, *names: str) -> Spans:
    return Spans(names, np.cumsum(span), span, own, np.ones_like(own))


def test_amdahl_by_hand() -> None:
    assert amdahl(0.5, 0.5) == pytest.approx(4 / 3)
    assert amdahl(0.0, 0.9) == 1.0


def test_block_counts_draw_every_window_once_on_average_and_are_repeatable() -> None:
    counts = block_counts(40)
    assert (counts.sum(axis=1) == 40).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(40), abs=0.2)
    assert (counts == block_counts(40)).all()


def test_steady_windows_give_a_tight_interval_and_shaky_ones_a_wide_one() -> None:
    rng = np.random.default_rng(1)
    span = np.full(40, 100.0)
    steady, shaky = np.full(40, 50.0), rng.uniform(0, 100, 40)
    own = np.stack([steady, shaky], axis=1)
    shares = {"steady": 0.5, "shaky": float(shaky.sum() / span.sum())}
    first, second = gains(spans(own, span, "steady", "shaky"), shares, [["steady"], ["shaky"]], 0.5)
    assert first is not None and second is not None
    assert (first.low, first.value, first.high) == pytest.approx((4 / 3, 4 / 3, 4 / 3))
    assert second.low < second.value < second.high
    assert second.high - second.low > 0.03


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        noise = np.zeros(64)
        for i in range(1, 64):  # neighbours alike
            noise[i] = 0.5 * noise[i - 1] + rng.normal(0, 0.1)
        own = (40 * np.exp(noise))[:, None]
        rest = 60 * np.exp(rng.normal(0, 0.1, 64))
        span = own[:, 0] + rest
        found = gains(spans(own, span, "x"), {"x": float(own.sum() / span.sum())}, [["x"]], 0.5)[0]
        assert found is not None
        hits += found.low <= amdahl(0.4, 0.5) <= found.high
    assert hits > 0.8 * 200


def test_no_gain_without_eight_windows_or_without_time() -> None:
    own, span = np.full((7, 1), 50.0), np.full(7, 100.0)
    assert gains(spans(own, span, "x"), {"x": 0.5}, [["x"]], 0.5) == [None]
    own, span = np.zeros((9, 1)), np.full(9, 100.0)
    assert gains(spans(own, span, "x"), {"x": 0.0}, [["x"], ["absent"]], 0.5) == [None, None]


def predicted_gain(capture: Capture, names: list[str], saved_fraction: float) -> Estimate | None:
    flat, found = flat_and_spans(capture)
    return gains(found, shares_by_name(flat), [names], saved_fraction)[0]


def test_a_gain_adds_up_several_regions() -> None:
    capture = make_capture(
        {"a": Spec(1000, 300), "b": Spec(1000, 200), "c": Spec(1000, 500)},
        unattributed=0.0,
        facts={"region_cost_ns": 0.0},
    )
    found = predicted_gain(capture, ["a", "b"], 1.0)
    assert found is not None
    assert found.value == pytest.approx(2.0) and found.low <= 2.0 <= found.high
    assert found.high < 2.3


def test_widened_reaches_down_to_no_gain() -> None:
    found = predicted_gain(make_capture({"a": Spec(1000, 300)}), ["a"], 0.5)
    assert found is not None and found.low > 1
    assert (widened(found).low, widened(found).high) == (1.0, found.high)


def test_windows_become_differences_that_end_at_the_totals() -> None:
    capture = make_capture({"train": Spec(50, 100, children={"env_step": Spec(500, 1000)})}, windows=20)
    thread = capture.threads[0]
    found = spans_by_name(thread)
    assert found.names == (UNATTRIBUTED, "train", "env_step")
    assert found.calls.sum(axis=0).tolist() == [0, 50, 500]
    assert found.own_ns.sum() == pytest.approx(thread.wall_ns, abs=2)
    assert found.own_ns.sum(axis=1) == pytest.approx(found.span_ns, abs=4)
    assert spans_by_category(thread, Resolver()).names == ("unattributed", "other", "environment")


# -- the score -----------------------------------------------------------------------------------


def test_score_by_hand() -> None:
    one = Operation("x", own_ns=50, calls=10, rss_growth_bytes=30, device_peak_bytes=7)
    largest = {"own_time": 100.0, "time_per_call": 50.0, "cpu_memory_growth": 60.0, "device_memory": 7.0}
    terms = score_terms(one, largest)
    assert terms == {"own_time": 0.5, "time_per_call": 0.1, "cpu_memory_growth": 0.5, "device_memory": 1.0}
    assert score(terms) == pytest.approx(0.4 * 0.5 + 0.3 * 0.1 + 0.15 * 0.5 + 0.15)


def test_terms_not_measured_are_left_out_and_weights_rescaled() -> None:
    one = Operation("x", own_ns=50, calls=10)
    terms = score_terms(one, {"own_time": 50.0, "time_per_call": 50.0})
    assert terms == {"own_time": 1.0, "time_per_call": 0.1}
    assert score(terms) == pytest.approx((0.4 + 0.03) / 0.7)


specs = st.builds(
    Spec,
    calls=st.integers(0, 1000),
    own_ns=st.floats(0, 1e6),
    rss_growth_bytes=st.none() | st.integers(-1000, 1000),
    category=st.sampled_from(["", "wait", "hotloop"]),
)


@given(st.dictionaries(st.sampled_from("abcdefgh"), specs, max_size=6))
def test_scores_and_shares_lie_between_0_and_1_and_gains_have_intervals(regions: dict[str, Spec]) -> None:
    capture = make_capture(regions, windows=10)
    flat, found = flat_and_spans(capture)
    for row in bottlenecks(flat, flat, found):
        assert 0 <= row.score <= 1 and 0 <= row.share <= 1
        assert all(0 <= term <= 1 for term in row.score_terms.values())
        assert row.category != "hotloop"
        gain = row.gain_if_twice_as_fast
        assert gain is None or (1 - 1e-9 <= gain.low <= gain.value <= gain.high <= 2 + 1e-9)


def test_bottlenecks_are_ranked_by_gain_and_the_largest_region_comes_first() -> None:
    capture = make_capture(
        {"env_step": Spec(1000, 5000), "rare_and_slow": Spec(2, 400_000), "loss": Spec(1000, 2000)}
    )
    flat, found = flat_and_spans(capture)
    rows = bottlenecks(flat, flat, found)
    assert [r.name for r in rows] == ["env_step", "loss", "rare_and_slow"]
    assert rows[2].score_terms["time_per_call"] == 1.0
    share = shares_by_name(flat)["env_step"]
    assert rows[0].gain_if_twice_as_fast is not None
    assert rows[0].gain_if_twice_as_fast.value == pytest.approx(1 / (1 - share / 2))


def test_a_region_of_other_threads_has_a_score_but_no_gain() -> None:
    capture = make_capture(
        {"loss": Spec(1000, 100)}, updates=10, extra_threads=[ThreadSpec({"env_step": Spec(100, 9000)})]
    )
    driver, found = flat_and_spans(capture)
    everything = flatten(capture.tree, Resolver(), None)
    rows = {r.name: r for r in bottlenecks(everything, driver, found)}
    assert rows["env_step"].gain_if_twice_as_fast is None and rows["env_step"].score == 1.0
    assert rows["loss"].gain_if_twice_as_fast is not None
    held_up = {r.name: r for r in bottlenecks(everything, driver, found, others_may_hold_it_up=True)}
    assert held_up["loss"].gain_if_twice_as_fast is not None
    assert held_up["loss"].gain_if_twice_as_fast.low == 1.0


def test_category_and_site_of_an_operation_are_those_of_its_largest_place() -> None:
    capture = make_capture(
        {
            "small": Spec(1, 0, category="policy", children={"x": Spec(1, 10, site="a.py:1")}),
            "large": Spec(1, 0, category="model", children={"x": Spec(1, 90, site="b.py:2")}),
        }
    )
    one = operations(flatten(capture.tree, Resolver(), None))["x"]
    assert (one.category, one.site, one.own_ns, one.calls) == ("model", "b.py:2", 100, 2)


def test_many_names_are_bootstrapped_in_well_under_a_second() -> None:
    rng = np.random.default_rng(0)
    own = rng.uniform(0, 100, (96, 4000))
    names = tuple(f"r{i}" for i in range(4000))
    span = own.sum(axis=1)
    shares = dict(zip(names, own.sum(axis=0) / span.sum(), strict=True))
    start = time.perf_counter()
    found = gains(spans(own, span, *names), shares, [[n] for n in names[:50]], 0.5)
    assert time.perf_counter() - start < 0.5
    assert all(f is not None for f in found)


# -- statistics ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # scipy's interval, not used here
@given(
    st.lists(st.tuples(st.integers(0, 12).map(float), st.integers(0, 12).map(float)), min_size=8, max_size=30)
)
def test_slope_and_p_are_scipys(points: list[tuple[float, float]]) -> None:
    x, y = (np.array(v) for v in zip(*points, strict=True))
    found = theil_sen(x, y)
    if found is None:
        assert len(set(x)) == 1
        return
    theirs = stats.theilslopes(y, x)
    assert found.value == pytest.approx(theirs.slope)
    assert found.low <= found.value <= found.high
    if len(set(y)) > 1:
        assert found.kendall_p == pytest.approx(stats.kendalltau(x, y, method="asymptotic").pvalue)


def test_the_interval_is_scipys_without_ties() -> None:
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0, 1, 60))
    y = 2 * x + rng.normal(0, 0.3, 60)
    found, theirs = theil_sen(x, y), stats.theilslopes(y, x)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((theirs.low_slope, theirs.high_slope), rel=0.02)


def test_correlated_neighbours_widen_the_interval_and_a_curve_does_not() -> None:
    rng = np.random.default_rng(4)
    x = np.linspace(0, 1, 96)
    alone = rng.normal(0, 1, 96)
    alike = np.zeros(96)
    for i in range(1, 96):
        alike[i] = 0.8 * alike[i - 1] + 0.6 * alone[i]
    assert variance_inflation(x, alone) < 2
    assert variance_inflation(x, alike) > 3
    assert variance_inflation(x, 3 * x**2 + 0.01 * alone) < 2
    plain, wide = theil_sen(x, alike), theil_sen(x, alike, inflation=5.0)
    assert plain is not None and wide is not None
    assert wide.low < plain.low and wide.high > plain.high
