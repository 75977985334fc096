"""Under `hotloop try`, worker processes follow the switches of the script's own process.

The script shows on a board, eight bytes of a mapped file in the capture, which patches are on. A worker
looks at the board whenever it has received a message, before it works on what the message asks for: the
workers of SubprocVecEnv and AsyncVectorEnv, of a DataLoader and of process pools all wait for messages.
So an env in a worker steps under the arm under which its step was asked for. Before the first switch the
script asks its workers which patches would change anything there; each answers with a file of its own.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from hotloop.instrument.import_hook import ImportHook
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.trial_patches import NAMES, Toggle, all_toggles

BOARD, ANSWERS = "trial-board", "trial-workers"
State = Literal["waiting", "asking", "switching", "over"]
_STATES: tuple[State, ...] = ("waiting", "asking", "switching", "over")
_STATE_SHIFT = 56  # the top byte is the state; bit n below is on when NAMES[n] is
# Where a worker waits for what it is to do next.
RECEIVERS = {
    "multiprocessing.connection": (("Connection", "recv"), ("Connection", "recv_bytes")),
    "multiprocessing.queues": (("Queue", "get"), ("SimpleQueue", "get")),
}


class Board:
    """The eight bytes, in a file that lives as long as the capture; one writer, any number of readers."""

    def __init__(self, folder: Path):
        """Open the board of a capture, or hang one up."""
        self.folder = folder
        handle = os.open(folder / BOARD, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < 8:
                os.ftruncate(handle, 8)
            self._words = memoryview(mmap.mmap(handle, 8)).cast("Q")  # written and read in one piece
        finally:
            os.close(handle)

    @property
    def word(self) -> int:
        """State and names as one number."""
        return self._words[0]

    def show(self, state: State, names: Iterable[str] = ()) -> None:
        """What workers are to do from their next message on."""
        word = _STATES.index(state) << _STATE_SHIFT
        for name in names:
            if name in NAMES:
                word |= 1 << NAMES.index(name)
        self._words[0] = word

    def ask(self) -> None:
        """Have workers say which patches would change anything there."""
        if self.word == 0:
            self.show("asking")

    def answers(self) -> Counter[str]:
        """How many workers each patch would change something in, as far as they have answered."""
        found: Counter[str] = Counter()
        for file in (self.folder / ANSWERS).glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                found.update(json.loads(file.read_text(encoding="utf-8")))
        return found


def read_word(word: int) -> tuple[State, frozenset[str]]:
    """State and names."""
    on = frozenset(name for at, name in enumerate(NAMES) if word >> at & 1)
    return _STATES[word >> _STATE_SHIFT], on


class Follower:
    """In a worker: switches what the board shows, and everything off when it is over."""

    def __init__(self, board: Board, toggles: Callable[[], Sequence[Toggle]] = all_toggles):
        self._board = board
        self._make = toggles
        self._seen = 0
        self._mine: dict[str, Toggle] | None = None  # None until the script has asked
        self._on: list[str] = []

    def look(self) -> None:
        """Do what the board shows, if that is new and this is the thread that works."""
        word = self._board.word
        if word == self._seen or threading.current_thread() is not threading.main_thread():
            return
        self._seen = word
        state, names = read_word(word)
        if self._mine is None and state != "over":
            self._answer()
        self._switch(names if state == "switching" else frozenset())

    def _answer(self) -> None:
        self._mine = {}
        for toggle in self._make():
            with contextlib.suppress(Exception):  # a library that has changed
                if toggle.workers and toggle.why_not() is None:
                    self._mine[toggle.name] = toggle
        with contextlib.suppress(OSError):
            place = self._board.folder / ANSWERS
            place.mkdir(exist_ok=True)
            (place / f"{os.getpid()}.json").write_text(json.dumps(list(self._mine)), encoding="utf-8")

    def _switch(self, names: frozenset[str]) -> None:
        mine = self._mine or {}
        for name in [name for name in reversed(self._on) if name not in names]:
            self._on.remove(name)
            with contextlib.suppress(Exception):
                mine[name].off()
        for name in [name for name in NAMES if name in names and name in mine and name not in self._on]:
            try:
                mine[name].on()
                self._on.append(name)
            except Exception:  # the worker must go on all the same
                with contextlib.suppress(Exception):
                    mine[name].off()
                del mine[name]


def follow(
    board: Board,
    hook: ImportHook,
    into: Patches,
    toggles: Callable[[], Sequence[Toggle]] = all_toggles,
) -> None:
    """From now on this process looks at the board after each message it receives."""
    follower = Follower(board, toggles)

    def make(receive: Any) -> Any:
        def received(*args: Any, **words: Any) -> Any:
            message = receive(*args, **words)
            follower.look()
            return message

        return received

    def patch(module: ModuleType) -> None:
        into.apply(Patch(getattr(module, cls), name, make) for cls, name in RECEIVERS[module.__name__])

    for name in RECEIVERS:
        if name in sys.modules:
            patch(sys.modules[name])
        else:
            hook.also(name, patch)


class InWorkers(Toggle):
    """A patch that would change nothing in the script's own process, but does in its workers."""

    def __init__(self, inner: Toggle):
        self.name, self.line, self.why, self.needs = inner.name, inner.line, inner.why, inner.needs
        self.place, self.between, self.conflicts = inner.place, inner.between, inner.conflicts

    def why_not(self) -> str | None:
        """The workers have said that it would."""
        return None

    def on(self) -> None:
        """The board says it."""

    def off(self) -> None:
        """The board says it."""
