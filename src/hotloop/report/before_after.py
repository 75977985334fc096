"""A before/after card to share: two bars, the verdict with its interval, the change, machine and date.

One layout of rectangles and texts, drawn as SVG, as an HTML page around it, or as PNG.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, Literal

from hotloop._util.extras import require_extra
from hotloop._util.units import duration
from hotloop.analysis.comparison import Comparison, VariantComparison
from hotloop.analysis.trial import BASELINE
from hotloop.analysis.verdict import Verdict
from hotloop.capture.plan import Variant
from hotloop.capture.series import Series
from hotloop.report.paths import short_command
from hotloop.report.safe_text import shown, words
from hotloop.report.svg_card import FONT, WIDTH, wrapped, xml_safe
from hotloop.report.trial import Patch, TrialReport
from hotloop.report.verdict import change_text, factor

MARGIN = 28
LABEL = 120  # width of the column of names
VALUE = 140  # width of the column of times
BAR = 30
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# light and dark colours of what is drawn
COLOURS = {
    "card": ("#ffffff", "#0d1117"),
    "edge": ("#d0d7de", "#3d444d"),
    "ink": ("#1f2328", "#f0f6fc"),
    "faint": ("#59636e", "#9198a1"),
    "sunken": ("#f3f4f6", "#1b2129"),
    "before": ("#8a929c", "#6e7681"),
    "faster": ("#0b7d4d", "#2ea36f"),
    "slower": ("#b5151a", "#e5534b"),
    "other": ("#2f5aa3", "#6d9ae3"),
}
Colour = Literal["card", "edge", "ink", "faint", "sunken", "before", "faster", "slower", "other"]


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """What a card shows."""

    verdict: Verdict
    before: str  # names of the two sides
    after: str
    before_s: float | None  # time per unit; None: only the ratio is known
    unit: str  # "env step", "update" or "run"
    change: str  # the change, such as a line of code or a setting; "" for unknown
    where: str  # where to make it; "" for unknown
    command: str
    machine: str
    date: str


# -- what to show ------------------------------------------------------------------------------------


def card_of_series(series: Series, found: Comparison, change: str = "") -> BeforeAfter | None:
    """The card of a comparison, or of the fastest of several variants; None without any pair."""
    rows = [row for row in found.compared if row.verdict.speed_up is not None]
    if not rows:
        return None
    row = max(rows, key=lambda one: one.verdict.speed_up.value if one.verdict.speed_up else 0.0)
    about = series.facts
    return BeforeAfter(
        verdict=row.verdict,
        before=found.baseline.name,
        after=row.variant.name,
        before_s=row.median_a_s,
        unit=words(found.metric),
        change=change or difference(found.baseline, row),
        where="",
        command=short_command(found.baseline.command),
        machine=machine_text(about.get("machine") or {}),
        date=date_text(about.get("started_s")),
    )


def difference(baseline: Variant, row: VariantComparison) -> str:
    """What the variant does differently, as far as its command says."""
    variant = row.variant
    if variant.overrides:
        return " ".join(variant.overrides)
    before = dict(baseline.environment)
    changed = [f"{key}={value}" for key, value in variant.environment if before.get(key) != value]
    if changed:
        return " ".join(changed)
    if variant.revision != baseline.revision:
        return f"{baseline.revision or 'working folder'} -> {variant.revision or 'working folder'}"
    return short_command(variant.command) if variant.command != baseline.command else ""


def card_of_trial(
    found: TrialReport, command: Sequence[str], machine: Mapping[str, Any], started_s: float | None
) -> BeforeAfter | None:
    """The card of the best patch, or of the best patches together if that was faster still."""
    known = [p for p in found.patches if p.verdict.speed_up is not None]
    if not known:
        return None
    best = max(known, key=lambda p: p.verdict.speed_up.value if p.verdict.speed_up else 0.0)
    verdict, name, chosen = best.verdict, best.name, [best]
    together = found.together
    faster = together.verdict.speed_up if together is not None else None
    if together is not None and faster and verdict.speed_up and faster.value >= verdict.speed_up.value:
        verdict, name = together.verdict, together.name
        chosen = [p for p in found.patches if p.name in together.name.split(" + ")]
    return BeforeAfter(
        verdict=verdict,
        before=BASELINE,
        after=name,
        before_s=None,
        unit=words(found.unit),
        change=_lines_of(chosen),
        where=", ".join(dict.fromkeys(p.at for p in chosen if p.at)),
        command=short_command(tuple(command)),
        machine=machine_text(machine),
        date=date_text(started_s),
    )


def _lines_of(patches: Sequence[Patch]) -> str:
    lines = [line.strip() for patch in patches for line in patch.line.split("\n") if line.strip()]
    return "; ".join(dict.fromkeys(lines))


def machine_text(machine: Mapping[str, Any]) -> str:
    """`AMD EPYC, 2 cores`."""
    cpu, cores = machine.get("cpu"), machine.get("cores_granted")
    parts = [shown(str(cpu), 40)] if cpu else []
    parts += [f"{cores:g} core{'s' * (cores != 1)}"] if isinstance(cores, int | float) else []
    return ", ".join(parts)


def date_text(started_s: float | None) -> str:
    """The day, in UTC; "" for unknown."""
    return f"{datetime.fromtimestamp(started_s, UTC):%Y-%m-%d}" if started_s else ""


def headline_of(card: BeforeAfter) -> str:
    """`7.45x as fast [7.12, 7.80]`, or why there is no such sentence."""
    verdict = card.verdict
    if verdict.word in ("faster", "slower"):
        return f"{factor(verdict.speed_up).replace(' [', ' as fast [', 1)}"
    if verdict.word == "no_difference":
        return f"No difference: {change_text(verdict)}"
    return f"Undecided: {change_text(verdict)}"


# -- the layout ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle with round corners."""

    x: float
    y: float
    width: float
    height: float
    fill: Colour
    radius: float = 4
    edge: Colour | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """One line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    size: float
    fill: Colour = "ink"
    bold: bool = False
    mono: bool = False
    anchor: Literal["start", "end"] = "start"


Shape = Rect | Words


def layout(card: BeforeAfter) -> tuple[float, list[Shape]]:
    """The height of the card and what is on it, in pixels."""
    verdict, speed_up = card.verdict, card.verdict.speed_up
    right = WIDTH - MARGIN
    told: Colour = "other"
    if verdict.word in ("faster", "slower"):
        told = "faster" if verdict.word == "faster" else "slower"
    shapes: list[Shape] = [
        Words(MARGIN, 36, "hotloop", 13, "faint"),
        Words(right, 36, card.date, 13, "faint", anchor="end"),
        Words(MARGIN, 76, headline_of(card), 27, told, bold=True),
    ]
    y = 94.0
    sides = [(card.before, 1.0, card.before_s, "before")]
    ratio = 1.0
    if speed_up is not None:
        ratio = 1 / speed_up.value
        sides.append((card.after, ratio, card.before_s * ratio if card.before_s else None, told))
    longest = max(1.0, ratio, 1 / speed_up.low if speed_up else 1.0)
    room = right - VALUE - MARGIN - LABEL
    for name, share, seconds, colour in sides:
        width = max(room * share / longest, 2.0)
        middle = y + BAR / 2 + 5
        shapes.append(Words(MARGIN, middle, shown(xml_safe(name), 17), 13))
        shapes.append(Rect(MARGIN + LABEL, y, width, BAR, colour))  # type: ignore[arg-type]
        value = f"{duration(seconds * 1e9)} / {card.unit}" if seconds else f"{100 * share:.3g} % of the time"
        shapes.append(Words(right, middle, value, 13, anchor="end"))
        y += BAR + 10
    if speed_up is not None:  # the interval, on the second bar
        low, high = (MARGIN + LABEL + room * (1 / f) / longest for f in (speed_up.high, speed_up.low))
        at = y - BAR / 2 - 10
        if high - low > 6:  # else it would be a blot
            shapes.append(Rect(low, at - 1, high - low, 2, "ink", 0))
            shapes += [Rect(end - 1, at - 6, 2, 12, "ink", 0) for end in (low, high)]
    if card.change:
        lines = wrapped(xml_safe(card.change), 76, 3)
        y += 6
        shapes.append(Rect(MARGIN, y, WIDTH - 2 * MARGIN, 14 + 19 * len(lines), "sunken", 6))
        shapes += [Words(MARGIN + 12, y + 21 + 19 * n, line, 13, mono=True) for n, line in enumerate(lines)]
        y += 14 + 19 * len(lines)
        if card.where:
            y += 20
            shapes.append(Words(MARGIN, y, shown(xml_safe(f"at {card.where}"), 90), 12.5, "faint"))
    y += 30
    made = f"{verdict.pairs} {'pair' if verdict.pairs == 1 else 'pairs'} in turn, 95 % interval"
    facts = [text for text in (made, card.machine) if text]
    shapes.append(Words(MARGIN, y, "  ·  ".join(facts), 12.5, "faint"))
    if card.command:
        y += 20
        shapes.append(Words(MARGIN, y, shown(xml_safe(card.command), 90), 12, "faint", mono=True))
    return y + 24, shapes


def svg(card: BeforeAfter) -> str:
    """The card as SVG text: valid XML whatever the names are, light or dark as the viewer is."""
    height, shapes = layout(card)
    light, dark = (
        "".join(f".{name} {{ fill: {pair[number]} }}" for name, pair in COLOURS.items()) for number in (0, 1)
    )
    style = f"{light} @media (prefers-color-scheme: dark) {{ {dark} }}"
    name = escape(described(card))
    body = [_svg_shape(shape) for shape in shapes]
    frame = f'x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{name}" font-family="{FONT}">',
            f"<title>{name}</title>",
            f"<style>{style}</style>",
            f'<rect class="card" {frame}/><rect {frame} fill="none" stroke="#8884"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def described(card: BeforeAfter) -> str:
    """The card in a sentence."""
    return xml_safe(f"{card.after} against {card.before}: {headline_of(card)}. {card.change}")


def _svg_shape(shape: Shape) -> str:
    if isinstance(shape, Rect):
        return (
            f'<rect class="{shape.fill}" x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" rx="{shape.radius:g}"/>'
        )
    look = f'class="{shape.fill}" font-size="{shape.size:g}" text-anchor="{shape.anchor}"'
    look += ' font-weight="650"' if shape.bold else ""
    look += f' font-family="{MONO}"' if shape.mono else ""
    return f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" {look}>{escape(xml_safe(shape.text))}</text>'


def html(card: BeforeAfter) -> str:
    """A page with nothing but the card; no script, no request."""
    title = escape(f"{headline_of(card)} · hotloop")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    look = (
        ":root { color-scheme: light dark } body { margin: 0; min-height: 100vh; display: grid; "
        "place-items: center; background: #f6f5f2 } svg { max-width: 96vw; height: auto } "
        "@media (prefers-color-scheme: dark) { body { background: #010409 } }"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{look}</style></head>\n"
        f"<body><main>{svg(card)}</main></body></html>\n"
    )


def png(card: BeforeAfter) -> bytes:
    """The card as the bytes of a PNG file, twice as large as the SVG; needs matplotlib."""
    matplotlib = require_extra("matplotlib", "report")
    figures = require_extra("matplotlib.figure", "report")
    patches = require_extra("matplotlib.patches", "report")
    agg = require_extra("matplotlib.backends.backend_agg", "report")
    height, shapes = layout(card)
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"text.parse_math": False, "text.usetex": False})
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as a box
        figure = figures.Figure(figsize=(WIDTH / 72, height / 72), dpi=144, facecolor="white", layout="none")
        agg.FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.axis("off")
        for shape in shapes:
            colour = COLOURS[shape.fill][0]
            if isinstance(shape, Rect):
                style = f"round,pad=0,rounding_size={min(shape.radius, shape.width / 2)}"
                box = patches.FancyBboxPatch(
                    (shape.x, shape.y), shape.width, shape.height, boxstyle=style, fc=colour, lw=0
                )
                axes.add_patch(box)
            else:
                axes.text(
                    shape.x,
                    shape.y,
                    shown(shape.text),
                    fontsize=0.92 * shape.size,  # DejaVu is wider than the system's face
                    color=colour,
                    family="DejaVu Sans Mono" if shape.mono else "DejaVu Sans",
                    weight="bold" if shape.bold else "normal",
                    ha="left" if shape.anchor == "start" else "right",
                    va="baseline",
                )
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": "hotloop"})
    return target.getvalue()
