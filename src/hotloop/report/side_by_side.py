"""Two runs side by side, without a verdict: `hotloop diff` and `hotloop compare --detailed`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from hotloop._util.units import count, duration, percent, short_duration
from hotloop.analysis.diff import CaptureDiff, DiffRow, DiffSide, Per
from hotloop.analysis.profiled_functions import FunctionChange, FunctionTime
from hotloop.analysis.work_counters import WorkDifference
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import columns, shown, words
from hotloop.report.to_json import json_object

MOST_FUNCTIONS = 50
_FIGURES = 42  # columns right of the region's name: four figures of 9 with gaps


def diff_text(found: CaptureDiff, width: int = 80, rows: int = 20) -> str:
    """The diff for a terminal or a pipe, at most `rows` regions: what differs in the work first."""
    width = max(width, 64)
    lines = [f"A  {shown(found.a.label, width - 3)}", f"B  {shown(found.b.label, width - 3)}", ""]
    for sentence in (*work_sentences(found), *map(shown, found.setup), found.caution):
        lines += textwrap.wrap(sentence, width)
    lines += ["", *_whole(found.a, found.b, width), "", *_table(found, width, rows), ""]
    return "\n".join([*lines, *textwrap.wrap(found.how_to_decide, width)])


def diff_json(found: CaptureDiff) -> dict[str, Any]:
    """The diff with all regions, for `--json`."""
    return json_object("diff", found)


def work_sentences(found: CaptureDiff) -> list[str]:
    """Whether both runs did the same work, and what times are relative to."""
    if not found.work:
        if not found.a.env_steps:
            return [
                "Neither run reported env steps (hotloop.progress(env_steps=...)), so there is no telling "
                "whether they did the same work. Times are shares of the wall time."
            ]
        return ["Both runs report the same work."]
    parts = "; ".join(_work_words(w) for w in found.work)
    if found.per == "env_step":
        return [f"The two runs did different work: {parts}. Times below are per env step."]
    return [
        f"The two runs did different work: {parts}. Times below are shares of the wall time, because not "
        "both runs counted env steps."
    ]


def _work_words(work: WorkDifference) -> str:
    counter = words(work.counter)
    a, b = (_number(value) if value else "none reported" for value in (work.a, work.b))
    if work.ratio is None or not work.b:
        return f"{counter}: {a} in A, {b} in B"
    more = "more" if work.ratio > 1 else "fewer"
    by = percent(abs(work.ratio - 1))
    if work.counter in ("mean_episode_length", "updates_per_env_step"):
        higher = "higher" if work.ratio > 1 else "lower"
        return f"{counter} is {by} {higher} in B ({a}, {b})"
    return f"B did {by} {more} {counter} ({a}, {b})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _whole(a: DiffSide, b: DiffSide, width: int) -> list[str]:
    rows = [
        ("wall time", duration(a.wall_ns), duration(b.wall_ns)),
        ("env steps", count(a.env_steps or None), count(b.env_steps or None)),
        ("updates", count(a.updates or None), count(b.updates or None)),
        ("env steps/s", _rate(a.env_steps_per_s), _rate(b.env_steps_per_s)),
        ("wall time per env step", duration(a.wall_per_env_step_ns), duration(b.wall_per_env_step_ns)),
    ]
    lines = [_line("run", ("A", "B", "", ""), width)]
    return lines + [_line(name, (one, two, "", ""), width) for name, one, two in rows]


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _table(found: CaptureDiff, width: int, rows: int) -> list[str]:
    unit = "own time per env step" if found.per == "env_step" else "own time / wall time"
    several = found.a.thread_ns > found.a.wall_ns * 1.01 or found.b.thread_ns > found.b.wall_ns * 1.01
    lines = [_line(unit, ("A", "B", "B - A", "B / A"), width)]
    if several:
        lines = ["Times of all threads added up.", *lines]
    lines += [_line(_name(row, width), _figures(row, found.per), width) for row in found.rows[:rows]]
    left = len(found.rows) - rows
    return [*lines, f"... and {left} more with a smaller change (--json has them all)"] if left > 0 else lines


def _name(row: DiffRow, width: int) -> str:
    return shown(" > ".join(row.path) if row.path else row.name, width - _FIGURES)


def _figures(row: DiffRow, per: Per) -> tuple[str, str, str, str]:
    show = duration if per == "env_step" else percent
    change = ("+" if row.change > 0 else "") + show(row.change)
    return show(row.a_per), show(row.b_per), change, "-" if row.ratio is None else f"{row.ratio:.2f}x"


def _line(name: str, figures: tuple[str, str, str, str], width: int) -> str:
    gap = " " * max(width - _FIGURES - columns(name), 0)
    one, two, change, ratio = figures
    return f"{name}{gap} {one:>11} {two:>11} {change:>11} {ratio:>5}".rstrip()


def functions_text(name: str, functions: Sequence[FunctionTime], pen: Pen, most: int = MOST_FUNCTIONS) -> str:
    """The functions of one profile with the most cumulative time."""
    rows = [("function", "calls", "own", "cumulative")]
    for f in functions[:most]:
        own, cumulative = (short_duration(s * 1e9) for s in (f.own_s, f.cumulative_s))
        rows.append((f.name, count(f.calls), own, cumulative))
    title = pen.heading(f"{name}: top {min(most, len(functions))} functions", "by cumulative time")
    return "\n".join([title, *table(pen, rows)]) + "\n"


def function_changes_text(
    a: str, b: str, changes: Sequence[FunctionChange], pen: Pen, most: int = MOST_FUNCTIONS
) -> str:
    """The functions of two profiles whose cumulative time changed most."""
    rows = [("function", f"calls {a}", f"calls {b}", a, b, f"{b} - {a}")]
    for row in changes[:most]:
        sign = "+" if row.change_s >= 0 else "-"
        rows.append(
            (
                row.name,
                count(row.calls_a),
                count(row.calls_b),
                short_duration(row.cumulative_a_s * 1e9),
                short_duration(row.cumulative_b_s * 1e9),
                sign + short_duration(abs(row.change_s) * 1e9),
            )
        )
    title = pen.heading(f"{b} against {a}: functions", "cumulative time, one run each: no verdict")
    return "\n".join([title, *table(pen, rows)]) + "\n"
