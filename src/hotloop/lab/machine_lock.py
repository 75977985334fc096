"""Locks: one lab measures on this machine at a time, and one process writes to a series."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hotloop._util.errors import CaptureError, HotloopError

INSIDE_LAB = "HOTLOOP_LAB_RUN"  # set in every run, so that a lab inside a run does not wait for itself


@contextlib.contextmanager
def machine_lock(note: Callable[[str], None], file: Path | None = None) -> Iterator[None]:
    """Wait until no other lab of this user is measuring on this machine; `note` says so once."""
    if INSIDE_LAB in os.environ:
        yield
        return
    file = file or Path(tempfile.gettempdir()) / f"hotloop-lab-{os.getuid()}.lock"
    handle = _open_lock(file)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note("waiting for another hotloop that is measuring on this machine")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open_lock(file: Path) -> int:
    """A file of ours: others may write to the folder, so it is neither a link nor someone else's."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(file, flags, 0o600)
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise HotloopError(f"{file} cannot be used as a lock ({why}); remove it, or set TMPDIR.") from None
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink != 1:
        os.close(handle)
        raise HotloopError(
            f"{file} cannot be used as a lock (it is no file of this user alone); remove it, or set TMPDIR."
        )
    return handle


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
