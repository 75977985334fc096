"""The report as one self-contained HTML file: puts together sections, charts, script and style."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from string import Template
from typing import Any, TypeVar

from hotloop._util import HOTLOOP_VERSION, strict_json
from hotloop.analysis.findings import Findings
from hotloop.report import html_sections as sections
from hotloop.report import html_tables as tables
from hotloop.report.html_charts import (
    MOST_CHOICES,
    icicle,
    places,
    time_series_categories,
    time_series_chart,
    time_series_data,
)
from hotloop.report.markup import text
from hotloop.report.paths import script_name, short_command, with_relative_paths
from hotloop.report.system_html import whole_system
from hotloop.report.system_text import is_shown
from hotloop.report.to_json import findings_json, plain

# Limits on the embedded data, so that the page stays below 1.5 MiB.
REGION_BYTES = 200_000
OTHER_BYTES = 60_000
TREE_BYTES = 250_000

Row = TypeVar("Row")


def html(findings: Findings, capture: str = "", home: str = "") -> str:
    """The whole page. `capture` is how commands on the page refer to the capture; `home` is a link back."""
    data = embeddable(findings)
    findings = with_relative_paths(findings)
    parts = {
        "advice": sections.advice(findings),
        "system": whole_system(findings.system, sections.CONTENTS["system"])
        if findings.system is not None and is_shown(findings.system)
        else "",
        "time": sections.time(findings),
        "over-time": over_time(findings),
        "lines": sections.lines(findings) if sections.tells_lines(findings) else "",
        "bottlenecks": sections.bottlenecks(findings) if findings.bottlenecks else "",
        "tree": region_tree(findings),
        "growth": tables.growth(findings) if findings.growth or findings.forecast else "",
        "threads": tables.threads(findings) if findings.utilisation else "",
        "roofline": tables.roofline(findings) if findings.roofline else "",
        "all-regions": tables.all_regions(findings) if findings.regions else "",
        "machine": tables.machine(findings),
        "reproduce": sections.reproduce(findings, capture),
    }
    charts = {"time-series": time_series_data(findings)} if parts["over-time"] else {}
    shown = {key: part for key, part in parts.items() if part}
    name = script_name(findings.command) or "report"
    return page(
        title=f"{name} · hotloop",
        name=name,
        command=short_command(findings.command) if findings.command else "hotloop report",
        contents=sections.navigation(list(shown)),
        sections=sections.hero(findings) + sections.arranged(shown),
        footer=made_by(findings),
        findings=embedded(data),
        charts=embedded(plain(charts)),
        home=home,
    )


def page(
    *,
    title: str,
    name: str,
    command: str,
    contents: str,
    sections: str,
    home: str = "",
    more_script: str = "",
    **more: str,
) -> str:
    """The frame around the sections: head, the bar on top, footer, data, script.

    `contents` are links. With `home` the brand leads there. `more_script` may talk to the page's own server.
    """
    script = asset("page.js") + more_script
    brand = "hot<i>loop</i>"
    own = "; connect-src 'self'" if more_script else ""
    return Template(asset("page.html")).substitute(
        policy=(policy(script).replace("form-action 'none'", "form-action 'self'") if own else policy(script))
        + own,
        brand=f'<a class="brand" href="{home}">{brand}</a>'
        if home
        else f'<span class="brand">{brand}</span>',
        title=text(title, 120),
        style=asset("page.css"),
        name=text(name, 60),
        command=text(command, 300) if command else "",
        contents=contents,
        sections=sections,
        script=script,
        **more,
    )


def region_tree(findings: Findings) -> str:
    """The section of the icicle, with as many regions as fit; "" without any."""
    nodes, left_out = places(findings.regions)
    if not nodes:
        return ""
    drawn = icicle(findings, nodes)
    while len(drawn) > TREE_BYTES and len(nodes) > 1:
        nodes, left_out = places(findings.regions, len(nodes) // 2)
        drawn = icicle(findings, nodes)
    chosen = {p.key for p in sorted(nodes, key=lambda p: -p.width_ns)[:MOST_CHOICES]}
    choices = [(p.key, " › ".join(p.region.path)) for p in nodes if p.key in chosen]
    return sections.tree(drawn, choices, left_out)


def over_time(findings: Findings) -> str:
    """The section of the run over time; "" with fewer than two windows."""
    if len(findings.time_series.get("time_s", ())) < 2:
        return ""
    categories = time_series_categories(findings)
    return sections.over_time(findings, time_series_chart(findings), categories)


def made_by(findings: Findings) -> str:
    """The last line of the page: when, and by which version."""
    when = ""
    if findings.started_at_ns is not None:
        at = datetime.fromtimestamp(findings.started_at_ns / 1e9, UTC)
        when = f" on {at:%Y-%m-%d at %H:%M} UTC"
    by = f" by hotloop {findings.hotloop_version}" if findings.hotloop_version else ""
    recorded = f"Recorded{by}{when}. " if by or when else ""
    return text(f"{recorded}Page made by hotloop {HOTLOOP_VERSION}; it works offline.")


def embeddable(findings: Findings) -> dict[str, Any]:
    """The findings as plain data, with long lists cut to keep the page small; see `left_out`."""
    kept = {
        "regions": within(findings.regions, REGION_BYTES),
        "utilisation": within(findings.utilisation, OTHER_BYTES),
        "bottlenecks": within(findings.bottlenecks, OTHER_BYTES),
        "recommendations": within(findings.recommendations, OTHER_BYTES),
    }
    cut = {name: len(getattr(findings, name)) - len(rows) for name, rows in kept.items()}
    data = findings_json(dataclasses.replace(findings, **kept))  # type: ignore[arg-type]
    return {**data, "left_out": {name: number for name, number in cut.items() if number}}


def within(rows: tuple[Row, ...], most_bytes: int) -> tuple[Row, ...]:
    """As many of the first rows as fit into `most_bytes` of JSON."""
    used = 0
    for number, row in enumerate(rows):
        used += len(embedded(plain(row)))
        if used > most_bytes:
            return rows[:number]
    return rows


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element: no `<`, `>` or `&`, ASCII only."""
    dumped = strict_json.dumps(data, separators=(",", ":"))
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(*scripts: str) -> str:
    """A content security policy that allows the page's own scripts and nothing from outside."""
    allowed = " ".join(f"'sha256-{fingerprint(script)}'" for script in scripts if script)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def fingerprint(script: str) -> str:
    """The hash by which the policy allows a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def asset(name: str) -> str:
    """The text of a file in the assets folder."""
    return (resources.files("hotloop.report") / "assets" / name).read_text(encoding="utf-8")
