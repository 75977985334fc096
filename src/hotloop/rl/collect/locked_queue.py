"""One bounded queue of rows for all collectors, behind one lock: the baseline for the rings.

It is as good as a locked queue gets: rows are prepared outside the lock, the lock is held for one copy, and
waiting processes sleep. The lock is a record lock of the operating system (fcntl), which is released when
its holder dies; a semaphore would stay taken for ever. Every wait for it is timed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.collect import transport
from hotloop.rl.collect.shared_memory import SharedBlock, SharedNote
from hotloop.rl.collect.status import HEARTBEAT_NS, PHASE, RUNNING, WAITING_FOR_LOCK

_lock_wait = profile("lock_wait")
_HEAD, _TAIL = 0, 1
_ROOM_AT, _DATA_AT, _ROWS_AT = 64, 128, 192
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of Linux: type, whence, start, length, pid


class LockedQueue:
    """`capacity` rows of `dtype` in shared memory; any number of writers, one reader."""

    def __init__(self, dtype: np.dtype[Any], capacity: int):
        self.dtype, self.capacity = dtype, capacity
        self._block = SharedBlock(_ROWS_AT + capacity * dtype.itemsize)
        self._lock = SharedNote()
        self._open()

    def _open(self) -> None:
        memory = self._block.memory
        self._words = np.frombuffer(memory, dtype=np.int64, count=8)
        self.room = transport.Bell(memoryview(memory)[_ROOM_AT : _ROOM_AT + 64])
        self.data = transport.Bell(memoryview(memory)[_DATA_AT : _DATA_AT + 64])
        self.records: NDArray[Any] = np.frombuffer(
            memory, dtype=self.dtype, count=self.capacity, offset=_ROWS_AT
        )
        self.lock_wait_ns = 0
        """Nanoseconds that this process has waited for the lock."""
        self.line: Any = None
        """The collector's line in the status table; says that it waits for the lock and has no heartbeat."""

    def __getstate__(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "capacity": self.capacity, "block": self._block, "lock": self._lock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.dtype, self.capacity = state["dtype"], state["capacity"]
        self._block, self._lock = state["block"], state["lock"]
        self._open()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, and time the wait for it."""
        began_ns = time.monotonic_ns()
        if self.line is not None:
            self.line[PHASE] = WAITING_FOR_LOCK
        with _lock_wait:
            fcntl.lockf(self._lock.fileno(), fcntl.LOCK_EX)
        now_ns = time.monotonic_ns()
        self.lock_wait_ns += now_ns - began_ns
        if self.line is not None:
            self.line[HEARTBEAT_NS], self.line[PHASE] = now_ns, RUNNING
        try:
            yield
        finally:
            fcntl.lockf(self._lock.fileno(), fcntl.LOCK_UN)

    def is_blocked(self, pid: int) -> bool:
        """Whether another process than `pid` and this one holds the lock; True where that is not known."""
        if not sys.platform.startswith("linux"):
            return True
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, holder = _FLOCK.unpack(fcntl.fcntl(self._lock.fileno(), fcntl.F_GETLK, asked))
        return bool(kind != fcntl.F_UNLCK and holder != pid)

    def put(self, rows: NDArray[Any]) -> tuple[int, int]:
        """Copy in as many rows as fit; return their number, and the room bell's count from before."""
        with self.locked():
            seen = self.room.count()
            head = int(self._words[_HEAD])
            count = min(len(rows), self.capacity - (head - int(self._words[_TAIL])))
            self._copy(head, rows[:count], write=True)
            self._words[_HEAD] = head + count  # only after the rows are written
        return count, seen

    def get(self, into: NDArray[Any]) -> int:
        """Copy out up to len(into) rows; return their number."""
        with self.locked():
            tail = int(self._words[_TAIL])
            count = min(len(into), int(self._words[_HEAD]) - tail)
            self._copy(tail, into[:count], write=False)
            self._words[_TAIL] = tail + count
        if count:
            self.room.ring()
        return count

    def _copy(self, position: int, rows: NDArray[Any], *, write: bool) -> None:
        at = position % self.capacity
        first = min(len(rows), self.capacity - at)
        for mine, other in (
            (self.records[at : at + first], rows[:first]),
            (self.records[: len(rows) - first], rows[first:]),
        ):
            if write:
                mine[...] = other
            else:
                other[...] = mine

    def pending_of(self, collector: int) -> int:
        """Rows of one collector, whose process has ended, that are still in the queue."""
        tail, head = self._words[[_TAIL, _HEAD]]
        return int(
            np.count_nonzero(self.records["collector"][np.arange(tail, head) % self.capacity] == collector)
        )

    def taken(self) -> int:
        """Rows taken since the start."""
        return int(self._words[_TAIL])

    def pending(self) -> int:
        return int(self._words[_HEAD] - self._words[_TAIL])

    def close(self) -> None:
        """Wake collectors that wait for room."""
        self.room.ring()

    def free(self) -> None:
        """Unmap the memory; the object is unusable afterwards."""
        self._words = self._words.copy()
        self.records = self.records[:0].copy()
        self.room.release()
        self.data.release()
        self._block.close()
        self._lock.close()
