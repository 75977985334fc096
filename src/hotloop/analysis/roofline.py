"""How far regions are from the best this machine could do, where that limit is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop._util import units
from hotloop.analysis.findings import RooflineRow
from hotloop.analysis.tree import FlatTree

LARGE_COPY_BYTES = 8 << 20  # a call that moves more does not fit into the caches
MOST_ROWS = 30
LEAST_LIMIT_NS = 1e-3  # less is no work at all, whatever the region declares


@dataclass(slots=True)
class RegionWork:
    """All calls of one region name; recursion counted once."""

    name: str
    category: str
    total_ns: int = 0
    calls: int = 0
    bytes_moved: float = 0.0
    flops: float = 0.0
    on_device: bool = False


def roofline(flat: FlatTree, limits: Mapping[str, Any] | None) -> tuple[tuple[RooflineRow, ...], list[str]]:
    """Rows, most time first, and sentences for `not_measured`. Ratios are never below 1."""
    regions = [
        p for p in _regions(flat) if p.calls and (_declares(p) or p.category in ("environment", "wait"))
    ]
    declared = [p for p in regions if _declares(p)]
    if not limits:
        if not declared:
            return (), []
        return (), ["roofline: the limits of this machine were not measured for this capture"]
    rows: list[tuple[int, RooflineRow]] = []
    unsure: list[str] = []
    for region in sorted(regions, key=lambda r: -r.total_ns)[:MOST_ROWS]:
        if region.on_device and _declares(region):
            unsure.append(f"roofline of {region.name}: it ran on a device; limits are known for the CPU")
            continue
        for what, limit_ns in _limits_of(region, limits):
            measured_ns = region.total_ns / region.calls
            if measured_ns >= limit_ns:
                rows.append(
                    (
                        region.total_ns,
                        RooflineRow(region.name, what, measured_ns, limit_ns, measured_ns / limit_ns),
                    )
                )
            elif what == "wakeup_round_trip":
                unsure.append(
                    f"roofline of {region.name}: a call takes {units.duration(measured_ns)}, less than a "
                    f"wake-up ({units.duration(limit_ns)}), so it rarely had to wait"
                )
            else:
                unsure.append(
                    f"roofline of {region.name}: a call takes {units.duration(measured_ns)}, less than the "
                    f"{what.replace('_', ' ')} limit of {units.duration(limit_ns)}; the limit does not apply"
                )
    return tuple(row for _, row in rows), unsure


def _declares(region: RegionWork) -> bool:
    return region.bytes_moved > 0 or region.flops > 0


def _limits_of(region: RegionWork, limits: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Every known limit that applies: its name, and ns per call."""
    found: list[tuple[str, float]] = []
    each_bytes, each_flops = region.bytes_moved / region.calls, region.flops / region.calls
    if each_bytes > 0:
        rate = _number(limits, "copy_bytes_per_s")
        if each_bytes >= LARGE_COPY_BYTES:
            rate = _number(limits, "copy_large_bytes_per_s") or rate
        if rate:
            found.append(("copy_bandwidth", each_bytes / rate * 1e9))
    if each_flops > 0 and (rate := _number(limits, "matmul_flops_per_s")):
        found.append(("matrix_product", each_flops / rate * 1e9))
    if region.category == "environment" and (step_ns := _number(limits, "empty_step_ns")):
        found.append(("empty_step", step_ns))
    if region.category == "wait" and (wakeup_ns := _number(limits, "wakeup_ns")):
        found.append(("wakeup_round_trip", wakeup_ns))
    return [(what, limit_ns) for what, limit_ns in found if LEAST_LIMIT_NS <= limit_ns < math.inf]


def _number(limits: Mapping[str, Any], name: str) -> float | None:
    value = limits.get(name)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _regions(flat: FlatTree) -> list[RegionWork]:
    found: dict[str, RegionWork] = {}
    for row, (node, kind) in enumerate(zip(flat.nodes, flat.categories, strict=True)):
        region = found.get(node.name)
        if region is None:
            region = found[node.name] = RegionWork(node.name, kind)
        if _is_outermost(flat, row):
            region.total_ns += node.closed_ns
        region.calls += node.calls
        region.bytes_moved += node.bytes_moved
        region.flops += node.flops
        region.on_device |= node.device_ns is not None
    return list(found.values())


def _is_outermost(flat: FlatTree, row: int) -> bool:
    """Whether no enclosing region has the same name (recursion)."""
    name, above = flat.nodes[row].name, flat.parents[row]
    while above >= 0:
        if flat.nodes[above].name == name:
            return False
        above = flat.parents[above]
    return True
