"""The table of predictions before a training, and the same table with what was measured after it."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop._util.units import count, percent, size
from hotloop.report.pen import Pen, table
from hotloop.workflows.memory import Line


def plan_text(lines: Sequence[Line], pen: Pen, ended: bool) -> str:
    """Predictions, labelled as such; once ended, beside what was measured."""
    head = ("memory and speed", "predicted", *(("measured", "off by") if ended else ()))
    rows = [head] + [_row(line, ended) for line in lines]
    drawn = table(pen, rows)
    return "\n".join([pen.paint(drawn[0], "dim"), *drawn[1:]])


def _row(line: Line, ended: bool) -> tuple[str, ...]:
    if not ended:
        return (line.what, _amount(line.predicted, line.unit))
    off = ""
    if line.predicted and line.measured:
        off = percent(line.predicted / line.measured - 1)
    measured = _amount(line.measured, line.unit) if line.measured is not None else ""
    return (line.what, _amount(line.predicted, line.unit), measured, off)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return size(value) if unit == "bytes" else f"{count(value)}{unit}"
