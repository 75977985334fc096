"""A series as one self-contained HTML file: verdicts, intervals, every run, the machine load."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.units import duration, percent
from hotloop.analysis.comparison import Comparison, VariantComparison, value_s
from hotloop.analysis.load_snapshot import RunLoad, run_load
from hotloop.analysis.ranking import RankedTable
from hotloop.analysis.scaling import Scaling
from hotloop.analysis.verdict import Verdict, interval_words
from hotloop.capture.series import Series
from hotloop.report import markup as m
from hotloop.report.html import embedded, page
from hotloop.report.safe_text import words
from hotloop.report.series_charts import Dot, dots, intervals, load_chart
from hotloop.report.series_text import (
    METRICS,
    comparison_json,
    failures,
    lane_sentences,
    machine_load_text,
    node_sentences,
    work_sentences,
)
from hotloop.report.verdict import HOLM, basis, factor, floor, headline, noise_floor_text

_BUSY = {
    "load": "load",
    "cpu_stall": "CPU pressure",
    "memory_stall": "memory pressure",
    "io_stall": "IO pressure",
    "steal": "steal",
    "throttled": "throttled",
}


CONTENTS = {
    "verdicts": "Verdicts",
    "components": "Components",
    "runs": "Runs",
    "sizes": "Sizes",
    "machine": "Machine",
    "reproduce": "Reproduce",
}


def series_html(
    series: Series,
    found: Comparison,
    table: RankedTable | None = None,
    scaling: Scaling | None = None,
    name: str = "",
    home: str = "",
) -> str:
    """The whole page. `name` is how commands on the page refer to the series; `home` is a link back."""
    title = series.plan.name or shlex.join(series.plan.baseline.command)
    parts = {
        "verdicts": verdicts(series, found) if found.compared else "",
        "components": components(found) if any(row.components for row in found.compared) else "",
        "runs": runs(series, found) if series.runs else "",
        "sizes": sizes(scaling) if scaling is not None else "",
        "machine": machine(series, found) if series.runs else "",
        "reproduce": reproduce(series, name),
    }
    shown = {key: part for key, part in parts.items() if part}
    links = "".join(f'<li><a href="#{key}">{CONTENTS[key]}</a></li>' for key in shown)
    return page(
        title=f"{title} · hotloop",
        name=title,
        command=title,
        contents=f"<ul>{links}</ul>",
        sections=hero(series, found, table, scaling) + "\n".join(shown.values()),
        footer=f"Made by hotloop {HOTLOOP_VERSION} from a series of runs. This page works offline.",
        findings=embedded(comparison_json(series, found)),
        charts=embedded({}),
        home=home,
    )


def hero(series: Series, found: Comparison, table: RankedTable | None, scaling: Scaling | None) -> str:
    """The verdict in one sentence, and the key figures of the series."""
    if table is not None and len(found.compared) > 1:
        said = table.summary
    elif found.compared:
        row = found.compared[0]
        said = headline(row.verdict, found.baseline.name, row.variant.name)
    else:
        said = scaling.summary if scaling is not None else "There is nothing to report on this series yet."
    figures = [("Runs", str(len(series.runs))), ("Total run time", duration(series.spent_s * 1e9))]
    if found.compared:
        word = "Pairs" if len(found.compared) == 1 else "Blocks"
        figures.append((word, str(found.blocks)))
        floors = [r.verdict.noise_floor for r in found.compared if r.verdict.noise_floor is not None]
        if floors:
            figures.append(("Noise floor", floor(max(floors))))
    if series.failures:
        figures.append(("Failed", str(len(series.failures))))
    listed = "".join(f"<div><dt>{key}</dt><dd>{m.text(value)}</dd></div>" for key, value in figures)
    return f'<div class="hero"><h1>{m.text(said, 1000)}</h1><dl class="figures">{listed}</dl></div>'


def verdicts(series: Series, found: Comparison) -> str:
    """An interval plot, and a table with the same figures."""
    rows = [(row.variant.name, row.verdict.change) for row in found.compared]
    heads = ["variant", "#change in time", "#speed-up", "verdict", "work", "returns", "expected*"]
    body = [_verdict_row(row) for row in found.compared]
    said = [f"Compared with {found.baseline.name}. Metric: {METRICS[found.metric]}."]
    for row in found.compared:
        said += work_sentences(row.work, row.variant.name)
    if len(found.compared) == 1:
        said += [basis(found.compared[0].verdict), noise_floor_text(found.compared[0].verdict)]
        said += [
            f"{words(name).capitalize()}: {verdict.summary}." for name, verdict in found.compared[0].more
        ]
    else:
        said.append(HOLM)
    said += [*lane_sentences(series), *node_sentences(found), *failures(series)]
    notes = "".join(f'<p class="small">{m.prose(sentence)}</p>' for sentence in said)
    drawn = m.panel(intervals(rows), m.table("Verdicts", heads, body))
    return m.section("verdicts", "Verdicts", "", drawn + notes)


def _verdict_row(row: VariantComparison) -> str:
    verdict = row.verdict
    work = "not counted" if row.work is None else "differs" if row.work else "same"
    learning = row.learning.summary if row.learning is not None else "not recorded"
    return m.row(
        m.name(row.variant.name, m.text(row.variant.safety)),
        m.cell(_change(verdict), verdict.change.value if verdict.change else None),
        m.cell(_speed_up(verdict), verdict.speed_up.value if verdict.speed_up else None),
        f"<td>{m.text(verdict.summary)}</td><td>{work}</td><td>{m.text(learning)}</td>",
        f'<td class="optional">{m.text(row.variant.expected) if row.variant.expected else ""}</td>',
    )


def _change(verdict: Verdict) -> str:
    return m.text(interval_words(verdict.change)) if verdict.change is not None else "-"


def _speed_up(verdict: Verdict) -> str:
    found = verdict.speed_up
    return factor(found)


def components(found: Comparison) -> str:
    """A table of the parts for each variant."""
    tables = []
    for row in found.compared:
        body = [
            m.row(
                m.category(part.name),
                m.cell(percent(part.share_of_a), part.share_of_a),
                m.cell(_change(part.verdict), part.verdict.change.value if part.verdict.change else None),
                f"<td>{m.text(part.verdict.summary)}</td>",
            )
            for part in row.components
        ]
        if body:
            heads = ["part", f"#share of {found.baseline.name}", "#change in time", "verdict"]
            tables.append(m.table(f"{row.variant.name}: parts", heads, body))
    lead = "Own time of each part per unit of work; the verdicts of a table hold together."
    return m.section("components", "Components", lead, m.panel(*tables))


def runs(series: Series, found: Comparison) -> str:
    """Raw values in run order, so that drift shows."""
    names = [variant.name for variant in series.plan.variants]
    shown = [run for run in series.runs if not run.scale]
    if not shown:
        return ""
    unit = f"time per {words(found.metric)}"
    points = []
    for run in shown:
        value = value_s(run, found.metric) if run.ok else None
        said = duration(value * 1e9) if value is not None else run.failure
        label = f"run {run.number}, {run.variant}: {said}"
        points.append(Dot(run.number, names.index(run.variant), value, label))
    body = [
        m.row(
            m.text(f"{run.number} {run.variant}"),
            m.cell(str(run.block), run.block),
            m.cell(str(run.seed), run.seed),
            m.cell(duration(value_s(run, found.metric) * 1e9) if run.ok else "failed"),
            m.cell(duration(run.wall_s * 1e9), run.wall_s),
            m.cell(duration(None if run.cpu_s is None else run.cpu_s * 1e9), run.cpu_s),
        )
        for run in shown
    ]
    heads = ["run", "#block", "#seed", f"#{unit}", "#process", "#CPU time"]
    listed = m.table("Every run in order", heads, body)
    details = f"<details><summary>All {len(shown)} runs as a table</summary>{listed}</details>"
    lead = "Every run in the order it was made; none is left out."
    return m.section("runs", "Runs in order", lead, m.panel(dots(points, names, unit)) + details)


def sizes(found: Scaling) -> str:
    """How time grows with size."""
    body = [
        m.row(
            m.name(region.name or "(no region)"),
            m.cell(duration(region.small_s * 1e9), region.small_s),
            m.cell(duration(region.large_s * 1e9), region.large_s),
            m.cell(_exponent(region.exponent)),
        )
        for region in found.regions
    ]
    heads = ["own time", f"#n = {found.sizes[0]:,g}", f"#n = {found.sizes[-1]:,g}", "#exponent"]
    drawn = m.panel(m.table("Own time of each region by size", heads, body)) if body else ""
    return m.section("sizes", "Growth with size", m.text(found.summary, 1000), drawn)


def _exponent(found: object) -> str:
    low, value, high = (getattr(found, key, None) for key in ("low", "value", "high"))
    return "-" if value is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def machine(series: Series, found: Comparison) -> str:
    """The machine load over the runs."""
    each = [run_load(run) for run in series.runs]
    lines = [(label, values) for key, label in _BUSY.items() if (values := _load_values(each, key))]
    drawn = m.panel(load_chart(lines)) if lines else ""
    lead = f"Median and maximum over the runs: {machine_load_text(found.machine_load)}."
    return m.section("machine", "Machine load during the runs", m.text(lead, 600), drawn)


def _load_values(each: Sequence[RunLoad], key: str) -> list[float | None]:
    values: list[float | None] = [getattr(one, key) for one in each]
    shown = any(v is not None and (v > 0 or key in ("load", "cpu_stall", "steal")) for v in values)
    return values if shown else []


def reproduce(series: Series, name: str) -> str:
    """The commands that were run, and the one that makes this report."""
    place = shlex.quote(name or str(series.path or "SERIES"))
    commands = [f"hotloop report {place}"]
    listed = "".join(
        m.row(m.text(v.name), f"<td><code>{m.text(_command(v.environment, v.command), 600)}</code></td>")
        for v in series.plan.variants
    )
    drawn = m.panel(m.table("What was run", ["variant", "command"], [listed]))
    return m.section("reproduce", "Reproduce", "", "".join(map(m.copy, commands)) + drawn)


def _command(environment: tuple[tuple[str, str], ...], command: tuple[str, ...]) -> str:
    return " ".join([*(f"{key}={shlex.quote(value)}" for key, value in environment), shlex.join(command)])
