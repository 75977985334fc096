"""Where a collector writes its rows: a ring of its own, whose other end the learner reads."""

from __future__ import annotations

import time
from typing import Any, Protocol

from hotloop import profile
from hotloop.rl.collect.post import Post
from hotloop.rl.collect.protocol import Rows, WhenFull
from hotloop.rl.collect.ring import RecordRing
from hotloop.rl.collect.status import BEAT, DROPPED, PRODUCED, WAIT

_wait = profile("ipc_wait")
SLICE_S = 0.2  # how long a collector waits before it gives a sign of life


class Stopped(Exception):
    """The learner wants no more."""


class Sink(Protocol):
    """What the rolling loop needs of a transport."""

    def produced(self) -> int:
        """Rows this collector has made over all its lives, dropped ones too."""

    def reserve(self, count: int) -> Rows:
        """Rows to fill, at most `count`; none only where rows may be dropped. Raises `Stopped`."""

    def commit(self, count: int) -> None:
        """Hand over the rows just filled."""

    def drop(self, count: int) -> None:
        """Count rows that found no room."""

    def weights_due(self) -> bool:
        """Wait a little for first weights; whether they are still due."""

    def beat(self) -> None:
        """A sign of life; raises `Stopped`."""


class Waiting:
    """What sinks share: signs of life, and waits that are counted and end when the learner says so."""

    def __init__(self, post: Post, status: Any, collector: int):
        self.post, self._line = post, status.words[collector]

    def beat(self) -> None:
        """A sign of life; raises `Stopped`."""
        self._line[BEAT] = time.monotonic_ns()
        if self.post.stopped:
            raise Stopped

    def produced(self) -> int:
        """Rows this collector has made over all its lives, dropped ones too."""
        return int(self._line[PRODUCED])

    def drop(self, count: int) -> None:
        """Count rows that found no room."""
        self._line[DROPPED] += count
        self._line[PRODUCED] += count

    def weights_due(self) -> bool:
        """Wait a little for first weights; whether they are still due."""
        seen = self.post.news.count()
        if not self.post.size or self.post.board.version:
            return False
        with _wait:
            began = time.monotonic_ns()
            self.post.news.wait(seen, SLICE_S)
            self._line[WAIT] += time.monotonic_ns() - began
        self.beat()
        return self.post.board.version == 0


class RingSink(Waiting):
    """Rows go straight into the collector's own ring; no lock exists."""

    def __init__(self, ring: RecordRing, post: Post, status: Any, collector: int, when_full: WhenFull):
        super().__init__(post, status, collector)
        self._ring, self._wait_for_room = ring, when_full == "wait"
        # A predecessor may have died between handing rows over and counting them.
        self._line[PRODUCED] = ring.state()["handed_over"] + int(self._line[DROPPED])
        self._silent = 0  # rows since the learner's bell was rung

    def reserve(self, count: int) -> Rows:
        """Rows of the ring to fill; waits for room unless rows may be dropped."""
        rows = self._ring.reserve(count)
        if len(rows):
            return rows
        self._ring_bell()
        if not self._wait_for_room:
            return rows
        with _wait:
            while not len(rows):
                began = time.monotonic_ns()
                rows = self._ring.reserve(count, SLICE_S)
                self._line[WAIT] += time.monotonic_ns() - began
                self.beat()
        return rows

    def commit(self, count: int) -> None:
        """Hand over the rows just filled, and wake the learner once there are enough."""
        self._ring.commit(count)
        self._line[PRODUCED] += count
        self._silent += count
        if self._silent >= self.post.bell_every:
            self._ring_bell()

    def _ring_bell(self) -> None:
        self._silent = 0
        self.post.rows.ring()
