"""The pages of `hotloop serve`: the list of runs, a run under way, two runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.diff import CaptureDiff, DiffRow
from hotloop.analysis.findings import Findings
from hotloop.analysis.live import LiveStatus
from hotloop.analysis.overview import Overview
from hotloop.report import html_sections as sections
from hotloop.report import html_tables as tables
from hotloop.report import markup as m
from hotloop.report.html import asset, embedded, page
from hotloop.report.html_charts import time_series_categories, time_series_chart
from hotloop.report.paths import script_name
from hotloop.report.side_by_side import work_sentences
from hotloop.report.top import notices

REFRESH_LIST_S, REFRESH_LIVE_S = 5, 2
FOOTER = f"hotloop {HOTLOOP_VERSION}, on this computer only; nothing is changed, nothing is sent."


@dataclass(frozen=True, slots=True)
class Listed:
    """One capture or series of the folder."""

    key: str  # in addresses
    name: str  # of its folder
    is_series: bool
    overview: Overview | None  # None for a series, and for what cannot be read
    summary: str  # of a series: its verdict; of what cannot be read: why
    changed_at_s: float


def list_page(folder: str, runs: Sequence[Listed], left_out: int = 0, *, gone: bool = False) -> str:
    """Captures and series of a folder, newest first, with a filter; `left_out` older ones are not listed.

    `gone`: the folder does not exist any more.
    """
    body = (
        '<div class="hero"><h1>Runs</h1></div><section aria-label="All runs">'
        '<form action="diff" method="get" class="panel">'
        '<div class="tools"><label>Filter <input id="runs-filter" type="search" autocomplete="off" '
        'placeholder="name, command or status"></label>'
        '<button type="submit" id="compare" disabled>Compare two</button>'
        '<span id="runs-shown" class="muted small" role="status"></span></div>'
        f'<div data-refresh="list" data-every="{REFRESH_LIST_S}">{list_rows(runs, left_out, gone=gone)}</div>'
        "</form></section>"
    )
    return _page(f"{folder} · hotloop", folder, "", body)


def list_rows(runs: Sequence[Listed], left_out: int = 0, *, gone: bool = False) -> str:
    """The table of the list; the page asks for it again now and then."""
    if gone:
        return "<p>This folder does not exist any more: it was deleted or renamed while it was served.</p>"
    if not runs:
        return "<p>Nothing has been recorded here yet. Record a script: <code>hotloop run train.py</code></p>"
    heads = ("", "run", "status", "started*", "#wall time*", "#env steps*", "#env steps/s", "over time*")
    table = m.table("Captures and series, newest first", heads, (list_row(run) for run in runs))
    older = (
        f"<p>{left_out:,} older ones are not listed; serve another folder to see them.</p>"
        if left_out
        else ""
    )
    return f'<div id="runs-table">{table}</div>{older}'


def list_row(run: Listed) -> str:
    """One run: a box to select it, its name as a link, its figures."""
    known = run.overview
    name = m.text(run.name, 80)
    where = "series" if run.is_series else "report"
    if known is None:
        link = f'<a href="series/{run.key}">{name}</a>' if run.is_series else name
        said = ("series: " if run.is_series else "") + m.prose(run.summary, 200)
        return f'<tr><td></td><th scope="row">{link}</th><td colspan="6">{said}</td></tr>'
    box = f'<input type="checkbox" name="run" value="{run.key}" aria-label="Select {name} to compare">'
    if known.running:
        where, status = "live", '<span class="chip high">running</span>'
    else:
        status = m.text(known.exit_status or "ended", 60)
    rate = "" if known.env_steps_per_s is None else count(known.env_steps_per_s)
    command = m.text(" ".join(known.command[1:]) or script_name(known.command), 90) if known.command else ""
    return (
        f'<tr><td>{box}</td><th scope="row"><a href="{where}/{run.key}">{name}</a>'
        f'<span class="path">{command}</span></th><td>{status}</td>'
        f'<td class="optional">{when(known.started_at_ns)}</td>'
        + m.optional(duration(known.wall_ns))
        + m.optional(count(known.env_steps) if known.env_steps else "")
        + m.cell(rate)
        + f'<td class="optional">{sparkline(known.rate_over_time)}</td></tr>'
    )


def when(at_ns: int | None) -> str:
    """The time of day, in UTC."""
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d %H:%M}" if at_ns else ""


def sparkline(values: Sequence[float]) -> str:
    """A small line of the throughput over time."""
    known = [v for v in values if math.isfinite(v)]
    if len(known) < 2:
        return ""
    most = max(known) or 1.0
    step = 96 / (len(known) - 1)
    points = " ".join(f"{2 + step * n:.1f},{22 - 20 * v / most:.1f}" for n, v in enumerate(known))
    return (
        f'<svg class="spark" viewBox="0 0 100 24" role="img" aria-label="throughput over time, at most '
        f'{count(most)} per second"><polyline points="{points}"/></svg>'
    )


def live_page(name: str, fragment: str, key: str) -> str:
    """A run under way; its content is asked for again every two seconds."""
    body = f'<div data-refresh="{key}/now" data-every="{REFRESH_LIVE_S}">{fragment}</div>'
    return _page(f"{name} (running) · hotloop", name, "../", body)


def live_fragment(found: Findings, now: LiveStatus, key: str) -> str:
    """What is going on: rates of the last seconds, the bottleneck, processes, threads, the run over time."""
    span = "since the start" if now.since_start else f"over the last {duration(now.span_ns)}"
    state = "ended" if now.all_ended else "running"
    figures = [
        ("Running for" if not now.all_ended else "Ran for", duration(now.run_ns), f"<small>{state}</small>")
    ]
    for label, rate, number in (
        ("Env steps per second", now.env_steps_per_s, now.env_steps),
        ("Updates per second", now.updates_per_s, now.updates),
    ):
        if rate is not None:
            figures.append((label, count(rate), f"<small>{span}; {count(number)} so far</small>"))
    if now.mean_return is not None:
        figures.append(("Mean return", f"{now.mean_return:.4g}", f"<small>{span}</small>"))
    memory = sum(p.rss_bytes or 0 for p in now.processes)
    if memory:
        figures.append(("Memory", size(memory), f"<small>{processes_text(len(now.processes))}</small>"))
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}{more}</dd></div>" for name, value, more in figures)
    warned = "".join(f'<p class="panel"><strong>{m.text(line, 300)}</strong></p>' for line in notices(now))
    ended = (
        f'<p class="panel">The run has ended: <a href="../report/{key}">see its report</a>.</p>'
        if now.all_ended
        else ""
    )
    over_time = ""
    if len(found.time_series.get("time_s", ())) > 1:
        legend = "".join(f"<li>{m.category(c)}</li>" for c in time_series_categories(found))
        drawn = m.panel(f'{time_series_chart(found)}<ul class="legend">{legend}</ul>')
        over_time = m.section("over-time", "Over time", "", drawn)
    return (
        f'<div class="hero"><h1>{m.prose(found.headline, 1000)}</h1>{sections.stacked(found.breakdown)}'
        f'{sections.legend(found.breakdown)}<dl class="figures">{listed}</dl></div>{ended}{warned}{over_time}'
        f"{processes(now)}{tables.threads(found) if found.utilisation else ''}"
    )


def processes_text(number: int) -> str:
    """`1 process`, `3 processes`."""
    return f"{number} process{'es' * (number != 1)}"


def processes(now: LiveStatus) -> str:
    """A row for each process: state, rates, where it is."""
    rows = (
        m.row(
            m.name(p.label, f"pid {p.pid}"),
            f"<td>{p.state}</td>",
            f"<td>{m.text(p.busiest or '', 50) if p.busiest else ''}</td>",
            m.cell(percent(p.busiest_share) if p.busiest_share is not None else ""),
            m.cell(size(p.rss_bytes)),
        )
        for p in now.processes
    )
    heads = ("process", "state", "busiest region", "#share", "#memory")
    return m.section("processes", "Processes", "", m.panel(m.table("Processes", heads, m.folded(rows))))


def diff_page(found: CaptureDiff) -> str:
    """Two captures side by side, without a verdict."""
    said = "".join(
        f"<p>{m.text(text, 600)}</p>" for text in (*work_sentences(found), *found.setup, found.caution)
    )
    a, b = found.a, found.b
    whole = (
        ("wall time", duration(a.wall_ns), duration(b.wall_ns)),
        ("env steps", count(a.env_steps or None), count(b.env_steps or None)),
        ("updates", count(a.updates or None), count(b.updates or None)),
        ("env steps/s", count(a.env_steps_per_s), count(b.env_steps_per_s)),
        ("wall time per env step", duration(a.wall_per_env_step_ns), duration(b.wall_per_env_step_ns)),
    )
    runs = m.table("The runs", ("", "#A", "#B"), (m.row(n, m.cell(x), m.cell(y)) for n, x, y in whole))
    unit = "own time per env step" if found.per == "env_step" else "own time as a share of the wall time"
    show = duration if found.per == "env_step" else percent
    rows = m.folded(diff_row(row, show) for row in found.rows)
    regions = m.table(
        f"Regions, largest change first: {unit}", ("region", "category*", "#A", "#B", "#B/A"), rows
    )
    body = (
        f'<div class="hero"><h1>{m.text(a.label, 60)} and {m.text(b.label, 60)}</h1></div>'
        + m.section(
            "runs",
            "The runs",
            "",
            m.panel(f"<p>A: {m.text(a.label)}<br>B: {m.text(b.label)}</p>", said, runs),
        )
        + m.section("regions-side", "Regions", m.text(found.how_to_decide, 600), m.panel(regions))
    )
    return _page("two runs · hotloop", "two runs", "./", body)


def diff_row(row: DiffRow, show: object) -> str:
    """One region in both runs."""
    shown = show if callable(show) else str
    figures = [m.cell(shown(value) if value is not None else "-") for value in (row.a_per, row.b_per)]
    ratio = m.cell(f"{row.ratio:.2f}x" if row.ratio is not None else "-")
    above = m.text(" › ".join(row.path[:-1]), 80) if row.path[:-1] else ""
    return m.row(
        m.name(row.name, above),
        f'<td class="optional">{m.category(row.category) if row.category else ""}</td>',
        *figures,
        ratio,
    )


def message_page(sentence: str) -> str:
    """One sentence, such as why a capture cannot be shown."""
    return _page("hotloop", "hotloop", "./", f'<div class="hero"><h1>{m.prose(sentence, 600)}</h1></div>')


def _page(title: str, name: str, home: str, body: str) -> str:
    return page(
        title=title,
        name=name,
        command="",
        contents="<ul></ul>",
        sections=body,
        footer=FOOTER,
        findings=embedded({}),
        charts=embedded({}),
        home=home,
        more_script=asset("serve.js"),
    )
