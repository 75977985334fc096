"""Writers of a collector's rows: the protocol, their common base, and the writer to a ring."""

from __future__ import annotations

import time
from typing import Any, Protocol

from hotloop import profile
from hotloop.rl.collect.protocol import Rows, WhenFull
from hotloop.rl.collect.ring import RecordRing
from hotloop.rl.collect.status import (
    DROPPED,
    HEARTBEAT_NS,
    PHASE,
    PRODUCED,
    RUNNING,
    WAIT_NS,
    WAITING_FOR_LEARNER,
)
from hotloop.rl.collect.weight_channel import WeightChannel

_wait = profile("ipc_wait")
HEARTBEAT_INTERVAL_S = 0.2  # the longest wait without a heartbeat


class Stopped(Exception):
    """The learner asked to stop."""


class RowWriter(Protocol):
    """What the actor loop needs from a transport."""

    def produced(self) -> int:
        """Rows this collector has produced over all its lives, dropped ones included."""

    def reserve(self, count: int) -> Rows:
        """Return up to `count` rows to fill; none only if rows may be dropped. Raises `Stopped`."""

    def commit(self, count: int) -> None:
        """Hand over the rows just filled."""

    def drop(self, count: int) -> None:
        """Count rows that found no room."""

    def wait_for_weights(self) -> bool:
        """Wait a moment for the first weights; return whether they are here (or none are needed)."""

    def beat(self) -> None:
        """Record a heartbeat. Raises `Stopped`."""


class BaseWriter:
    """Heartbeats, counters, and waits that are timed and end when the learner asks to stop."""

    def __init__(self, channel: WeightChannel, status: Any, collector: int):
        self.channel, self._line = channel, status.words[collector]

    def beat(self) -> None:
        self._line[HEARTBEAT_NS] = time.monotonic_ns()
        if self.channel.stopped:
            raise Stopped

    def produced(self) -> int:
        return int(self._line[PRODUCED])

    def drop(self, count: int) -> None:
        self._line[DROPPED] += count
        self._line[PRODUCED] += count

    def wait_for_weights(self) -> bool:
        seen = self.channel.news.count()
        if not self.channel.size or self.channel.board.version:
            return True
        with _wait:
            began_ns = time.monotonic_ns()
            self._line[PHASE] = WAITING_FOR_LEARNER
            self.channel.news.wait(seen, HEARTBEAT_INTERVAL_S)
            self._line[PHASE] = RUNNING
            self._line[WAIT_NS] += time.monotonic_ns() - began_ns
        self.beat()
        return self.channel.board.version > 0


class RingWriter(BaseWriter):
    """Writes straight into the collector's own ring, without a lock."""

    def __init__(
        self, ring: RecordRing, channel: WeightChannel, status: Any, collector: int, when_full: WhenFull
    ):
        super().__init__(channel, status, collector)
        self._ring, self._wait_for_room = ring, when_full == "wait"
        # The previous process may have died between handing rows over and counting them.
        self._line[PRODUCED] = ring.state()["handed_over"] + int(self._line[DROPPED])
        self._unannounced = 0  # rows since the learner's bell was last rung

    def reserve(self, count: int) -> Rows:
        rows = self._ring.reserve(count)
        if len(rows):
            return rows
        self._wake_learner()
        if not self._wait_for_room:
            return rows
        with _wait:
            self._line[PHASE] = WAITING_FOR_LEARNER
            while not len(rows):
                began_ns = time.monotonic_ns()
                rows = self._ring.reserve(count, HEARTBEAT_INTERVAL_S)
                self._line[WAIT_NS] += time.monotonic_ns() - began_ns
                self.beat()
            self._line[PHASE] = RUNNING
        return rows

    def commit(self, count: int) -> None:
        self._ring.commit(count)
        self._line[PRODUCED] += count
        self._unannounced += count
        if self._unannounced >= self.channel.wake_every:
            self._wake_learner()

    def _wake_learner(self) -> None:
        self._unannounced = 0
        self.channel.rows.ring()
