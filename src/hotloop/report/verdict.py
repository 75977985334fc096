"""Verdicts as text for a terminal or a pipe, as markdown for a pull request, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop._util.units import percent
from hotloop.analysis.findings import Estimate
from hotloop.analysis.ranking import LearningVerdict, RankedRow, RankedTable
from hotloop.analysis.verdict import ComponentVerdict, Decision, Verdict, interval_words
from hotloop.report.pen import Pen, table
from hotloop.report.to_json import plain

# Version history (raised when a field changes its meaning or goes; a new field does not raise it):
#   1  first version
SCHEMA_VERSION = 1

_STYLE = {"faster": "bold green", "slower": "bold red", "no difference": "bold", "undecided": "bold yellow"}


def verdict_text(
    verdict: Verdict,
    pen: Pen | None = None,
    *,
    a: str = "A",
    b: str = "B",
    cpu: Verdict | None = None,
    components: Sequence[ComponentVerdict] = (),
    notes: Sequence[str] = (),
    machine_load: str = "",
) -> str:
    """The end of a comparison: the verdict, what it rests on, the parts, the noise floor.

    `a` and `b` are what the two sides are called. `notes` are sentences on what differs (work counters,
    runs that failed); `machine_load` says what the machine was doing.
    """
    pen = pen or Pen(unicode=False)
    lines = [pen.paint(line, _STYLE[verdict.word]) for line in pen.wrap(headline(verdict, a, b)).split("\n")]
    lines.append(pen.wrap(basis(verdict), "  "))
    if cpu is not None:
        lines.append(pen.wrap(f"CPU time: {headline(cpu, 'A', 'B')}", "  "))
    lines.append(pen.wrap(floor_text(verdict), "  "))
    lines += [pen.wrap(note, "  ") for note in notes if note]
    if machine_load:
        lines.append(pen.wrap(f"machine: {machine_load}", "  "))
    if components:
        lines += ["", *component_lines(components, pen)]
    return "\n".join(lines)


def headline(verdict: Verdict, a: str = "A", b: str = "B") -> str:
    """`B is faster by 4.1 % [2.0, 6.2] than A`, in full."""
    if verdict.word in ("faster", "slower"):
        times = f" ({factor(verdict.speed_up)} the speed)" if verdict.speed_up else ""
        return f"{b} is {verdict.says} than {a}{times}"
    if verdict.word == "no difference":
        return f"{b} and {a}: {verdict.says} ({change_text(verdict)})"
    return f"{b} against {a}: {verdict.says} ({change_text(verdict)})"


def change_text(verdict: Verdict) -> str:
    """The change in time with its interval: `time -0.4 % [-1.3, 0.6]`; `no interval yet`."""
    return "no interval yet" if verdict.change is None else f"time {interval_words(verdict.change)}"


def factor(speed_up: Estimate | None) -> str:
    """`1.45x [1.38, 1.52]`; `-` for unknown."""
    if speed_up is None:
        return "-"
    digits = 3 if speed_up.high - speed_up.low < 0.02 else 2
    value, low, high = (f"{x:.{digits}f}" for x in (speed_up.value, speed_up.low, speed_up.high))
    return f"{value}x [{low}, {high}]"


def basis(verdict: Verdict) -> str:
    """What the verdict rests on, in one sentence."""
    made = f"{verdict.pairs} {'pair' if verdict.pairs == 1 else 'pairs'}"
    if verdict.method == "signed rank":
        return f"{made}; percent of time; the interval is exact (signed ranks) and holds in 95 %."
    if verdict.method == "all apart":
        return (
            f"{made}, too few for signed ranks: the interval reaches from the smallest to the largest "
            "ratio of any B to any A."
        )
    if verdict.method == "rank sum":
        return f"{made} at most, not made in pairs; the interval is exact (rank sum) if nothing drifted."
    return f"{made}; too few for an interval."


def floor_text(verdict: Verdict) -> str:
    """The noise floor as a sentence."""
    if verdict.noise_floor is None or verdict.noise_sd is None:
        return "noise floor: not known yet."
    return (
        f"noise floor: {percent(verdict.noise_floor)} is the smallest difference these pairs would find "
        f"four times out of five (pairs scatter by {percent(verdict.noise_sd)})."
    )


def component_lines(components: Sequence[ComponentVerdict], pen: Pen) -> list[str]:
    """A table of the parts: share of A, change with its interval, verdict."""
    rows = [("part", "share of A", "time", "verdict")]
    for part in components:
        rows.append((part.name, percent(part.share_of_a), _change(part.verdict), _short(part.verdict)))
    drawn = table(pen, rows)
    return [pen.paint(drawn[0], "dim"), *drawn[1:]]


def progress_line(decision: Decision, width: int = 80) -> str:
    """One line for a comparison that is going on: the interval shrinking, the next look."""
    verdict = decision.verdict
    made = f"{verdict.pairs} {'pair' if verdict.pairs == 1 else 'pairs'}"
    line = f"{made}: {change_text(verdict)}; {decision.reason}"
    return Pen(unicode=False).clean(line, width)


def ranked_text(found: RankedTable, pen: Pen | None = None, machine_load: str = "") -> str:
    """The ranked table of an investigation."""
    pen = pen or Pen(unicode=False)
    aside = f"against {found.baseline}, {found.blocks} {'block' if found.blocks == 1 else 'blocks'}"
    lines = [pen.heading("Suspects", aside), pen.wrap(found.says, "  "), ""]
    rows = [("suspect", "time", "verdict", "work", "learning")]
    ordered = [*found.rows, *([found.combination] if found.combination else [])]
    for row in ordered:
        rows.append((row.name, _change(row.verdict), _short(row.verdict), work_text(row), learning_text(row)))
    drawn = table(pen, rows)
    lines += [pen.paint(drawn[0], "dim"), *drawn[1:]]
    for row in ordered:
        lines += [pen.wrap(said, f"  {pen.clean(row.name, 24)}: ", "    ") for said in _remarks(row)]
    if found.noise_floor is not None:
        lines += ["", pen.wrap(f"Noise floor: {percent(found.noise_floor)} at worst. {_HOLM}", "  ")]
    if machine_load:
        lines.append(pen.wrap(f"machine: {machine_load}", "  "))
    return "\n".join(lines)


_HOLM = "All `faster` and `slower` hold together (Holm)."


def work_text(row: RankedRow) -> str:
    """`same`, `differs`, or `-` when nothing was counted."""
    return "-" if row.work is None else "differs" if row.work else "same"


def learning_text(row: RankedRow) -> str:
    """The learning check's word, `-` without one."""
    return "-" if row.learning is None else row.learning.word


def _remarks(row: RankedRow) -> list[str]:
    said = []
    if row.expected:
        said.append(f"expected {row.expected}.")
    for work in row.work or ():
        said.append(f"{work.counter} {work.a:,.6g} in the baseline, {work.b:,.6g} here.")
    if row.learning is not None and row.learning.difference is not None:
        said.append(f"{_returns(row.learning)}.")
    return [*said, *([row.note] if row.note else [])]


def _returns(learning: LearningVerdict) -> str:
    return f"returns {learning.says}"


def _change(verdict: Verdict) -> str:
    return "-" if verdict.change is None else interval_words(verdict.change)


def _short(verdict: Verdict) -> str:
    """The word for a table, whose other column has the figures."""
    if verdict.word == "no difference":
        return verdict.says
    if verdict.word == "undecided" and verdict.more_pairs is not None:
        return f"undecided, ~{verdict.more_pairs} more"
    return verdict.word


def verdict_markdown(
    verdict: Verdict,
    *,
    a: str = "A",
    b: str = "B",
    components: Sequence[ComponentVerdict] = (),
    notes: Sequence[str] = (),
    machine_load: str = "",
) -> str:
    """The comparison for a pull-request comment."""
    lines = [f"**{_cell(headline(verdict, a, b))}**", ""]
    lines += ["| | share of A | time | verdict |", "| --- | ---: | ---: | --- |"]
    lines.append(f"| whole | 100 % | {_change(verdict)} | {_short(verdict)} |")
    for part in components:
        cells = (_cell(part.name), percent(part.share_of_a), _change(part.verdict), _short(part.verdict))
        lines.append(f"| {' | '.join(cells)} |")
    said = [basis(verdict), floor_text(verdict), *notes, f"machine: {machine_load}" if machine_load else ""]
    return "\n".join([*lines, "", *(f"- {_cell(s)}" for s in said if s)]) + "\n"


def ranked_markdown(found: RankedTable) -> str:
    """The ranked table for a pull-request comment."""
    lines = [f"**{_cell(found.says)}**", "", "| suspect | expected | time | verdict | work | learning |"]
    lines.append("| --- | --- | ---: | --- | --- | --- |")
    for row in [*found.rows, *([found.combination] if found.combination else [])]:
        learning = "-" if row.learning is None else row.learning.says
        cells = (row.name, row.expected or "-", _change(row.verdict), _short(row.verdict), work_text(row))
        lines.append("| " + " | ".join(_cell(cell) for cell in (*cells, learning)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Foreign text that cannot break a markdown table or start markup."""
    safe = Pen(unicode=True).clean(text)
    return "".join(f"\\{c}" if c in "\\|`*_<[" else c for c in safe)


def verdict_json(
    verdict: Verdict,
    *,
    a: str = "A",
    b: str = "B",
    cpu: Verdict | None = None,
    components: Sequence[ComponentVerdict] = (),
    notes: Sequence[str] = (),
    machine_load: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The comparison as plain values, for `--json`."""
    return {
        "kind": "hotloop verdict",
        "schema_version": SCHEMA_VERSION,
        "a": a,
        "b": b,
        "verdict": plain(verdict),
        "cpu": plain(cpu),
        "components": plain(list(components)),
        "notes": list(notes),
        "machine": plain(machine_load),
    }


def ranked_json(found: RankedTable) -> dict[str, Any]:
    """The ranked table as plain values, for `--json`."""
    return {"kind": "hotloop ranked", "schema_version": SCHEMA_VERSION, **plain(found)}
