"""Collection in processes that share one locked queue: the baseline for `processes`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop import profile
from hotloop.rl.collect.locked_queue import LockedQueue
from hotloop.rl.collect.multiprocess import MultiprocessCollector
from hotloop.rl.collect.protocol import Rows, Setup, Task, WhenFull
from hotloop.rl.collect.row_writers import HEARTBEAT_INTERVAL_S, BaseWriter
from hotloop.rl.collect.status import (
    DROPPED,
    LOCK_WAIT_NS,
    PHASE,
    PRODUCED,
    RUNNING,
    WAIT_NS,
    WAITING_FOR_LEARNER,
)
from hotloop.rl.collect.supervisor import Link, ProcessSpec
from hotloop.rl.collect.weight_channel import WeightChannel

_wait = profile("ipc_wait")


class QueueWriter(BaseWriter):
    """Prepares rows in private memory and copies them into the queue under its lock."""

    def __init__(
        self, queue: LockedQueue, channel: WeightChannel, status: Any, collector: int, when_full: WhenFull
    ):
        super().__init__(channel, status, collector)
        self._queue, self._wait_for_room = queue, when_full == "wait"
        queue.line = self._line
        self._private = np.zeros(0, dtype=queue.dtype)
        self._unannounced = 0

    def reserve(self, count: int) -> Rows:
        if not self._wait_for_room and self._queue.capacity - self._queue.pending() < count:
            self._wake_learner()
            return self._private[:0]
        if len(self._private) < count:
            self._private = np.zeros(count, dtype=self._queue.dtype)
        return self._private[:count]

    def commit(self, count: int) -> None:
        """Copy the rows just filled into the queue; wait for room as long as it takes."""
        done = 0
        while True:
            before = self._queue.lock_wait_ns
            moved, seen = self._queue.put(self._private[done:count])
            self._line[LOCK_WAIT_NS] += self._queue.lock_wait_ns - before
            self._line[PRODUCED] += moved
            done += moved
            self._unannounced += moved
            if done == count:
                break
            self._wake_learner()
            with _wait:
                began_ns = time.monotonic_ns()
                self._line[PHASE] = WAITING_FOR_LEARNER
                self._queue.room.wait(seen, HEARTBEAT_INTERVAL_S)
                self._line[PHASE] = RUNNING
                self._line[WAIT_NS] += time.monotonic_ns() - began_ns
            self.beat()
        if self._unannounced >= self.channel.wake_every:
            self._wake_learner()

    def _wake_learner(self) -> None:
        self._unannounced = 0
        self.channel.rows.ring()


@dataclass(frozen=True, slots=True)
class QueueLink:
    queue: LockedQueue
    when_full: WhenFull

    def open(self, spec: ProcessSpec) -> QueueWriter:
        return QueueWriter(self.queue, spec.channel, spec.status, spec.collector, self.when_full)

    def wake(self) -> None:
        self.queue.close()

    def is_blocked(self, pid: int) -> bool:
        return self.queue.is_blocked(pid)


class LockedCollector(MultiprocessCollector):
    """One queue with the capacity of all rings together; `take` copies rows out of it under the lock."""

    def __init__(self, task: Task, setup: Setup | None = None):
        super().__init__(task, setup)
        rows = self.setup.rows_for(self.dtype) * self.setup.collectors
        self._queue = LockedQueue(self.dtype, rows)
        self._out = np.zeros(0, dtype=self.dtype)
        self._counted = np.zeros(self.setup.collectors + 1, dtype=np.int64)  # by collector; last: all

    def take(self, max_rows: int, timeout_s: float = 1.0, min_rows: int = 1) -> list[Rows]:
        """See `Collector.take`. Returns early if the queue is full."""
        supervisor, queue = self._check_take(), self._queue
        min_rows = min(min_rows, max_rows, queue.capacity)
        wake_every = min(min_rows // self.setup.collectors, queue.capacity // 2)
        self._wait_for_rows(lambda: queue.pending() >= min_rows, wake_every, timeout_s)
        wanted = min(max_rows, queue.capacity)
        if len(self._out) < wanted:
            self._out = np.zeros(wanted, dtype=self.dtype)
        count = queue.get(self._out[:wanted])
        if not count and supervisor.error is not None:
            raise supervisor.error
        blocks = [self._out[:count]] if count else []
        if count:
            by_collector = np.bincount(blocks[0]["collector"], minlength=self.setup.collectors)
            self._counted += np.append(by_collector, count)
        self._tally.count(blocks, self._channel.version)
        return blocks

    def release(self) -> None:
        """Nothing to do: `take` copied the rows out of the queue."""

    def _before_life(self, collector: int) -> None:
        """Count the rows that the previous process wrote: it may have died before it counted them itself.

        Runs in the supervisor's thread. Rows are counted just after they leave the queue, so wait until both
        counts agree.
        """
        end = time.monotonic() + 1.0
        while True:
            taken = int(self._counted[-1])
            waiting = self._queue.pending_of(collector)
            if taken == self._queue.taken() == int(self._counted[-1]) or time.monotonic() > end:
                break
            time.sleep(0.001)
        line = self._status.words[collector]
        line[PRODUCED] = int(self._counted[collector]) + waiting + int(line[DROPPED])

    def _links(self) -> Sequence[Link]:
        return [QueueLink(self._queue, self.setup.when_full)] * self.setup.collectors

    def _queued(self) -> tuple[int, int]:
        return self._queue.pending(), self._queue.capacity

    def _own_lock_wait_ns(self) -> int:
        return self._queue.lock_wait_ns

    def _free(self) -> None:
        self._queue.free()
