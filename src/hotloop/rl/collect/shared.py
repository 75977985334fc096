"""Memory that processes share and that vanishes with them: no name, nothing to clean up after any death."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.units import size
from hotloop.machine.health import memory_available_bytes

_NOTE_BYTES = 16_384


class SharedBlock:
    """So many zeroed bytes, mapped into this process and into every process it is sent to.

    It can be sent to a child while the child is being started (fork, spawn, forkserver). Pages are
    allocated at once, so that a machine without the memory says so here and not in the middle of a run.
    """

    def __init__(self, count_bytes: int):
        free = memory_available_bytes()
        if count_bytes > free:
            raise _too_much(count_bytes, f"{size(free)} are free")
        self.count_bytes = count_bytes
        self._file = _nameless_file()
        try:
            os.posix_fallocate(self._file, 0, count_bytes)
            self.memory = mmap.mmap(self._file, count_bytes)
        except OSError as error:
            os.close(self._file)
            raise _too_much(count_bytes, str(error.strerror)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self._file), self.count_bytes)

    def close(self) -> None:
        """Give the memory back; where somebody still holds a view, it goes when the last view does."""
        if self._file >= 0:
            with suppress(BufferError):
                self.memory.close()
            os.close(self._file)
            self._file = -1


class SharedNote:
    """A nameless file a child writes its last words into, by any means down to a signal handler."""

    def __init__(self) -> None:
        self._file = _nameless_file()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_note, (reduction.DupFd(self._file),)

    def fileno(self) -> int:
        """For `faulthandler`."""
        return self._file

    def write(self, text: str) -> None:
        """Add words; the last ones count when there are too many."""
        os.write(self._file, text[-_NOTE_BYTES:].encode(errors="replace"))

    def take(self) -> str:
        """What was written since the last call."""
        text = os.pread(self._file, 4 * _NOTE_BYTES, 0).decode(errors="replace")
        if text:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
        return text

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _attach_note(file: Any) -> SharedNote:
    note = SharedNote.__new__(SharedNote)
    note._file = file.detach()
    return note


def _attach(file: Any, count_bytes: int) -> SharedBlock:
    """The same memory in a process that received it."""
    block = SharedBlock.__new__(SharedBlock)
    block.count_bytes = count_bytes
    block._file = file.detach()
    block.memory = mmap.mmap(block._file, count_bytes)
    return block


def _too_much(count_bytes: int, why: str) -> HotloopError:
    return HotloopError(
        f"{size(count_bytes)} of shared memory cannot be had ({why}); "
        "use fewer collectors, a smaller ring, or a container with more memory."
    )


def _nameless_file() -> int:
    """A file without a name: memory on Linux, an unlinked temporary file elsewhere."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hotloop", os.MFD_CLOEXEC)
    file, path = tempfile.mkstemp(prefix="hotloop-")
    os.unlink(path)
    return file
