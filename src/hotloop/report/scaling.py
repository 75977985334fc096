"""`hotloop scale` as text and JSON: the fit, actual against linear growth, what bends the curve."""

from __future__ import annotations

from typing import Any

from hotloop._util.units import duration
from hotloop.analysis.scaling import RegionScaling, Scaling
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import words
from hotloop.report.text import nature, slope
from hotloop.report.to_json import json_object

MOST_REGIONS = 10


def scaling_text(found: Scaling, pen: Pen | None = None) -> str:
    """The result for a terminal or a pipe."""
    pen = pen or Pen(unicode=False)
    sizes = f"{found.runs} runs, n = {', '.join(f'{size:,g}' for size in found.sizes)}"
    lines = [pen.heading("Scaling", sizes), pen.wrap(found.summary, "  ")]
    if found.last_exponent is not None:
        lines.append(pen.wrap(f"Between the two largest sizes: n^{slope(found.last_exponent)}.", "  "))
    small, large = (f"n = {size:,g}" for size in (found.sizes[0], found.sizes[-1]))
    rows = [("own time", small, large, "excess", "exponent", "")]
    for region in found.regions[:MOST_REGIONS]:
        rows.append((_name(region), *_figures(region)))
    if len(rows) > 1:
        drawn = table(pen, rows)
        lines += ["", pen.paint(drawn[0], "dim"), *drawn[1:]]
        if len(found.regions) > MOST_REGIONS:
            lines.append(f"  {len(found.regions) - MOST_REGIONS} more regions with --json.")
    if found.factors:
        lines += ["", pen.wrap("Actual / linear is the product of:", "  ")]
        for factor in found.factors:
            name = "env steps per n" if factor.factor == "steps_per_episode" else words(factor.factor)
            lines.append(f"  {name:<20}{factor.ratio:>7.2f}x  {nature(factor)}")
    if found.not_measured:
        lines += ["", *(pen.wrap(f"Not measured: {reason}.", "  ") for reason in found.not_measured)]
    return "\n".join(lines)


def scaling_json(found: Scaling) -> dict[str, Any]:
    """The result for `--json`."""
    return json_object("scaling", found)


def _name(region: RegionScaling) -> str:
    return region.name or "(no region)"


def _figures(region: RegionScaling) -> tuple[str, str, str, str, str]:
    small, large, excess = (duration(1e9 * s) for s in (region.small_s, region.large_s, region.excess_s))
    exponent = slope(region.exponent) if region.exponent is not None else "-"
    return small, large, excess, exponent, "bends" if region.bends else ""
