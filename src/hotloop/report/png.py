"""One picture of the findings: time by operation, calls against time per call, categories, memory.

Drawn with matplotlib's object interface on an Agg canvas: no pyplot, no window, no global state. Names are
foreign text, so nothing is interpreted as markup.
"""

from __future__ import annotations

import contextlib
import io
import math
import textwrap
import warnings
from collections.abc import Iterator
from typing import Any

from hotloop._util.extras import require_extra
from hotloop._util.units import count, duration, percent, size
from hotloop.analysis.findings import Findings, RegionFinding
from hotloop.report.palette import colour_of
from hotloop.report.safe_text import shown

BARS = 12  # operations and categories to show
LABELS = 6  # points of the scatter plot that are named
INK, FAINT, GRID = "#1f2328", "#656d76", "#d8dee4"
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "text.usetex": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
}


def png_bytes(findings: Findings) -> bytes:
    """The picture as the bytes of a PNG file; needs matplotlib (the extra `report`)."""
    target = io.BytesIO()
    with drawn(findings) as figure:
        figure.savefig(target, format="png", metadata={"Software": "hotloop"})
    return target.getvalue()


@contextlib.contextmanager
def drawn(findings: Findings) -> Iterator[Any]:
    """The figure, inside the style that it must be saved in."""
    matplotlib = require_extra("matplotlib", "report")
    figures = require_extra("matplotlib.figure", "report")
    agg = require_extra("matplotlib.backends.backend_agg", "report")
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as a box
        figure = figures.Figure(figsize=(13, 9), dpi=110, facecolor="white", layout="none")
        agg.FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            2,
            2,
            left=0.17,
            right=0.97,
            top=0.84,
            bottom=0.085,
            hspace=0.36,
            wspace=0.34,
            height_ratios=(1.15, 1),
        )
        _heading(figure, findings)
        _operations(figure.add_subplot(grid[0, 0]), findings)
        _calls(figure.add_subplot(grid[0, 1]), findings)
        _categories(figure.add_subplot(grid[1, 0]), findings)
        _memory(figure.add_subplot(grid[1, 1]), findings)
        yield figure


def _heading(figure: Any, findings: Findings) -> None:
    headline = textwrap.wrap(shown(findings.headline), 92)[:2]
    figure.text(0.025, 0.965, "\n".join(headline), fontsize=14, fontweight="bold", va="top", linespacing=1.25)
    facts = [f"{duration(findings.wall_ns)} wall time"]
    if findings.env_steps:
        facts.append(f"{count(findings.env_steps)} env steps")
    if findings.env_steps_per_s is not None:
        facts.append(f"{_rate(findings.env_steps_per_s)} env steps/s")
    if findings.updates:
        facts.append(f"{count(findings.updates)} updates")
    facts.append(f"shares: {shown(findings.basis.removeprefix('shares of '), 90)}")
    at = 0.925 if len(headline) == 1 else 0.893
    figure.text(0.025, at, "   ·   ".join(facts), fontsize=9, color=FAINT, va="top")
    command = shown(" ".join(findings.command), 100) if findings.command else ""
    cpu = findings.machine.get("cpu")
    machine = f"{shown(str(cpu), 60)}, {findings.machine.get('cores_granted', '?')} cores" if cpu else ""
    figure.text(
        0.025, 0.018, "   ·   ".join(t for t in ("hotloop", command, machine) if t), fontsize=8, color=FAINT
    )


def _rate(per_s: float) -> str:
    return count(per_s) if per_s >= 100 else f"{per_s:.3g}"


def _operations(axes: Any, findings: Findings) -> None:
    rows = [row for row in findings.regions if row.own_ns > 0][:BARS]
    axes.set_title("Time by operation: own time, all threads")
    _bars(
        axes,
        [_label(row, rows) for row in rows],
        [row.own_ns / 1e9 for row in rows],
        [colour_of(row.category) for row in rows],
        [f"{duration(row.own_ns)}   {percent(row.share)}" for row in rows],
    )


def _label(row: RegionFinding, rows: list[RegionFinding]) -> str:
    """The name, with its parent's if two rows share it."""
    twins = sum(other.name == row.name for other in rows) > 1
    return shown(" > ".join(row.path[-2:]) if twins else row.name, 26)


def _categories(axes: Any, findings: Findings) -> None:
    rows = [row for row in findings.breakdown.categories if row.own_ns > 0][:BARS]
    axes.set_title(f"Time by category: {shown(findings.breakdown.label, 44)}")
    _bars(
        axes,
        [shown(row.category, 26) for row in rows],
        [row.own_ns / 1e9 for row in rows],
        [colour_of(row.category) for row in rows],
        [f"{duration(row.own_ns)}   {percent(row.share)}" for row in rows],
    )


def _bars(axes: Any, names: list[str], seconds: list[float], colours: list[str], notes: list[str]) -> None:
    if not names:
        _nothing(axes, "no time was recorded in any region")
        return
    places = range(len(names))
    axes.barh(places, seconds, color=colours, height=0.72)
    axes.set_yticks(places, names, color=INK)
    axes.invert_yaxis()
    longest = max(seconds)
    axes.set_xlim(0, longest * 1.42)
    for place, value, note in zip(places, seconds, notes, strict=True):
        axes.text(value + longest * 0.015, place, note, va="center", fontsize=8, color=FAINT)
    axes.set_ylim(max(len(names), 5) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel("seconds")


def _calls(axes: Any, findings: Findings) -> None:
    axes.set_title("Calls against time per call")
    points = [(r, r.mean_ns / 1e9) for r in findings.regions if r.calls and r.mean_ns and r.mean_ns > 0]
    if not points:
        _nothing(axes, "no call was completed")
        return
    for row, mean_s in reversed(points):
        axes.scatter(
            row.calls,
            mean_s,
            s=_area(row, points),
            color=colour_of(row.category),
            alpha=0.8,
            linewidths=0.8,
            edgecolors="white",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*_decades([float(row.calls) for row, _ in points]))
    axes.set_ylim(*_decades([mean_s for _, mean_s in points]))
    axes.yaxis.set_major_formatter(lambda value, _: duration(value * 1e9))
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.minorticks_off()
    axes.grid(which="major")
    axes.set_xlabel("calls")
    axes.set_ylabel("mean time per call, including children")
    _names_of_points(axes, points)
    axes.text(1.0, 1.02, "area: own time", transform=axes.transAxes, fontsize=8, color=FAINT, ha="right")


def _decades(values: list[float]) -> tuple[float, float]:
    """Limits at powers of ten with some margin."""
    low, high = math.log10(min(values)), math.log10(max(values))
    return 10.0 ** math.floor(low - 0.2), 10.0 ** math.ceil(high + 0.2)


def _short(number: float) -> str:
    """Powers of ten for an axis: 1, 10, 100, 1k, 10k, ...; nothing below one call."""
    for unit, word in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")):
        if number >= unit:
            return f"{number / unit:g}{word}"
    return ""


def _names_of_points(axes: Any, points: list[tuple[RegionFinding, float]], named: int = LABELS) -> None:
    """Name the first points, each at the nearest place that is free of names and points; else not at all."""
    effects = require_extra("matplotlib.patheffects", "report")
    boxes = require_extra("matplotlib.transforms", "report")
    renderer = axes.figure.canvas.get_renderer()
    pixels = axes.figure.dpi / 72
    inside = axes.get_window_extent(renderer)
    discs = []
    for row, mean_s in points:
        x, y = axes.transData.transform((row.calls, mean_s))
        radius = math.sqrt(_area(row, points) / math.pi) * pixels
        discs.append((x, y, radius))
    taken = [boxes.Bbox([[x - r, y - r], [x + r, y + r]]) for x, y, r in discs]
    for (row, mean_s), (x, y, radius) in zip(points[:named], discs, strict=False):
        text = axes.annotate(
            shown(row.name, 24),
            (row.calls, mean_s),
            xytext=(0, 0),
            textcoords="offset points",
            va="center",
            ha="center",
            fontsize=8,
            path_effects=[effects.withStroke(linewidth=2.5, foreground="white")],
        )
        box = text.get_window_extent(renderer).padded(1)
        middle_x, middle_y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        for away_x, away_y in _places(radius, box.width, box.height):
            moved = box.translated(x + away_x - middle_x, y + away_y - middle_y)
            within = inside.x0 <= moved.x0 and moved.x1 <= inside.x1
            within = within and inside.y0 <= moved.y0 and moved.y1 <= inside.y1
            if within and not any(moved.overlaps(other) for other in taken):
                text.set_position((away_x / pixels, away_y / pixels))
                taken.append(moved)
                if math.hypot(max(abs(away_x) - box.width / 2, 0), away_y) > radius + 2 * box.height:
                    edge = y + away_y - math.copysign(box.height / 2, away_y)
                    ends = axes.transData.inverted().transform([(x, y), (x + away_x, edge)])
                    axes.plot(*ends.T, color=FAINT, linewidth=0.6, zorder=1)
                break
        else:
            text.remove()


def _places(radius: float, width: float, height: float) -> list[tuple[float, float]]:
    """Places for the middle of a name, relative to the middle of its point, nearest first, in pixels."""
    beside, above = radius + width / 2 + 4, radius + height / 2 + 2
    found = [(beside, 0.0), (-beside, 0.0), (0.0, above), (0.0, -above)]
    for step in range(1, 8):
        for side in (beside, -beside, 0.0):
            found += [
                (side, step * height + (0 if side else above)),
                (side, -step * height - (0 if side else above)),
            ]
    return found


def _area(row: RegionFinding, points: list[tuple[RegionFinding, float]]) -> float:
    """Area of a point, in square points: it grows with own time."""
    largest = max(other.own_ns for other, _ in points) or 1
    return 24 + 520 * max(row.own_ns, 0) / largest


def _memory(axes: Any, findings: Findings) -> None:
    axes.set_title("Memory")
    time_s, rss = findings.time_series.get("time_s", ()), findings.time_series.get("rss_bytes", ())
    if len(time_s) == len(rss) and len(rss) > 1 and max(rss) > 0:
        axes.fill_between(time_s, rss, color=colour_of("environment"), alpha=0.16, linewidth=0)
        axes.plot(time_s, rss, color=colour_of("environment"), linewidth=1.8)
        step = 2 ** max(int(max(rss)).bit_length() - 3, 0)  # four to eight lines, at round sizes
        axes.set_yticks([step * line for line in range(int(max(rss) * 1.15 / step) + 1)])
        axes.set_ylim(0, max(rss) * 1.15)
        axes.set_xlim(min(time_s), max(time_s))
        axes.yaxis.set_major_formatter(lambda value, _: size(value) if value else "0")
        axes.set_xlabel("seconds since the start")
        axes.set_ylabel("resident memory")
        axes.grid()
        return
    grown = [row for row in findings.regions if row.rss_growth_bytes]
    grown = sorted(grown, key=lambda row: -abs(row.rss_growth_bytes or 0))[:BARS]
    if not grown:
        _nothing(axes, "memory was not measured in this capture")
        return
    names = [_label(row, grown) for row in grown]
    axes.barh(range(len(grown)), [row.rss_growth_bytes for row in grown], color=colour_of("environment"))
    axes.set_yticks(range(len(grown)), names, color=INK)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: size(value))
    axes.set_xlabel("growth of resident memory inside the region")
    axes.grid(axis="x")


def _nothing(axes: Any, why: str) -> None:
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=FAINT)
    axes.set_axis_off()
