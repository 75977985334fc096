"""The answers of `hotloop whatif` as text."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.analysis.virtual_speedups import VirtualResult
from hotloop.analysis.what_ifs import LimitingRole, Prediction
from hotloop.report.pen import Pen, table


def what_ifs_text(
    limit: LimitingRole,
    straggler: str,
    predictions: Sequence[Prediction],
    together: Prediction | None,
    pen: Pen,
) -> str:
    """What limits training, a table of the answers, and where each comes from."""
    said = limit.sentence[:1].upper() + limit.sentence[1:]
    if limit.regime in ("role", "cpu", "gil"):
        said = f"Training is limited by {limit.sentence}"
    lines = [pen.heading("Limit now"), pen.wrap(said + ".", "  ")]
    if straggler:
        lines.append(pen.wrap(f"Straggler: {straggler}.", "  "))
    rows = [("what if", "training runs", "interval", "Amdahl")]
    shown = [*predictions, *([together] if together is not None else [])]
    for one in shown:
        rows.append((one.what_if, *_figures(one)))
    lines += [
        "",
        pen.heading("What if", "95 % intervals; Amdahl: the driving thread alone"),
        *table(pen, rows),
    ]
    lines.append("")
    for one in shown:
        lines.append(pen.wrap(f"{one.what_if}: {one.why}; the limit is then {one.limit}.", "  - "))
        if one.decide:
            lines.append(pen.wrap(f"to decide: {one.decide}", "    "))
    return "\n".join(lines)


def _figures(one: Prediction) -> tuple[str, str, str]:
    amdahl = f"{one.amdahl:.2f}x" if one.amdahl is not None else "-"
    if one.speed_up is None:
        return "unknown", "-", amdahl
    estimate = one.speed_up
    return f"{estimate.value:.2f}x as fast", f"[{estimate.low:.2f}, {estimate.high:.2f}]", amdahl


def virtual_text(results: Sequence[VirtualResult], pen: Pen) -> str:
    """What the experiment inside a run measured."""
    lines = ["", pen.heading("What if, measured inside the run", "each region virtually faster, in turn")]
    if not any(one.blocks for one in results):
        why = (
            "Nothing was measured: the run was too short, or its driving thread exchanged no messages with "
            "others; then one thread does everything, and hotloop whatif answers from the capture."
        )
        return "\n".join([*lines, pen.wrap(why, "  ")])
    rows = [("region", "if", "training", "pairs")]
    for one in results:
        found = one.verdict.speed_up
        measured = f"{found.value:.2f}x [{found.low:.2f}, {found.high:.2f}]" if found else "too few pairs"
        rows.append((one.region, f"{one.times_as_fast:g}x as fast", measured, str(one.blocks)))
    return "\n".join([*lines, *table(pen, rows)])
