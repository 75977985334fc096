"""Ring, Bell and Board in plain Python: the slow twin of `ring.h`, which polls every 0.2 ms.

The interpreter reads and writes aligned 8-byte words of a memory view atomically. Their order is program
order only on processors that keep stores in order (x86).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_NAP_S = 0.0002
_MAGIC, _RECORD_BYTES, _CAPACITY = 0, 1, 2
_HEAD, _PRODUCER_WAIT, _DROPPED = 8, 9, 10
_TAIL, _CONSUMER_WAIT = 16, 17
_CLOSED = 24
_RING_HEADER, _BOARD_HEADER = 512, 256
_RING_MAGIC, _BOARD_MAGIC = 0x31474E4952544F48, 0x31444F4254544F48


def _words(buffer: Any, least: int) -> memoryview:
    view = memoryview(buffer).cast("B")
    if len(view) < least:
        raise ValueError(f"the buffer has {len(view)} bytes; at least {least} are needed, aligned to 64")
    return view[: len(view) // 8 * 8].cast("Q")


class Bell:
    """Lets processes wake each other."""

    def __init__(self, buffer: Any):
        self._memory = _words(buffer, 64)

    def count(self) -> int:
        """How often it has rung."""
        return self._memory[0]

    def ring(self) -> None:
        self._memory[0] += 1

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Sleep until the count differs from `seen`; return whether it does."""
        _sleep_until(lambda: self._memory[0] != seen, timeout_s)
        return self._memory[0] != seen

    def release(self) -> None:
        """Drop the view of the buffer."""
        self._memory.release()


class Ring:
    """A ring of records for one producer and one consumer."""

    def __init__(self, buffer: Any, record_bytes: int, create: bool = False):
        if record_bytes < 1:
            raise ValueError("a record needs at least one byte")
        memory = self._memory = _words(buffer, _RING_HEADER + record_bytes)
        if create:
            memory[: _RING_HEADER // 8] = memoryview(bytes(_RING_HEADER)).cast("Q")
            memory[_RECORD_BYTES] = record_bytes
            memory[_CAPACITY] = (memoryview(buffer).nbytes - _RING_HEADER) // record_bytes
            memory[_MAGIC] = _RING_MAGIC
        elif memory[_MAGIC] != _RING_MAGIC or memory[_RECORD_BYTES] != record_bytes:
            raise ValueError(f"this memory holds no ring of records of {record_bytes} bytes")

    def _room(self) -> int:
        return self._memory[_CAPACITY] - (self._memory[_HEAD] - self._memory[_TAIL])

    def _pending(self) -> int:
        return self._memory[_HEAD] - self._memory[_TAIL]

    def _wait(
        self, available: Callable[[], int], own: int, total: int, most: int, timeout_s: float
    ) -> tuple[int, int]:
        memory = self._memory
        if not available() and timeout_s > 0:
            start = time.monotonic_ns()
            _sleep_until(lambda: bool(available() or memory[_CLOSED]), timeout_s)
            memory[total] += time.monotonic_ns() - start
        first = memory[own] % memory[_CAPACITY]
        return first, min(available(), most, memory[_CAPACITY] - first)

    def reserve(self, most: int, timeout_s: float = 0.0) -> tuple[int, int]:
        """Return the first record to write and how many follow."""
        return self._wait(self._room, _HEAD, _PRODUCER_WAIT, most, timeout_s)

    def peek(self, most: int, timeout_s: float = 0.0) -> tuple[int, int]:
        """Return the first record to read and how many follow."""
        return self._wait(self._pending, _TAIL, _CONSUMER_WAIT, most, timeout_s)

    def commit(self, count: int) -> None:
        if count > self._room():
            raise ValueError(f"no room for {count} records")
        self._memory[_HEAD] += count

    def give_back(self, count: int) -> None:
        if count > self._pending():
            raise ValueError(f"fewer than {count} records are pending")
        self._memory[_TAIL] += count

    def drop(self, count: int) -> None:
        self._memory[_DROPPED] += count

    def close(self) -> None:
        """End all waits, now and in future."""
        self._memory[_CLOSED] = 1

    def state(self) -> dict[str, Any]:
        names = {
            "capacity": _CAPACITY,
            "handed_over": _HEAD,
            "given_back": _TAIL,
            "dropped": _DROPPED,
            "producer_wait_ns": _PRODUCER_WAIT,
            "consumer_wait_ns": _CONSUMER_WAIT,
        }
        return {name: self._memory[at] for name, at in names.items()} | {
            "closed": bool(self._memory[_CLOSED])
        }

    def release(self) -> None:
        """Drop the view of the buffer."""
        self._memory.release()


class Board:
    """A block of bytes for one writer and many readers."""

    def __init__(self, buffer: Any, bytes: int, create: bool = False):
        if bytes < 8 or bytes % 8:
            raise ValueError("the size of a block must be a multiple of 8 bytes, at least 8")
        self._count = bytes // 8
        memory = self._memory = _words(buffer, _BOARD_HEADER + 2 * bytes)
        if create:
            for at in range(_BOARD_HEADER // 8):
                memory[at] = 0
            memory[1], memory[0] = bytes, _BOARD_MAGIC
        elif memory[0] != _BOARD_MAGIC or memory[1] != bytes:
            raise ValueError(f"this memory holds no board of {bytes} bytes")

    def _slot(self, version: int) -> slice:
        first = _BOARD_HEADER // 8 + version % 2 * self._count
        return slice(first, first + self._count)

    def _checked(self, block: Any) -> memoryview:
        words = memoryview(block).cast("B").cast("Q")
        if len(words) != self._count:
            raise ValueError(
                f"the block has {8 * len(words)} bytes; it needs the board's {8 * self._count}, aligned to 8"
            )
        return words

    def publish(self, block: Any) -> int:
        """Return the version of the new block."""
        words, version = self._checked(block), self._memory[8] + 1
        self._memory[16 + version % 2] = 2 * version - 1
        self._memory[self._slot(version)] = words
        self._memory[16 + version % 2] = 2 * version
        self._memory[8] = version
        return version

    def read(self, into: Any, known: int = 0) -> int:
        """Copy the newest block and return its version; 0 if none is newer than `known`."""
        words = self._checked(into)
        while True:
            version = self._memory[8]
            if version <= known:
                return 0
            if self._memory[16 + version % 2] != 2 * version:
                continue
            words[:] = self._memory[self._slot(version)]
            if self._memory[16 + version % 2] == 2 * version:
                return version

    def version(self) -> int:
        """The newest version; 0 before the first."""
        return self._memory[8]

    def release(self) -> None:
        """Drop the view of the buffer."""
        self._memory.release()


def _sleep_until(condition: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(_NAP_S)
