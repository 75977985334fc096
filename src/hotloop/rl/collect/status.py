"""What each collector says about itself, in shared memory: signs of life, waits, drops."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hotloop.rl.collect.shared import SharedBlock

BEAT, PHASE, BEGAN, WAIT, PAST_WAIT, LOCK_WAIT, DROPPED, PRODUCED, STEPS = range(9)
"""Columns: time of the last sign of life (ns, monotonic), phase, begin of this life, waits in this life and
in earlier ones (ns), waits for the lock (ns), rows dropped, rows produced (dropped ones too), steps made."""
STARTING, RUNNING, LOCKING = 1, 2, 3
"""Phases; one that waits for the lock cannot give signs of life and is not taken for hung."""
_COLUMNS = 16


class StatusTable:
    """One line of 128 bytes for each collector; only that collector writes it while it lives."""

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
        """A process for this collector is about to be started."""
        line = self.words[collector]
        line[PAST_WAIT] += line[WAIT]
        line[WAIT] = 0
        line[BEAT] = line[BEGAN] = time.monotonic_ns()
        line[PHASE] = STARTING

    def busy_fraction(self, collector: int) -> float | None:
        """Share of this life not spent waiting; None before the first life has begun to collect."""
        line = self.words[collector]
        lived = time.monotonic_ns() - int(line[BEGAN])
        if line[PHASE] in (0, STARTING) or lived <= 0:
            return None
        return float(min(1.0, max(0.0, 1.0 - int(line[WAIT]) / lived)))

    def total(self, *columns: int) -> int:
        """Sum of columns over all collectors."""
        return int(self.words[:, list(columns)].sum())

    def free(self) -> None:
        """Unmap the memory; what it said last is kept."""
        self.words = self.words.copy()
        self._block.close()
