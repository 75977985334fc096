"""Collection in processes that share one queue behind one lock: the baseline, and the original design."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop import profile
from hotloop.rl.collect.post import Post
from hotloop.rl.collect.protocol import Rows, Setup, Task, WhenFull
from hotloop.rl.collect.queue import LockedQueue
from hotloop.rl.collect.remote import RemoteCollector
from hotloop.rl.collect.sink import SLICE_S, Waiting
from hotloop.rl.collect.status import DROPPED, LOCK_WAIT, PRODUCED, WAIT
from hotloop.rl.collect.watch import Link, Parcel

_wait = profile("ipc_wait")
_LOOK_EVERY_S = 0.5


class QueueSink(Waiting):
    """Rows are made ready in private memory and copied into the queue under its lock."""

    def __init__(self, queue: LockedQueue, post: Post, status: Any, collector: int, when_full: WhenFull):
        super().__init__(post, status, collector)
        self._queue, self._wait_for_room = queue, when_full == "wait"
        queue.line = self._line
        self._ready = np.zeros(0, dtype=queue.dtype)
        self._silent = 0

    def reserve(self, count: int) -> Rows:
        """Private rows to fill; where rows may be dropped none unless the queue has room just now."""
        if not self._wait_for_room and self._queue.capacity - self._queue.pending() < count:
            self._ring_bell()
            return self._ready[:0]
        if len(self._ready) < count:
            self._ready = np.zeros(count, dtype=self._queue.dtype)
        return self._ready[:count]

    def commit(self, count: int) -> None:
        """Copy the rows just filled into the queue, waiting for room as long as it takes."""
        done = 0
        while True:
            before = self._queue.lock_wait_ns
            moved, seen = self._queue.put(self._ready[done:count])
            self._line[LOCK_WAIT] += self._queue.lock_wait_ns - before
            self._line[PRODUCED] += moved
            done += moved
            self._silent += moved
            if done == count:
                break
            self._ring_bell()
            with _wait:
                began = time.monotonic_ns()
                self._queue.room.wait(seen, SLICE_S)
                self._line[WAIT] += time.monotonic_ns() - began
            self.beat()
        if self._silent >= self.post.bell_every:
            self._ring_bell()

    def _ring_bell(self) -> None:
        self._silent = 0
        self.post.rows.ring()


@dataclass(frozen=True, slots=True)
class QueueLink:
    """The one queue, for each collector the same."""

    queue: LockedQueue
    when_full: WhenFull

    def open(self, parcel: Parcel) -> QueueSink:
        """In the collector's process: the queue's writing end."""
        return QueueSink(self.queue, parcel.post, parcel.status, parcel.collector, self.when_full)

    def wake(self) -> None:
        """End its waits for room."""
        self.queue.close()


class LockedCollector(RemoteCollector):
    """One queue with the room of all rings together; `take` copies rows out of it under the lock."""

    def __init__(self, task: Task, setup: Setup | None = None):
        super().__init__(task, setup)
        rows = self.setup.rows_for(self.dtype) * self.setup.collectors
        self._queue = LockedQueue(self.dtype, rows)
        self._out = np.zeros(0, dtype=self.dtype)
        self._counted = np.zeros(self.setup.collectors + 1, dtype=np.int64)  # by collector; last: all

    def take(self, most: int, timeout_s: float = 1.0, least: int = 1) -> list[Rows]:
        """See `Collector.take`; returns early when the queue is full."""
        watch = self._check_take()
        queue, least = self._queue, min(least, most, self._queue.capacity)
        if queue.pending() < least:
            began = time.monotonic_ns()
            end = began + int(timeout_s * 1e9)
            with _wait:
                self._post.bell_every = min(least // self.setup.collectors, queue.capacity // 2)
                while True:
                    seen = self._post.rows.count()
                    left = (end - time.monotonic_ns()) / 1e9
                    if queue.pending() >= least or left <= 0 or watch.error is not None:
                        break
                    self._post.rows.wait(seen, min(left, _LOOK_EVERY_S))
            self._tally.learner_wait_ns += time.monotonic_ns() - began
        wanted = min(most, queue.capacity)
        if len(self._out) < wanted:
            self._out = np.zeros(wanted, dtype=self.dtype)
        count = queue.get(self._out[:wanted])
        if not count and watch.error is not None:
            raise watch.error
        blocks = [self._out[:count]] if count else []
        if count:
            by_collector = np.bincount(blocks[0]["collector"], minlength=self.setup.collectors)
            self._counted += np.append(by_collector, count)
        self._tally.count(blocks, self._post.version)
        return blocks

    def done(self) -> None:
        """Rows were copied out already; there is nothing to give back."""

    def _before_life(self, collector: int) -> None:
        """Find out how many rows the predecessor has put in: it may have died before it could count them.

        Runs in the watching thread. Rows taken are counted just after they left the queue, so look until
        both counts agree.
        """
        end = time.monotonic() + 1.0
        while True:
            taken = int(self._counted[-1])
            waiting = self._queue.waiting_of(collector)
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
