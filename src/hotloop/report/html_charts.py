"""The page's plotly charts as plain data: the icicle of the region tree, and the run over time."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

from hotloop._util.units import count, duration, percent
from hotloop.analysis.findings import Findings, RegionFinding
from hotloop.report.palette import colour_of
from hotloop.report.safe_text import shown

MOST_NODES = 1500  # of the icicle: the largest ones, so that callers are always included
MOST_CHOICES = 150
QUIET = 0.05  # callers with a smaller share of own time are drawn grey


@dataclass
class Place:
    """One node of the icicle."""

    key: str
    parent: str
    region: RegionFinding
    depth: int
    inside_ns: int = 0  # time of the children drawn
    children: list[Place] = field(default_factory=list)

    @property
    def width_ns(self) -> int:
        """The total time, or more where rounding or merging made the children larger."""
        return max(self.region.total_ns, self.region.own_ns + self.inside_ns)


def label(foreign: str, width: int = 60) -> str:
    """Text escaped for plotly, which interprets some HTML and `$...$`."""
    return html.escape(shown(foreign, width), quote=False).replace("$", "&#36;")


def places(regions: tuple[RegionFinding, ...], most: int = MOST_NODES) -> tuple[list[Place], int]:
    """The largest nodes, callers first, and how many were left out."""
    named = [r for r in regions if any(r.path)]
    chosen = sorted(named, key=lambda r: (-r.total_ns, len(r.path)))[:most]
    chosen.sort(key=lambda r: len(r.path))
    by_path: dict[tuple[str, ...], Place] = {}
    made: list[Place] = []
    for number, region in enumerate(chosen):
        path = region.path
        above = next((by_path[path[:n]] for n in range(len(path) - 1, 0, -1) if path[:n] in by_path), None)
        place = Place(f"n{number}", above.key if above else "root", region, len(path))
        by_path.setdefault(path, place)
        if above:
            above.children.append(place)
        made.append(place)
    for place in reversed(made):
        place.inside_ns = sum(child.width_ns for child in place.children)
    return made, len(named) - len(made)


def icicle(findings: Findings, nodes: list[Place]) -> dict[str, Any]:
    """The zoomable tree; time in no region is a node of its own."""
    everything = findings.all_threads
    outside = everything.unattributed_ns
    top = sum(p.width_ns for p in nodes if p.parent == "root")
    whole = max(everything.wall_ns, top + outside)
    ids, labels, parents = ["root"], ["all threads"], [""]
    values, colours, hovers = [whole], [""], [f"<b>all threads</b><br>{duration(whole)} of thread time"]
    for place in nodes:
        r = place.region
        ids.append(place.key)
        labels.append(label(r.name, 36))
        parents.append(place.parent)
        values.append(place.width_ns)
        grey = place.children and r.own_ns < QUIET * place.width_ns
        colours.append("" if grey else colour_of(r.category))
        hovers.append(
            f"<b>{label(r.name, 80)}</b><br>{label(r.category, 40)}<br>total {duration(r.total_ns)}, "
            f"own {duration(r.own_ns)} ({percent(r.share)})<br>"
            f"{count(r.calls)} calls, mean {duration(r.mean_ns)}"
            + (f"<br>{label(r.site, 70)}" if r.site else "")
        )
    if outside > 0:
        ids.append("unattributed")
        labels.append("unattributed")
        parents.append("root")
        values.append(outside)
        colours.append(colour_of("unattributed"))
        hovers.append(f"<b>unattributed</b><br>{duration(outside)} in no region")
    trace = {
        "type": "icicle",
        "ids": ids,
        "labels": labels,
        "parents": parents,
        "values": values,
        "hovertext": hovers,
        "hoverinfo": "text",
        "textinfo": "label+percent root",
        "branchvalues": "total",
        "sort": True,
        "maxdepth": 8,
        "level": "root",
        "marker": {"colors": colours},
        "leaf": {"opacity": 1},
        "tiling": {"orientation": "v", "pad": 1},
        "pathbar": {"visible": True, "thickness": 22, "side": "top"},
    }
    layout = {"margin": {"l": 0, "r": 0, "t": 2, "b": 0}, "uniformtext": {"minsize": 10, "mode": "hide"}}
    return {"data": [trace], "layout": layout}


def time_series_categories(findings: Findings) -> list[str]:
    """Categories with shares over time, in the order of the breakdown."""
    have = [key.removeprefix("share:") for key in findings.time_series if key.startswith("share:")]
    ranked = [c.category for c in findings.breakdown.categories if c.category in have]
    return ranked + [c for c in have if c not in ranked]


def time_series_chart(findings: Findings) -> dict[str, Any]:
    """Throughput on top, stacked shares below, memory at the bottom if it was measured."""
    times = list(findings.time_series["time_s"])
    categories = time_series_categories(findings)
    rate, memory = findings.time_series.get("env_steps_per_s"), findings.time_series.get("rss_bytes")
    rows = [name for name, known in (("rate", rate), ("shares", categories), ("memory", memory)) if known]
    weights = {"rate": 3.0, "shares": 5.0, "memory": 2.0}
    gap = 0.1
    usable = 0.94 - gap * (len(rows) - 1)  # the top is left for the first title
    total = sum(weights[row] for row in rows)
    layout: dict[str, Any] = {
        "margin": {"l": 8, "r": 8, "t": 0, "b": 8},
        "annotations": [],
        "showlegend": False,
        "hovermode": "x unified",
        "xaxis": {
            "title": {"text": "time (s)"},
            "range": [times[0], times[-1]],
            "anchor": "free",
            "position": 0,
        },
    }
    axes, bottom = {}, 0.0
    for number, row in enumerate(reversed(rows), 1):
        height = usable * weights[row] / total
        axes[row] = "y" if number == 1 else f"y{number}"
        title = {"rate": "env steps/s", "shares": "share of time", "memory": "memory (GiB)"}[row]
        axis = {"domain": [bottom, bottom + height], "rangemode": "tozero", "nticks": 5}
        place = {"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "yanchor": "bottom"}
        layout["annotations"].append({**place, "text": title, "y": bottom + height, "showarrow": False})
        if row == "shares":
            axis |= {"range": [0, 1], "tickformat": ".0%"}
        if row == "rate":
            axis |= {"tickformat": ",~r"}
        layout["yaxis" if number == 1 else f"yaxis{number}"] = axis
        bottom += height + gap
    data: list[dict[str, Any]] = []
    for category in categories:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "shares",
                "x": times,
                "y": list(findings.time_series[f"share:{category}"]),
                "yaxis": axes["shares"],
                "name": label(category, 30),
                "line": {"width": 0, "color": colour_of(category)},
                "fillcolor": colour_of(category),
                "hovertemplate": "%{y:.1%}",
            }
        )
    plain = {"type": "scatter", "mode": "lines", "x": times, "accent": True}
    if rate:
        hover = {"name": "env steps/s", "hovertemplate": "%{y:,.0f}"}
        data.append({**plain, **hover, "y": list(rate), "yaxis": axes["rate"]})
    if memory:
        gib = [b / (1 << 30) for b in memory]
        data.append(
            {**plain, "name": "memory", "hovertemplate": "%{y:.2f} GiB", "y": gib, "yaxis": axes["memory"]}
        )
    return {"data": data, "layout": layout}
