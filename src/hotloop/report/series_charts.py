"""Charts of a series as SVG in the page's colours: intervals, runs in order, machine load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop._util.units import duration, percent
from hotloop.analysis.findings import Estimate
from hotloop.report import markup as m

WIDTH = 900
LEFT, RIGHT = 190, 24  # margins; names go into the left one
# Variants differ in colour and shape: no chart relies on colour alone.
COLOURS = ("#0072b2", "#d55e00", "#0f9d61", "#7034cf", "#b5151a", "#8a6d00", "#2f5aa3", "#972d74")
SHAPES = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True, slots=True)
class Dot:
    """One run in the chart of runs."""

    number: int
    variant: int  # place in the legend
    value_s: float | None  # None: the run failed
    label: str


def _svg(height: float, label: str, *parts: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{m.text(label, 300)}" '
        f'style="width:100%;height:auto;display:block;color:var(--ink)" font-family="var(--sans)" '
        f'font-size="13">{"".join(parts)}</svg>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str = "var(--line)", width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{width}"/>'
    )


def _words(x: float, y: float, text: str, anchor: str = "start", fill: str = "var(--muted)") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{m.text(text, 40)}</text>'


def intervals(rows: Sequence[tuple[str, Estimate | None]]) -> str:
    """A line for each variant: the interval of its change in time, a dot at the estimate."""
    known = [change for _, change in rows if change is not None]
    reach = max((max(abs(c.low), abs(c.high)) for c in known), default=0.1) * 1.1 or 0.1
    height = 34 * len(rows) + 44

    def at(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value / reach + 1) / 2

    parts = []
    for tick in ticks(-reach, reach):
        parts.append(_line(at(tick), 8, at(tick), height - 30))
        parts.append(_words(at(tick), height - 10, f"{100 * tick:+.3g} %", "middle"))
    parts.append(_line(at(0), 8, at(0), height - 30, "var(--muted)", 1.5))
    for number, (name, change) in enumerate(rows):
        y = 26 + 34 * number
        parts.append(_words(LEFT - 12, y + 4, name, "end", "var(--ink)"))
        if change is None:
            parts.append(_words(at(0) + 10, y + 4, "no interval yet"))
            continue
        colour = "var(--accent)"
        parts.append(_line(at(change.low), y, at(change.high), y, colour, 5))
        parts.append(f'<circle cx="{at(change.value):.1f}" cy="{y}" r="6.5" fill="{colour}"/>')
    return _svg(height, "Change in time with its interval, for each variant", *parts)


def dots(points: Sequence[Dot], names: Sequence[str], unit: str) -> str:
    """Every run in order, one kind of mark for each variant; failed runs as a cross at the bottom."""
    height, bottom = 320, 262
    good = [p.value_s for p in points if p.value_s is not None]
    most = max(good, default=1.0) * 1.08
    first, last = (points[0].number, points[-1].number) if points else (0, 1)

    def x(number: int) -> float:
        return 84 + (WIDTH - 84 - RIGHT) * (number - first) / max(last - first, 1)

    def y(value: float) -> float:
        return bottom - (bottom - 16) * value / most

    parts = []
    for tick in ticks(0.0, most):
        parts.append(_line(84, y(tick), WIDTH - RIGHT, y(tick)))
        parts.append(_words(76, y(tick) + 4, duration(tick * 1e9) if tick else "0", "end"))
    for point in points:
        if point.value_s is None:
            parts.append(_words(x(point.number), bottom + 4, "x", "middle", "var(--accent)"))
        else:
            parts.append(_mark(x(point.number), y(point.value_s), point.variant, point.label))
    parts.append(_words((84 + WIDTH) / 2, bottom + 24, f"run number; {unit}", "middle"))
    at = 84.0
    for number, name in enumerate(names):
        parts.append(_mark(at, height - 14, number, name))
        parts.append(_words(at + 12, height - 10, name, fill="var(--ink)"))
        at += 40 + 7.5 * min(len(name), 40)
    return _svg(height, f"Every run in order, {unit}", *parts)


def _mark(x: float, y: float, variant: int, label: str) -> str:
    colour, shape = COLOURS[variant % len(COLOURS)], SHAPES[variant % len(SHAPES)]
    title = f"<title>{m.text(label, 120)}</title>"
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}">{title}</circle>'
    corners = {
        "square": ((-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)),
        "triangle": ((0, -6), (5.5, 4.5), (-5.5, 4.5)),
        "diamond": ((0, -6.5), (6, 0), (0, 6.5), (-6, 0)),
    }[shape]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" fill="{colour}">{title}</polygon>'


def load_chart(lines: Sequence[tuple[str, Sequence[float | None]]]) -> str:
    """The machine load over the runs: a small bar chart for each figure, starting at 0."""
    each, gap = 64, 26
    height = (each + gap) * len(lines) + 10
    parts = []
    for number, (name, values) in enumerate(lines):
        top = 8 + (each + gap) * number
        known = [v for v in values if v is not None]
        share = name != "load"
        most = max([*known, 0.02 if share else 1.0])
        parts.append(_line(LEFT, top + each, WIDTH - RIGHT, top + each))
        parts.append(_words(LEFT - 12, top + each / 2, name, "end", "var(--ink)"))
        said = percent(most) if share else f"{most:.1f}"
        parts.append(_words(LEFT - 12, top + each / 2 + 18, f"0 to {said}", "end"))
        step = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
        for place, value in enumerate(values):
            if value is not None:
                tall = max(each * value / most, 1.0)
                parts.append(
                    f'<rect x="{LEFT + step * place + step * 0.1:.1f}" y="{top + each - tall:.1f}" '
                    f'width="{max(step * 0.8, 0.6):.1f}" height="{tall:.1f}" fill="var(--muted)"/>'
                )
    return _svg(height, "How busy the machine was at each run", *parts)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """About `most` round values from `low` to `high`."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / most
    unit: float = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
