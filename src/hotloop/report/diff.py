"""`hotloop diff` as text and as JSON: what differs in the work first, then the regions side by side."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from hotloop._util.units import count, duration, percent
from hotloop.analysis.diff import Difference, DiffRow, DiffSide, Per, WorkDifference
from hotloop.report.safe_text import columns, shown

SCHEMA_VERSION = 1
_FIGURES = 42  # columns right of the region's name: four figures of 9 with gaps


def diff_text(found: Difference, width: int = 80, rows: int = 20) -> str:
    """The comparison for a terminal or a pipe, at most `rows` regions."""
    width = max(width, 64)
    lines = [f"A  {shown(found.a.label, width - 3)}", f"B  {shown(found.b.label, width - 3)}", ""]
    for sentence in (*_work_sentences(found), *found.setup, found.caution):
        lines += textwrap.wrap(sentence, width)
    lines += ["", *_whole(found.a, found.b, width), "", *_table(found, width, rows), ""]
    return "\n".join([*lines, *textwrap.wrap(found.decides, width)])


def diff_json(found: Difference) -> dict[str, Any]:
    """The whole comparison as plain values."""
    return {"schema_version": SCHEMA_VERSION, "kind": "hotloop diff"} | asdict(found)


def _work_sentences(found: Difference) -> list[str]:
    if not found.work:
        if not found.a.env_steps:
            return [
                "Neither run reported env steps (hotloop.progress(env_steps=...)), so nothing here "
                "shows whether they did the same work; times are shares of the wall."
            ]
        return ["Both runs report the same work."]
    parts = "; ".join(_work_words(w) for w in found.work)
    if found.per == "env step":
        return [f"The two runs did different work: {parts}. Times below are per env step."]
    return [
        f"The two runs did different work: {parts}. Times below are shares of the wall, because a run "
        "without env steps cannot be compared per env step."
    ]


def _work_words(work: WorkDifference) -> str:
    a, b = (_number(value) if value else "none reported" for value in (work.a, work.b))
    if work.ratio is None or not work.b:
        return f"{work.counter}: {a} in A, {b} in B"
    more = "more" if work.ratio > 1 else "fewer"
    if work.counter in ("mean episode length", "updates per env step"):
        more = "higher" if work.ratio > 1 else "lower"
        return f"{work.counter} is {abs(work.ratio - 1):.1%} {more} in B ({a}, {b})".replace("%", " %")
    return f"B did {abs(work.ratio - 1):.1%} {more} {work.counter} ({a}, {b})".replace("%", " %")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _whole(a: DiffSide, b: DiffSide, width: int) -> list[str]:
    rows = [
        ("wall time", duration(a.wall_ns), duration(b.wall_ns)),
        ("env steps", count(a.env_steps), count(b.env_steps)),
        ("updates", count(a.updates), count(b.updates)),
        ("env steps/s", _rate(a.env_steps_per_s), _rate(b.env_steps_per_s)),
        ("wall per env step", duration(a.wall_per_env_step_ns), duration(b.wall_per_env_step_ns)),
    ]
    lines = [_line("run", ("A", "B", "", ""), width)]
    return lines + [_line(name, (one, two, "", ""), width) for name, one, two in rows]


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _table(found: Difference, width: int, rows: int) -> list[str]:
    unit = "own time per env step" if found.per == "env step" else "own time, share of the wall"
    several = found.a.thread_ns > found.a.wall_ns * 1.01 or found.b.thread_ns > found.b.wall_ns * 1.01
    lines = [_line(unit, ("A", "B", "B - A", "B / A"), width)]
    if several:
        lines = ["Time of all threads added up.", *lines]
    lines += [_line(_name(row, width), _figures(row, found.per), width) for row in found.rows[:rows]]
    left = len(found.rows) - rows
    return [*lines, f"... and {left} more with a smaller change (--json has them all)"] if left > 0 else lines


def _name(row: DiffRow, width: int) -> str:
    return shown(" > ".join(row.path) if row.path else row.name, width - _FIGURES)


def _figures(row: DiffRow, per: Per) -> tuple[str, str, str, str]:
    show = duration if per == "env step" else percent
    change = ("+" if row.change > 0 else "") + show(row.change)
    return show(row.a_per), show(row.b_per), change, "-" if row.ratio is None else f"{row.ratio:.2f}"


def _line(name: str, figures: tuple[str, str, str, str], width: int) -> str:
    gap = " " * max(width - _FIGURES - columns(name), 0)
    one, two, change, ratio = figures
    return f"{name}{gap} {one:>11} {two:>11} {change:>11} {ratio:>5}".rstrip()
