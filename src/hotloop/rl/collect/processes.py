"""Collection in processes, each with a ring of its own: no lock between an environment and replay."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop import profile
from hotloop.rl.collect.protocol import Rows, Setup, Task, WhenFull
from hotloop.rl.collect.remote import RemoteCollector
from hotloop.rl.collect.ring import RecordRing
from hotloop.rl.collect.sink import RingSink
from hotloop.rl.collect.watch import Link, Parcel

_wait = profile("ipc_wait")
_LOOK_EVERY_S = 0.5  # how long `take` sleeps at most before it looks by itself


@dataclass(frozen=True, slots=True)
class RingLink:
    """One collector's ring."""

    ring: RecordRing
    when_full: WhenFull

    def open(self, parcel: Parcel) -> RingSink:
        """In the collector's process: the ring's writing end."""
        return RingSink(self.ring, parcel.post, parcel.status, parcel.collector, self.when_full)

    def wake(self) -> None:
        """End its waits for room."""
        self.ring.close()


class ProcessCollector(RemoteCollector):
    """The fast way: `take` hands out the rings' own memory, so a row is copied once, into replay."""

    def __init__(self, task: Task, setup: Setup | None = None):
        super().__init__(task, setup)
        rows = self.setup.rows_for(self.dtype)
        self._rings = [RecordRing(self.dtype, rows) for _ in range(self.setup.collectors)]
        self._taken = [0] * self.setup.collectors
        self._turn = 0  # who is served first next time

    def take(self, most: int, timeout_s: float = 1.0, least: int = 1) -> list[Rows]:
        """See `Collector.take`; returns early when a ring is full, since its collector waits for room."""
        watch = self._check_take()
        self.done()
        rings = self._rings
        least = min(least, most)
        if not self._enough(least):
            began = time.monotonic_ns()
            end = began + int(timeout_s * 1e9)
            with _wait:
                self._post.bell_every = min(least // len(rings), rings[0].capacity // 2)
                while True:
                    seen = self._post.rows.count()
                    left = (end - time.monotonic_ns()) / 1e9
                    if self._enough(least) or left <= 0 or watch.error is not None:
                        break
                    self._post.rows.wait(seen, min(left, _LOOK_EVERY_S))
            self._tally.learner_wait_ns += time.monotonic_ns() - began
        blocks: list[Rows] = []
        left_rows = most
        for turn in range(len(rings)):
            number = (self._turn + turn) % len(rings)
            found = rings[number].blocks(left_rows)
            self._taken[number] = sum(map(len, found))
            left_rows -= self._taken[number]
            blocks += found
            if not left_rows:
                break
        self._turn = (self._turn + 1) % len(rings)
        if not blocks and watch.error is not None:
            raise watch.error
        self._tally.count(blocks, self._post.version)
        return blocks

    def _enough(self, least: int) -> bool:
        pending = [ring.pending() for ring in self._rings]
        return sum(pending) >= least or max(pending) == self._rings[0].capacity

    def done(self) -> None:
        """Give the blocks of the last `take` back to their collectors."""
        for number, count in enumerate(self._taken):
            if count:
                self._rings[number].give_back(count)
                self._taken[number] = 0

    def _links(self) -> Sequence[Link]:
        return [RingLink(ring, self.setup.when_full) for ring in self._rings]

    def _queued(self) -> tuple[int, int]:
        waiting = sum(ring.pending() for ring in self._rings) - sum(self._taken)
        return waiting, sum(ring.capacity for ring in self._rings)

    def _free(self) -> None:
        for ring in self._rings:
            ring.free()
