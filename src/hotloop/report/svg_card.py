"""A small SVG card for a README or a chat: headline, time bar, env steps per second."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from hotloop._util.units import count, duration, percent
from hotloop.analysis.findings import CategoryShare, Findings
from hotloop.report.palette import colour_of
from hotloop.report.safe_text import columns, shown

WIDTH, MARGIN = 720, 28
_BAR_HEIGHT = 26
_LEGEND_ROWS = 2
_HEADLINE_COLUMNS = 60  # of an 18 px face in WIDTH - 2 * MARGIN
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_STYLE = """
.card { fill: #ffffff; stroke: #d0d7de }
.ink { fill: #1f2328 } .faint { fill: #59636e }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117; stroke: #3d444d } .ink { fill: #f0f6fc } .faint { fill: #9198a1 }
}
"""


@dataclass(frozen=True, slots=True)
class _Legend:
    """A legend entry with its position."""

    x: float
    row: int
    colour: str
    text: str


def svg_card(findings: Findings) -> str:
    """The picture as SVG text: valid XML whatever the names are, light or dark as the viewer is."""
    headline = wrapped(xml_safe(findings.headline), _HEADLINE_COLUMNS, 3)
    shares = [share for share in findings.breakdown.categories if share.own_ns > 0]
    legend = _legend(shares)
    rows = max((entry.row for entry in legend), default=0) + 1
    bar_y = 58 + 24 * len(headline) + 10
    legend_y = bar_y + _BAR_HEIGHT + 24
    height = legend_y + 20 * (rows - 1) + 44
    body = [
        *_texts(headline, MARGIN, 68, 24, 'class="ink" font-size="18" font-weight="600"'),
        *_bar(shares, bar_y),
        *_legend_marks(legend, legend_y),
        _text(_facts(findings), MARGIN, height - 18, 'class="faint" font-size="12.5"'),
    ]
    name = xml_safe(findings.headline)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(name)}" '
            f'font-family="{FONT}">',
            f"<title>{escape(name)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
            *_corner(findings),
            *body,
            "</svg>",
            "",
        ]
    )


def _corner(findings: Findings) -> list[str]:
    """The first line: our name, and the throughput."""
    lines = [_text("hotloop", MARGIN, 36, 'class="faint" font-size="13" letter-spacing="0.6"')]
    if findings.env_steps_per_s is not None:
        rate = findings.env_steps_per_s
        speed = f"{count(rate) if rate >= 100 else f'{rate:.3g}'} env steps/s"
        lines.append(
            _text(speed, WIDTH - MARGIN, 36, 'class="ink" font-size="16" font-weight="600" text-anchor="end"')
        )
    return lines


def _facts(findings: Findings) -> str:
    facts = [f"{duration(findings.wall_ns)} wall time"]
    if findings.env_steps:
        facts.append(f"{count(findings.env_steps)} env steps")
    if findings.updates:
        facts.append(f"{count(findings.updates)} updates")
    cores, cpu = findings.machine.get("cores_granted"), findings.machine.get("cpu")
    if isinstance(cores, (int, float)):
        facts.append(f"{cores:g} cores")
    if cpu:
        facts.append(shown(xml_safe(str(cpu)), 40))
    return "  ·  ".join(facts)


def _bar(shares: list[CategoryShare], y: float) -> list[str]:
    """The time bar to scale, with percentages where there is room."""
    inner = WIDTH - 2 * MARGIN
    if not shares:
        return [_text("no time was recorded in any region", MARGIN, y + 18, 'class="faint" font-size="13"')]
    frame = f'x="{MARGIN}" y="{y}" width="{inner}" height="{_BAR_HEIGHT}" rx="5"'
    lines = [f'<clipPath id="bar"><rect {frame}/></clipPath>', '<g clip-path="url(#bar)">']
    x, labels = float(MARGIN), []
    for share in shares:
        width = inner * share.share
        what = escape(f"{xml_safe(share.category)}: {duration(share.own_ns)}, {percent(share.share)}")
        lines.append(
            f'<rect x="{x:.2f}" y="{y}" width="{max(width - 1, 0.3):.2f}" height="{_BAR_HEIGHT}" '
            f'fill="{colour_of(share.category)}"><title>{what}</title></rect>'
        )
        if width > 44:
            ink = _ink_on(colour_of(share.category))
            look = f'fill="{ink}" font-size="12" font-weight="600" text-anchor="middle"'
            labels.append(_text(f"{100 * share.share:.0f} %", x + width / 2, y + 17.5, look))
        x += width
    return [*lines, "</g>", *labels]


def _ink_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour`."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "#ffffff" if luminance < 0.30 else "#1f2328"


def _legend(shares: list[CategoryShare]) -> list[_Legend]:
    """Entries in at most two rows; what does not fit is counted."""
    placed: list[_Legend] = []
    x, row = float(MARGIN), 0
    for number, share in enumerate(shares):
        text = f"{shown(xml_safe(share.category), 22)} {percent(share.share)}"
        width = 18 + 7.0 * columns(text) + 14
        room = WIDTH - MARGIN - (90 if row == _LEGEND_ROWS - 1 and number < len(shares) - 1 else 0)
        if x + width > room and x > MARGIN:
            x, row = float(MARGIN), row + 1
        if row == _LEGEND_ROWS:
            last = max((e for e in placed if e.row == row - 1), key=lambda e: e.x)
            x = last.x + 18 + 7.0 * columns(last.text) + 14
            placed.append(_Legend(x, row - 1, "", f"and {len(shares) - number} more"))
            break
        placed.append(_Legend(x, row, colour_of(share.category), text))
        x += width
    return placed


def _legend_marks(legend: list[_Legend], y: float) -> list[str]:
    lines = []
    for entry in legend:
        at = y + 20 * entry.row
        if entry.colour:
            place = f'x="{entry.x:.1f}" y="{at - 10:.1f}" width="11" height="11" rx="2.5"'
            lines.append(f'<rect {place} fill="{entry.colour}"/>')
        lines.append(_text(entry.text, entry.x + 17, at, 'class="ink" font-size="12.5"'))
    return lines


def _texts(lines: list[str], x: float, y: float, step: float, look: str) -> list[str]:
    return [_text(line, x, y + step * number, look) for number, line in enumerate(lines)]


def _text(text: str, x: float, y: float, look: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" {look}>{escape(text)}</text>'


def xml_safe(text: str) -> str:
    """Text that XML can hold: control characters and lone surrogates escaped."""
    return "".join(c if c not in "\ufffe\uffff" else "\ufffd" for c in shown(text))


def wrapped(text: str, width: int, lines: int) -> list[str]:
    """Lines of at most `width` columns; a cut is marked on the last one."""
    found = [""]
    for word in text.split(" "):
        word = shown(word, width) if word else word
        longer = f"{found[-1]} {word}".strip()
        if columns(longer) <= width:
            found[-1] = longer
        else:
            found.append(word)
    if len(found) > lines:
        found = [*found[: lines - 1], shown(found[lines - 1], width - 2) + " …"]
    return found
