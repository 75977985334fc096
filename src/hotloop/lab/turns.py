"""Locks: one run at a time on this computer, one writer for a series."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hotloop._util.errors import CaptureError

INSIDE = "HOTLOOP_LAB_RUN"  # set in every run: a lab started by a run of a lab does not wait for itself


def turn_file() -> Path:
    """The file whose lock a run holds."""
    return Path(tempfile.gettempdir()) / f"hotloop-lab-{os.getuid()}.lock"


@contextlib.contextmanager
def turn(note: Callable[[str], None], file: Path | None = None) -> Iterator[None]:
    """Wait until no other lab of this user runs anything here."""
    if INSIDE in os.environ:
        yield
        return
    handle = os.open(file or turn_file(), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note("another hotloop is measuring on this computer; waiting for my turn")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a series for writing; raises CaptureError when somebody else does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CaptureError(f"Another hotloop is writing to {folder}; wait for it, or end it.") from None
        yield
    finally:
        os.close(handle)
