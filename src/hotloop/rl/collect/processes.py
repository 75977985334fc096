"""Collection in processes that each write to their own ring: no lock between environment and replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.rl.collect.multiprocess import MultiprocessCollector
from hotloop.rl.collect.protocol import Rows, Setup, Task, WhenFull
from hotloop.rl.collect.ring import RecordRing
from hotloop.rl.collect.row_writers import RingWriter
from hotloop.rl.collect.supervisor import Link, ProcessSpec


@dataclass(frozen=True, slots=True)
class RingLink:
    ring: RecordRing
    when_full: WhenFull

    def open(self, spec: ProcessSpec) -> RingWriter:
        return RingWriter(self.ring, spec.channel, spec.status, spec.collector, self.when_full)

    def wake(self) -> None:
        self.ring.close()

    def is_blocked(self, pid: int) -> bool:
        return False  # there is no lock


class ProcessCollector(MultiprocessCollector):
    """`take` returns the rings' own memory, so a row is copied only once, into the replay buffer."""

    def __init__(self, task: Task, setup: Setup | None = None):
        super().__init__(task, setup)
        rows = self.setup.rows_for(self.dtype)
        self._rings = [RecordRing(self.dtype, rows) for _ in range(self.setup.collectors)]
        self._taken = [0] * self.setup.collectors
        self._turn = 0  # the ring to read first next time

    def take(self, max_rows: int, timeout_s: float = 1.0, min_rows: int = 1) -> list[Rows]:
        """See `Collector.take`. Returns early if a ring is full, because its collector waits for room."""
        supervisor = self._check_take()
        self.release()
        rings = self._rings
        min_rows = min(min_rows, max_rows)
        wake_every = min(min_rows // len(rings), rings[0].capacity // 2)
        self._wait_for_rows(lambda: self._has_enough(min_rows), wake_every, timeout_s)
        blocks: list[Rows] = []
        left_rows = max_rows
        for turn in range(len(rings)):
            number = (self._turn + turn) % len(rings)
            found = rings[number].blocks(left_rows)
            self._taken[number] = sum(map(len, found))
            left_rows -= self._taken[number]
            blocks += found
            if not left_rows:
                break
        self._turn = (self._turn + 1) % len(rings)
        if not blocks and supervisor.error is not None:
            raise supervisor.error
        self._tally.count(blocks, self._channel.version)
        return blocks

    def _has_enough(self, min_rows: int) -> bool:
        pending = [ring.pending() for ring in self._rings]
        return sum(pending) >= min_rows or max(pending) == self._rings[0].capacity

    def release(self) -> None:
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
