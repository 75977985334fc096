"""A series of runs as text, markdown and JSON: verdicts, work that differs, every run, the machine load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop._util.units import duration, percent
from hotloop._util.visible import visible
from hotloop.analysis.comparison import Comparison, Metric, VariantComparison, rank_comparison, value_s
from hotloop.analysis.findings import Estimate
from hotloop.analysis.load_snapshot import LoadLevel, MachineLoad
from hotloop.analysis.ranking import RankedTable
from hotloop.analysis.scaling import Scaling
from hotloop.analysis.verdict import Decision
from hotloop.analysis.work_counters import WorkDifference
from hotloop.capture.series import Run, Series
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import words
from hotloop.report.scaling import scaling_text
from hotloop.report.to_json import json_object, plain
from hotloop.report.verdict import (
    progress_line,
    ranked_markdown,
    ranked_text,
    verdict_markdown,
    verdict_text,
)

MOST_RUNS = 60  # shown in the terminal
MOST_NODES = 8  # whose own change is shown
METRICS: dict[Metric, str] = {
    "env_step": "time per env step in steady state, without warm-up",
    "update": "time per update in steady state, without warm-up",
    "run": "time of the whole process including start-up (no run reported hotloop.progress)",
}


def comparison_text(series: Series, found: Comparison, pen: Pen) -> str:
    """The result of a comparison: two variants with their parts, or several as a ranked table."""
    if not series.runs:
        return pen.wrap("No run has finished, so there is nothing to compare.", "")
    if len(found.compared) == 1:
        return pair_text(series, found, pen)
    lines = [ranked_text(rank_comparison(found), pen, machine_load_text(found.machine_load))]
    lines.append(pen.wrap(f"Metric: {METRICS[found.metric]}.", "  "))
    lines += [pen.wrap(sentence, "  ") for sentence in _about_runs(series, found)]
    return "\n".join(lines)


def investigation_text(
    series: Series, found: Comparison, table: RankedTable | None, scaling: Scaling | None, pen: Pen
) -> str:
    """The result of a plan: the ranked table, then how time grows with size."""
    parts = []
    if table is not None:
        parts.append(ranked_text(table, pen, machine_load_text(found.machine_load)))
        parts.append(pen.wrap(f"Metric: {METRICS[found.metric]}.", "  "))
    parts += [pen.wrap(sentence, "  ") for sentence in _about_runs(series, found)]
    if scaling is not None:
        parts.append(("\n" if parts else "") + scaling_text(scaling, pen))
    return "\n".join(parts)


def investigation_json(
    series: Series, found: Comparison, table: RankedTable | None, scaling: Scaling | None
) -> dict[str, Any]:
    """The result of a plan for `--json`."""
    data = comparison_json(series, found)
    return {**data, "kind": "hotloop-investigation", "ranked": plain(table), "scaling": plain(scaling)}


def pair_text(series: Series, found: Comparison, pen: Pen) -> str:
    """The comparison of two variants."""
    row = found.compared[0]
    cpu = next((verdict for name, verdict in row.more if name.startswith("cpu")), None)
    a, b = found.baseline.name, row.variant.name
    return verdict_text(
        row.verdict,
        pen,
        a=a,
        b=b,
        cpu=cpu,
        components=row.components,
        notes=notes(series, found, row),
        machine_load=machine_load_text(found.machine_load),
    )


def notes(series: Series, found: Comparison, row: VariantComparison) -> list[str]:
    """What else matters about two variants: the metric, other metrics, work, learning, failures."""
    said = [f"Metric: {METRICS[found.metric]}; {medians(found, row)}.", *lane_sentences(series)]
    said += node_sentences(found)
    said += [
        f"{words(name).capitalize()}: {verdict.summary}."
        for name, verdict in row.more
        if not name.startswith("cpu")
    ]
    said += work_sentences(row.work, row.variant.name)
    if row.work is None and found.metric == "run":
        said.append("Work: not recorded, so the two may not have done the same.")
    if row.work == ():
        said.append("Work: the same on both sides.")
    if row.learning is not None:
        said.append(f"Returns: {row.learning.summary}.")
    return said + failures(series)


def _about_runs(series: Series, found: Comparison) -> list[str]:
    return [*lane_sentences(series), *node_sentences(found), *failures(series)]


def lane_sentences(series: Series) -> list[str]:
    """`2 runs at a time, each on its own cores: 0,1 and 2,3.`, if runs overlapped on one machine."""
    lanes = sorted({run.cores for run in series.runs if run.at_once > 1 and run.cores})
    if not lanes:
        return []
    most = max(run.at_once for run in series.runs)
    cores = " and ".join(",".join(map(str, lane)) for lane in lanes)
    return [f"{most} runs at a time, each on its own cores: {cores}."]


def node_sentences(found: Comparison) -> list[str]:
    """Where the runs were made and how much the nodes differ, if it was on a cluster."""
    if not found.nodes:
        return []
    fast, slow = found.nodes[0], found.nodes[-1]
    if fast is slow:
        return [f"All runs on node {visible(fast.node)}."]
    said = f"Runs on {len(found.nodes)} nodes, those of one pair or block on the same node."
    ratio = slow.baseline_s / fast.baseline_s
    said += f" {visible(slow.node)} took {ratio:.2f} times as long as {visible(fast.node)}."
    if len(found.compared) > 1:
        return [said]
    shown = [row for row in found.nodes if row.changes][:MOST_NODES]
    each = ", ".join(
        f"{visible(row.node)} {100 * row.changes[0][1]:+.1f} % (pairs: {row.blocks})" for row in shown
    )
    more = len(found.nodes) - len(shown)
    rest = f", and {more} more" if more else ""
    return [said, f"{found.compared[0].variant.name} against {found.baseline.name} by node: {each}{rest}."]


def medians(found: Comparison, row: VariantComparison) -> str:
    """`median A 1.20 ms, B 0.80 ms`."""
    sides = ((found.baseline.name, row.median_a_s), (row.variant.name, row.median_b_s))
    return "median " + ", ".join(
        f"{name} {duration(None if value is None else value * 1e9)}" for name, value in sides
    )


def work_sentences(work: Sequence[WorkDifference] | None, name: str) -> list[str]:
    """`B did 12 % fewer updates (88 against 100).`"""
    said = []
    for found in work or ():
        figures = f"({found.b:,.6g} against {found.a:,.6g})"
        if found.ratio is None:
            said.append(f"{name} has different {words(found.counter)} {figures}.")
            continue
        more = found.ratio > 1
        by = f"{abs(100 * (found.ratio - 1)):.0f} %"
        if found.counter == "mean_episode_length":
            said.append(f"{name} had {'longer' if more else 'shorter'} episodes by {by} {figures}.")
        else:
            said.append(f"{name} did {by} {'more' if more else 'fewer'} {words(found.counter)} {figures}.")
    return said


def failures(series: Series) -> list[str]:
    """A sentence for each variant with failed runs, ending in the last line of stderr."""
    said = []
    for variant in series.plan.variants:
        runs = [run for run in series.failures if run.variant == variant.name]
        if runs:
            last = runs[-1].stderr_tail.strip().splitlines()[-1:] or ["nothing on stderr"]
            said.append(
                f"{variant.name}: {len(runs)} {'run' if len(runs) == 1 else 'runs'} failed "
                f"({visible(str(runs[-1].failure))}): {last[0]}"
            )
    return said


def machine_load_text(machine_load: MachineLoad) -> str:
    """`load 1.3 (max 2.1), CPU pressure 12.0 % (max 31.0 %), steal 0.1 % (max 0.4 %)`."""
    shares = (
        ("CPU pressure", machine_load.cpu_stall),
        ("memory pressure", machine_load.memory_stall),
        ("IO pressure", machine_load.io_stall),
        ("steal", machine_load.steal),
        ("throttled", machine_load.throttled),
    )
    said = (
        [f"load {machine_load.load.median:.1f} (max {machine_load.load.max:.1f})"]
        if machine_load.load
        else []
    )
    for name, level in shares:
        if level is not None and (name in ("CPU pressure", "steal") or level.max > 0.001):
            said.append(f"{name} {_level(level)}")
    return ", ".join(said) or "unknown on this system"


def _level(level: LoadLevel) -> str:
    return f"{percent(level.median)} (max {percent(level.max)})"


def progress_text(found: Comparison, width: int = 80) -> str:
    """One line for a comparison under way."""
    if len(found.compared) == 1:
        verdict = found.compared[0].verdict
        return progress_line(Decision(found.go_on, verdict, found.reason, found.next_look), width)
    return Pen(unicode=False).clean(f"block {found.blocks}: {found.reason}", width)


def series_text(series: Series, found: Comparison, pen: Pen, said: str | None = None) -> str:
    """`hotloop report SERIES`: verdicts, parts, intervals, every run in order, the machine load.

    `said` replaces the verdicts, for series that are more than a comparison.
    """
    names = ", ".join(v.name for v in series.plan.variants)
    title = pen.heading(series.plan.name or "Series", f"{len(series.runs)} runs of {names}")
    parts = [
        title,
        comparison_text(series, found, pen) if said is None else said,
        interval_lines(found, pen),
        run_lines(series, found, pen),
    ]
    parts += [pen.wrap(warning, "  ") for warning in series.warnings]
    return "\n\n".join(part for part in parts if part) + "\n"


def interval_lines(found: Comparison, pen: Pen) -> str:
    """Each variant's interval on one scale; `|` marks no change."""
    drawn = [(row, row.verdict.change) for row in found.compared if row.verdict.change is not None]
    if not drawn:
        return ""
    reach = max(max(abs(c.low), abs(c.high)) for _, c in drawn if c is not None) * 1.05
    width = max(min(pen.width - 34, 60), 20)
    lines = [pen.heading("Change in time", f"from {percent(-reach)} to {percent(reach)}")]
    for row, change in drawn:
        if change is not None:
            name = pen.clean(row.variant.name, 28)
            lines.append(f"  {name:<28}  {_interval(change, reach, width)}")
    return "\n".join(lines)


def _interval(change: Estimate, reach: float, width: int) -> str:
    def at(value: float) -> int:
        return round((min(max(value / reach, -1.0), 1.0) + 1) / 2 * (width - 1))

    line = ["."] * width
    line[at(change.low) : at(change.high) + 1] = "=" * (at(change.high) - at(change.low) + 1)
    line[at(0.0)] = "|"
    line[at(change.value)] = "o"
    return "".join(line)


def run_lines(series: Series, found: Comparison, pen: Pen) -> str:
    """Every run in order with its value as a dot, so that drift shows; failed runs with the reason."""
    runs = [run for run in series.runs if not run.scale]
    if not runs:
        return ""
    shown = runs[-MOST_RUNS:]
    good = [value_s(run, found.metric) for run in shown if run.ok]
    most = max(good, default=1.0)
    aside = f"the last {MOST_RUNS} of {len(runs)}" if len(shown) < len(runs) else ""
    rows = [
        (f"{run.number:4d} {run.variant}", duration(value_s(run, found.metric) * 1e9) if run.ok else "failed")
        for run in shown
    ]
    drawn = table(pen, rows, spare=34)
    lines = [pen.heading("Runs in order", aside)]
    for line, run in zip(drawn, shown, strict=True):
        dots = "" if not run.ok else " " * round(30 * value_s(run, found.metric) / most) + "o"
        lines.append(f"{line}  {dots}".rstrip() if run.ok else f"{line}  {visible(str(run.failure))}")
    return "\n".join(lines)


def comparison_markdown(series: Series, found: Comparison, warnings: Sequence[str] = ()) -> str:
    """The result for a pull-request comment."""
    if len(found.compared) != 1:
        return ranked_markdown(rank_comparison(found))
    row = found.compared[0]
    return verdict_markdown(
        row.verdict,
        a=found.baseline.name,
        b=row.variant.name,
        components=row.components,
        notes=[*notes(series, found, row), *warnings],
        machine_load=machine_load_text(found.machine_load),
    )


def comparison_json(series: Series, found: Comparison) -> dict[str, Any]:
    """The verdicts and every run, for `--json`."""
    data = {
        "series": str(series.path) if series.path is not None else None,
        **plain(found),
        "runs": [_run_json(run, found.metric) for run in series.runs],
        "warnings": list(series.warnings),
    }
    return json_object("comparison", data)


def _run_json(run: Run, metric: Metric) -> dict[str, Any]:
    keep = (
        "number",
        "variant",
        "block",
        "position",
        "seed",
        "size",
        "wall_s",
        "cpu_s",
        "failure",
        "cores",
        "at_once",
        "node",
    )
    return {key: getattr(run, key) for key in keep} | {"value_s": value_s(run, metric) if run.ok else None}
