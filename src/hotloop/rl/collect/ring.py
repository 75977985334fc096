"""A ring of records in shared memory: one process writes, one reads, neither takes a lock.

Records are rows of a numpy structured type. Both sides work on the ring's own memory: the writer fills
rows it has reserved, the reader copies rows straight to where they belong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.collect import transport
from hotloop.rl.collect.shared import SharedBlock


class RecordRing:
    """`capacity` records of `dtype`; send it to the process on the other side when that is started."""

    def __init__(self, dtype: np.dtype[Any], capacity: int):
        if capacity < 1:
            raise HotloopError(f"a ring of {capacity} records cannot hand anything over; use at least 1.")
        self.dtype = dtype
        self._block = SharedBlock(transport.RING_HEADER_BYTES + capacity * dtype.itemsize)
        self._open(create=True)

    def _open(self, create: bool) -> None:
        self._ring = transport.Ring(self._block.memory, self.dtype.itemsize, create=create)
        self.capacity: int = self._ring.state()["capacity"]
        self.records: NDArray[Any] = np.frombuffer(
            self._block.memory, dtype=self.dtype, count=self.capacity, offset=transport.RING_HEADER_BYTES
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "block": self._block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.dtype, self._block = state["dtype"], state["block"]
        self._open(create=False)

    # ---- the writing side

    def reserve(self, most: int, timeout_s: float = 0.0) -> NDArray[Any]:
        """Rows to fill, at least one and at most `most`; empty when there was no room in time."""
        first, count = self._ring.reserve(most, timeout_s)
        return self.records[first : first + count]

    def commit(self, count: int) -> None:
        """Hand over the first `count` of the rows reserved."""
        self._ring.commit(count)

    def push(self, rows: NDArray[Any], timeout_s: float = 0.0) -> int:
        """Copy rows in and hand them over; returns how many went in before the time was up."""
        done = 0
        while done < len(rows):
            room = self.reserve(len(rows) - done, timeout_s)
            if not len(room):
                break
            room[:] = rows[done : done + len(room)]
            self.commit(len(room))
            done += len(room)
        return done

    def drop(self, count: int) -> None:
        """Count rows that were thrown away because there was no room."""
        self._ring.drop(count)

    # ---- the reading side

    def peek(self, most: int, timeout_s: float = 0.0) -> NDArray[Any]:
        """Rows handed over, at most `most`, in the ring's own memory; empty when none came in time."""
        first, count = self._ring.peek(most, timeout_s)
        return self.records[first : first + count]

    def blocks(self, most: int) -> list[NDArray[Any]]:
        """All rows handed over, at most `most`, as one run or, around the end of the memory, two."""
        first, count = self._ring.peek(most)
        found = [self.records[first : first + count]] if count else []
        rest = min(most, self.pending()) - count
        if count and rest > 0 and first + count == self.capacity:
            found.append(self.records[:rest])
        return found

    def give_back(self, count: int) -> None:
        """The first `count` of the rows peeked at may be written again."""
        self._ring.give_back(count)

    # ---- either side

    def close(self) -> None:
        """Wake who waits on this ring; nobody will wait on it again."""
        self._ring.close()

    def pending(self) -> int:
        """Rows handed over and not yet given back."""
        state = self._ring.state()
        return int(state["handed_over"] - state["given_back"])

    def state(self) -> dict[str, Any]:
        """capacity, handed_over, given_back, dropped, producer_wait_ns, consumer_wait_ns, closed."""
        found: dict[str, Any] = self._ring.state()
        return found

    def free(self) -> None:
        """Unmap the memory; the object cannot be used any more."""
        self._ring.release()
        self.records = self.records[:0].copy()
        self._block.close()
