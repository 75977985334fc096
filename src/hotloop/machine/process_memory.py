"""Memory of this process and of the processes it started."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process."""

    resident_bytes: int
    """All of its pages in memory, including those shared with other processes."""
    private_bytes: int
    """Pages no other process shares: the cost of one more such process."""


def process_memory(pid: int | None = None) -> ProcessMemory | None:
    """Current memory of a process, of this one by default; None when it has ended or cannot be read.

    The kernel walks all its pages for this: about a millisecond per gigabyte.
    """
    try:
        found = psutil.Process(pid).memory_full_info()
    except (psutil.Error, AttributeError):  # AttributeError: a system without private memory
        return None
    return ProcessMemory(found.rss, found.uss)


def largest_memory(pids: Sequence[int]) -> ProcessMemory | None:
    """Memory of the process with the most private memory; None when none can be read."""
    found = [memory for memory in map(process_memory, pids) if memory is not None]
    return max(found, key=lambda memory: memory.private_bytes, default=None)


def children_private_bytes() -> int:
    """Private memory of all processes this one started, and of those they started, added up."""
    children = psutil.Process().children(recursive=True)
    found = [process_memory(child.pid) for child in children]
    return sum(memory.private_bytes for memory in found if memory is not None)


def resident_bytes() -> int:
    """Resident memory of this process now."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """Largest resident memory this process has had."""
    # psutil does not offer it, and getrusage counts the process that forked this one, too.
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
