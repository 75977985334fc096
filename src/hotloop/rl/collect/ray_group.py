"""The collectors of one node of a Ray cluster: processes with rings, read here and sent on in batches.

Loaded on the node, in the actor that `ray_nodes.py` starts there. Nothing here needs Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.extras import require_extra
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import CollectionFailed, CollectorState, Rows, Setup
from hotloop.rl.collect.status import PRODUCED

WAIT_S = 0.1  # the longest time for which rows are held back to fill a batch


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says about its collectors, with every batch."""

    produced: tuple[int, ...]  # rows that each collector has made on this node, dropped ones included
    state: CollectorState
    logged: tuple[str, ...]  # since the last report
    failed: str = ""  # why collection ended, if it did


def joined(blocks: Sequence[Rows], dtype: np.dtype[Any]) -> Rows:
    """One array of all rows, byte for byte; `np.concatenate` would drop the padding of a row."""
    memory = np.empty(sum(map(len, blocks)) * dtype.itemsize, dtype=np.uint8)
    at = 0
    for block in blocks:
        memory[at : at + block.nbytes] = block.view(np.uint8)
        at += block.nbytes
    return memory.view(dtype)


class CollectorGroup:
    """`count` collectors, of which `first` is the number of the first one."""

    def __init__(
        self, task: bytes, setup: Setup, first: int, count: int, life: int, sequences: Sequence[int]
    ):
        cloudpickle = require_extra("cloudpickle", "rl")
        made = replace(cloudpickle.loads(task), first_collector=first, first_life=life)
        self._first = first
        self._sequences = np.asarray(sequences, dtype=np.uint64)  # rows of earlier lives on other nodes
        self._logged: list[str] = []
        # Numbers that are not finite are found by the learner's side.
        own = replace(setup, collectors=count, allow_nonfinite=True, log=self._logged.append)
        self._collector = ProcessCollector(made, own)
        self._collector.start()

    def hello(self) -> bool:
        """Whether it was started."""
        return True

    def take(self, max_rows: int) -> tuple[Rows, Report]:
        """Return up to `max_rows` rows; fewer, or none, if they take longer than a moment."""
        collector = self._collector
        failed = ""
        try:
            blocks = list(collector.take(max_rows, WAIT_S, max_rows))
        except CollectionFailed as error:
            blocks, failed = [], str(error)
        rows = joined(blocks, collector.dtype)
        collector.release()
        if self._sequences.any():
            rows["sequence"] += self._sequences[rows["collector"] - self._first]
        return rows, self._report(failed)

    def publish(self, weights: NDArray[np.float32] | None, version: int, control: float | None) -> None:
        """See `Collector.publish`."""
        self._collector.publish(weights, version=version if weights is not None else None, control=control)

    def close(self) -> None:
        self._collector.close()

    def _report(self, failed: str) -> Report:
        logged, self._logged[:] = tuple(self._logged), []
        state = self._collector.state()
        failures = tuple(replace(f, collector=f.collector + self._first) for f in state.failures)
        produced = tuple(int(n) for n in self._collector._status.words[:, PRODUCED])
        return Report(produced, replace(state, failures=failures), logged, failed)
