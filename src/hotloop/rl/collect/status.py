"""What each collector reports about itself in shared memory: heartbeat, waits, drops."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hotloop.rl.collect.shared_memory import SharedBlock

HEARTBEAT_NS, PHASE, BEGAN_NS, WAIT_NS, PAST_WAIT_NS, LOCK_WAIT_NS, DROPPED, PRODUCED, STEPS = range(9)
"""Columns. Times are monotonic: the last heartbeat and the start of this life. Waits: in this life, in
earlier ones, for the lock. Counts: rows dropped, rows produced (dropped ones included), steps."""
STARTING, RUNNING, WAITING_FOR_LOCK, WAITING_FOR_LEARNER = 1, 2, 3, 4
"""Phases. A collector that waits for the lock has no heartbeat, but does not hang. One that waits for the
learner (room for rows, weights) is healthy, whatever ends it then."""
_COLUMNS = 16


class StatusTable:
    """One line of 128 bytes per collector, written by that collector only while it lives."""

    def __init__(self, collectors: int):
        self.collectors = collectors
        self._block = SharedBlock(collectors * _COLUMNS * 8)
        self._open()

    def _open(self) -> None:
        words = np.frombuffer(self._block.memory, dtype=np.int64, count=self.collectors * _COLUMNS)
        self.words = words.reshape(self.collectors, _COLUMNS)

    def __getstate__(self) -> dict[str, Any]:
        return {"collectors": self.collectors, "block": self._block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.collectors, self._block = state["collectors"], state["block"]
        self._open()

    def begin_life(self, collector: int) -> None:
        """Prepare the line for a process that is about to start."""
        line = self.words[collector]
        line[PAST_WAIT_NS] += line[WAIT_NS]
        line[WAIT_NS] = 0
        line[HEARTBEAT_NS] = line[BEGAN_NS] = time.monotonic_ns()
        line[PHASE] = STARTING

    def busy_fraction(self, collector: int) -> float | None:
        """Fraction of this life not spent waiting; None until it collects."""
        line = self.words[collector]
        lived_ns = time.monotonic_ns() - int(line[BEGAN_NS])
        if line[PHASE] in (0, STARTING) or lived_ns <= 0:
            return None
        return float(min(1.0, max(0.0, 1.0 - int(line[WAIT_NS]) / lived_ns)))

    def total(self, *columns: int) -> int:
        """Sum of these columns over all collectors."""
        return int(self.words[:, list(columns)].sum())

    def free(self) -> None:
        """Unmap the memory; the last values stay readable."""
        self.words = self.words.copy()
        self._block.close()
