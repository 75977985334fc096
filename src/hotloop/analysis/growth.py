"""Why a run gets slower as it goes on: how much is learning, how much is a defect, when it will end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hotloop._util import units
from hotloop.analysis.findings import Estimate, Forecast, Growth, GrowthFactor, RegionGrowth
from hotloop.analysis.theil_sen import theil_sen, variance_inflation
from hotloop.analysis.whatif import block_counts
from hotloop.analysis.windows import UNATTRIBUTED, Spans

LEAST_WINDOWS = 8  # fewer are too few for any finding
LEAST_EPISODES = 5  # in each of the two stretches, to measure time per episode
MOST_REGIONS = 50  # fit exponents for the names with most own time
FLAG_EXPONENT = 0.15
FLAG_P = 0.001
LEAST_OTHERS = 4  # regions needed to tell a slow-down of the machine from one of a region
LEAST_SHARED = 0.1  # share of the time in regions that both stretches have
_FLAT = 0.05  # factors closer to 1 are not mentioned

Floats = NDArray[np.float64]
Factor = Literal["steps_per_episode", "calls_per_step", "cost_per_call"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sums over a part of the run; arrays by region name."""

    units: float  # episodes, or env steps if time is measured per env step
    env_steps: float
    calls: Floats
    own_ns: Floats


@dataclass(frozen=True, slots=True)
class WorkWindows:
    """The driving thread's windows, and the work all threads had done by their ends."""

    spans: Spans
    env_steps: Floats  # cumulative, at the end of each window
    episodes: Floats


def growth(work: WorkWindows) -> tuple[Growth | None, str]:
    """Growth of the time per episode (or env step), or None and the reason."""
    spans = work.spans
    if len(spans) < LEAST_WINDOWS:
        return None, f"growth: {len(spans)} of the {LEAST_WINDOWS} windows needed were recorded"
    if not work.env_steps[-1]:
        return None, "growth: no env steps were reported (hotloop.progress(env_steps=...))"
    first, last = _stretch_rows(work)
    if last - first < LEAST_WINDOWS:
        return None, "growth: env steps were reported in too few windows"
    per: Literal["episode", "env_step"] = "episode"
    early, late = _two_stretches(work, first, work.episodes)
    if min(early.units, late.units) < LEAST_EPISODES:
        per = "env_step"
        early, late = _two_stretches(work, first, work.env_steps)
    if min(early.units, late.units, early.env_steps, late.env_steps) <= 0:
        return None, "growth: there are no env steps in the early or the late quarter of the run"
    ratios = decompose(early, late)
    if per == "env_step":
        del ratios["steps_per_episode"]
    regions = region_growth(work, first)
    slower = any(region.flagged for region in regions)
    factors = tuple(
        GrowthFactor(name, ratio, slower and name == "cost_per_call") for name, ratio in ratios.items()
    )
    early_ns, late_ns = early.own_ns.sum() / early.units, late.own_ns.sum() / late.units
    excess = float(late_ns / early_ns)
    summary = _sentence(per, excess, ratios, regions)
    return Growth(per, float(early_ns), float(late_ns), excess, factors, regions, summary), ""


def _stretch_rows(work: WorkWindows) -> tuple[int, int]:
    """First and last window after start-up, which ends with the first env steps."""
    started = int(np.searchsorted(work.env_steps, 1.0))
    return started + 1, len(work.spans)


def _two_stretches(work: WorkWindows, first: int, counter: Floats) -> tuple[Stretch, Stretch]:
    """The first and the last quarter of the windows after start-up."""
    total = len(work.spans)
    quarter = max((total - first) // 4, 1)
    return (
        _stretch(work, first, first + quarter, counter),
        _stretch(work, total - quarter, total, counter),
    )


def _stretch(work: WorkWindows, start: int, stop: int, counter: Floats) -> Stretch:
    before = start - 1  # start is at least 1
    return Stretch(
        units=float(counter[stop - 1] - counter[before]),
        env_steps=float(work.env_steps[stop - 1] - work.env_steps[before]),
        calls=work.spans.calls[start:stop].sum(axis=0),
        own_ns=work.spans.own_ns[start:stop].sum(axis=0),
    )


def decompose(early: Stretch, late: Stretch) -> dict[Factor, float]:
    """Ratio of each factor in (time per unit, late) / (early), by the logarithmic mean Divisia index.

    V_k = steps per unit x calls per step x cost per call for each region k, s_k = V_k / V its share.
    With the weights w_k = L(s_k', s_k) / sum of those (the second form of the index, after Sato and
    Vartia) the product of exp(sum_k w_k ln(ratio in k)) is exactly V'/V, and a factor that is the same
    in all regions comes out as itself: the weights add up to 1. With L(V_k', V_k) / L(V', V), the
    first form, they do not: steps per episode that had grown 4x showed as 3.06x.
    """
    v0, v1 = early.own_ns / early.units, late.own_ns / late.units
    both = (v0 > 0) & (v1 > 0)
    shared = min(v0[both].sum() / v0.sum(), v1[both].sum() / v1.sum())
    if shared > LEAST_SHARED:
        v0, v1 = v0 / v0.sum(), v1 / v1.sum()
        whole = log_mean(v1[both], v0[both]).sum()
    else:  # hardly any region is in both stretches: only the first form stays finite
        whole = log_mean(np.array([v1.sum()]), np.array([v0.sum()]))[0]
    # Time without completed calls (in no region, or in one that stays open for the whole run) has no cost
    # per call: count one call for each env step.
    uncounted = ((early.own_ns > 0) & (early.calls == 0)) | ((late.own_ns > 0) & (late.calls == 0))
    c0 = np.where(uncounted, early.env_steps, early.calls)
    c1 = np.where(uncounted, late.env_steps, late.calls)
    weight = log_mean(v1[both], v0[both]) / whole
    steps = np.log((late.env_steps / late.units) / (early.env_steps / early.units))
    calls = np.log((c1[both] / late.env_steps) / (c0[both] / early.env_steps))
    cost = np.log((late.own_ns[both] / c1[both]) / (early.own_ns[both] / c0[both]))
    # A region without time in one stretch: the limit of the formula for V_k -> 0. All of its time belongs to
    # the factor that is 0 there: the calls if there were none, else the cost.
    absent = ((early.calls == 0) & (v0 == 0)) | ((late.calls == 0) & (v1 == 0))
    free = ~absent & ~both
    change = (v1 - v0) / whole
    return {
        "steps_per_episode": float(np.exp((weight * steps).sum())),
        "calls_per_step": float(np.exp((weight * calls).sum() + change[absent].sum())),
        "cost_per_call": float(np.exp((weight * cost).sum() + change[free].sum())),
    }


def log_mean(a: Floats, b: Floats) -> Floats:
    """Logarithmic mean (a - b) / (ln a - ln b), elementwise; a where a equals b. a and b must be positive."""
    # log1p keeps the digits that ln a - ln b loses where a and b are close.
    gap = (a - b) / b
    near = np.abs(gap) < 0.1
    logs = np.where(near, np.log1p(np.where(near, gap, 0.0)), np.log(a) - np.log(b))
    same = logs == 0
    return np.asarray(np.where(same, a, (a - b) / np.where(same, 1.0, logs)))


def region_growth(work: WorkWindows, first: int) -> tuple[RegionGrowth, ...]:
    """Growth exponent of own time per call for each name: flagged ones first, then by extra time."""
    spans = work.spans
    own = spans.own_ns.sum(axis=0)
    found: list[tuple[float, RegionGrowth]] = []
    for column in np.argsort(-own)[: MOST_REGIONS + 1]:
        name = spans.names[column]
        if name == UNATTRIBUTED or own[column] <= 0:
            continue
        calls, own_ns = spans.calls[first:, column], spans.own_ns[first:, column]
        one = _exponent(name, calls, own_ns, work.env_steps[first - 1 :])
        if one is not None:
            extra_ns = (one.late_ns - one.early_ns) * float(spans.calls[first:, column].sum())
            found.append((extra_ns, one))
    found = [(extra_ns, _beyond_the_machine(one, [other for _, other in found])) for extra_ns, one in found]
    found.sort(key=lambda pair: (not pair[1].flagged, -pair[0]))
    return tuple(one for _, one in found)


def _beyond_the_machine(one: RegionGrowth, regions: list[RegionGrowth]) -> RegionGrowth:
    """Clear the flag of a region that grows no faster than the others: a slow-down of all is the machine."""
    others = [region.exponent.value for region in regions if region is not one]
    if not one.flagged or len(others) < LEAST_OTHERS:
        return one
    common = max(float(np.median(others)), 0.0)
    return replace(one, flagged=one.exponent.low - common > FLAG_EXPONENT)


def _exponent(name: str, calls: Floats, own_ns: Floats, env_steps: Floats) -> RegionGrowth | None:
    """`env_steps` has one more entry than the others, in front: the work done before them."""
    # The time of a long call arrives before the call is counted: merge windows up to one with calls.
    ends = np.flatnonzero(calls > 0)
    if len(ends) < LEAST_WINDOWS:
        return None
    cumulative_ns = np.cumsum(own_ns)[ends]
    cost = np.diff(cumulative_ns, prepend=0.0) / calls[ends]
    done = env_steps[1:][ends]
    work = (done + np.concatenate([env_steps[:1], done[:-1]])) / 2  # halfway through the window
    use = (cost > 0) & (work > 0)
    if use.sum() < LEAST_WINDOWS:
        return None
    cost, x = cost[use], np.log(work[use])
    y = np.log(cost)
    slope = theil_sen(x, y, inflation=variance_inflation(x, y))
    if slope is None:
        return None
    quarter = max(len(cost) // 4, 1)
    calls = calls[ends][use]
    early_ns = float(np.average(cost[:quarter], weights=calls[:quarter]))
    late_ns = float(np.average(cost[-quarter:], weights=calls[-quarter:]))
    return RegionGrowth(
        name=name,
        exponent=Estimate(slope.value, slope.low, slope.high),
        kendall_p=slope.kendall_p,
        flagged=slope.low > FLAG_EXPONENT and slope.kendall_p < FLAG_P,
        early_ns=early_ns,
        late_ns=late_ns,
    )


def _sentence(per: str, excess: float, ratio: dict[Factor, float], regions: tuple[RegionGrowth, ...]) -> str:
    """What changed: learning first, then defects."""
    growing = [r for r in regions if r.flagged]
    causes = []
    steps, calls = ratio.get("steps_per_episode", 1.0), ratio["calls_per_step"]
    if abs(steps - 1) > _FLAT:
        longer = "longer" if steps > 1 else "shorter"
        causes.append(f"episodes got {longer} ({steps:.2f}x), which is learning")
    if abs(calls - 1) > _FLAT:
        more = "more" if calls > 1 else "fewer"
        causes.append(f"there were {more} calls per env step ({calls:.2f}x), which is a setting")
    cost = ratio["cost_per_call"]
    if growing:
        worst = growing[0]
        defect = (
            f"a defect: calls of {worst.name} got slower, from {units.duration(worst.early_ns)} to "
            f"{units.duration(worst.late_ns)} (cost ~ work^{worst.exponent.value:.2f} "
            f"[{worst.exponent.low:.2f}, {worst.exponent.high:.2f}]); slower calls account for {cost:.2f}x"
        )
        if len(growing) > 1:
            defect += f", and {len(growing) - 1} more regions get slower"
        causes.append(defect)
    elif cost > 1 + _FLAT:
        causes.append(
            f"calls got slower ({cost:.2f}x), but no single region clearly did: more likely the machine than "
            "your code"
        )
    else:
        causes.append("no region got slower with the work done")
    head = f"Late in the run, an {per.replace('_', ' ')} took {excess:.2f}x the time of an early one"
    return f"{head}: {'; '.join(causes)}."


def forecast(work: WorkWindows, goal_env_steps: int, done_env_steps: int) -> tuple[Forecast | None, str]:
    """Time left until `goal_env_steps`, from time per env step ~ a (env steps done)^b, or None and the
    reason.

    The interval is a block bootstrap of the fit over the windows; it holds if the trend continues.
    """
    if done_env_steps >= goal_env_steps:
        return (
            None,
            f"forecast: the goal of {goal_env_steps:,} env steps is reached",
        )
    done, spans = work.env_steps, work.spans
    gained = np.diff(done, prepend=0.0)
    use = gained > 0
    use[: min(_stretch_rows(work)[0], len(use))] = False  # the first window includes start-up
    if use.sum() < LEAST_WINDOWS:
        return None, f"forecast: fewer than {LEAST_WINDOWS} windows have env steps"
    elapsed = np.cumsum(spans.span_ns)
    start_ns = elapsed[np.flatnonzero(use)[0] - 1]
    # Windows without env steps belong to the next one that has some.
    y = np.log(np.diff(elapsed[use], prepend=start_ns) / gained[use])
    x = np.log(done[use] - gained[use] / 2)
    left = [_time_left_s(*_fit(x, y, w), done_env_steps, goal_env_steps) for w in _weights(len(x))]
    value = _time_left_s(*_fit(x, y, np.ones(len(x))), done_env_steps, goal_env_steps)
    low, high = (float(q) for q in np.quantile(left, [0.025, 0.975]))
    remaining = Estimate(value, min(low, value), max(high, value))
    return Forecast(goal_env_steps, done_env_steps, remaining), ""


def _weights(windows: int) -> Floats:
    return block_counts(windows, replicates=500)


def _fit(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted least squares y = ln a + b x, with b in -0.99..3 so that one odd window cannot blow it up."""
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = float((weight * (x - mean_x) ** 2).sum())
    b = float((weight * (x - mean_x) * (y - mean_y)).sum()) / spread if spread > 1e-12 else 0.0
    b = min(max(b, -0.99), 3.0)
    # exp of the mean log is the median; half the variance of the noise turns it into the mean.
    noise = float(np.average((y - mean_y - b * (x - mean_x)) ** 2, weights=weight))
    return float(mean_y - b * mean_x) + noise / 2, b


def _time_left_s(ln_a: float, b: float, done: float, goal: float) -> float:
    """Integral of a n^b from `done` to `goal`, in seconds."""
    power = b + 1.0
    return float(np.exp(ln_a) * (goal**power - done**power) / power / 1e9)
