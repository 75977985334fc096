"""Work counters against a baseline, as text, markdown and data."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.analysis.counters import CounterChange
from hotloop.analysis.verdict import Verdict
from hotloop.report.pen import Pen, table
from hotloop.report.verdict import floor_text, headline


def counters_headline(changes: Sequence[CounterChange], counters: int) -> str:
    """What the counters say, in one sentence."""
    if not changes:
        return f"Work: all {counters} counters are exactly what they were."
    return f"Work: {len(changes)} of {counters} counters changed."


def counters_text(
    changes: Sequence[CounterChange],
    counters: int,
    pen: Pen,
    time: Verdict | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The counters that changed, then the time where it was asked for."""
    lines = [pen.paint(counters_headline(changes, counters), "bold")]
    if changes:
        rows = [("counter", "baseline", "now", "change"), *(_cells(change) for change in changes)]
        drawn = table(pen, rows)
        lines += [pen.paint(drawn[0], "dim"), *drawn[1:]]
    if time is not None:
        lines += ["", pen.wrap(f"Time: {headline(time, 'the baseline', 'this')}")]
        lines.append(pen.wrap(floor_text(time), "  "))
    return "\n".join([*lines, *(pen.wrap(note, "  ") for note in notes)])


def counters_markdown(
    changes: Sequence[CounterChange], counters: int, time: Verdict | None = None, notes: Sequence[str] = ()
) -> str:
    """The same for a pull-request comment."""
    lines = [f"**{counters_headline(changes, counters)}**", ""]
    if changes:
        lines += ["| counter | baseline | now | change |", "| --- | ---: | ---: | ---: |"]
        for change in changes:
            name, *figures = _cells(change)
            safe = "".join(f"\\{c}" if c in "\\|`*_<[" else c for c in Pen().clean(name))
            lines.append(f"| {safe} | {' | '.join(figures)} |")
        lines.append("")
    if time is not None:
        lines += [f"**Time: {headline(time, 'the baseline', 'this')}**", "", f"- {floor_text(time)}"]
    return "\n".join([*lines, *(f"- {note}" for note in notes)]) + "\n"


def _cells(change: CounterChange) -> tuple[str, str, str, str]:
    by = "-" if change.change is None else f"{100 * change.change:+.2f} %"
    return change.name, _figure(change.before), _figure(change.after), by


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.10g}"
