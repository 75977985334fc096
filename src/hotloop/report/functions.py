"""cProfile tables as text: one profile, and the difference of two."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop._util.units import count, short_duration
from hotloop.analysis.profiled_functions import FunctionChange, FunctionTime
from hotloop.report.pen import Pen, table

MOST = 50


def functions_text(name: str, functions: Sequence[FunctionTime], pen: Pen, most: int = MOST) -> str:
    """The functions with the most cumulative time."""
    rows = [("function", "calls", "own", "cumulative")]
    for f in functions[:most]:
        rows.append(
            (f.name, count(f.calls), short_duration(f.own_s * 1e9), short_duration(f.cumulative_s * 1e9))
        )
    title = pen.heading(f"{name}: top {min(most, len(functions))} functions", "by cumulative time")
    return "\n".join([title, *table(pen, rows)]) + "\n"


def changes_text(a: str, b: str, changes: Sequence[FunctionChange], pen: Pen, most: int = MOST) -> str:
    """The functions whose cumulative time changed most."""
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
