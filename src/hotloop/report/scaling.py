"""`hotloop scale` as text and as JSON: the fit, expected against actual, who bends the curve."""

from __future__ import annotations

from typing import Any

from hotloop._util.units import duration
from hotloop.analysis.scaling import RegionScaling, Scaling
from hotloop.report.pen import Pen, table
from hotloop.report.text import nature, slope
from hotloop.report.to_json import plain

# Version history (raised when a field changes its meaning or goes; a new field does not raise it):
#   1  first version
SCHEMA_VERSION = 1
MOST_REGIONS = 10


def scaling_text(found: Scaling, pen: Pen | None = None) -> str:
    """The whole result for a terminal or a pipe."""
    pen = pen or Pen(unicode=False)
    sizes = f"{found.runs} runs, n = {', '.join(f'{size:,g}' for size in found.sizes)}"
    lines = [pen.heading("Scaling", sizes), pen.wrap(found.says, "  ")]
    if found.last_exponent is not None:
        lines.append(pen.wrap(f"between the two largest sizes: n^{slope(found.last_exponent)}.", "  "))
    small, large = (f"n = {size:,g}" for size in (found.sizes[0], found.sizes[-1]))
    rows = [("own time", small, large, "over linear", "exponent", "")]
    for region in found.regions[:MOST_REGIONS]:
        rows.append((_name(region), *_figures(region)))
    if len(rows) > 1:
        drawn = table(pen, rows)
        lines += ["", pen.paint(drawn[0], "dim"), *drawn[1:]]
        if len(found.regions) > MOST_REGIONS:
            lines.append(f"  {len(found.regions) - MOST_REGIONS} more with --json.")
    if found.factors:
        lines += ["", pen.wrap("Actual over expected is the product of:", "  ")]
        for factor in found.factors:
            name = factor.factor.replace("steps per episode", "env steps per n")
            lines.append(f"  {name:<20}{factor.ratio:>7.2f}x  {nature(factor)}")
    if found.not_measured:
        lines += ["", *(pen.wrap(f"not measured: {reason}", "  ") for reason in found.not_measured)]
    return "\n".join(lines)


def scaling_json(found: Scaling) -> dict[str, Any]:
    """The whole result as plain values, for `--json`."""
    return {"kind": "hotloop scaling", "schema_version": SCHEMA_VERSION, **plain(found)}


def _name(region: RegionScaling) -> str:
    return region.name or "(no region)"


def _figures(region: RegionScaling) -> tuple[str, str, str, str, str]:
    small, large, excess = (duration(1e9 * s) for s in (region.small_s, region.large_s, region.excess_s))
    exponent = slope(region.exponent) if region.exponent is not None else "-"
    return small, large, excess, exponent, "bends" if region.bends else ""
