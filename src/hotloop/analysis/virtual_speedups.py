"""What virtual speed-ups measured: the pace of the driving thread in effective time, region by region."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.analysis.verdict import Verdict, judge
from hotloop.capture.virtual import QUARTERS, Mark, VirtualPlan

LEAST_OPERATIONS = 5  # of the driving thread in a segment


@dataclass(frozen=True, slots=True)
class VirtualResult:
    """What one region, virtually faster, gives."""

    region: str
    times_as_fast: float  # the region itself: 2 for half of its time
    verdict: Verdict  # of training, against the segments without a change
    blocks: int


def virtual_results(
    plan: VirtualPlan, marks: Sequence[Mark], driver: tuple[int, int]
) -> tuple[VirtualResult, ...]:
    """A verdict for each region, from pairs of segments of the same block.

    `driver` is the process id and the native id of the thread whose operations are counted. The first quarter
    of a segment is left out: delays of the one before are still being paid.
    """
    mine = {m.quarter: m for m in marks if (m.pid, m.native_id) == driver}
    paces: dict[int, dict[int, float]] = defaultdict(dict)
    size = len(plan.regions) + 1
    for segment in range(max(mine, default=0) // QUARTERS + 1):
        first, last = mine.get(segment * QUARTERS + 1), mine.get((segment + 1) * QUARTERS)
        if first is None or last is None or last.operations - first.operations < LEAST_OPERATIONS:
            continue
        effective_ns = last.time_ns - first.time_ns - (last.paid_ns - first.paid_ns)
        if effective_ns > 0:
            pace = effective_ns / (last.operations - first.operations)
            paces[segment // size][plan.region_of(segment)] = pace
    found = []
    for number, name in enumerate(plan.regions):
        pairs = [(p[-1], p[number]) for p in paces.values() if -1 in p and number in p]
        found.append(VirtualResult(name, 1 / (1 - plan.saved_fraction), judge(pairs), len(pairs)))
    return tuple(found)
