"""What a program really did, in shared memory: it outlives any death of the program.

A worker (a thread, a process) writes only its own rows: `begun` before a region opens, `ended` after it has
closed. The recorded number of calls must lie between the two.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

WORKERS, NAMES = 32, 24
_CELLS = WORKERS * NAMES


class TruthTable:
    """Counts of regions by worker and name, in a file that several processes map."""

    def __init__(self, file: Path, *, new: bool = False):
        descriptor = os.open(file, os.O_RDWR | (os.O_CREAT if new else 0))
        if new:
            os.ftruncate(descriptor, 16 * _CELLS)
        self._memory = mmap.mmap(descriptor, 16 * _CELLS)
        os.close(descriptor)
        cells = memoryview(self._memory).cast("Q")
        self.begun, self.ended = cells[:_CELLS], cells[_CELLS:]

    def close(self) -> None:
        self.begun.release()
        self.ended.release()

    def by_name(self) -> tuple[dict[str, int], dict[str, int]]:
        """Calls that have begun, and those that have ended."""
        ended, begun = list(self.ended), list(self.begun)  # in this order: what ended had begun
        return tuple(
            {region_name(*divmod(cell, NAMES)): count for cell, count in enumerate(counts) if count}
            for counts in (begun, ended)
        )  # type: ignore[return-value]


def region_name(worker: int, number: int) -> str:
    """A name that shows if its end is missing."""
    return f"worker {worker} region {number} {'.' * (number * 9 % 200)} complete"
