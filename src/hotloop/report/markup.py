"""Small pieces of HTML. All foreign text goes through `text`, which escapes it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

from hotloop.analysis.findings import Estimate
from hotloop.report.palette import colour_of
from hotloop.report.safe_text import shown
from hotloop.report.text import gain

LONGEST = 400  # columns of foreign text to show
TOP_ROWS = 8  # of a table, before "Show all"


def text(foreign: str, width: int = LONGEST) -> str:
    """Any text as HTML text or attribute value: escaped, on one line, at most `width` columns."""
    return html.escape(shown(foreign, width), quote=True)


def prose(foreign: str, width: int = LONGEST) -> str:
    """Sentences in which `backticks` mark names."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(foreign, width))


def tip(lines: str) -> str:
    """An attribute value for `data-tip`, which the page shows at the pointer; newlines are kept."""
    return "&#10;".join(text(line) for line in lines.split("\n"))


def place(site: str, width: int = 120) -> str:
    """A path that breaks between its parts only."""
    return text(site, width).replace("/", "/<wbr>")


def cell(content: str, value: float | None = None, kind: str = "") -> str:
    """A numeric cell; `value` is the sort key, None for unknown; `kind` adds CSS classes."""
    raw = "" if value is None else f"{value:.9g}"
    return f'<td class="num {kind}" data-value="{raw}">{content}</td>'


def optional(content: str, value: float | None = None) -> str:
    """A numeric cell that narrow screens hide."""
    return cell(content, value, "optional")


def row(head: str, *cells: str) -> str:
    """A table row; all arguments are HTML already."""
    return f'<tr><th scope="row">{head}</th>{"".join(cells)}</tr>'


def folded(rows: Iterable[str], most: int = TOP_ROWS) -> list[str]:
    """The rows, those after the first `most` marked as the rest, which "Show all" shows."""
    made = list(rows)
    if len(made) <= most + 1:  # a button for one row would take as much room
        return made
    return [made_row if n < most else rest(made_row) for n, made_row in enumerate(made)]


def rest(made_row: str) -> str:
    """A row that is shown only after "Show all"."""
    if made_row.startswith('<tr class="'):
        return made_row.replace('<tr class="', '<tr class="rest ', 1)
    return made_row.replace("<tr", '<tr class="rest"', 1)


def name(foreign: str, below: str = "", width: int = 90) -> str:
    """A region's name, with an optional line of small print (HTML) below."""
    small = f'<span class="path">{below}</span>' if below else ""
    return f'<span class="name">{text(foreign, width)}</span>{small}'


def panel(*parts: str) -> str:
    """A framed box."""
    return f'<div class="panel">{"".join(parts)}</div>'


def table(caption: str, heads: Sequence[str], rows: Iterable[str], identifier: str = "") -> str:
    """A table that scrolls sideways when it is too wide.

    Heads that start with `#` are numeric columns; heads that end in `*` are hidden on narrow screens. With an
    identifier, clicking a head sorts. Rows that `rest` marked are hidden until "Show all" is clicked.
    """
    rows = list(rows)
    more = ""
    if any(made_row.startswith('<tr class="rest') for made_row in rows):
        more = f'<button type="button" class="all">Show all {len(rows)} rows</button>'
    made = "".join(_head(head, bool(identifier)) for head in heads)
    named = f' id="{identifier}"' if identifier else ""
    named += ' class="folded"' if more else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {text(caption)}">'
        f"<table{named}><caption>{text(caption)}</caption><thead><tr>{made}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{more}"
    )


def _head(head: str, sorts: bool) -> str:
    classes = " ".join(
        (["num"] if head.startswith("#") else []) + (["optional"] if head.endswith("*") else [])
    )
    label = text(head.strip("#*")) if head.strip("#*") else '<span class="hidden-text">chart</span>'
    inside = f'<button type="button">{label}</button>' if sorts else label
    return f'<th scope="col" class="{classes}"{" aria-sort=none" if sorts else ""}>{inside}</th>'


def category(name: str) -> str:
    """A category's colour and name."""
    swatch = f'<span class="swatch" style="background:{colour_of(name)}" aria-hidden="true"></span>'
    return f'<span class="kind">{swatch}{text(name, 40)}</span>'


def track(share: float, colour: str) -> str:
    """A bar for 0..1, hidden from screen readers: the figure is in the next cell."""
    return (
        f'<span class="track" aria-hidden="true">'
        f'<span style="width:{_percent(share)};background:{colour}"></span></span>'
    )


def stack(
    parts: Sequence[tuple[str, float, str]],
    label: str,
    slim: bool = False,
    more: Mapping[str, str] | None = None,
) -> str:
    """A stacked bar of (name, share, colour), named where there is room; `label` describes it in words.

    The pointer shows name and share, and what `more` has for the name.
    """
    made = []
    for name, share, colour in parts:
        if share <= 0:
            continue
        wide = not slim and share * 95 > 3 + len(name)
        inside = text(name, 30) if wide else ""
        said = f"{text(name, 60)} {100 * share:.1f} %" + (f", {more[name]}" if more and name in more else "")
        striped = " striped" if name in ("unattributed", "idle", "unknown") else ""
        style = f"flex:{share:.5f} 1 0;background-color:{colour};color:{ink_on(colour)}"
        made.append(
            f'<span class="{"" if wide else "thin"}{striped}" style="{style}" '
            f'data-tip="{said}">{inside}</span>'
        )
    kind = "stack slim" if slim else "stack"
    return f'<div class="{kind}" role="img" aria-label="{text(label)}">{"".join(made)}</div>'


def whisker(found: Estimate, most: float) -> str:
    """An interval drawn on a scale from 1 (no gain) to `most`."""

    def at(value: float) -> float:
        return 4 + 192 * min(max((value - 1) / max(most - 1, 1e-9), 0.0), 1.0)

    return (
        f'<svg class="whisker" viewBox="0 0 200 14" role="img" '
        f'aria-label="{gain(found)} on a scale from 1 to {most:.2f}">'
        f'<line x1="4" x2="196" y1="7" y2="7"/>'
        f'<line class="reach" x1="{at(found.low):.1f}" x2="{at(found.high):.1f}" y1="7" y2="7"/>'
        f'<circle cx="{at(found.value):.1f}" cy="7" r="5"/></svg>'
    )


def copy(command: str) -> str:
    """A command with a copy button."""
    return (
        f'<div class="copy"><code>{text(command, 2000)}</code>'
        '<button type="button" hidden aria-label="Copy this command">Copy</button></div>'
    )


def section(identifier: str, title: str, lead: str, body: str, closed: str | None = None) -> str:
    """A section with its heading; `lead` is HTML. `closed` is what a section says that opens on a click."""
    intro = f"<p>{lead}</p>" if lead else ""
    heading = f'<h2 id="{identifier}-title">{title}</h2>'
    inside = f"{heading}{intro}{body}"
    if closed is not None:
        said = f'<span class="muted small">{closed}</span>'
        inside = f"<details><summary>{heading}{said}</summary>{intro}{body}</details>"
    return f'<section id="{identifier}" aria-labelledby="{identifier}-title">{inside}</section>'


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour (relative luminance as in WCAG)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return "#111111" if 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 else "#ffffff"


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"
