"""Growth: the decomposition is exact, planted exponents come out, flat runs are not flagged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.findings import Findings
from hotloop.analysis.growth import Stretch, WorkWindows, decompose, forecast, growth, log_mean
from hotloop.analysis.phases import long_rounds
from hotloop.analysis.windows import Spans
from hotloop.testing.captures import Spec, make_capture

# time and calls of a region in a stretch: nothing at all, calls too short to time, open all along, usual
cells = (
    st.just((0.0, 0.0))
    | st.tuples(st.just(0.0), st.integers(1, 100).map(float))
    | st.tuples(st.floats(1.0, 1e12), st.just(0.0))
    | st.tuples(st.floats(1.0, 1e12), st.integers(1, 10**9).map(float))
)


@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=8),
    st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)),
    st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)),
)
def test_the_product_of_the_factors_is_the_excess(
    regions: list[tuple[tuple[float, float], tuple[float, float]]],
    units: tuple[float, float],
    steps: tuple[float, float],
) -> None:
    stretches = []
    for at in (0, 1):
        # some time in no region, so that both stretches have a length
        own = np.array([r[at][0] for r in regions] + [10.0])
        calls = np.array([r[at][1] for r in regions] + [0.0])
        stretches.append(Stretch(units[at], steps[at], calls, own))
    early, late = stretches
    ratios = decompose(early, late)
    excess = (late.own_ns.sum() / late.units) / (early.own_ns.sum() / early.units)
    assert math.prod(ratios.values()) == pytest.approx(excess, rel=1e-9)


def stretch(units: float, steps: float, *regions: tuple[float, float]) -> Stretch:
    return Stretch(units, steps, np.array([r[1] for r in regions]), np.array([r[0] for r in regions]))


def test_each_factor_alone_takes_all_of_the_excess() -> None:
    early = stretch(10, 100, (1000.0, 100.0), (500.0, 50.0))
    longer = decompose(early, stretch(10, 300, (3000.0, 300.0), (1500.0, 150.0)))
    assert longer == pytest.approx({"steps_per_episode": 3.0, "calls_per_step": 1.0, "cost_per_call": 1.0})
    more = decompose(early, stretch(10, 100, (3000.0, 300.0), (1500.0, 150.0)))
    assert more == pytest.approx({"steps_per_episode": 1.0, "calls_per_step": 3.0, "cost_per_call": 1.0})
    slower = decompose(early, stretch(10, 100, (3000.0, 100.0), (1500.0, 50.0)))
    assert slower == pytest.approx({"steps_per_episode": 1.0, "calls_per_step": 1.0, "cost_per_call": 3.0})


def test_a_region_that_appears_later_counts_as_more_calls() -> None:
    found = decompose(
        stretch(10, 100, (1000.0, 100.0), (0.0, 0.0)), stretch(10, 100, (1000.0, 100.0), (1000.0, 10.0))
    )
    assert found == pytest.approx({"steps_per_episode": 1.0, "calls_per_step": 2.0, "cost_per_call": 1.0})


def test_the_value_for_zero_time_is_the_limit_for_small_times() -> None:
    late = stretch(10, 100, (1000.0, 100.0), (1000.0, 10.0))
    none = decompose(stretch(10, 100, (1000.0, 100.0), (0.0, 0.0)), late)
    little = decompose(stretch(10, 100, (1000.0, 100.0), (1e-250, 1e-251)), late)
    assert little == pytest.approx(none, rel=1e-2)


def test_logarithmic_mean() -> None:
    a, b = np.array([2.0, 3.0, 1.0 + 1e-13, 1e-9]), np.array([1.0, 3.0, 1.0, 1e9])
    assert log_mean(a, b)[:2] == pytest.approx([1 / math.log(2), 3.0])
    assert log_mean(a, b)[2] == pytest.approx(1.0, rel=1e-12)
    assert log_mean(a, b)[3] == pytest.approx(1e9 / math.log(1e18))


def grown(regions: dict[str, Spec], **options: Any) -> Findings:
    progress: dict[str, Any] = {"env_steps": 20_000, "episodes": 400, "windows": 60}
    return explain_without_advice(make_capture(regions, **progress | options))


@pytest.mark.parametrize("exponent", [0.4, 0.8, 1.5])
def test_a_planted_exponent_is_recovered_and_flagged(exponent: float) -> None:
    found = grown({"store": Spec(20_000, 20_000, growth=exponent), "env_step": Spec(20_000, 20_000)}).growth
    assert found is not None
    first, second = found.regions
    assert first.name == "store" and first.flagged
    assert first.exponent.value == pytest.approx(exponent, abs=0.05)
    assert first.exponent.low <= exponent <= first.exponent.high
    assert first.late_ns > first.early_ns
    assert not second.flagged and second.exponent.value == pytest.approx(0, abs=0.05)
    assert "store got slower" in found.summary


def test_regions_of_hotloop_and_those_without_weight_are_no_defect() -> None:
    usual = Spec(20_000, 20_000)
    for name, cost_ns in (("hotloop_hooks", 20_000), ("store", 8)):
        found = grown({name: Spec(20_000, cost_ns, growth=0.8), "env_step": usual}).growth
        assert found is not None and [region.name for region in found.regions] == ["env_step"]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_a_flat_run_is_not_flagged(seed: int, noise: float) -> None:
    regions = {"env_step": Spec(20_000, 20_000), "act": Spec(20_000, 5000), "loss": Spec(100, 50_000)}
    found = grown(regions, seed=seed, noise=noise).growth
    assert found is not None
    assert not any(r.flagged for r in found.regions)
    assert "defect" not in found.summary


def test_longer_episodes_are_learning_not_a_defect() -> None:
    found = grown({"env_step": Spec(20_000, 20_000)}, length_growth=1.0).growth
    assert found is not None and found.per == "episode"
    by_name = {f.factor: f for f in found.factors}
    (longer,) = {f.ratio for f in found.factors if f.factor == "steps_per_episode"}
    assert longer > 2
    assert by_name["cost_per_call"].ratio == pytest.approx(1, abs=0.1)
    assert [f.is_defect for f in found.factors] == [False, False, False]
    assert math.prod(f.ratio for f in found.factors) == pytest.approx(found.excess, rel=1e-9)
    assert found.excess == pytest.approx(found.late_ns / found.early_ns)
    assert "which is learning" in found.summary and not any(r.flagged for r in found.regions)


def test_learning_is_reported_before_the_defect() -> None:
    says = grown(
        {"store": Spec(20_000, 20_000, growth=1.0), "updates": Spec(20_000, 1000, calls_growth=1.0)},
        length_growth=1.0,
    ).growth.summary
    assert says.index("learning") < says.index("setting") < says.index("defect")


def test_without_enough_episodes_time_is_taken_per_env_step() -> None:
    found = grown({"store": Spec(20_000, 20_000, growth=1.0)}, episodes=3).growth
    assert found is not None and found.per == "env_step"
    assert [f.factor for f in found.factors] == ["calls_per_step", "cost_per_call"]
    assert math.prod(f.ratio for f in found.factors) == pytest.approx(found.excess, rel=1e-9)


def test_too_little_to_go_by_gives_none_and_the_reason() -> None:
    few = grown({"env_step": Spec(20_000, 20_000)}, windows=5)
    assert few.growth is None and any("of the 8 windows" in reason for reason in few.not_measured)
    silent = grown({"env_step": Spec(20_000, 20_000)}, env_steps=0)
    assert silent.growth is None and any("growth: no env steps" in r for r in silent.not_measured)


def work_windows(exponent: float, noise: float = 0.05, windows: int = 60, seed: int = 0) -> WorkWindows:
    """Time per env step = 1000 ns x (env steps done)^exponent, up to 6000 env steps."""
    steps = np.linspace(0, 6000, windows + 1)
    elapsed = 1000 * steps ** (1 + exponent) / (1 + exponent)
    span = np.diff(elapsed) * np.random.default_rng(seed).lognormal(0, noise, windows)
    own = span[:, None]
    return WorkWindows(
        Spans(("x",), np.cumsum(span), span, own, np.ones_like(own)), steps[1:], np.zeros(windows)
    )


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_the_forecast_holds_the_true_time_left(exponent: float) -> None:
    found, reason = forecast(work_windows(exponent), 12_000, 6000)
    power = 1 + exponent
    true_s = 1000 * (12_000**power - 6000**power) / power / 1e9
    assert found is not None and not reason
    assert found.remaining_s.value == pytest.approx(true_s, rel=0.1)
    assert found.remaining_s.low <= found.remaining_s.value <= found.remaining_s.high
    assert found.remaining_s.low < true_s * 1.02 and found.remaining_s.high > true_s * 0.98
    naive_s = float(work_windows(exponent).spans.span_ns.sum()) / 1e9
    if exponent == 1.0:
        assert found.remaining_s.low > 1.5 * naive_s


def test_no_forecast_for_a_goal_reached_or_too_few_windows() -> None:
    assert forecast(work_windows(0.5), 6000, 6000)[1].startswith(
        "forecast: the goal of 6,000 env steps is reached"
    )
    found, reason = forecast(work_windows(0.5, windows=6), 12_000, 6000)
    assert found is None and "fewer than 8 windows" in reason


def test_an_empty_course_has_no_growth() -> None:
    none = np.zeros((0, 1))
    empty = WorkWindows(Spans(("",), np.zeros(0), np.zeros(0), none, none), np.zeros(0), np.zeros(0))
    assert growth(empty)[0] is None
    assert forecast(empty, 10, 5)[0] is None


def test_a_stretch_without_any_time_has_no_growth() -> None:
    work = work_windows(0.0)
    work.spans.own_ns[:20] = 0.0  # damaged windows
    found, why = growth(work)
    assert found is None and "no time was recorded in the early" in why


def test_a_factor_common_to_all_regions_is_recovered() -> None:
    """4x the steps in each episode is 4.00x, though one region also got 3x dearer."""
    calls, steps = np.array([1000.0, 500.0, 20.0]), 1000.0
    early = Stretch(units=100.0, env_steps=steps, calls=calls, own_ns=calls * [10.0, 50.0, 900.0])
    late = Stretch(units=25.0, env_steps=steps, calls=calls, own_ns=calls * [10.0, 150.0, 900.0])
    ratios = decompose(early, late)
    assert ratios["steps_per_episode"] == pytest.approx(4.0, rel=1e-12)
    assert ratios["calls_per_step"] == pytest.approx(1.0, rel=1e-12)
    excess = (late.own_ns.sum() / 25.0) / (early.own_ns.sum() / 100.0)
    assert math.prod(ratios.values()) == pytest.approx(excess, rel=1e-12)


def test_uniform_slow_downs_are_attributed_to_the_machine() -> None:
    names = ["env_step", "act", "loss", "store", "render"]
    together = grown({name: Spec(20_000, 20_000, growth=0.4) for name in names}).growth
    assert together is not None and not any(region.flagged for region in together.regions)
    assert "more likely the machine than your code" in together.summary
    alone = grown({name: Spec(20_000, 20_000, growth=0.4 * (name == "store")) for name in names}).growth
    assert alone is not None
    assert [region.name for region in alone.regions if region.flagged] == ["store"]


def test_a_single_region_cannot_be_distinguished_from_the_machine() -> None:
    found = grown({"store": Spec(20_000, 20_000, growth=0.8)}).growth
    assert found is not None and not found.regions[0].flagged
    assert found.regions[0].exponent.low > 0.5  # it did get slower
    assert "most of all store" in found.summary and "or the machine" in found.summary


def test_a_region_that_takes_longer_from_one_moment_on_is_named_without_a_verdict() -> None:
    one = work_windows(0.0)
    own_ns = np.outer(one.spans.span_ns, [0.5, 0.3, 0.2])
    own_ns[30:, 1] *= 3
    spans = Spans(
        ("act", "store", "loss"), one.spans.end_ns, own_ns.sum(axis=1), own_ns, np.full_like(own_ns, 10.0)
    )
    found, _ = growth(WorkWindows(spans, one.env_steps, one.episodes))
    assert found is not None and not any(region.flagged for region in found.regions)
    assert "most of all store, from" in found.summary and "than your code" not in found.summary


def test_a_machine_that_slows_down_does_not_hide_or_make_a_defect() -> None:
    names = ["env_step", "act", "loss", "render"]
    regions = {name: Spec(20_000, 20_000, growth=0.5) for name in names}
    found = grown(regions | {"store": Spec(20_000, 20_000, growth=1.3)}).growth
    assert found is not None
    assert [region.name for region in found.regions if region.flagged] == ["store"]
    assert found.regions[0].exponent.value == pytest.approx(0.8, abs=0.1)


def test_work_per_episode_that_grows_with_its_length_is_learning() -> None:
    """Returns are computed once per episode, in time proportional to its length."""
    steps, episodes, windows = 30_000, 300, 60
    done = np.linspace(0, 1, windows + 1)
    finished = np.floor(episodes * done**0.5)  # episodes get longer and longer
    calls = np.stack([np.diff(finished), np.full(windows, steps / windows)], axis=1)
    rng = np.random.default_rng(0)
    own = np.stack([np.full(windows, 5e6), np.full(windows, 2e7)], axis=1)
    own *= rng.lognormal(0, 0.05, own.shape)
    span = own.sum(axis=1)
    work = WorkWindows(
        Spans(("returns", "env_step"), np.cumsum(span), span, own, calls), steps * done[1:], finished[1:]
    )
    found, _ = growth(work)
    assert found is not None
    returns = next(region for region in found.regions if region.name == "returns")
    assert returns.late_ns > 2 * returns.early_ns and not returns.flagged


def test_a_single_jump_is_not_growth() -> None:
    rng = np.random.default_rng(1)
    windows = 60
    calls = np.ones((windows, 3)) * 100
    own = np.full((windows, 3), 1e7) * rng.lognormal(0, 0.02, (windows, 3))
    own[5:, 0] *= 3  # something was switched on early, and stays as dear as it is
    span = own.sum(axis=1)
    steps = 100.0 * np.arange(1, windows + 1, dtype=np.float64)
    work = WorkWindows(
        Spans(("x", "env_step", "act"), np.cumsum(span), span, own, calls), steps, np.zeros(windows)
    )
    found, _ = growth(work)
    assert found is not None and not any(region.flagged for region in found.regions)


def rounds(count: float) -> WorkWindows:
    """Rounds of eight windows that collect and two that learn, all at the same pace."""
    windows = round(10 * count)
    learns = np.arange(windows) % 10 >= 8
    own = np.where(learns[:, None], [0.0, 1e6], [1e6, 0.0])
    calls = np.where(learns[:, None], [0.0, 50.0], [100.0, 0.0])
    spans = Spans(("collect", "learn"), 1e6 * np.arange(1.0, windows + 1), np.full(windows, 1e6), own, calls)
    steps, updates = (np.cumsum(calls[:, column]) for column in (0, 1))
    return WorkWindows(spans, steps, np.zeros(windows), updates)


@pytest.mark.parametrize("count", [3.9, 5.2, 9.5])
def test_long_rounds_of_collecting_and_learning_are_compared_as_a_whole(count: float) -> None:
    found, _ = growth(rounds(count))
    assert found is not None and found.excess == pytest.approx(1.0)
    assert [factor.ratio for factor in found.factors] == pytest.approx([1.0, 1.0])


def test_a_trickle_of_steps_while_learning_is_no_collecting() -> None:
    """Windows of RLlib's env runners reach into the learning, and their steps are spread evenly over them."""
    made = rounds(5.2)
    learns = made.spans.calls[:, 1] > 0
    trickle = replace(made, env_steps=np.cumsum(np.where(learns, 2.0, 100.0)))
    found, _ = growth(trickle)
    assert found is not None and found.excess == pytest.approx(1.0)
    assert made.updates is not None
    assert long_rounds(trickle.env_steps, made.updates) == long_rounds(made.env_steps, made.updates)


@pytest.mark.parametrize("count", [1.0, 2.5])
def test_two_beginnings_of_learning_are_no_two_rounds(count: float) -> None:
    found, why = growth(rounds(count))
    assert found is None and "two whole rounds" in why
