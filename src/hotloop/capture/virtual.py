"""Marks of virtual speed-ups in a capture: how far each thread was at the ends of short segments.

`virtual/plan.json` says which region is virtually faster in which segment: every process computes the same
from its seed. `virtual/<pid>.marks` has one line for each quarter of a segment and thread.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import FileError
from hotloop._util.read_files import Reader, files_in

FOLDER = "virtual"
PLAN = "plan.json"
QUARTERS = 4  # marks in a segment; the first quarter is not used
MOST_REGIONS = 16
_READER = Reader(64 << 20, follow=False)


@dataclass(frozen=True, slots=True)
class VirtualPlan:
    """Blocks of segments in random order: each region once, and once none."""

    regions: tuple[str, ...]
    saved_fraction: float  # of the region's time: 0.5 is twice as fast
    segment_ns: int
    seed: int
    start_ns: int  # monotonic

    def region_at(self, now_ns: int) -> int:
        """Index of the region that is virtually faster now; -1 for none."""
        return self.region_of(self.segment_at(now_ns))

    def segment_at(self, now_ns: int) -> int:
        """Number of the segment, from 0 up."""
        return max(now_ns - self.start_ns, 0) // self.segment_ns

    def region_of(self, segment: int) -> int:
        """The same for a segment."""
        block, place = divmod(segment, len(self.regions) + 1)
        order = list(range(-1, len(self.regions)))
        random.Random(f"{self.seed} {block}").shuffle(order)
        return order[place]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a thread was when a quarter of a segment began."""

    pid: int
    native_id: int
    quarter: int  # number of quarters since the start of the plan
    time_ns: int
    paid_ns: float  # delay that this thread has paid or was credited, since its start
    operations: int  # messages it sent and received so far


def read_virtual(folder: Path) -> tuple[VirtualPlan, tuple[Mark, ...]] | None:
    """The plan and the marks of a capture; None if there are none."""
    try:
        data = _READER.read_object(folder / FOLDER / PLAN)
        plan = VirtualPlan(
            tuple(str(name) for name in data["regions"]),
            float(data["saved_fraction"]),
            int(data["segment_ns"]),
            int(data["seed"]),
            int(data["start_ns"]),
        )
    except (FileError, KeyError, TypeError, ValueError):
        return None
    marks = []
    for file in files_in(folder / FOLDER, ".marks"):
        try:
            text = _READER.read_text(file)
        except FileError:
            continue
        for line in text.splitlines():
            words = line.split()
            if len(words) == 6:  # the last line may be cut short
                try:
                    pid, native_id, quarter, time_ns = (int(word) for word in words[:4])
                    marks.append(Mark(pid, native_id, quarter, time_ns, float(words[4]), int(words[5])))
                except ValueError:
                    continue
    return plan, tuple(marks)
