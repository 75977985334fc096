"""How time grows with the size of the work, over runs of several sizes: time = a n^b.

Fitted for the whole and for each region, with exact intervals; the region that bends the curve is
named; where env steps were counted, the excess over linear is taken apart as in `growth`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.units import duration
from hotloop.analysis.findings import Estimate, GrowthFactor
from hotloop.analysis.growth import Stretch, decompose
from hotloop.analysis.rank_intervals import differences, rank_sum_interval, slope_interval

LEVEL = 0.05
TWICE = 2.0
LEAST_SHARE = 0.05  # of the time at the largest size that a region's excess must reach to be named

Floats = NDArray[np.float64]


class RegionRun(NamedTuple):
    """One region in one run."""

    calls: int
    own_s: float


@dataclass(frozen=True, slots=True)
class ScaleRun:
    """One run of a given size, start-up taken out where it is known."""

    size: float
    wall_s: float  # after start-up
    regions: Mapping[str, RegionRun]  # own times by name; with "" for no region they add up to wall_s
    env_steps: int | None = None  # None: not counted
    startup_s: float | None = None  # what was taken out; None: not known, so it is still in wall_s


@dataclass(frozen=True, slots=True)
class RegionScaling:
    """One region over the sizes."""

    name: str
    exponent: Estimate | None  # own time ~ n^b; None: too few runs for an interval, or runs without it
    small_s: float  # median own time at the smallest size
    large_s: float  # at the largest
    excess_s: float  # large_s minus what linear growth from small_s would give
    bends: bool  # grows faster than linear beyond doubt, and that costs 5 % of the time or more


@dataclass(frozen=True, slots=True)
class Scaling:
    """Time against size."""

    sizes: tuple[float, ...]
    runs: int
    exponent: Estimate | None  # None: too few runs for an interval
    coefficient_s: float | None  # a in time = a n^b, seconds
    last_exponent: Estimate | None  # between the two largest sizes alone; None: fewer than 4 runs each
    shapes: tuple[str, ...]  # of n, n log n, n^1.5, n^2, ...: those within the interval, nearest first
    expected_s: float  # at the largest size, linear from the smallest
    actual_s: float
    slow_down: Estimate | None  # actual / expected
    within_twice: bool | None  # slow-down at most 2; None: the interval does not tell
    bender: str | None  # the region with the largest excess among those that bend the curve
    regions: tuple[RegionScaling, ...]  # largest excess first
    factors: tuple[GrowthFactor, ...]  # of actual / expected, from totals; empty without env steps
    says: str
    not_measured: tuple[str, ...]


def scaling(runs: Sequence[ScaleRun]) -> Scaling:
    """Fit and explain; at least two sizes are needed, and for an interval enough runs.

    Enough: 5 sizes once, 3 sizes twice, or 2 sizes four times. Run them in random order: a machine
    that drifts while the sizes go up looks like growth.
    """
    sizes = sorted({run.size for run in runs})
    if len(sizes) < 2 or sizes[0] <= 0:
        raise HotloopError(f"sizes are {sizes}; give two or more different ones, all above 0.")
    if any(run.wall_s <= 0 for run in runs):
        raise HotloopError("a run took no time after its start-up; use larger sizes.")
    x = np.log([run.size for run in runs])
    y = np.log([run.wall_s for run in runs])
    exponent = _slope(x, y)
    small, large = ([run for run in runs if run.size == size] for size in (sizes[0], sizes[-1]))
    regions = _regions(runs, x, small, large)
    bender = next((r.name for r in regions if r.bends), None)
    slow_down = _slow_down(small, large, exponent)
    expected_s = _median(small) * sizes[-1] / sizes[0]
    factors, why_not = _factors(small, large)
    reasons = [
        "" if exponent else f"the exponent's interval: {len(runs)} runs of {len(sizes)} sizes are too few",
        "" if all(run.startup_s is not None for run in runs) else "start-up: it is part of the times",
        why_not,
    ]
    found = Scaling(
        sizes=tuple(sizes),
        runs=len(runs),
        exponent=exponent,
        coefficient_s=float(np.exp(np.median(y - exponent.value * x))) if exponent else None,
        last_exponent=_last(runs, sizes),
        shapes=shapes(np.log(sizes), exponent),
        expected_s=expected_s,
        actual_s=_median(large),
        slow_down=slow_down,
        within_twice=_within(slow_down),
        bender=bender,
        regions=regions,
        factors=factors,
        says="",
        not_measured=tuple(reason for reason in reasons if reason),
    )
    return replace(found, says=_sentence(found))


def shapes(log_sizes: Floats, exponent: Estimate | None) -> tuple[str, ...]:
    """Which known shapes the interval allows over these sizes, nearest first."""
    if exponent is None:
        return ()
    n = np.exp(log_sizes)
    known = {
        "constant": 0.0 * log_sizes,
        "n": log_sizes,
        "n log n": log_sizes + np.log(np.log(np.maximum(n, 2.0))),
        "n^1.5": 1.5 * log_sizes,
        "n^2": 2 * log_sizes,
        "n^3": 3 * log_sizes,
    }
    slopes = {name: slope_interval(log_sizes, y, LEVEL) for name, y in known.items()}
    near = {name: abs(s[0] - exponent.value) for name, s in slopes.items() if s and _inside(s[0], exponent)}
    return tuple(sorted(near, key=lambda name: near[name]))


def _inside(value: float, found: Estimate) -> bool:
    return found.low <= value <= found.high


def _slope(x: Floats, y: Floats) -> Estimate | None:
    found = slope_interval(x, y, LEVEL)
    return Estimate(*found) if found is not None and math.isfinite(found[1]) else None


def _median(runs: Sequence[ScaleRun]) -> float:
    return float(np.median([run.wall_s for run in runs]))


def _logs(runs: Sequence[ScaleRun]) -> Floats:
    return np.log([run.wall_s for run in runs])


def _last(runs: Sequence[ScaleRun], sizes: Sequence[float]) -> Estimate | None:
    below, top = (_logs([run for run in runs if run.size == size]) for size in sizes[-2:])
    ends = rank_sum_interval(below, top, LEVEL)
    if ends is None:
        return None
    gap = math.log(sizes[-1] / sizes[-2])
    return Estimate(float(np.median(differences(below, top))) / gap, ends[0] / gap, ends[1] / gap)


def _slow_down(
    small: Sequence[ScaleRun], large: Sequence[ScaleRun], exponent: Estimate | None
) -> Estimate | None:
    """Of the largest size against linear from the smallest: from their runs, else from the fit."""
    gap = math.log(large[0].size / small[0].size)
    below, top = _logs(small), _logs(large)
    ends = rank_sum_interval(below, top, LEVEL)
    if ends is not None:
        middle = float(np.median(differences(below, top)))
        return Estimate(*(math.exp(value - gap) for value in (middle, *ends)))
    if exponent is None:
        return None
    return Estimate(*(math.exp((b - 1) * gap) for b in (exponent.value, exponent.low, exponent.high)))


def _within(slow_down: Estimate | None) -> bool | None:
    if slow_down is None or slow_down.low <= TWICE < slow_down.high:
        return None
    return slow_down.high <= TWICE


def _regions(
    runs: Sequence[ScaleRun], x: Floats, small: Sequence[ScaleRun], large: Sequence[ScaleRun]
) -> tuple[RegionScaling, ...]:
    times_n = large[0].size / small[0].size
    least_s = LEAST_SHARE * _median(large)
    found = []
    for name in dict.fromkeys(name for run in runs for name in run.regions):
        own = np.array([_own_s(run, name) for run in runs])
        small_s, large_s = (float(np.median([_own_s(r, name) for r in group])) for group in (small, large))
        exponent = _slope(x, np.log(own)) if (own > 0).all() else None
        excess_s = large_s - small_s * times_n
        # Absent at the smallest size: no exponent, but all of its time is excess.
        new = not any(_own_s(r, name) for r in small) and all(_own_s(r, name) for r in large)
        steep = exponent.low > 1 if exponent else new
        found.append(RegionScaling(name, exponent, small_s, large_s, excess_s, steep and excess_s >= least_s))
    return tuple(sorted(found, key=lambda region: (-region.excess_s, region.name)))


def _own_s(run: ScaleRun, name: str) -> float:
    return run.regions[name].own_s if name in run.regions else 0.0


def _factors(small: Sequence[ScaleRun], large: Sequence[ScaleRun]) -> tuple[tuple[GrowthFactor, ...], str]:
    """Steps per unit of n x calls per step x cost per call: their product is the excess of the totals."""
    if not all(run.env_steps for run in (*small, *large)):
        return (), "factors: no env steps were reported (hotloop.progress(env_steps=...))"
    names = list(dict.fromkeys(name for run in (*small, *large) for name in run.regions))
    if not names:
        return (), "factors: no regions were recorded"
    ratios = decompose(_stretch(small, names), _stretch(large, names))
    return tuple(GrowthFactor(name, r, name == "cost per call") for name, r in ratios.items()), ""


def _stretch(runs: Sequence[ScaleRun], names: Sequence[str]) -> Stretch:
    none = RegionRun(0, 0.0)
    return Stretch(
        units=sum(run.size for run in runs),
        env_steps=float(sum(run.env_steps or 0 for run in runs)),
        calls=np.array(
            [sum(run.regions.get(n, none).calls for run in runs) for n in names], dtype=np.float64
        ),
        own_ns=np.array([1e9 * sum(run.regions.get(n, none).own_s for run in runs) for n in names]),
    )


_WITHIN = {
    True: "within 2x of expected",
    False: "not within 2x of expected",
    None: "within 2x of expected or not: undecided",
}


def _sentence(found: Scaling) -> str:
    """Exponent, expected against actual, and who bends the curve."""
    b = found.exponent
    said = []
    if b is None:
        said.append("too few runs for an exponent with an interval")
    else:
        said.append(f"time ~ n^{b.value:.2f} [{b.low:.2f}, {b.high:.2f}]{_shape_words(found.shapes)}")
    large, small = (f"{size:,g}" for size in (found.sizes[-1], found.sizes[0]))
    expected, actual = (duration(1e9 * s) for s in (found.expected_s, found.actual_s))
    said.append(f"n = {large} took {actual}, linear from n = {small} would be {expected}")
    slow = found.slow_down
    if slow is not None:
        within = {
            True: "within 2x of expected",
            False: "not within 2x of expected",
            None: "2x is not ruled out",
        }
        said.append(f"x{slow.value:.2f} [{slow.low:.2f}, {slow.high:.2f}], {within[found.within_twice]}")
    if found.bender is not None:
        name = f"the region {found.bender}" if found.bender else "time in no region"
        said.append(f"{name} bends the curve")
    elif b is not None and b.low > 1:
        said.append("no single region can be named for it")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _shape_words(shapes: tuple[str, ...]) -> str:
    if not shapes:
        return ""
    return f", like {shapes[0]}" if len(shapes) == 1 else f" (cannot tell {' from '.join(shapes)})"
