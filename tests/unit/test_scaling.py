"""Planted growth over sizes: the exponent, the region that bends the curve, the expected time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hotloop import Profiler
from hotloop._util.errors import HotloopError
from hotloop.analysis.findings import Estimate
from hotloop.analysis.scaling import RegionRun, ScaleRun, Scaling, scale_run, scaling, shapes
from hotloop.analysis.scaling import _kind as scale_words
from hotloop.analysis.steady_state import run_figures
from hotloop.capture.model import Capture
from hotloop.measure.core_choice import CoreName
from hotloop.testing.captures import make_capture
from hotloop.testing.fakes import FakeClock

SIZES = (200, 400, 800, 1600, 3200)
COSTS: dict[str, Callable[[float], float]] = {
    "n": lambda n: n,
    "n log n": lambda n: n * math.log(n),
    "n^1.5": lambda n: n**1.5,
    "n^2": lambda n: n**2,
}


def true_exponent(cost: Callable[[float], float]) -> float:
    """Over the sizes used; for n log n it lies above 1 and depends on them."""
    return math.log(cost(SIZES[-1]) / cost(SIZES[0])) / math.log(SIZES[-1] / SIZES[0])


def timed(cost: Callable[[float], float], rng: np.random.Generator, sd: float, repeats: int) -> Scaling:
    runs = [
        ScaleRun(n, cost(n) * float(np.exp(sd * rng.standard_normal())), {})
        for n in SIZES
        for _ in range(repeats)
    ]
    return scaling(runs)


@pytest.mark.parametrize("shape", COSTS)
def test_planted_exponents_are_recovered_within_a_tenth(shape: str) -> None:
    rng = np.random.default_rng(1)
    truth = true_exponent(COSTS[shape])
    found = [timed(COSTS[shape], rng, sd=0.1, repeats=3).exponent for _ in range(200)]
    exact = [e for e in found if e is not None]
    assert len(exact) == 200
    assert max(abs(e.value - truth) for e in exact) <= 0.1
    assert sum(e.low <= truth <= e.high for e in exact) / 200 >= 0.93


@pytest.mark.long
@pytest.mark.parametrize("sd, repeats", [(0.02, 2), (0.1, 3), (0.36, 8)])
@pytest.mark.parametrize("shape", COSTS)
def test_intervals_cover_the_planted_exponents(shape: str, sd: float, repeats: int) -> None:
    rng = np.random.default_rng(2)
    truth = true_exponent(COSTS[shape])
    found = [timed(COSTS[shape], rng, sd, repeats).exponent for _ in range(3000)]
    assert np.mean([e is not None and e.low <= truth <= e.high for e in found]) >= 0.94


@pytest.mark.parametrize("shape", COSTS)
def test_the_shape_is_named_when_the_runs_can_tell(shape: str) -> None:
    found = timed(COSTS[shape], np.random.default_rng(3), sd=0.02, repeats=4)
    assert found.shapes == (shape,)


def test_shapes_that_cannot_be_distinguished_are_all_named() -> None:
    assert shapes(np.log(SIZES), Estimate(1.07, 0.9, 1.25)) == ("n", "n log n")
    assert shapes(np.log(SIZES), None) == ()


def region_runs(
    repeats: int = 4, push: float = 1e-8, steps_per_n: Callable[[float], float] | None = None
) -> list[Any]:
    """env_step linear in the steps; replay_push dearer with every item already there."""
    rng = np.random.default_rng(4)
    per = steps_per_n or (lambda _: 10.0)
    runs = []
    for n in SIZES:
        for _ in range(repeats):
            noise = np.exp(0.03 * rng.standard_normal(3))
            steps = round(n * per(n))
            regions = {
                "env_step": RegionRun(steps, 1e-4 * steps * noise[0]),
                "replay_push": RegionRun(steps, (1e-6 * steps + push * steps**2) * noise[1]),
                "": RegionRun(0, 1e-5 * steps * noise[2]),
            }
            wall_s = sum(region.own_s for region in regions.values())
            runs.append(ScaleRun(n, wall_s, regions, steps, 0.0))
    return runs


def test_the_region_that_bends_the_curve_is_named() -> None:
    found = scaling(region_runs())
    assert found.bender == "replay_push" and "the region replay_push bends the curve" in found.summary
    first, *others = found.regions
    assert first.name == "replay_push" and first.bends and not any(r.bends for r in others)
    assert first.exponent is not None and first.exponent.value == pytest.approx(2.0, abs=0.1)
    linear = next(r for r in others if r.name == "env_step")
    assert linear.exponent is not None and linear.exponent.value == pytest.approx(1.0, abs=0.1)


def test_expected_against_actual() -> None:
    found = scaling(region_runs())
    truth = (1.11e-4 + 1e-8 * 32_000) / (1.11e-4 + 1e-8 * 2_000)
    assert found.slow_down is not None and found.slow_down.low <= truth <= found.slow_down.high
    assert found.within_twice is False and "more than 2x of linear" in found.summary
    assert found.actual_s / found.expected_s == pytest.approx(truth, rel=0.1)
    assert found.last_exponent is not None and found.exponent is not None
    assert found.last_exponent.value > found.exponent.value + 0.1  # the curve bends upwards


def test_linear_growth_blames_no_region() -> None:
    found = scaling(region_runs(push=0.0))
    assert found.bender is None and found.within_twice is True
    assert found.exponent is not None and found.exponent.low <= 1 <= found.exponent.high
    assert found.summary.startswith("Linear: time ~ n^")
    assert not any(factor.is_defect for factor in found.factors)


def test_a_machine_that_is_slower_for_large_runs_is_not_a_defect() -> None:
    runs = []
    for run in region_runs(push=0.0):
        slower = 3.5 if run.size == SIZES[-1] else 1.0
        regions = {name: RegionRun(r.calls, slower * r.own_s) for name, r in run.regions.items()}
        runs.append(ScaleRun(run.size, slower * run.wall_s, regions, run.env_steps, 0.0))
    found = scaling(runs)
    assert found.bender is None and not any(region.bends for region in found.regions)
    assert not any(factor.is_defect for factor in found.factors)
    assert {f.factor: f.ratio for f in found.factors}["cost_per_call"] == pytest.approx(3.5, rel=0.1)
    assert any(factor.is_defect for factor in scaling(region_runs()).factors)


def test_a_region_alone_bends_the_curve_if_its_exponent_is_clear() -> None:
    def alone(power: float) -> Scaling:
        rng = np.random.default_rng(6)
        times = [(n, 1e-4 * n**power * float(np.exp(0.03 * rng.standard_normal()))) for n in SIZES * 3]
        return scaling([ScaleRun(n, s, {"x": RegionRun(n, s)}, n, 0.0) for n, s in times])

    assert alone(1.5).bender == "x"
    assert alone(1.02).bender is None


@pytest.mark.parametrize("width, says", [(0.1, "linear: "), (1.0, "linear growth fits, but")])
def test_wide_intervals_are_not_called_linear(width: float, says: str) -> None:
    assert scale_words(Estimate(1.0, 1 - width / 2, 1 + width / 2)).startswith(says)
    assert scale_words(Estimate(1.5, 1.4, 1.6)) == ""


def test_the_factors_multiply_to_the_excess_and_tell_learning_from_a_defect() -> None:
    runs = region_runs(steps_per_n=lambda n: 10 * (n / 200) ** 0.5)  # episodes get longer, too
    found = scaling(runs)
    small, large = ([r for r in runs if r.size == size] for size in (SIZES[0], SIZES[-1]))
    excess = sum(r.wall_s for r in large) / sum(r.wall_s for r in small) / (SIZES[-1] / SIZES[0])
    assert math.prod(f.ratio for f in found.factors) == pytest.approx(excess, rel=1e-9)
    ratio = {f.factor: f.ratio for f in found.factors}
    assert 2.5 < ratio["steps_per_episode"] <= 4.0  # there are 4 times as many; its part of the excess
    assert ratio["calls_per_step"] == pytest.approx(1.0, rel=0.01)
    assert ratio["cost_per_call"] > 3
    same_length = {f.factor: f.ratio for f in scaling(region_runs()).factors}
    assert same_length["steps_per_episode"] == pytest.approx(1.0, rel=1e-9)


def test_without_env_steps_there_are_no_factors_and_the_report_says_so() -> None:
    found = timed(COSTS["n"], np.random.default_rng(5), 0.02, 2)
    assert found.factors == () and any(reason.startswith("factors:") for reason in found.not_measured)
    assert any(reason.startswith("start-up:") for reason in found.not_measured)


def test_a_region_that_only_large_runs_have_can_be_named() -> None:
    runs = []
    for n in SIZES:
        for i in range(3):
            regions = {"env_step": RegionRun(n, 1e-3 * n * (1 + 0.01 * i))}
            if n > 1000:
                regions["swap"] = RegionRun(n, 1e-3 * n)
            runs.append(ScaleRun(n, sum(r.own_s for r in regions.values()), regions, n, 0.0))
    found = scaling(runs)
    assert found.bender == "swap" and found.regions[0].exponent is None


@pytest.mark.parametrize("sizes, repeats, enough", [(5, 1, True), (4, 1, False), (3, 2, True), (2, 3, False)])
def test_too_few_runs_give_no_interval(sizes: int, repeats: int, enough: bool) -> None:
    runs = [ScaleRun(n, 0.01 * n * (1 + 0.01 * i), {}) for n in SIZES[:sizes] for i in range(repeats)]
    found = scaling(runs)
    assert (found.exponent is not None) == enough
    if not enough:
        assert "too few" in found.not_measured[0] and found.within_twice is None


@pytest.mark.parametrize("sizes", [(), (5,), (5, 5), (0, 5)])
def test_sizes_that_cannot_be_fitted_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(HotloopError, match="Cannot fit growth over the sizes"):
        scaling([ScaleRun(n, 1.0, {}) for n in sizes])


def recorded(episodes: int, core: CoreName, startup_ms: int) -> Capture:
    """Start-up in no region, then episodes of 10 steps; the store gets dearer with what it holds."""
    clock = FakeClock()
    profiler = Profiler(clock=clock, core_name=core)
    profiler.start()
    clock.advance(startup_ms * 1_000_000)
    held = 0
    for _ in range(episodes):
        for _ in range(10):
            with profiler.profile("env_step"):
                clock.advance(1_000_000)
            with profiler.profile("store"):
                clock.advance(2_000 * held)
            held += 1
            profiler.progress(env_steps=1)
        profiler.progress(episodes=1)
    capture = profiler.capture()
    profiler.stop()
    return capture


def point(size: int, capture: Capture) -> ScaleRun:
    return scale_run(size, run_figures(capture))


def test_captures_become_points_without_their_start_up(core: CoreName) -> None:
    for startup_ms in (0, 500, 30_000):
        found = point(40, recorded(40, core, startup_ms))
        assert found.startup_s == pytest.approx(startup_ms / 1e3, abs=0.06)
        loop_s = 1e-3 * 400 + 2e-6 * sum(range(400))
        assert found.wall_s == pytest.approx(loop_s, abs=0.06)
        assert found.env_steps == 400
        assert found.regions["store"].calls == pytest.approx(400, abs=60)


def test_a_growing_region_is_named_from_captures(core: CoreName) -> None:
    found = scaling([point(n, recorded(n, core, startup_ms=2000)) for n in (50, 100, 200, 400, 800)])
    assert found.bender == "store" and found.within_twice is False
    store = found.regions[0]
    assert store.exponent is not None and store.exponent.value == pytest.approx(2.0, abs=0.1)
    assert not any(reason.startswith("start-up") for reason in found.not_measured)


def test_a_capture_without_windows_keeps_its_start_up() -> None:
    found = point(1, make_capture({}, windows=0))
    assert found.startup_s is None and found.env_steps is None
