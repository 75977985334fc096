"""Files that are written whole or not at all, and the computer's name as file names spell it.

A file is written under another name in the same folder and then renamed. Its permissions follow the umask; a
file that replaces another one keeps the permissions of that one. The writer holds a lock on the unfinished
file, so that what a killed writer left behind can be told from what is being written, and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hotloop._util.errors import HotloopError
from hotloop._util.interrupts import is_users, suppress_own

UNFINISHED = ".unfinished"  # ends the name of a file that is being written


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` with `content` in one step; a failure leaves the old file and no temporary one."""
    remove_unfinished(path)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def create_exclusively(path: Path, content: str | bytes) -> bool:
    """Write a new file in one step; False when it exists already."""
    remove_unfinished(path)
    with _unfinished(path) as (file, temporary):
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            if is_users(error):
                raise
            return False
    return True


def write_output(file: Path, content: str | bytes, force: bool) -> int:
    """Write a file in one step; returns its size in bytes.

    Without `force` an existing file is left alone, even if it appeared only just now.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        if force:
            write_atomically(file.absolute(), data)
        elif not create_exclusively(file.absolute(), data):
            raise HotloopError(f"{file} exists; choose another name, or replace it with --force.")
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another place.") from error
    return len(data)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file that replaces `path` at the end of the block; an exception leaves `path` as it was.

    With `durable`, its content is on the disk before the old file is gone.
    """
    with _unfinished(path) as (file, temporary):
        with suppress_own(OSError):
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        os.replace(temporary, path)


def remove_unfinished(path: Path) -> None:
    """Remove what writers of `path` left behind when they were killed; those still writing are left alone."""
    _sweep(path.parent, _prefix(path))


def remove_all_unfinished(folder: Path) -> None:
    """The same for all files in a folder."""
    _sweep(folder, ".")


def _sweep(folder: Path, prefix: str) -> None:
    with suppress_own(OSError), os.scandir(folder) as entries:
        left = [one.path for one in entries if one.name.startswith(prefix) and one.name.endswith(UNFINISHED)]
        for file in left:
            _remove_unless_locked(file)


def host_name() -> str:
    """This computer's node name, with characters a file name cannot have replaced by `_`."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in os.uname().nodename) or "host"


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """A new, locked file beside `path` and its name; removed at the end unless it was renamed."""
    descriptor, temporary = _create_locked(path)
    while not os.fstat(descriptor).st_nlink:  # another process took it for a leftover before it was locked
        os.close(descriptor)
        descriptor, temporary = _create_locked(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, temporary
    finally:
        with suppress_own(OSError):
            os.unlink(temporary)


def _create_locked(path: Path) -> tuple[int, str]:
    temporary = str(path.parent / f"{_prefix(path)}{os.urandom(6).hex()}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    with suppress_own(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits at most while another process removes the file
    return descriptor, temporary


def _prefix(path: Path) -> str:
    return f".{os.fsdecode(os.fsencode(path.name)[:200])}."  # names have at most 255 bytes


def _remove_unless_locked(file: str) -> None:
    with suppress_own(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(file)
        finally:
            os.close(descriptor)
