"""A disk that fails: operations that write below a folder are counted, and some of them raise OSError."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
_BY_PATH = ("mkdir", "link", "replace", "rename", "symlink")
_BY_DESCRIPTOR = ("fsync", "ftruncate", "posix_fallocate", "pwrite")


class FailingDisk:
    """Inside `failing`, operation number `fail_at` (from 1) raises; with `forever`, all later ones do."""

    def __init__(self, folder: Path, fail_at: int = 0, error: int = errno.ENOSPC, forever: bool = False):
        self.folder, self.fail_at, self.error, self.forever = str(folder), fail_at, error, forever
        self.operations = 0
        self.failed = ""  # the first operation that did

    def touch(self, what: str) -> None:
        """Count an operation, and fail it if it is its turn."""
        self.operations += 1
        if self.operations == self.fail_at or (self.forever and self.fail_at < self.operations):
            self.failed = self.failed or f"{what}, operation {self.operations}"
            raise OSError(self.error, os.strerror(self.error))

    def holds(self, place: Any) -> bool:
        """Whether a path or a descriptor is below the folder."""
        try:
            name = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.fspath(place)
        except (OSError, TypeError):
            return False
        return isinstance(name, str) and os.path.abspath(name).startswith(self.folder)

    @contextmanager
    def failing(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in (*_BY_PATH, *_BY_DESCRIPTOR):
                stack.enter_context(patch.object(os, name, self._counted(name, getattr(os, name))))
            stack.enter_context(patch.object(os, "open", self._open_descriptor(os.open)))
            stack.enter_context(patch.object(os, "fdopen", self._open_file(os.fdopen)))
            opened = self._open_file(builtins.open)
            stack.enter_context(patch.object(builtins, "open", opened))
            stack.enter_context(patch.object(io, "open", opened))
            yield

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            if any(self.holds(place) for place in args[:2]):
                self.touch(name)
            return real(*args, **how)

        return call

    def _open_descriptor(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *args: Any, **how: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self.holds(path):
                self.touch("open")
            return real(path, flags, *args, **how)

        return call

    def _open_file(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Any, mode: str = "r", *args: Any, **how: Any) -> Any:
            writes = any(letter in mode for letter in "wax+") and self.holds(place)
            if writes and not isinstance(place, int):
                self.touch("open")
            made = real(place, mode, *args, **how)
            return _File(made, self) if writes else made

        return call


class _File:
    """A file whose writes are counted."""

    def __init__(self, file: Any, disk: FailingDisk):
        self._file, self._disk = file, disk

    def write(self, data: Any) -> Any:
        self._disk.touch("write")
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
