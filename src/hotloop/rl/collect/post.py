"""From the learner to every collector: weights with their version, a control value, the word to stop.

published by the learner                        read by each collector before it acts
WeightBoard: version (2 words), weights         `news(known)` copies it when it is newer
words: control, stop, bell_every                plain aligned 8-byte words, each written by one side
bells: news (learner rings), rows (collectors ring)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.collect import transport
from hotloop.rl.collect.board import WeightBoard
from hotloop.rl.collect.shared import SharedBlock

_VERSION_WORDS = 2  # float32 places that hold the version's 64 bits
_CONTROL, _STOP, _BELL_EVERY = 0, 1, 2
_WORDS_AT, _BYTES = 128, 192


class Post:
    """Made by the learner for vectors of `size` numbers; sent to collectors when they are started."""

    def __init__(self, size: int, control: float = 0.0):
        self.size = size
        self.board = WeightBoard(size + _VERSION_WORDS)
        self._block = SharedBlock(_BYTES)
        self._open()
        self.version = 0
        self.control = control
        self._words[_BELL_EVERY] = 1

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

    def publish(self, weights: NDArray[np.float32], version: int | None) -> int:
        """Make these the newest weights, called `version`, or one more than the last; returns that."""
        given = np.asarray(weights)
        if given.shape != (self.size,) or given.dtype != np.float32:
            raise HotloopError(
                f"weights of shape {given.shape} and type {given.dtype} do not fit; publish a flat float32 "
                f"vector of the {self.size} numbers the task names."
            )
        number = self.version + 1 if version is None else int(version)
        if number <= self.version:
            raise HotloopError(
                f"version={number} is not newer than {self.version}; versions only go up, from 1."
            )
        self._vector[:_VERSION_WORDS].view(np.uint64)[0] = number
        self._vector[_VERSION_WORDS:] = given
        self.board.publish(self._vector)
        self.version = number
        self.news.ring()
        return number

    def stop(self) -> None:
        """Ask all collectors to end."""
        self._words[_STOP] = 1
        self.news.ring()

    # ---- the collectors' side

    def newest(self, known: int) -> tuple[int, int, NDArray[np.float32]] | None:
        """Weights newer than the board's `known`: its number, their version, the vector, overwritten next."""
        if self.board.version <= known:
            return None
        number = self.board.read(self._vector, known)
        version = int(self._vector[:_VERSION_WORDS].view(np.uint64)[0])
        return number, version, self._vector[_VERSION_WORDS:]

    @property
    def stopped(self) -> bool:
        """Whether the learner has asked to end."""
        return bool(self._words[_STOP])

    # ---- either side

    @property
    def control(self) -> float:
        """The learner's newest control value."""
        return float(self._numbers[_CONTROL])

    @control.setter
    def control(self, value: float) -> None:
        self._numbers[_CONTROL] = value

    @property
    def bell_every(self) -> int:
        """A collector rings `rows` after so many rows, so that a learner waiting for many sleeps on."""
        return int(self._words[_BELL_EVERY])

    @bell_every.setter
    def bell_every(self, rows: int) -> None:
        self._words[_BELL_EVERY] = max(1, rows)

    def free(self) -> None:
        """Unmap the memory; the object cannot be used any more."""
        self.board.free()
        self.news.release()
        self.rows.release()
        self._words = self._words.copy()
        self._numbers = self._words.view(np.float64)
        self._block.close()
