"""A series as pairs: which runs belong together, what is compared, and every verdict on it.

The statistics are in verdict.py; here runs are put side by side, their work is checked, and the
answers are gathered for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hotloop.analysis.diff import WorkDifference
from hotloop.analysis.load_snapshot import MachineLoad, machine_load_of
from hotloop.analysis.ranking import (
    LearningVerdict,
    RankedTable,
    VariantFacts,
    compare_returns,
    rank,
    work_differences,
)
from hotloop.analysis.stopping_rule import RUNS, Schedule
from hotloop.analysis.verdict import (
    BlockDecision,
    ComponentVerdict,
    VariantVerdict,
    Verdict,
    decide,
    decide_named,
    judge,
    judge_components,
)
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, Series

Metric = Literal["env step", "update", "run"]

SMALLEST_PART = 0.005  # share of A or of B below which a component gets no verdict
COUNTERS = ("env_steps", "updates", "episodes", "mean_length")


@dataclass(frozen=True, slots=True)
class VariantComparison:
    """One variant against the baseline."""

    variant: Variant
    verdict: Verdict
    pairs: int
    median_a_s: float | None  # of the metric
    median_b_s: float | None
    more: tuple[tuple[str, Verdict], ...]  # other metrics: "per update", "CPU time"
    components: tuple[ComponentVerdict, ...]
    work: tuple[WorkDifference, ...] | None  # counters that differ; None: nothing was counted
    learning: LearningVerdict | None  # None: no returns were reported
    failures: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that can be said about a series of pairs or blocks."""

    metric: Metric
    baseline: Variant
    compared: tuple[VariantComparison, ...]  # in the plan's order
    go_on: bool
    reason: str
    next_look: int | None
    blocks: int
    machine_load: MachineLoad
    settled: tuple[str, ...]  # variants that need no more runs


def metric_of(series: Series) -> Metric:
    """Time per env step where every run recorded it, else per update, else of the whole process."""
    runs = [run for run in series.runs if run.ok and not run.scale]
    if runs and all(run.figures.s_per_env_step for run in runs):
        return "env step"
    return "update" if runs and all(run.figures.s_per_update for run in runs) else "run"


def value_s(run: Run, metric: Metric) -> float:
    """What is compared, in seconds."""
    found = {"env step": run.figures.s_per_env_step, "update": run.figures.s_per_update, "run": run.wall_s}
    return found[metric] or run.wall_s


def schedule_of(plan: Plan) -> Schedule:
    """Looks of a plan with a level that keeps all of them together below 5 % errors."""
    if len(plan.looks) > 1 and set(plan.looks) <= set(RUNS.looks):
        return Schedule(plan.looks, RUNS.level)
    return Schedule(plan.looks, 0.05 / len(plan.looks))


def decide_series(series: Series, final: bool = False) -> BlockDecision:
    """What the lab asks after each block: go on, or stop; and which variants need no more runs."""
    metric = metric_of(series)
    names = [v.name for v in series.plan.variants[1:]]
    runs = {name: pairs_of(series, name) for name in names}
    blocks = len({run.block for pairs in runs.values() for _, run in pairs})
    times = {name: [(value_s(a, metric), value_s(b, metric)) for a, b in runs[name]] for name in names}
    tolerance, schedule = series.plan.tolerance, schedule_of(series.plan)
    if len(names) == 1:
        one = decide(times[names[0]], tolerance=tolerance, schedule=schedule, final=final)
        settled = () if one.go_on else (names[0],)
        rows = (VariantVerdict(names[0], one.verdict),)
        return BlockDecision(one.go_on, rows, settled, one.reason, one.next_look)
    return decide_named(times, blocks, tolerance=tolerance, schedule=schedule, final=final)


def compare_series(series: Series, final: bool = True) -> Comparison:
    """All verdicts on a series; with `final` the runs are judged as they are, none will follow."""
    decision = decide_series(series, final)
    metric = metric_of(series)
    level = schedule_of(series.plan).level
    verdicts = {row.name: row.verdict for row in decision.variants}
    compared = tuple(
        _compared(series, variant, verdicts[variant.name], metric, level)
        for variant in series.plan.variants[1:]
    )
    return Comparison(
        metric=metric,
        baseline=series.plan.baseline,
        compared=compared,
        go_on=decision.go_on,
        reason=decision.reason,
        next_look=decision.next_look,
        blocks=len({run.block for run in series.of(series.plan.baseline.name)}),
        machine_load=machine_load_of(series.runs),
        settled=decision.settled,
    )


def pairs_of(series: Series, variant: str) -> list[tuple[Run, Run]]:
    """(baseline, variant) of every block in which both ended as they should, in order."""
    a = {(run.block, run.group): run for run in series.of(series.plan.baseline.name)}
    b = {(run.block, run.group): run for run in series.of(variant)}
    return [(a[at], b[at]) for at in sorted(a.keys() & b.keys())]


def compare_runs(
    pairs: Sequence[tuple[Run, Run]], metric: Metric, tolerance: float, level: float
) -> tuple[tuple[tuple[str, Verdict], ...], tuple[ComponentVerdict, ...]]:
    """Verdicts beside the main one: other metrics, and the components."""
    other = {name: _values(pairs, of) for name, of in _other_metrics(metric).items()}
    known = {name: values for name, values in other.items() if values}
    more = tuple((name, judge(v, tolerance=tolerance, level=level)) for name, v in known.items())
    return more, _components(pairs, metric, tolerance, level)


def work_of(runs: Sequence[tuple[Run, Run]]) -> tuple[WorkDifference, ...] | None:
    """Work counters that differ between the two sides; None when nothing was counted."""
    return work_differences([(_counted(a), _counted(b)) for a, b in runs])


def learning_of(runs: Sequence[tuple[Run, Run]]) -> LearningVerdict | None:
    """Whether learning was hurt; the runs of a pair share a seed. None without returns."""
    values = _values(runs, lambda run: run.figures.mean_return, zero=True)
    return compare_returns(values) if values else None


def _compared(
    series: Series, variant: Variant, verdict: Verdict, metric: Metric, level: float
) -> VariantComparison:
    pairs = pairs_of(series, variant.name)
    more, components = compare_runs(pairs, metric, series.plan.tolerance, level)
    return VariantComparison(
        variant=variant,
        verdict=verdict,
        pairs=len(pairs),
        median_a_s=_median([value_s(a, metric) for a, _ in pairs]),
        median_b_s=_median([value_s(b, metric) for _, b in pairs]),
        more=more,
        components=components,
        work=work_of(pairs),
        learning=learning_of(pairs),
        failures=sum(run.variant == variant.name for run in series.failures),
    )


def _other_metrics(metric: Metric) -> dict[str, Callable[[Run], float | None]]:
    def cpu(run: Run) -> float | None:
        work = {"env step": run.figures.env_steps, "update": run.figures.updates, "run": 1}[metric]
        return run.cpu_s / work if run.cpu_s and work else None

    found: dict[str, Callable[[Run], float | None]] = {f"CPU time per {metric}": cpu}
    if metric == "env step":
        found["time per update"] = lambda run: run.figures.s_per_update
    if metric != "run":
        found["whole process"] = lambda run: run.wall_s
    return found


def _components(
    pairs: Sequence[tuple[Run, Run]], metric: Metric, tolerance: float, level: float
) -> tuple[ComponentVerdict, ...]:
    if metric == "run":
        return ()
    timed = [(a, b) for a, b in pairs if a.figures.components_s and b.figures.components_s]
    names = dict.fromkeys(name for pair in timed for run in pair for name in run.figures.components_s)
    whole = [(sum(a.figures.components_s.values()), sum(b.figures.components_s.values())) for a, b in timed]
    named: dict[str, list[tuple[float, float]]] = {}
    for name in names:
        part = [
            (a.figures.components_s.get(name, 0.0), b.figures.components_s.get(name, 0.0)) for a, b in timed
        ]
        shares = [max(p[0] / w[0], p[1] / w[1]) for p, w in zip(part, whole, strict=True) if min(w) > 0]
        if (_median(shares) or 0.0) >= SMALLEST_PART:
            named[name] = part
    return judge_components(named, whole, tolerance=tolerance, level=level)


def _counted(run: Run) -> dict[str, float]:
    found = {name: getattr(run.figures, name) for name in COUNTERS}
    return {name.replace("_", " "): float(value) for name, value in found.items() if value is not None}


def _values(
    pairs: Sequence[tuple[Run, Run]], of: Callable[[Run], float | None], zero: bool = False
) -> list[tuple[float, float]]:
    """A figure of both runs, in the pairs in which both have it; without `zero`, above 0."""
    found = []
    for a, b in pairs:
        x, y = of(a), of(b)
        if x is not None and y is not None and (zero or (x > 0 and y > 0)):
            found.append((float(x), float(y)))
    return found


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def rank_comparison(found: Comparison, combination: VariantComparison | None = None) -> RankedTable:
    """The variants by what they gain, with what the plan expected of each.

    `combination` is what was found, in runs of its own, for several of them together.
    """
    compared = [*found.compared, *([combination] if combination else [])]
    rows = [VariantVerdict(row.variant.name, row.verdict) for row in compared]
    beside = {
        row.variant.name: VariantFacts(
            row.variant.expected, row.variant.safety, row.work, row.learning, _failures(row.failures)
        )
        for row in compared
    }
    together = combination.variant.name if combination else None
    return rank(rows, found.baseline.name, found.blocks, beside, together)


def _failures(number: int) -> str:
    return f"{number} {'run' if number == 1 else 'runs'} failed." if number else ""
