"""Anonymous shared memory: it has no name, so nothing needs cleaning up however a process dies."""

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
    """Zeroed bytes, mapped into this process and into every child that receives the object at its start.

    Pages are allocated at once, so that a lack of memory is noticed here and not in the middle of a run.
    """

    def __init__(self, n_bytes: int):
        free = memory_available_bytes()
        if n_bytes > free:
            raise _not_enough_memory(n_bytes, f"{size(free)} are free")
        self.n_bytes = n_bytes
        self._file = _open_anonymous_file()
        try:
            os.posix_fallocate(self._file, 0, n_bytes)
            self.memory = mmap.mmap(self._file, n_bytes)
        except OSError as error:
            os.close(self._file)
            raise _not_enough_memory(n_bytes, str(error.strerror)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_block, (reduction.DupFd(self._file), self.n_bytes)

    def close(self) -> None:
        """Unmap the memory, or leave that to the last view of it."""
        if self._file >= 0:
            with suppress(BufferError):
                self.memory.close()
            os.close(self._file)
            self._file = -1


class SharedNote:
    """An anonymous file for a child's traceback; even a signal handler can write to it."""

    def __init__(self) -> None:
        self._file = _open_anonymous_file()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_note, (reduction.DupFd(self._file),)

    def fileno(self) -> int:
        return self._file

    def write(self, text: str) -> None:
        """Append text; only the end of a long one is kept."""
        os.write(self._file, text[-_NOTE_BYTES:].encode(errors="replace"))

    def take(self) -> str:
        """Return what was written since the last call."""
        text = os.pread(self._file, 4 * _NOTE_BYTES, 0).decode(errors="replace")
        if text:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
        return text

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _attach_note(file: Any) -> SharedNote:
    note = SharedNote.__new__(SharedNote)
    note._file = file.detach()
    return note


def _attach_block(file: Any, n_bytes: int) -> SharedBlock:
    block = SharedBlock.__new__(SharedBlock)
    block.n_bytes = n_bytes
    block._file = file.detach()
    block.memory = mmap.mmap(block._file, n_bytes)
    return block


def _not_enough_memory(n_bytes: int, why: str) -> HotloopError:
    return HotloopError(
        f"Could not allocate {size(n_bytes)} of shared memory ({why}); "
        "use fewer collectors, a smaller ring, or a container with more memory."
    )


def _open_anonymous_file() -> int:
    """Memory on Linux, an unlinked temporary file elsewhere."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hotloop", os.MFD_CLOEXEC)
    file, path = tempfile.mkstemp(prefix="hotloop-")
    os.unlink(path)
    return file
