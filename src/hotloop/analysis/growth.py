"""Why a run gets slower as it goes on: how much is learning, how much is a defect, when it will end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hotloop._util import units
from hotloop.analysis.findings import Estimate, Forecast, Growth, GrowthFactor, RegionGrowth
from hotloop.analysis.phases import long_rounds
from hotloop.analysis.theil_sen import Slope, theil_sen, variance_inflation
from hotloop.analysis.whatif import block_counts
from hotloop.analysis.windows import UNATTRIBUTED, Spans
from hotloop.capture.region_names import OUR_OWN

LEAST_WINDOWS = 8  # fewer are too few for any finding
LEAST_EPISODES = 5  # in each of the two stretches, to measure time per episode
MOST_REGIONS = 50  # fit exponents for the names with most own time
FLAG_EXPONENT = 0.15
FLAG_P = 0.001
FLAG_RATIO = 1.2  # late / early cost of a call
CHANGED = (
    1.5  # the same, of a region that takes much longer late in the run, though it does not grow steadily
)
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
    updates: Floats | None = None  # None: not known


LEAST_OWN = 1e-3  # share of the time; what takes less cannot slow down a run noticeably


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
    cuts = _cuts(work, first)
    if cuts is None:
        return None, "growth: fewer than two whole rounds of collecting and learning were recorded"
    per: Literal["episode", "env_step"] = "episode"
    early, late = (_stretch(work, *cut, work.episodes) for cut in cuts)
    if min(early.units, late.units) < LEAST_EPISODES:
        per = "env_step"
        early, late = (_stretch(work, *cut, work.env_steps) for cut in cuts)
    if min(early.units, late.units, early.env_steps, late.env_steps) <= 0:
        return None, "growth: there are no env steps in the early or the late quarter of the run"
    if min(early.own_ns.sum(), late.own_ns.sum()) <= 0:
        return None, "growth: no time was recorded in the early or the late quarter of the run"
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


def _cuts(work: WorkWindows, first: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The first and the last quarter of the windows after start-up; None if they cannot be compared.

    A run that collects for long and then learns for long is cut at whole rounds: a stretch with more of the
    one than of the other would look like growth.
    """
    total = len(work.spans)
    bounds = None if work.updates is None else long_rounds(work.env_steps, work.updates)
    if bounds is None:
        quarter = max((total - first) // 4, 1)
        return (first, first + quarter), (total - quarter, total)
    bounds = [bound for bound in bounds if bound >= first]
    if len(bounds) < 3:
        return None
    quarter = max((len(bounds) - 1) // 4, 1)
    return (bounds[0], bounds[quarter]), (bounds[-1 - quarter], bounds[-1])


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
    """Growth exponent of own time per call for each name: flagged ones first, then by extra time.

    A call is compared with the calls of all other regions at the same time, so that a machine that gets
    slower, which makes all of them slower, is no growth.
    """
    spans = work.spans
    own = spans.own_ns[first:].sum(axis=0)
    columns = [
        int(column)
        for column in np.argsort(-own)[: MOST_REGIONS + 1]
        if spans.names[column] != UNATTRIBUTED
        and not spans.names[column].startswith(OUR_OWN)
        and own[column] > LEAST_OWN * own.sum()
    ]
    calls, own_ns = spans.calls[first:][:, columns], spans.own_ns[first:][:, columns]
    env_steps = work.env_steps[first - 1 :]
    found: dict[int, RegionGrowth] = {}
    growing: set[int] = set()
    for _ in range(2):  # once more without those that grow, which say nothing about the machine
        for at, column in enumerate(columns):
            pace = _pace_of_others(calls, own_ns, growing | {at})
            one = _exponent(spans.names[column], calls[:, at], own_ns[:, at], env_steps, pace)
            if one is not None:
                found[at] = one
        growing = {at for at, one in found.items() if one.flagged}
        if not growing:
            break
    extra_ns = {at: (one.late_ns - one.early_ns) * float(calls[:, at].sum()) for at, one in found.items()}
    order = sorted(found, key=lambda at: (not found[at].flagged, -extra_ns[at]))
    return tuple(found[at] for at in order)


def _pace_of_others(calls: Floats, own_ns: Floats, without: set[int]) -> Floats | None:
    """How much slower than usual the other regions were in each window; None if there are none to go by.

    In each window, the median over regions of (cost per call / its mean), weighted by the region's time.
    Windows without calls of others have the value of the window before.
    """
    enough = (calls > 0).sum(axis=0) >= LEAST_WINDOWS
    others = [k for k in range(calls.shape[1]) if k not in without and enough[k]]
    if not others:
        return None
    counted, spent = calls[:, others], own_ns[:, others]
    usual = spent.sum(axis=0) / np.maximum(counted.sum(axis=0), 1.0)
    weight = spent.sum(axis=0)
    pace = np.full(len(calls), np.nan)
    for window in range(len(calls)):
        ran = (counted[window] > 0) & (spent[window] > 0)
        if ran.any():
            cost = spent[window, ran] / counted[window, ran] / usual[ran]
            pace[window] = _weighted_median(cost, weight[ran])
    known = np.flatnonzero(np.isfinite(pace))
    if len(known) < LEAST_WINDOWS:
        return None
    return np.asarray(np.interp(np.arange(len(pace)), known, pace[known]), dtype=np.float64)


def _weighted_median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _exponent(
    name: str, calls: Floats, own_ns: Floats, env_steps: Floats, pace: Floats | None
) -> RegionGrowth | None:
    """`env_steps` has one more entry than the others, in front: the work done before them."""
    # The time of a long call arrives before the call is counted: merge windows up to one with calls.
    ends = np.flatnonzero(calls > 0)
    if len(ends) < LEAST_WINDOWS:
        return None
    if pace is not None:
        own_ns = own_ns / pace
    spent_ns = np.diff(np.cumsum(own_ns)[ends], prepend=0.0)
    cost = spent_ns / calls[ends]
    done = env_steps[1:][ends]
    before = np.concatenate([env_steps[:1], done[:-1]])
    middle = (done + before) / 2  # of the work of the window
    use = (cost > 0) & (middle > 0) & (done > before)
    if use.sum() < LEAST_WINDOWS:
        return None
    x, calls = np.log(middle[use]), calls[ends][use]
    slope = _slope(x, cost[use])
    # A region that runs once per episode takes longer in longer episodes, at the same cost per env step.
    per_step = _slope(x, spent_ns[use] / (done - before)[use])
    if slope is None or per_step is None:
        return None
    cost = cost[use]
    quarter = max(len(cost) // 4, 1)
    early_ns = float(np.average(cost[:quarter], weights=calls[:quarter]))
    late_ns = float(np.average(cost[-quarter:], weights=calls[-quarter:]))
    clear = slope.low > FLAG_EXPONENT and slope.kendall_p < FLAG_P and per_step.low > 0
    return RegionGrowth(
        name=name,
        exponent=Estimate(slope.value, slope.low, slope.high),
        kendall_p=slope.kendall_p,
        flagged=clear and pace is not None and late_ns >= FLAG_RATIO * early_ns and _keeps_growing(cost),
        early_ns=early_ns,
        late_ns=late_ns,
    )


def _slope(x: Floats, cost: Floats) -> Slope | None:
    y = np.log(cost)
    return theil_sen(x, y, inflation=variance_inflation(x, y))


def _keeps_growing(cost: Floats) -> bool:
    """Whether the middle third is dearer than the first, and the last than the middle.

    What depends on the work done grows all along; a change at one moment does not.
    """
    first, middle, last = (float(np.median(part)) for part in np.array_split(cost, 3))
    return middle > first and last > middle


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
    if growing and cost <= 1 + _FLAT:
        worst = growing[0]
        causes.append(
            f"calls of {worst.name} got slower, from {units.duration(worst.early_ns)} to "
            f"{units.duration(worst.late_ns)}, too little to slow down the whole"
        )
    elif growing:
        worst = growing[0]
        defect = (
            f"a defect: calls of {worst.name} got slower, from {units.duration(worst.early_ns)} to "
            f"{units.duration(worst.late_ns)} (cost ~ work^{worst.exponent.value:.2f} "
            f"[{worst.exponent.low:.2f}, {worst.exponent.high:.2f}]); slower calls account for {cost:.2f}x"
        )
        if len(growing) > 1:
            others = len(growing) - 1
            defect += f", and {others} more {'region gets' if others == 1 else 'regions get'} slower"
        causes.append(defect)
    elif cost > 1 + _FLAT:
        # The region with most extra time; costs are relative to the others, which a slower machine keeps.
        most = regions[0] if regions else None
        causes.append(
            f"calls got slower ({cost:.2f}x), most of all {most.name}, from {units.duration(most.early_ns)} "
            f"to {units.duration(most.late_ns)}, but not steadily: its work may have changed, or the machine"
            if most is not None and most.late_ns > CHANGED * most.early_ns
            else f"calls got slower ({cost:.2f}x), but no single region clearly did: more likely the machine "
            "than your code"
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
