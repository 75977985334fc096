"""Under `hotloop try`, worker processes apply the same patches as the script's own process.

The script publishes the applied patches on a board: eight bytes of a memory-mapped file in the capture. A
worker checks the board after each message it receives, before it acts on the message; the workers of
SubprocVecEnv, AsyncVectorEnv, a DataLoader or a process pool all wait for messages. So an env in a worker
steps under the patches that were applied when its step was requested. Before the first switch the script
asks its workers which patches would have an effect there; each worker answers in a separate file.
"""

from __future__ import annotations

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

from hotloop._util.interrupts import is_users, suppress_own
from hotloop.instrument.import_hook import ImportHook
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.trial_patch import TrialPatch
from hotloop.instrument.trial_patches import NAMES, all_patches

BOARD, ANSWERS = "trial-board", "trial-workers"
State = Literal["waiting", "asking", "switching", "over"]
_STATES: tuple[State, ...] = ("waiting", "asking", "switching", "over")
_STATE_SHIFT = 56  # the top byte is the state; bit n is set when NAMES[n] is applied
# Where workers wait for their next task.
RECEIVERS = {
    "multiprocessing.connection": (("Connection", "recv"), ("Connection", "recv_bytes")),
    "multiprocessing.queues": (("Queue", "get"), ("SimpleQueue", "get")),
}


class Board:
    """Eight shared bytes in a file of the capture; one writer, any number of readers."""

    def __init__(self, folder: Path):
        self.folder = folder
        handle = os.open(folder / BOARD, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < 8:
                os.ftruncate(handle, 8)
            self._words = memoryview(mmap.mmap(handle, 8)).cast("Q")  # read and written atomically
        finally:
            os.close(handle)

    @property
    def word(self) -> int:
        """State and patch names as one number."""
        return self._words[0]

    def show(self, state: State, names: Iterable[str] = ()) -> None:
        """Publish what workers do from their next message on."""
        word = _STATES.index(state) << _STATE_SHIFT
        for name in names:
            if name in NAMES:
                word |= 1 << NAMES.index(name)
        self._words[0] = word

    def ask(self) -> None:
        """Ask workers which patches would have an effect there."""
        if self.word == 0:
            self.show("asking")

    def answers(self) -> Counter[str]:
        """Number of workers in which each patch would have an effect, as far as they have answered."""
        found: Counter[str] = Counter()
        for file in (self.folder / ANSWERS).glob("*.json"):
            with suppress_own(OSError, ValueError):
                found.update(json.loads(file.read_text(encoding="utf-8")))
        return found


def read_word(word: int) -> tuple[State, frozenset[str]]:
    """The state and the names of the applied patches."""
    on = frozenset(name for at, name in enumerate(NAMES) if word >> at & 1)
    return _STATES[word >> _STATE_SHIFT], on


class Follower:
    """In a worker: applies the patches on the board, and undoes them all at the end."""

    def __init__(self, board: Board, patches: Callable[[], Sequence[TrialPatch]] = all_patches):
        self._board = board
        self._make_patches = patches
        self._seen = 0
        self._usable: dict[str, TrialPatch] | None = None  # None until the script has asked
        self._applied: list[str] = []

    def check_board(self) -> None:
        """Follow the board if it has changed and this is the main thread."""
        word = self._board.word
        if word == self._seen or threading.current_thread() is not threading.main_thread():
            return
        self._seen = word
        state, names = read_word(word)
        if self._usable is None and state != "over":
            self._answer()
        self._apply(names if state == "switching" else frozenset())

    def _answer(self) -> None:
        self._usable = {}
        for patch in self._make_patches():
            with suppress_own(Exception):  # a library that has changed
                if patch.in_workers and patch.skip_reason() is None:
                    self._usable[patch.name] = patch
        with suppress_own(OSError):
            place = self._board.folder / ANSWERS
            place.mkdir(exist_ok=True)
            (place / f"{os.getpid()}.json").write_text(json.dumps(list(self._usable)), encoding="utf-8")

    def _apply(self, wanted: frozenset[str]) -> None:
        usable = self._usable or {}
        for name in [name for name in reversed(self._applied) if name not in wanted]:
            self._applied.remove(name)
            with suppress_own(Exception):
                usable[name].undo()
        for name in NAMES:
            if name not in wanted or name not in usable or name in self._applied:
                continue
            try:
                usable[name].apply()
                self._applied.append(name)
            except Exception as error:  # the worker must go on all the same
                if is_users(error):
                    raise
                with suppress_own(Exception):
                    usable[name].undo()
                del usable[name]


def follow(
    board: Board,
    hook: ImportHook,
    into: Patches,
    patches: Callable[[], Sequence[TrialPatch]] = all_patches,
) -> None:
    """From now on, check the board after each message that this process receives."""
    follower = Follower(board, patches)

    def make(receive: Any) -> Any:
        def received(*args: Any, **words: Any) -> Any:
            message = receive(*args, **words)
            follower.check_board()
            return message

        return received

    def patch(module: ModuleType) -> None:
        into.apply(Patch(getattr(module, cls), name, make) for cls, name in RECEIVERS[module.__name__])

    for name in RECEIVERS:
        if name in sys.modules:
            patch(sys.modules[name])
        else:
            hook.also(name, patch)


class InWorkers(TrialPatch):
    """A patch without effect in the script's own process that does have one in its workers."""

    def __init__(self, inner: TrialPatch):
        self.name, self.line, self.why, self.needs = inner.name, inner.line, inner.why, inner.needs
        self.place, self.conflicts = inner.place, inner.conflicts
        self.between_phases = inner.between_phases

    def skip_reason(self) -> str | None:
        return None  # the workers answered that it has an effect

    def apply(self) -> None:
        pass  # workers follow the board

    def undo(self) -> None:
        pass
