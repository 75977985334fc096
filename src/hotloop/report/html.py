"""The report as one self-contained HTML file: puts together sections, charts, script and style."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import shlex
from functools import cache
from importlib import resources
from string import Template
from typing import Any, TypeVar

from hotloop._util import strict_json
from hotloop._util.extras import require_extra
from hotloop.analysis.findings import Findings
from hotloop.report import html_sections as sections
from hotloop.report import html_tables as tables
from hotloop.report.html_charts import MOST_CHOICES, icicle, places, time_series_categories, time_series_chart
from hotloop.report.markup import text
from hotloop.report.system_html import whole_system
from hotloop.report.system_text import is_shown
from hotloop.report.to_json import findings_json, plain

# Limits on the embedded data, so that the page stays below 6 MB including plotly's 4.8.
REGION_BYTES = 200_000
OTHER_BYTES = 60_000
TREE_BYTES = 200_000

Row = TypeVar("Row")


def html(findings: Findings, capture: str = "") -> str:
    """The whole page. `capture` is how commands on the page refer to the capture."""
    charts: dict[str, Any] = {}
    nodes, left_out = places(findings.regions)
    if nodes:
        charts["icicle"] = icicle(findings, nodes)
    while nodes and len(embedded(charts["icicle"])) > TREE_BYTES:
        nodes, left_out = places(findings.regions, len(nodes) // 2)
        charts["icicle"] = icicle(findings, nodes)
    if len(findings.time_series.get("time_s", ())) > 1:
        charts["time-series"] = time_series_chart(findings)
    largest = sorted(nodes, key=lambda place: -place.width_ns)[:MOST_CHOICES]
    chosen = {place.key for place in largest}
    choices = [(p.key, " › ".join(p.region.path)) for p in nodes if p.key in chosen]
    parts = {
        "advice": sections.advice(findings),
        "system": whole_system(findings.system, sections.CONTENTS["system"])
        if findings.system is not None and is_shown(findings.system)
        else "",
        "time": sections.time(findings),
        "lines": sections.lines(findings) if findings.hot_lines else "",
        "bottlenecks": sections.bottlenecks(findings) if findings.bottlenecks else "",
        "tree": sections.tree(choices, max(place.depth for place in nodes), left_out)
        if "icicle" in charts
        else "",
        "over-time": sections.over_time(findings, time_series_categories(findings))
        if "time-series" in charts
        else "",
        "growth": tables.growth(findings) if findings.growth or findings.forecast else "",
        "threads": tables.threads(findings) if findings.utilisation else "",
        "roofline": tables.roofline(findings) if findings.roofline else "",
        "all-regions": tables.all_regions(findings) if findings.regions else "",
        "machine": tables.machine(findings),
        "reproduce": sections.reproduce(findings, capture),
    }
    present = [key for key, part in parts.items() if part]
    plotly = plotly_source() if charts else ""
    script = asset("page.js")
    command = shlex.join(findings.command) if findings.command else "hotloop report"
    return Template(asset("page.html")).substitute(
        policy=policy(plotly, script),
        title=text(f"hotloop: {command}", 120),
        style=asset("page.css"),
        command=text(command, 300),
        sections=sections.hero(findings, present) + "\n".join(part for part in parts.values() if part),
        footer="Made by hotloop from one recorded run. This page works offline.",
        findings=embedded(embeddable(findings)),
        charts=embedded(plain(charts)),
        plotly=plotly,
        script=script,
    )


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


@cache
def plotly_source() -> str:
    """plotly.js from the installed package, made safe inside a script element."""
    source: str = require_extra("plotly.offline", "report").get_plotlyjs()
    return source.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")
