"""How time grows with the amount of work, from runs of several sizes: time = a n^b.

Fitted for the whole run and for each region, with exact intervals. Names the region that bends the curve and,
where env steps were counted, splits the excess over linear growth into factors as `growth` does.
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
from hotloop.analysis.rank_intervals import differences, rank_sum_interval
from hotloop.analysis.theil_sen import exact_theil_sen
from hotloop.capture.series import Figures, Run, Series

LEVEL = 0.05
TWICE = 2.0
LEAST_OTHERS = 1e-3  # of a region's time that all others need, to be compared with
ALONE = 0.1  # how far above 1 the exponent of a region must lie if there is nothing to compare it with
NARROW = 0.5  # width of the interval of an exponent that is called linear
LEAST_SHARE = 0.05  # a region is named if its excess is at least this share of the time at the largest size

Floats = NDArray[np.float64]


class RegionRun(NamedTuple):
    """One region in one run."""

    calls: int
    own_s: float


@dataclass(frozen=True, slots=True)
class ScaleRun:
    """One run of a given size, without its start-up where that is known."""

    size: float
    wall_s: float  # after start-up
    regions: Mapping[str, RegionRun]  # by name, "" for time in no region; own times add up to wall_s
    env_steps: int | None = None  # None: not counted
    startup_s: float | None = None  # subtracted already; None: unknown, so wall_s includes it


@dataclass(frozen=True, slots=True)
class RegionScaling:
    """One region over the sizes."""

    name: str
    exponent: Estimate | None  # own time ~ n^b; None: too few runs for an interval, or runs without it
    small_s: float  # median own time at the smallest size
    large_s: float  # at the largest
    excess_s: float  # large_s minus linear growth from small_s
    bends: bool  # clearly grows faster than linear, at a cost of 5 % of the time or more


@dataclass(frozen=True, slots=True)
class Scaling:
    """Time against size."""

    sizes: tuple[float, ...]
    runs: int
    exponent: Estimate | None  # None: too few runs for an interval
    coefficient_s: float | None  # a in time = a n^b, seconds
    last_exponent: Estimate | None  # between the two largest sizes only; None: fewer than 4 runs each
    shapes: tuple[str, ...]  # those of n, n log n, n^1.5, n^2, ... that fit the interval, best first
    expected_s: float  # at the largest size, linear from the smallest
    actual_s: float
    slow_down: Estimate | None  # actual / expected
    within_twice: bool | None  # slow-down at most 2x; None: the interval includes 2x
    bender: str | None  # of the regions that bend the curve, the one with the largest excess
    regions: tuple[RegionScaling, ...]  # largest excess first
    factors: tuple[GrowthFactor, ...]  # their product is actual / expected; empty without env steps
    summary: str
    not_measured: tuple[str, ...]


def scaling(runs: Sequence[ScaleRun]) -> Scaling:
    """Fit and explain runs of at least two sizes.

    An interval needs 5 sizes once, 3 sizes twice or 2 sizes four times. Run them in random order: drift of
    the machine while the sizes go up looks like growth.
    """
    sizes = sorted({run.size for run in runs})
    if len(sizes) < 2 or sizes[0] <= 0:
        raise HotloopError(
            f"Cannot fit growth over the sizes {sizes}; use at least two different sizes, all above 0."
        )
    if any(run.wall_s <= 0 for run in runs):
        raise HotloopError("A run took no time after its start-up; use larger sizes.")
    x = np.log([run.size for run in runs])
    y = np.log([run.wall_s for run in runs])
    exponent = _slope(x, y)
    small, large = ([run for run in runs if run.size == size] for size in (sizes[0], sizes[-1]))
    regions = _regions(runs, x, small, large)
    bender = next((r.name for r in regions if r.bends), None)
    slow_down = _slow_down(small, large, exponent)
    expected_s = _median(small) * sizes[-1] / sizes[0]
    factors, why_not = _factors(small, large, defect=bender is not None)
    reasons = [
        ""
        if exponent
        else f"the exponent: {len(runs)} runs of {len(sizes)} sizes are too few for an interval",
        "" if all(run.startup_s is not None for run in runs) else "start-up: unknown, so times include it",
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
        summary="",
        not_measured=tuple(reason for reason in reasons if reason),
    )
    return replace(found, summary=_sentence(found))


def shapes(log_sizes: Floats, exponent: Estimate | None) -> tuple[str, ...]:
    """The known shapes that the interval allows over these sizes, best fit first."""
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
    slopes = {name: exact_theil_sen(log_sizes, y, LEVEL) for name, y in known.items()}
    near = {name: abs(s[0] - exponent.value) for name, s in slopes.items() if s and _inside(s[0], exponent)}
    return tuple(sorted(near, key=lambda name: near[name]))


def _inside(value: float, found: Estimate) -> bool:
    return found.low <= value <= found.high


def _slope(x: Floats, y: Floats) -> Estimate | None:
    found = exact_theil_sen(x, y, LEVEL)
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
    """Largest size against linear growth from the smallest: from their runs, else from the fit."""
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
        # Absent at the smallest size: no exponent, and all of its time is excess.
        new = not any(_own_s(r, name) for r in small) and all(_own_s(r, name) for r in large)
        others = np.array(
            [sum(r.own_s for n, r in run.regions.items() if n not in ("", name)) for run in runs]
        )
        steep = exponent.low > 1 and _outgrows(x, own, others, exponent) if exponent else new
        found.append(RegionScaling(name, exponent, small_s, large_s, excess_s, steep and excess_s >= least_s))
    return tuple(sorted(found, key=lambda region: (-region.excess_s, region.name)))


def _outgrows(x: Floats, own: Floats, others: Floats, exponent: Estimate) -> bool:
    """Whether a region clearly grows faster than all others together: what slows all of them is the machine.

    With hardly any other time to compare with, its own exponent decides, if it is clear enough.
    """
    if (others <= LEAST_OTHERS * own).any():
        return exponent.low > 1 + ALONE
    relative = _slope(x, np.log(own / others))
    return relative is not None and relative.low > 0


def _own_s(run: ScaleRun, name: str) -> float:
    return run.regions[name].own_s if name in run.regions else 0.0


def _factors(
    small: Sequence[ScaleRun], large: Sequence[ScaleRun], defect: bool
) -> tuple[tuple[GrowthFactor, ...], str]:
    """Steps per n x calls per step x cost per call; the product is the excess of the totals.

    `defect`: a region bends the curve, so a higher cost per call is no noise.
    """
    if not all(run.env_steps for run in (*small, *large)):
        return (), "factors: no env steps were reported (hotloop.progress(env_steps=...))"
    names = list(dict.fromkeys(name for run in (*small, *large) for name in run.regions))
    if not names:
        return (), "factors: no regions were recorded"
    ratios = decompose(_stretch(small, names), _stretch(large, names))
    return tuple(
        GrowthFactor(name, r, defect and r > 1 and name == "cost_per_call") for name, r in ratios.items()
    ), ""


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


_WITHIN_TWICE = {
    True: "within 2x of linear",
    False: "more than 2x of linear",
    None: "2x of linear cannot be ruled out",
}


def _sentence(found: Scaling) -> str:
    """Exponent, actual against expected, and the region that bends the curve."""
    b = found.exponent
    said = []
    if b is None:
        said.append("too few runs for an exponent with an interval")
    else:
        said.append(
            f"{_kind(b)}time ~ n^{b.value:.2f} [{b.low:.2f}, {b.high:.2f}]{_shape_words(found.shapes)}"
        )
    large, small = (f"{size:,g}" for size in (found.sizes[-1], found.sizes[0]))
    expected, actual = (duration(1e9 * s) for s in (found.expected_s, found.actual_s))
    said.append(f"n = {large} took {actual}, linear growth from n = {small} would take {expected}")
    slow = found.slow_down
    if slow is not None:
        within = _WITHIN_TWICE[found.within_twice]
        said.append(f"{slow.value:.2f}x [{slow.low:.2f}, {slow.high:.2f}], {within}")
    if found.bender is not None:
        name = f"the region {found.bender}" if found.bender else "time in no region"
        said.append(f"{name} bends the curve")
    elif b is not None and b.low > 1:
        said.append("no single region explains it")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _kind(exponent: Estimate) -> str:
    """`linear: ` if that fits; "" if time clearly grows faster or slower."""
    if not exponent.low <= 1 <= exponent.high:
        return ""
    narrow = exponent.high - exponent.low <= NARROW
    return "linear: " if narrow else "linear growth fits, but the runs are too noisy to be sure: "


def _shape_words(shapes: tuple[str, ...]) -> str:
    if not shapes:
        return ""
    return f", like {shapes[0]}" if len(shapes) == 1 else f" (could be {' or '.join(shapes)})"


# -- from a series to runs -----------------------------------------------------------------------


def scaling_of(series: Series) -> Scaling | None:
    """How time grows with size in the scale check of a series; None with fewer than two finished sizes."""
    runs = scale_runs(series)
    return scaling(runs) if len({run.size for run in runs}) > 1 else None


def scale_runs(series: Series) -> list[ScaleRun]:
    """Every finished run of the scale check.

    If all of them recorded themselves, the time is that of the driving thread without its start-up; otherwise
    that of the whole process.
    """
    runs = _whole_rounds([run for run in series.runs if run.scale and run.ok and run.size is not None])
    if all(run.figures.startup_s is not None and any(run.figures.regions_s.values()) for run in runs):
        return [scale_run(float(run.size or 0), run.figures) for run in runs]
    return [ScaleRun(float(run.size or 0), run.wall_s, {}) for run in runs]


def _whole_rounds(runs: Sequence[Run]) -> list[Run]:
    """Without what a lost node had made of a round: of each round, the runs of the node that made most."""
    kept: list[Run] = []
    for block in dict.fromkeys(run.block for run in runs):
        by_node: dict[str, list[Run]] = {}
        for run in runs:
            if run.block == block:
                by_node.setdefault(run.node, []).append(run)
        most = max(len(made) for made in by_node.values())
        kept += next(made for made in by_node.values() if len(made) == most)
    return kept


def scale_run(size: float, figures: Figures) -> ScaleRun:
    """A run that recorded itself."""
    own, calls = figures.regions_s, figures.region_calls
    return ScaleRun(
        size=size,
        wall_s=sum(own.values()),
        regions={name: RegionRun(calls.get(name, 0), seconds) for name, seconds in own.items()},
        env_steps=figures.env_steps,
        startup_s=figures.startup_s,
    )
