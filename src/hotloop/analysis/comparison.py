"""From a series of runs to a comparison of variants: pairs runs, checks their work, collects verdicts.

The statistics are in verdict.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hotloop.analysis.load_snapshot import MachineLoad, machine_load_of
from hotloop.analysis.ranking import (
    LearningVerdict,
    RankedTable,
    VariantFacts,
    compare_returns,
    rank,
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
from hotloop.analysis.work_counters import WorkDifference, work_differences
from hotloop.capture.plan import Plan, Variant, apply_overrides
from hotloop.capture.series import Run, Series

Metric = Literal["env_step", "update", "run"]

MOST_WAITING = 0.05  # fraction of training in which a thread may wait if its CPU time is to decide
SMALLEST_PART = 0.005  # components with a smaller share of A and of B get no verdict
COUNTERS = {  # name in a finding -> field of `Figures`
    "env_steps": "env_steps",
    "updates": "updates",
    "episodes": "episodes",
    "mean_episode_length": "mean_length",
}


@dataclass(frozen=True, slots=True)
class VariantComparison:
    """One variant against the baseline."""

    variant: Variant
    verdict: Verdict
    pairs: int
    median_a_s: float | None  # median of the metric
    median_b_s: float | None
    more: tuple[tuple[str, Verdict], ...]  # verdicts on other metrics: "time_per_update", ...
    components: tuple[ComponentVerdict, ...]
    work: tuple[WorkDifference, ...] | None  # counters that differ; None: nothing was counted
    learning: LearningVerdict | None  # None: no returns were reported
    failures: int


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """The runs of one node of a cluster."""

    node: str
    blocks: int
    baseline_s: float  # median of the metric of the baseline
    changes: tuple[tuple[str, float], ...]  # variant -> median of (its time / time of the baseline - 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All verdicts on a series: each variant against the baseline."""

    metric: Metric
    baseline: Variant
    compared: tuple[VariantComparison, ...]  # in the plan's order
    go_on: bool
    reason: str
    next_look: int | None
    blocks: int
    machine_load: MachineLoad
    settled: tuple[str, ...]  # variants that need no more runs
    nodes: tuple[NodeComparison, ...] = ()  # fastest first; (): all runs were made on one machine


def metric_of(series: Series) -> Metric:
    """Time per env step if every run recorded it, else time per update, else of the whole process."""
    runs = [run for run in series.runs if run.ok and not run.scale]
    if runs and all(run.figures.s_per_env_step for run in runs):
        return "env_step"
    return "update" if runs and all(run.figures.s_per_update for run in runs) else "run"


def value_s(run: Run, metric: Metric) -> float:
    """The run's value of the metric, in seconds."""
    found = {"env_step": run.figures.s_per_env_step, "update": run.figures.s_per_update, "run": run.wall_s}
    return found[metric] or run.wall_s


def schedule_of(plan: Plan) -> Schedule:
    """The plan's looks, at a level that keeps the error rate of all looks together below 5 %."""
    if len(plan.looks) > 1 and set(plan.looks) <= set(RUNS.looks):
        return Schedule(plan.looks, RUNS.level)
    return Schedule(plan.looks, 0.05 / len(plan.looks))


def decide_series(series: Series, final: bool = False) -> BlockDecision:
    """Whether to run another block, and which variants need no more runs; called after each block."""
    metric = metric_of(series)
    names = [v.name for v in series.plan.variants[1:]]
    runs = {name: pairs_of(series, name) for name in names}
    blocks = len({run.block for pairs in runs.values() for _, run in pairs})
    times = {name: [(value_s(a, metric), value_s(b, metric)) for a, b in runs[name]] for name in names}
    tolerance, schedule = series.plan.tolerance, schedule_of(series.plan)
    nodes = {name: [a.node for a, _ in runs[name]] for name in names}
    if len(names) == 1:
        only = names[0]
        one = decide(times[only], tolerance=tolerance, schedule=schedule, final=final, nodes=nodes[only])
        settled = () if one.go_on else (names[0],)
        rows = (VariantVerdict(names[0], one.verdict),)
        return BlockDecision(one.go_on, rows, settled, one.reason, one.next_look)
    cpu = {name: cpu_pairs(pairs) for name, pairs in runs.items()} if metric == "env_step" else None
    return decide_named(
        times, blocks, tolerance=tolerance, schedule=schedule, final=final, cpu=cpu, nodes=nodes
    )


def cpu_pairs(pairs: Sequence[tuple[Run, Run]]) -> list[tuple[float, float]]:
    """CPU seconds of the training thread per env step in all pairs; none if it waits in either variant.

    The CPU time of a thread that never waits is its wall time on a machine that does nothing else.
    """
    runs = [run.figures for pair in pairs for run in pair]
    if not runs or any(f.cpu_s_per_env_step is None or f.waiting_fraction is None for f in runs):
        return []
    for side in (0, 1):
        waiting = _median([pair[side].figures.waiting_fraction or 0.0 for pair in pairs])
        if waiting is None or waiting > MOST_WAITING:
            return []
    return _values(pairs, lambda run: run.figures.cpu_s_per_env_step)


def compare_series(series: Series, final: bool = True) -> Comparison:
    """All verdicts on a series; `final` means that no more runs will follow."""
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
        nodes=_by_node(series, metric),
    )


def _by_node(series: Series, metric: Metric) -> tuple[NodeComparison, ...]:
    base = series.of(series.plan.baseline.name)
    found = []
    for node in dict.fromkeys(run.node for run in base if run.node):
        here = [run for run in base if run.node == node]
        changes = []
        for variant in series.plan.variants[1:]:
            pairs = [(a, b) for a, b in pairs_of(series, variant.name) if a.node == node]
            ratios = [value_s(b, metric) / value_s(a, metric) - 1 for a, b in pairs if value_s(a, metric) > 0]
            if ratios:
                changes.append((variant.name, float(np.median(ratios))))
        times = [value_s(run, metric) for run in here]
        blocks = len({run.block for run in here})
        found.append(NodeComparison(node, blocks, float(np.median(times)), tuple(changes)))
    return tuple(sorted(found, key=lambda row: row.baseline_s))


def pairs_of(series: Series, variant: str) -> list[tuple[Run, Run]]:
    """(baseline, variant) runs of every block in which both succeeded, on the same node, in order."""
    a = {(run.block, run.group): run for run in series.of(series.plan.baseline.name)}
    b = {(run.block, run.group): run for run in series.of(variant)}
    return [(a[at], b[at]) for at in sorted(a.keys() & b.keys()) if a[at].node == b[at].node]


def compare_runs(
    pairs: Sequence[tuple[Run, Run]], metric: Metric, tolerance: float, level: float
) -> tuple[tuple[tuple[str, Verdict], ...], tuple[ComponentVerdict, ...]]:
    """Verdicts on other metrics, and on the components."""
    other = {name: _values(pairs, of) for name, of in _other_metrics(metric).items()}
    known = {name: values for name, values in other.items() if values}
    more = tuple((name, judge(v, tolerance=tolerance, level=level)) for name, v in known.items())
    return more, _components(pairs, metric, tolerance, level)


def work_of(runs: Sequence[tuple[Run, Run]]) -> tuple[WorkDifference, ...] | None:
    """Work counters that differ between the two sides; None when nothing was counted."""
    return work_differences([(_counted(a), _counted(b)) for a, b in runs])


def work_per_env_step(runs: Sequence[tuple[Run, Run]]) -> tuple[WorkDifference, ...] | None:
    """Differences of turns: they last for a time, not for an amount of work."""

    def rate(run: Run) -> dict[str, float]:
        steps, updates = run.figures.env_steps, run.figures.updates
        return {"updates in 1,000 env steps": 1000 * updates / steps} if steps and updates is not None else {}

    return work_differences([(rate(a), rate(b)) for a, b in runs])


def learning_of(runs: Sequence[tuple[Run, Run]]) -> LearningVerdict | None:
    """Whether the variant learns worse, from returns of pairs with the same seed; None without returns."""
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
        work=work_per_env_step(pairs) if series.plan.turns else work_of(pairs),
        learning=learning_of(pairs),
        failures=sum(run.variant == variant.name for run in series.failures),
    )


def _other_metrics(metric: Metric) -> dict[str, Callable[[Run], float | None]]:
    def cpu(run: Run) -> float | None:
        work = {"env_step": run.figures.env_steps, "update": run.figures.updates, "run": 1}[metric]
        return run.cpu_s / work if run.cpu_s and work else None

    found: dict[str, Callable[[Run], float | None]] = {f"cpu_time_per_{metric}": cpu}
    if metric == "env_step":
        found["time_per_update"] = lambda run: run.figures.s_per_update
    if metric != "run":
        found["whole_process"] = lambda run: run.wall_s
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
    found = {name: getattr(run.figures, field) for name, field in COUNTERS.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _values(
    pairs: Sequence[tuple[Run, Run]], of: Callable[[Run], float | None], zero: bool = False
) -> list[tuple[float, float]]:
    """A figure of both runs, for the pairs in which both have it (and, without `zero`, it is positive)."""
    found = []
    for a, b in pairs:
        x, y = of(a), of(b)
        if x is not None and y is not None and (zero or (x > 0 and y > 0)):
            found.append((float(x), float(y)))
    return found


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def rank_comparison(found: Comparison, combination: VariantComparison | None = None) -> RankedTable:
    """The variants by measured gain, with what the plan expected of each.

    `combination` is the comparison of several variants together, which was measured in separate runs.
    """
    compared = [*found.compared, *([combination] if combination else [])]
    rows = [VariantVerdict(row.variant.name, row.verdict) for row in compared]
    facts = {
        row.variant.name: VariantFacts(
            row.variant.expected, row.variant.safety, row.work, row.learning, _failures(row.failures)
        )
        for row in compared
    }
    together = combination.variant.name if combination else None
    return rank(rows, found.baseline.name, found.blocks, facts, together)


def _failures(number: int) -> str:
    return f"{number} {'run' if number == 1 else 'runs'} failed." if number else ""


def best_combination(comparison: Comparison) -> Variant | None:
    """All variants that are clearly faster, combined into one; None for fewer than two.

    Where two change the same setting, the faster one wins. Only overrides and environment variables of the
    base command can be combined. Variants that did different work or learned worse are left out: they are
    faster at something else.
    """
    base = comparison.baseline
    faster = [row for row in comparison.compared if row.verdict.word == "faster" and _fits(row, base)]
    faster.sort(key=lambda row: row.verdict.change.value if row.verdict.change else 0.0)
    chosen: list[Variant] = []
    touched: set[str] = set()
    for row in faster:
        settings = _settings(row.variant, base)
        if not settings & touched:
            chosen.append(row.variant)
            touched |= settings
    if len(chosen) < 2:
        return None
    overrides = tuple(word for v in chosen for word in v.overrides)
    variables = dict(base.environment)
    for variant in chosen:
        variables |= dict(variant.environment)
    return Variant(
        name=" + ".join(v.name for v in chosen),
        command=apply_overrides(base.command, overrides),
        overrides=overrides,
        environment=tuple(variables.items()),
        expected="at most the product of the single gains",
        safety="semantic" if any(v.safety == "semantic" for v in chosen) else "safe",
    )


def _settings(variant: Variant, base: Variant) -> set[str]:
    """The settings a variant changes, so that no two in a combination change the same one."""
    keys = {word.partition("=")[0].strip("-").replace("_", "-") for word in variant.overrides}
    known = dict(base.environment)
    return keys | {f"${name}" for name, value in variant.environment if known.get(name) != value}


def _fits(row: VariantComparison, base: Variant) -> bool:
    variant = row.variant
    hurt = row.learning is not None and row.learning.word == "worse"
    of_base = variant.command == apply_overrides(base.command, variant.overrides)
    return of_base and variant.revision == base.revision and not row.work and not hurt
