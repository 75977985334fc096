"""Memory that processes share and that vanishes with them: no name, nothing to clean up after any death."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.units import size
from hotloop.machine.health import memory_available_bytes


class SharedBlock:
    """So many zeroed bytes, mapped into this process and into every process it is sent to.

    It can be sent to a child while the child is being started (fork, spawn, forkserver). Pages are
    allocated at once, so that a machine without the memory says so here and not in the middle of a run.
    """

    def __init__(self, count_bytes: int):
        free = memory_available_bytes()
        if free is not None and count_bytes > free:
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
        """Unmap; views into the memory must be gone by then."""
        if self._file >= 0:
            self.memory.close()
            os.close(self._file)
            self._file = -1


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
