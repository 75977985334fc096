"""A kernel that several processes need at the same time is compiled by one of them; the others wait for it.

Collectors, workers and tests start together, and a compiler that runs in each of them for the same kernel
makes all of them wait longer. Who finds nothing on disk takes a lock beside the kept code, looks again, and
gives the lock back once its own code is kept. A lock ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST_S = 600.0  # then it compiles for itself: the other one may have been stopped
LOOK_S = 0.05


class SharedCache:
    """Stands in place of numba's cache of a kernel, with a lock around what is not found in it."""

    _held: tuple[int, SharedCache] | None = None  # descriptor and owner; one for the process

    def __init__(self, kept: Any, is_compiling: Callable[[], bool]):
        """`is_compiling` says whether this process compiles a kernel: one that it calls needs no lock."""
        self._kept, self._is_compiling = kept, is_compiling

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The kept code; when there is none, whoever gets None compiles it and calls `save_overload`."""
        found = self._kept.load_overload(signature, context)
        if found is not None or self._is_compiling():
            return found
        self._give_back()  # of a compilation that failed
        self._take()
        found = self._kept.load_overload(signature, context)
        if found is not None:
            self._give_back()
        return found

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep the code."""
        try:
            self._kept.save_overload(signature, made)
        finally:
            if SharedCache._held is not None and SharedCache._held[1] is self:
                self._give_back()

    def _take(self) -> None:
        """Wait for the lock; without one where the folder cannot be written or knows no locks."""
        file = Path(self._kept.cache_path) / f"{self._kept._impl.filename_base}.lock"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOOK_S)
            except OSError:
                break
            else:
                SharedCache._held = descriptor, self
                return
        os.close(descriptor)

    @staticmethod
    def _give_back() -> None:
        if SharedCache._held is not None:
            with contextlib.suppress(OSError):
                os.close(SharedCache._held[0])
            SharedCache._held = None
