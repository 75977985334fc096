"""What memory a process takes, read from /proc; None where there is no /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process."""

    resident_bytes: int
    """All of its pages in memory, those shared with others included."""
    private_bytes: int
    """Pages that no other process shares: what one more such process costs."""


def process_memory(pid: int | str = "self", proc: Path = Path("/proc")) -> ProcessMemory | None:
    """The memory of a process now; None when it has ended, or where this is not told."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    kib = {}
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        kib[name] = int(rest.split()[0])
    if not {"Rss", "Private_Clean", "Private_Dirty"} <= kib.keys():
        return None
    return ProcessMemory(1024 * kib["Rss"], 1024 * (kib["Private_Clean"] + kib["Private_Dirty"]))


def largest_memory(pids: list[int]) -> ProcessMemory | None:
    """The memory of that process which has most of its own; None when none can be read."""
    found = [seen for seen in map(process_memory, pids) if seen is not None]
    return max(found, key=lambda one: one.private_bytes, default=None)
