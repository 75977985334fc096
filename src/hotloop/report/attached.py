"""The findings of `hotloop attach` as text and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from hotloop._util.units import percent
from hotloop.analysis.attached import AttachedFindings
from hotloop.report.pen import Pen, table
from hotloop.report.to_json import plain

SCHEMA_VERSION = 1
LEAST_SHARE = 0.01
MOST_THREADS, MOST_WITH_LINES = 12, 5


def attached_text(found: AttachedFindings, pen: Pen) -> str:
    """Limit, threads, lines and advice."""
    lines = [
        pen.heading("Limit", f"{found.samples} stacks in {found.seconds:.0f} s, read from outside"),
        pen.wrap(found.limit, "  "),
        "",
        pen.heading("Threads", f"{found.cores:g} cores"),
    ]
    rows = [("thread", "on a core", "without one", "off", "holds the GIL", "waits")]
    busiest = sorted(found.threads[1:], key=lambda t: -((t.running or 0.0) + (t.ready or 0.0) + t.gil))
    shown_threads = [*found.threads[:1], *busiest[: MOST_THREADS - 1]]
    for one in shown_threads:
        states = (percent(one.running), percent(one.ready), percent(one.off_core))
        rows.append((one.name, *states, percent(one.gil), percent(one.waits_share)))
    lines += table(pen, rows)
    if len(found.threads) > len(shown_threads):
        lines.append(
            f"  and {len(found.threads) - len(shown_threads)} more, which were less busy (--json has all)"
        )
    for one in shown_threads[:MOST_WITH_LINES]:
        shown = [line for line in one.lines if line.share >= LEAST_SHARE]
        if not shown:
            continue
        lines += ["", pen.heading(f"Lines of {pen.clean(one.name)}", "share of its time")]
        rows_of_lines = [
            (
                f"{line.site} {line.function}" + (f" > {line.inside}" if line.inside else ""),
                percent(line.share),
            )
            for line in shown
        ]
        lines += table(pen, rows_of_lines)
    lines += ["", pen.heading("What follows")]
    lines += [pen.wrap(sentence, f"  {number}. ") for number, sentence in enumerate(found.advice, 1)]
    return "\n".join(lines)


def attached_json(found: AttachedFindings) -> dict[str, Any]:
    """The same as one object."""
    values = {field.name: plain(getattr(found, field.name)) for field in dataclasses.fields(found)}
    return {"kind": "hotloop-attach", "schema_version": SCHEMA_VERSION, **values}
