"""Two variants of a pipeline of collectors and a learner, side by side: as a table, as JSON, as a chart."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop._util.extras import require_extra
from hotloop.analysis.findings import Estimate
from hotloop.analysis.load_snapshot import MachineLoad
from hotloop.analysis.pipeline import PipelineFigures, PipelineRow
from hotloop.capture.series import Series
from hotloop.report.pen import Pen, table
from hotloop.report.series_text import machine_load_text
from hotloop.report.to_json import SCHEMA_VERSION, plain

INK, FAINT, GRID = "#1f2328", "#656d76", "#d8dee4"
COLOURS = {"original": "#d55e00", "fast": "#0072b2"}
_LABELS = {  # short enough for 80 columns
    "experience rate": "experience, steps/s",
    "learner throughput": "learner, batches/s",
    "learner busy": "learner busy, fraction",
    "lock wait": "lock wait, ms/1000",
    "epoch time": "epoch, s",
}
_WORDS = {True: "reached", False: "missed", None: "open"}
Figures = Sequence[tuple[PipelineFigures, PipelineFigures]]


def benchmark_text(
    rows: Sequence[PipelineRow],
    pairs: int,
    same_work: str,
    learner_limit: str,
    machine_load: MachineLoad,
    pen: Pen,
) -> str:
    """Medians of both variants, the change with its interval, the goal, and whether it was reached."""
    if not pairs:
        head = pen.heading("mario: fast against original", "0 pairs of runs")
        return "\n".join([head, pen.wrap("No pair of runs was measured.", "  ")])
    cells = [("", "original", "fast", "change", "goal", "")]
    cells += [
        (
            _LABELS.get(row.name, row.name),
            number(row.a),
            number(row.b),
            _change(row),
            goal_text(row),
            _WORDS[row.reached],
        )
        for row in rows
    ]
    pairs_text = f"{pairs} pairs of runs" if pairs != 1 else "1 pair of runs"
    lines = [pen.heading("mario: fast against original", pairs_text), *table(pen, cells)]
    lines[1] = pen.paint(lines[1], "dim")
    if any(row.change is None for row in rows):
        said = "Changes marked * are raw values without an interval, which needs at least 5 pairs (--pairs)."
        lines.append(pen.wrap(said, "  "))
    if learner_limit:
        lines.append(pen.wrap(learner_limit, "  "))
    lines.append(pen.dim(pen.wrap(same_work, "  ")))
    lines.append(pen.dim(pen.wrap("Batches of 512. Lock wait per 1000 env steps, all processes.", "  ")))
    load = f"Medians with 95 % intervals. Machine: {machine_load_text(machine_load)}."
    lines.append(pen.dim(pen.wrap(load, "  ")))
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Three significant digits, or `-`."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _change(row: PipelineRow) -> str:
    if row.change is not None:
        return change_text(row.change)
    return "-" if row.raw_change is None else f"{100 * row.raw_change:+.0f} % *"


def change_text(change: Estimate) -> str:
    """`+153 % [140, 166]`; without an interval when it has no width."""
    if change.low == change.high:
        return f"{100 * change.value:+.0f} %"
    low, high = f"{100 * change.low:.0f}", f"{100 * change.high:.0f}"
    return f"{100 * change.value:+.0f} % [{low}, {high}]"


def goal_text(row: PipelineRow) -> str:
    """`+80 %`, or `>= 0.8`."""
    if row.goal.change is not None:
        return f"{100 * row.goal.change:+.0f} %"
    return "" if row.goal.at_least is None else f">= {row.goal.at_least:g}"


def benchmark_json(
    rows: Sequence[PipelineRow],
    figures: Figures,
    same_work: str,
    series: Series,
    learner_limits: Mapping[str, Any],
) -> dict[str, Any]:
    """The table and the figures of every pair, as JSON values."""
    return {
        "kind": "hotloop-pipeline-benchmark",
        "schema_version": SCHEMA_VERSION,
        "rows": plain(tuple(rows)),
        "pairs": [{"original": plain(a), "fast": plain(b)} for a, b in figures],
        "same_work": same_work,
        "learner_limits": {name: plain(limit) for name, limit in learner_limits.items()},
        "commands": {variant.name: list(variant.command) for variant in series.plan.variants},
        "machine": plain(series.facts.get("machine", {})),
        "versions": plain(series.facts.get("versions", {})),
        "series": str(series.path),
    }


def benchmark_png(rows: Sequence[PipelineRow], figures: Figures, same_work: str) -> bytes:
    """PNG with one panel per row: every run as a dot, medians as bars."""
    matplotlib = require_extra("matplotlib", "report")
    shapes = require_extra("matplotlib.figure", "report")
    agg = require_extra("matplotlib.backends.backend_agg", "report")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 9, "text.color": INK, "axes.edgecolor": GRID})
        figure = shapes.Figure(figsize=(13, 4.6), dpi=110, facecolor="white")
        agg.FigureCanvasAgg(figure)
        grid = figure.add_gridspec(1, len(rows), left=0.045, right=0.985, top=0.74, bottom=0.12, wspace=0.38)
        for place, row in enumerate(rows):
            _panel(figure.add_subplot(grid[0, place]), row, figures)
        figure.text(0.02, 0.955, "mario: fast against original", fontsize=14, fontweight="bold", va="top")
        said = "\n".join(textwrap.wrap(same_work, 170))
        figure.text(0.02, 0.885, said, fontsize=8, color=FAINT, va="top")
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": "hotloop"})
    return target.getvalue()


_OF: dict[str, Callable[[PipelineFigures], float]] = {
    "experience rate": lambda f: f.env_steps_per_s,
    "learner throughput": lambda f: f.learned_per_s / 512,
    "learner busy": lambda f: f.learner_busy_fraction,
    "lock wait": lambda f: 1000 * f.lock_wait_s,
    "epoch time": lambda f: f.epoch_s,
}


def _panel(axes: Any, row: PipelineRow, figures: Figures) -> None:
    of = _OF[row.name]
    for place, (name, middle) in enumerate((("original", row.a), ("fast", row.b))):
        axes.bar(place, middle or 0.0, width=0.62, color=COLOURS[name], alpha=0.35)
        values = [of(pair[place]) for pair in figures]
        axes.plot([place] * len(values), values, "o", color=COLOURS[name], markersize=5, alpha=0.9)
        axes.annotate(
            number(middle), (place, middle or 0.0), ha="center", va="bottom", textcoords="offset points",
            xytext=(20, 2), color=INK,
        )  # fmt: skip
    axes.set_xticks([0, 1], ["original", "fast"])
    axes.set_xlim(-0.55, 1.55)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.16)
    axes.set_title(f"{row.name}\n{_change(row)}", fontsize=10, fontweight="bold", loc="left")
    axes.set_ylabel(row.unit, color=FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
