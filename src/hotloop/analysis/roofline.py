"""Speed of light: how far a region is from the best this machine could do, where that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop._util import units
from hotloop.analysis.findings import RooflineRow
from hotloop.analysis.tree import FlatTree

LARGE_COPY_BYTES = 8 << 20  # a call that moves more than this cannot live in the caches
MOST_ROWS = 30


@dataclass(slots=True)
class Phase:
    """A name's figures over all its places; time while open, recursion counted once."""

    name: str
    category: str
    total_ns: int = 0
    calls: int = 0
    bytes_moved: float = 0.0
    flops: float = 0.0
    on_device: bool = False


def roofline(flat: FlatTree, limits: Mapping[str, Any] | None) -> tuple[tuple[RooflineRow, ...], list[str]]:
    """Rows, most time first, and sentences for `not_measured`. A ratio below 1 is never given."""
    phases = [p for p in _phases(flat) if p.calls and (_declares(p) or p.category in ("environment", "wait"))]
    declared = [p for p in phases if _declares(p)]
    if not limits:
        if not declared:
            return (), []
        return (), ["speed of light: the limits of this machine were not measured for this capture"]
    rows: list[tuple[int, RooflineRow]] = []
    unsure: list[str] = []
    for phase in sorted(phases, key=lambda p: -p.total_ns)[:MOST_ROWS]:
        if phase.on_device and _declares(phase):
            unsure.append(f"speed of light of {phase.name}: it ran on a device, the limits are of the CPU")
            continue
        for what, limit_ns in _limits_of(phase, limits):
            measured_ns = phase.total_ns / phase.calls
            if measured_ns >= limit_ns:
                rows.append(
                    (
                        phase.total_ns,
                        RooflineRow(phase.name, what, measured_ns, limit_ns, measured_ns / limit_ns),
                    )
                )
            elif what == "wake-up round trip":
                unsure.append(
                    f"speed of light of {phase.name}: {units.duration(measured_ns)} a call is less than a "
                    f"wake-up ({units.duration(limit_ns)}), so it mostly did not have to wait"
                )
            else:
                unsure.append(
                    f"speed of light of {phase.name}: {units.duration(measured_ns)} a call is less than the "
                    f"stated {what} limit of {units.duration(limit_ns)}, so that limit does not hold for it"
                )
    return tuple(row for _, row in rows), unsure


def _declares(phase: Phase) -> bool:
    return phase.bytes_moved > 0 or phase.flops > 0


def _limits_of(phase: Phase, limits: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Name and ns for one call of every limit that applies and is known."""
    found: list[tuple[str, float]] = []
    each_bytes, each_flops = phase.bytes_moved / phase.calls, phase.flops / phase.calls
    if each_bytes > 0:
        rate = _number(limits, "copy_bytes_per_s")
        if each_bytes >= LARGE_COPY_BYTES:
            rate = _number(limits, "copy_large_bytes_per_s") or rate
        if rate:
            found.append(("copy bandwidth", each_bytes / rate * 1e9))
    if each_flops > 0 and (rate := _number(limits, "matmul_flops_per_s")):
        found.append(("matrix product", each_flops / rate * 1e9))
    if phase.category == "environment" and (step_ns := _number(limits, "empty_step_ns")):
        found.append(("empty step", step_ns))
    if phase.category == "wait" and (wakeup_ns := _number(limits, "wakeup_ns")):
        found.append(("wake-up round trip", wakeup_ns))
    return found


def _number(limits: Mapping[str, Any], name: str) -> float | None:
    value = limits.get(name)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _phases(flat: FlatTree) -> list[Phase]:
    found: dict[str, Phase] = {}
    for row, (node, kind) in enumerate(zip(flat.nodes, flat.categories, strict=True)):
        phase = found.get(node.name)
        if phase is None:
            phase = found[node.name] = Phase(node.name, kind)
        if _is_outermost(flat, row):
            phase.total_ns += node.closed_ns
        phase.calls += node.calls
        phase.bytes_moved += node.bytes_moved
        phase.flops += node.flops
        phase.on_device |= node.device_ns is not None
    return list(found.values())


def _is_outermost(flat: FlatTree, row: int) -> bool:
    """Whether a row is not inside another one of its own name (recursion)."""
    name, above = flat.nodes[row].name, flat.parents[row]
    while above >= 0:
        if flat.nodes[above].name == name:
            return False
        above = flat.parents[above]
    return True
