"""The page's charts, drawn here as HTML and SVG: the icicle of the region tree, and the run over time.

Nothing is computed in the browser but the zoom and what the pointer shows, so the page carries no chart
library. Shapes stretch with the page; words stay HTML, so they keep their size on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop._util.units import count, duration, percent
from hotloop.analysis.findings import Findings, Phases, RegionFinding
from hotloop.report import markup as m
from hotloop.report.palette import colour_of
from hotloop.report.safe_text import shown
from hotloop.report.series_charts import ticks

MOST_NODES = 1500  # of the icicle: the largest ones, so that callers are always included
MOST_CHOICES = 150
QUIET = 0.05  # callers with a smaller share of own time are drawn grey
LEAST_WIDTH = 0.003  # of a slice that makes the chart higher; page.js has the same for zooming
GIB = 1 << 30
HEIGHTS = {"rate": 4.6, "shares": 7.0, "memory": 2.8}  # of the plots over time, rem
TITLES = {"rate": "env steps/s", "shares": "share of time", "memory": "memory"}


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
        place = Place(f"n{number}", above.key if above else "root", region, above.depth + 1 if above else 1)
        by_path.setdefault(path, place)
        if above:
            above.children.append(place)
        made.append(place)
    for place in reversed(made):
        place.inside_ns = sum(child.width_ns for child in place.children)
    return made, len(named) - len(made)


# -- the icicle --------------------------------------------------------------------------------------


def icicle(findings: Findings, nodes: list[Place]) -> str:
    """The zoomable tree: callers on top, width is time; time in no region is its own slice.

    A slice has its left edge and its width as fractions of the whole in `--x` and `--w`; the page zooms by
    setting the range that is shown.
    """
    everything = findings.all_threads
    outside = everything.unattributed_ns
    top = [p for p in nodes if p.parent == "root"]
    whole = max(everything.wall_ns, sum(p.width_ns for p in top) + outside, 1)
    made = [
        slice_of("root", 0, 0.0, 1.0, "", "all threads", f"all threads\n{duration(whole)} of thread time")
    ]

    left = 0.0
    waiting = [(place, 0.0) for place in sorted(top, key=lambda p: -p.width_ns)]
    for number, (place, _) in enumerate(waiting):
        waiting[number] = (place, left)
        left += place.width_ns / whole
    while waiting:
        place, x = waiting.pop()
        r = place.region
        grey = place.children and r.own_ns < QUIET * place.width_ns
        tip = (
            f"{shown(r.name, 80)}\n{shown(r.category, 40)}\ntotal {duration(r.total_ns)}, "
            f"own {duration(r.own_ns)} ({percent(r.share)})\n"
            f"{count(r.calls)} calls, mean {duration(r.mean_ns)}"
            + (f"\n{shown(r.site, 70)}" if r.site else "")
        )
        width = place.width_ns / whole
        colour = "" if grey else colour_of(r.category)
        label = f"{shown(r.name, 36)} {percent(width)}"
        made.append(slice_of(place.key, place.depth, x, width, colour, label, tip))
        for child in sorted(place.children, key=lambda p: -p.width_ns):
            waiting.append((child, x))
            x += child.width_ns / whole
    if outside > 0:
        tip = f"unattributed\n{duration(outside)} in no region"
        label = f"unattributed {percent(outside / whole)}"
        made.append(slice_of("unattributed", 1, left, outside / whole, colour_of("unattributed"), label, tip))
    said = (
        "Icicle chart of the regions by time, callers on top; the table of all regions has the same figures"
    )
    tall = 1.6 * (max((p.depth for p in nodes if p.width_ns >= LEAST_WIDTH * whole), default=1) + 1)
    return (
        f'<div id="icicle" class="chart" role="img" aria-label="{said}">'
        f'<div class="slices" style="height:{tall:.1f}rem">{"".join(made)}</div></div>'
    )


def slice_of(key: str, depth: int, x: float, width: float, colour: str, label: str, tip: str) -> str:
    """One slice; without a colour it is grey. `label` and `tip` may be foreign text."""
    look = f"--x:{x:.6g};--w:{width:.6g};--d:{depth}"
    if colour:
        look += f";background:{colour};color:{m.ink_on(colour)}"
    said = f'data-tip="{m.tip(tip)}"'
    return f'<span class="slice" data-key="{key}" style="{look}" {said}>{m.text(label, 60)}</span>'


# -- the run over time -------------------------------------------------------------------------------


def time_series_categories(findings: Findings) -> list[str]:
    """Categories with shares over time, in the order of the breakdown."""
    have = [key.removeprefix("share:") for key in findings.time_series if key.startswith("share:")]
    ranked = [c.category for c in findings.breakdown.categories if c.category in have]
    return ranked + [c for c in have if c not in ranked]


def time_series_data(findings: Findings) -> dict[str, Any]:
    """What the pointer shows: the values of every window, with their kinds."""
    series = findings.time_series
    rows: list[dict[str, Any]] = []
    for key, name, kind in (
        ("env_steps_per_s", "env steps/s", "rate"),
        ("updates_per_s", "updates/s", "rate"),
        *((f"share:{c}", shown(c, 30), "share") for c in time_series_categories(findings)),
        ("rss_bytes", "memory", "memory"),
    ):
        if series.get(key):
            rows.append({"name": name, "kind": kind, "values": [_rounded(v) for v in series[key]]})
    return {"time_s": [_rounded(at) for at in series["time_s"]], "rows": rows}


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def time_series_chart(findings: Findings) -> str:
    """Throughput on top, stacked shares below, memory at the bottom if it was measured."""
    series = findings.time_series
    times = series["time_s"]
    first, last = 0.0, max(times[-1], 1e-9)

    def x(at: float) -> float:
        return 1000 * (at - first) / (last - first)

    plots = []
    rate, memory = series.get("env_steps_per_s") or series.get("updates_per_s"), series.get("rss_bytes")
    if rate:
        title = TITLES["rate"] if series.get("env_steps_per_s") else "updates/s"
        plots.append(_line_plot("rate", title, times, rate, x, count))
    categories = time_series_categories(findings)
    if categories:
        plots.append(_share_plot(categories, series, x))
    if memory:
        gib = tuple(b / GIB for b in memory)
        plots.append(_line_plot("memory", TITLES["memory"], times, gib, x, lambda v: f"{v:.3g} GiB"))
    said = "Throughput and shares of time over the run; the figures follow in a table"
    marks = "".join(
        f'<span class="{"last" if x(at) > 930 else ""}" style="left:{x(at) / 10:.2f}%">'
        f"{duration(1e9 * at) if at else '0 s'}</span>"
        for at in ticks(first, last, 5)
    )
    return (
        f'<div id="time-series" class="chart" role="img" aria-label="{said}"><div class="plots">'
        f"{_before_training(findings.phases, last)}"
        f'{"".join(plots)}<i class="cursor" hidden></i></div><div class="times">{marks}</div></div>'
    )


def _before_training(phases: Phases | None, last_s: float) -> str:
    """A shade over start-up and warm-up, and one over what comes after training."""
    if phases is None or phases.whole_run:
        return ""
    before = (phases.start_up_ns + phases.warm_up_ns) / 1e9 / last_s
    after = (phases.last_round_ns + phases.shutdown_ns) / 1e9 / last_s
    made = ""
    if before > 0:
        made += f'<div class="shade" style="left:0;width:{100 * min(before, 1):.2f}%"></div>'
    if after > 0.005:
        made += f'<div class="shade" style="right:0;width:{100 * min(after, 1):.2f}%"></div>'
    return made


def _plot(row: str, title: str, levels: Sequence[tuple[float, str]], drawn: str) -> str:
    """One plot with its title and the labels of its axis; `levels` are heights 0..1 with their labels."""
    labels = "".join(
        f'<span style="bottom:{100 * at:.1f}%">{m.text(label, 20)}</span>' for at, label in levels
    )
    lines = "".join(f'<path class="grid" d="M0 {100 - 100 * at:.1f}H1000"/>' for at, _ in levels)
    return (
        f'<div class="plot" style="height:{HEIGHTS[row]}rem"><span class="what">{title}</span>'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{lines}{drawn}</svg>'
        f'<div class="levels">{labels}</div></div>'
    )


def _line_plot(
    row: str, title: str, times: Sequence[float], values: Sequence[float], x: Any, label: Any
) -> str:
    known = [v for v in values if math.isfinite(v)]
    most = max(known, default=0.0) * 1.06 or 1.0
    path, pen_up = [], True
    for at, value in zip((0.0, *times), (values[0], *values), strict=True):  # a window begins before its time
        if not math.isfinite(value):
            pen_up = True
            continue
        path.append(f"{'M' if pen_up else 'L'}{x(at):.1f} {100 - 100 * value / most:.1f}")
        pen_up = False
    levels = [(tick / most, label(tick)) for tick in ticks(0.0, most, 3)]
    return _plot(row, title, levels, f'<path class="accent" d="{"".join(path)}"/>')


def _share_plot(categories: list[str], series: dict[str, tuple[float, ...]], x: Any) -> str:
    times = (0.0, *series["time_s"])  # the first window begins at 0
    below = [0.0] * len(times)
    drawn = []
    for category in categories:
        values = [v if math.isfinite(v) else 0.0 for v in series[f"share:{category}"]]
        values.insert(0, values[0])
        above = [min(low + value, 1.0) for low, value in zip(below, values, strict=True)]
        if max(values) > 0.0005:
            there = "L".join(f"{x(at):.1f} {100 - 100 * v:.1f}" for at, v in zip(times, above, strict=True))
            back = "L".join(
                f"{x(at):.1f} {100 - 100 * v:.1f}" for at, v in reversed([*zip(times, below, strict=True)])
            )
            drawn.append(f'<path fill="{colour_of(category)}" d="M{there}L{back}Z"/>')
        below = above
    levels = [(at, f"{100 * at:.0f} %") for at in (0.0, 0.5, 1.0)]
    return _plot("shares", TITLES["shares"], levels, "".join(drawn))
