"""Captures and comparisons in a notebook: HTML fragments without scripts, style sheets or requests."""

from __future__ import annotations

import base64
from html import escape

from hotloop.analysis.comparison import Comparison
from hotloop.analysis.findings import Findings
from hotloop.analysis.verdict import interval_words
from hotloop.report.markup import text
from hotloop.report.svg_card import svg_card
from hotloop.report.text import gain

MOST_ADVICE = 5
_FAINT = 'style="opacity:.7"'


def capture_html(findings: Findings, place: str) -> str:
    """The card of a run, what to do, and the command for the whole report."""
    card = base64.b64encode(svg_card(findings).encode()).decode()
    picture = f'<img alt="{escape(findings.headline)}" src="data:image/svg+xml;base64,{card}">'
    items = []
    for found in findings.recommendations[:MOST_ADVICE]:
        predicted = f" <b>{escape(gain(found.gain))}</b>" if found.gain is not None else ""
        site = f" <code>{text(found.site)}</code>" if found.site else ""
        items.append(f"<li>{text(found.title)}{predicted}{site}<br>{text(found.advice)}</li>")
    todo = f"<p>What to do, with the predicted gain:</p><ol>{''.join(items)}</ol>" if items else ""
    more = f"<p {_FAINT}>The whole report: <code>hotloop report {text(place)}</code></p>"
    return f"<div>{picture}{todo}{more}</div>"


def comparison_html(found: Comparison) -> str:
    """A row for each variant: its verdict and the change of its time."""
    rows = []
    for row in found.compared:
        change = interval_words(row.verdict.change) if row.verdict.change is not None else "no interval"
        cells = (text(row.variant.name), text(row.verdict.summary), text(change), f"{row.pairs:,}")
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = ("variant", f"against {text(found.baseline.name)}", "change of time", "pairs")
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"
    return f"<table>{head}{''.join(rows)}</table>"
