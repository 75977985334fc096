"""What one process knows about its libraries: its envs and optimizers.

Written to `libraries/<host>-<pid>-<start>.json` in the capture, at once for what changes rarely and every
few seconds for counts, so that it survives a killed process up to then.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from typing import Any

from hotloop._util.files import host_name, write_atomically
from hotloop._util.interrupts import suppress_own
from hotloop._util.read_files import json_text
from hotloop.measure.profiler import default

FOLDER = "libraries"
SAVE_INTERVAL_NS = 2_000_000_000

run_options: dict[str, Any] = {}  # of `hotloop run`
entry = ""  # "module:function" that records a process which inherits nothing from this one; "": there is none

is_boosted = False  # kernels of ours may step optimizers, and leave those with hooks to torch

_facts: dict[str, Any] = {}
_started_ns = time.time_ns()
_saved_ns = 0
_before_saving: list[Callable[[], None]] = []


def note(name: str, value: Any) -> None:
    """Set a fact and save all of them."""
    _facts[name] = value
    save()


def has(name: str) -> bool:
    """Whether this process has noted the fact."""
    return name in _facts


def changed_again() -> None:
    """Counts inside a fact rose: save them if that was not done for some seconds."""
    if time.monotonic_ns() - _saved_ns > SAVE_INTERVAL_NS:
        save()


def before_saving(update: Callable[[], None]) -> None:
    """Call `update` before facts are saved, which brings counts inside them up to date."""
    _before_saving.append(update)


def save() -> None:
    """Write the facts into the capture; nothing is written without a capture folder."""
    global _saved_ns
    _saved_ns = time.monotonic_ns()
    folder = default.folder
    if folder is None or not default.is_recording or not _facts:
        return
    for update in _before_saving:
        update()
    with suppress_own(OSError):  # a full or vanished disk must not stop training
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        file = folder / FOLDER / f"{host_name()}-{os.getpid()}-{_started_ns}.json"
        write_atomically(file, json_text({"pid": os.getpid(), **_facts}, indent=None))


def note_problem(sentence: str) -> None:
    """Write down what is not recorded, so that reports show it."""
    if default.folder is not None and default.is_recording:
        with suppress_own(OSError):
            (default.folder / "problems").mkdir(exist_ok=True)
            file = default.folder / "problems" / f"{os.uname().nodename}-{os.getpid()}.txt"
            with file.open("a", encoding="utf-8") as out:
                out.write(f"{sentence}\n")


def at_fork(forget: Callable[[], None]) -> None:
    """Call `forget` in forked children, whose facts are their own."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


def _forget_parent() -> None:
    global _started_ns
    _started_ns = time.time_ns()
    for name in ("optimizers", "gradients", "positions"):
        _facts.pop(name, None)


at_fork(_forget_parent)
atexit.register(save)  # runs before the recording ends, which was registered earlier
