"""Locks: one lab measures on this machine at a time, and one process writes to a series."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hotloop._util.errors import CaptureError

INSIDE_LAB = "HOTLOOP_LAB_RUN"  # set in every run, so that a lab inside a run does not wait for itself


@contextlib.contextmanager
def machine_lock(note: Callable[[str], None], file: Path | None = None) -> Iterator[None]:
    """Wait until no other lab of this user is measuring on this machine; `note` says so once."""
    if INSIDE_LAB in os.environ:
        yield
        return
    file = file or Path(tempfile.gettempdir()) / f"hotloop-lab-{os.getuid()}.lock"
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note("waiting for another hotloop that is measuring on this machine")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def series_lock(folder: Path) -> Iterator[None]:
    """Hold a series for writing; raises CaptureError when another process does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CaptureError(f"Another hotloop is writing to {folder}; wait for it, or stop it.") from None
        yield
    finally:
        os.close(handle)
