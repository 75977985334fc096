"""Locks between threads, where someone waits for them or holds them for long.

`threading.Lock` makes an object in C, whose methods cannot be replaced, so a script gets one of ours. Locks
of libraries stay as they are. Most locks are held for a microsecond, thousands of times in a second: only
what takes long enough to matter is logged, always an `acquire` together with its `release`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.instrument.channels.identity import object_key
from hotloop.instrument.channels.logged_calls import begin_operation, end_operation, now_ns
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.core_shared import LIBRARIES, PACKAGE

LONG_NS = 100_000  # what a lock must be held for to be logged, if nobody waits for it


def patch_locks(module: ModuleType, into: Patches) -> None:
    """`threading`."""
    if isinstance(module.Lock, type):  # since Python 3.13; a function would break `isinstance`
        return
    folders = (PACKAGE, *LIBRARIES)

    def for_scripts(f: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            found = f(*args, **kwargs)
            file = sys._getframe(1).f_globals.get("__file__") or ""
            return LoggedLock(found) if file and not file.startswith(folders) else found

        return make

    into.apply([Patch(module, "Lock", for_scripts)])


class LoggedLock:
    """A lock of `threading` that logs long holds and waits."""

    __slots__ = ("__weakref__", "_channel", "_is_logged", "_lock", "_since_ns")

    def __init__(self, lock: Any):
        self._lock = lock
        self._channel: int | None = None
        self._since_ns = 0  # the last acquire
        self._is_logged = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of the lock itself."""
        if self._lock.acquire(False):
            self._since_ns, self._is_logged = now_ns(), False
            return True
        if not blocking:
            return False
        begun = begin_operation()
        if not self._lock.acquire(True, timeout):
            return False
        self._is_logged = True
        end_operation(begun, self._find_channel(), RECEIVE)
        return True

    __enter__ = acquire

    def release(self) -> None:
        """As of the lock itself."""
        now = now_ns()
        # Before the lock is free: its operations are logged in the order in which they happen.
        if (self._is_logged or now - self._since_ns > LONG_NS) and self._lock.locked():
            channel = self._find_channel()
            if not self._is_logged:
                log.write(channel, RECEIVE, self._since_ns, self._since_ns)
            log.write(channel, SEND, now, now)
        self._lock.release()  # raises if nobody holds it

    def __exit__(self, *error: object) -> None:
        self.release()

    def _find_channel(self) -> int:
        if self._channel is None:
            self._channel = log.channel(object_key(self), "lock", tokens=1)
        return self._channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._lock.__reduce_ex__(protocol)  # raises

    def __repr__(self) -> str:
        return repr(self._lock)
