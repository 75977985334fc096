"""Weights from the learner to everybody: published with a version, copied whole or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.collect import transport
from hotloop.rl.collect.shared import SharedBlock


class WeightBoard:
    """A flat float32 vector of `size` numbers; one process publishes, the others read the newest."""

    def __init__(self, size: int):
        self.size = size
        self._bytes = (4 * size + 7) // 8 * 8
        self._block = SharedBlock(transport.BOARD_HEADER_BYTES + 2 * self._bytes)
        self._open(create=True)

    def _open(self, create: bool) -> None:
        self._board = transport.Board(self._block.memory, self._bytes, create=create)
        self._scratch = np.zeros(self._bytes // 4, dtype=np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "bytes": self._bytes, "block": self._block}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size, self._bytes, self._block = state["size"], state["bytes"], state["block"]
        self._open(create=False)

    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""
        return int(self._board.version())

    def publish(self, weights: NDArray[np.float32]) -> int:
        """Make these the newest weights; returns their version."""
        self._scratch[: self.size] = weights
        return int(self._board.publish(self._scratch))

    def read(self, into: NDArray[np.float32], known: int = 0) -> int:
        """Copy the newest weights if they are newer than `known`; returns their version, or `known`."""
        version = int(self._board.read(self._scratch, known))
        if version:
            into[:] = self._scratch[: self.size]
        return version or known

    def free(self) -> None:
        """Unmap the memory; the object cannot be used any more."""
        self._board.release()
        self._block.close()
