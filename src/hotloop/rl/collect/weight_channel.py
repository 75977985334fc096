"""The learner's channel to all collectors: weights with their version, a control value, the stop signal.

the learner publishes                           each collector reads before it acts
WeightBoard: version (2 words), weights         `newest(known)` copies them if they are newer
words: control, stop, wake_every                aligned 8-byte words, each written by one side
bells: news (rung by the learner), rows (rung by collectors)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.collect import transport
from hotloop.rl.collect.shared_memory import SharedBlock

_VERSION_WORDS = 2  # float32 elements that hold the version's 64 bits
_CONTROL, _STOP, _WAKE_EVERY = 0, 1, 2
_WORDS_AT, _BYTES = 128, 192


class WeightBoard:
    """A flat float32 vector; one process publishes, others copy the newest one whole or not at all."""

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
        """Return the version of the new weights."""
        self._scratch[: self.size] = weights
        return int(self._board.publish(self._scratch))

    def read(self, into: NDArray[np.float32], known: int = 0) -> int:
        """Copy the newest weights if they are newer than `known`; return their version, or `known`."""
        version = int(self._board.read(self._scratch, known))
        if version:
            into[:] = self._scratch[: self.size]
        return version or known

    def free(self) -> None:
        """Unmap the memory; the object is unusable afterwards."""
        self._board.release()
        self._block.close()


def check_weights(weights: NDArray[np.float32], size: int, version: int | None, latest: int) -> int:
    """The version of weights that are published after `latest`; raises HotloopError if they do not fit."""
    given = np.asarray(weights)
    if given.shape != (size,) or given.dtype != np.float32:
        raise HotloopError(
            f"weights has shape {given.shape} and type {given.dtype}; publish a flat float32 vector of "
            f"n_weights={size} numbers."
        )
    number = latest + 1 if version is None else int(version)
    if number <= latest:
        raise HotloopError(f"version={number} is not newer than {latest}; versions must increase.")
    return number


class WeightChannel:
    """Created by the learner for vectors of `size` elements; passed to collectors when they start."""

    def __init__(self, size: int, control: float = 0.0):
        self.size = size
        self.board = WeightBoard(size + _VERSION_WORDS)
        self._block = SharedBlock(_BYTES)
        self._open()
        self.version = 0
        self.control = control
        self._words[_WAKE_EVERY] = 1

    def _open(self) -> None:
        memory = self._block.memory
        self.news = transport.Bell(memoryview(memory)[:64])
        self.rows = transport.Bell(memoryview(memory)[64:128])
        self._words = np.frombuffer(memory, dtype=np.uint64, count=8, offset=_WORDS_AT)
        self._numbers = self._words.view(np.float64)
        self._vector = np.zeros(self.size + _VERSION_WORDS, dtype=np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return {"size": self.size, "board": self.board, "block": self._block, "version": self.version}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size, self.board, self._block = state["size"], state["board"], state["block"]
        self.version = state["version"]
        self._open()

    # ---- the learner's side

    def send(self, weights: NDArray[np.float32] | None, version: int | None, control: float | None) -> int:
        """Send what is not None, see `Collector.publish`; return the latest version."""
        if control is not None:
            self.control = control
        if weights is not None:
            self.publish(weights, version)
        return self.version

    def publish(self, weights: NDArray[np.float32], version: int | None) -> None:
        """Send new weights as `version`, by default the last one plus 1."""
        number = check_weights(weights, self.size, version, self.version)
        self._vector[:_VERSION_WORDS].view(np.uint64)[0] = number
        self._vector[_VERSION_WORDS:] = weights
        self.board.publish(self._vector)
        self.version = number
        self.news.ring()

    def stop(self) -> None:
        """Ask all collectors to stop."""
        self._words[_STOP] = 1
        self.news.ring()

    # ---- the collectors' side

    def newest(self, known: int) -> tuple[int, int, NDArray[np.float32]] | None:
        """Return the board's number, the version and the weights if the number is above `known`.

        The next call overwrites the vector.
        """
        if self.board.version <= known:
            return None
        number = self.board.read(self._vector, known)
        version = int(self._vector[:_VERSION_WORDS].view(np.uint64)[0])
        return number, version, self._vector[_VERSION_WORDS:]

    @property
    def stopped(self) -> bool:
        return bool(self._words[_STOP])

    # ---- either side

    @property
    def control(self) -> float:
        """The learner's latest control value."""
        return float(self._numbers[_CONTROL])

    @control.setter
    def control(self, value: float) -> None:
        self._numbers[_CONTROL] = value

    @property
    def wake_every(self) -> int:
        """A collector rings `rows` after this many rows, so a learner that wants many sleeps until then."""
        return int(self._words[_WAKE_EVERY])

    @wake_every.setter
    def wake_every(self, rows: int) -> None:
        self._words[_WAKE_EVERY] = max(1, rows)

    def free(self) -> None:
        """Unmap the memory; the object is unusable afterwards."""
        self.board.free()
        self.news.release()
        self.rows.release()
        self._words = self._words.copy()
        self._numbers = self._words.view(np.float64)
        self._block.close()
