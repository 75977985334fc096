"""A lock-free ring of records in shared memory: one process writes, one reads.

Records are rows of a numpy structured type. Both sides work in the ring's own memory: the writer fills rows
that it reserved, the reader copies rows straight to their destination.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.collect import transport
from hotloop.rl.collect.shared_memory import SharedBlock


class RecordRing:
    """`capacity` records of `dtype`; pass it to the process on the other side when that starts."""

    def __init__(self, dtype: np.dtype[Any], capacity: int):
        if capacity < 1:
            raise HotloopError(f"capacity={capacity} is too small for a ring; use at least 1.")
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

    def reserve(self, max_rows: int, timeout_s: float = 0.0) -> NDArray[Any]:
        """Return 1 to `max_rows` rows to fill; none if there was no room in time."""
        first, count = self._ring.reserve(max_rows, timeout_s)
        return self.records[first : first + count]

    def commit(self, count: int) -> None:
        """Hand over the first `count` of the reserved rows."""
        self._ring.commit(count)

    # ---- the reading side

    def peek(self, max_rows: int, timeout_s: float = 0.0) -> NDArray[Any]:
        """Return up to `max_rows` contiguous rows in the ring's own memory; none if none came in time."""
        first, count = self._ring.peek(max_rows, timeout_s)
        return self.records[first : first + count]

    def blocks(self, max_rows: int) -> list[NDArray[Any]]:
        """Return up to `max_rows` rows in one block, or in two where they wrap around."""
        first, count = self._ring.peek(max_rows)
        found = [self.records[first : first + count]] if count else []
        rest = min(max_rows, self.pending()) - count
        if count and rest > 0 and first + count == self.capacity:
            found.append(self.records[:rest])
        return found

    def give_back(self, count: int) -> None:
        """Let the writer reuse the first `count` rows."""
        self._ring.give_back(count)

    # ---- either side

    def close(self) -> None:
        """End all waits on this ring, now and in future."""
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
        """Unmap the memory; the object is unusable afterwards."""
        self._ring.release()
        self.records = self.records[:0].copy()
        self._block.close()
