"""Locks on files between processes: `fcntl.flock` and `fcntl.lockf`.

Libraries such as filelock and portalocker use these. A lock is a token that whoever holds it alone has taken;
`os.close` gives it back. One that is tried again and again is waited for from the first try on. Shared locks
are not logged, nor are locks on a part of a file, nor those that are given back by closing a Python file: its
`close` cannot be seen. Once a lock is found to be of that sort it is left out.
"""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.instrument.channels.logged_calls import begin_operation, end_operation, now_ns, this_thread
from hotloop.instrument.channels.message_log import NO_CHANNEL, log
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.core_shared import PACKAGE

SAME_WAIT_NS = 300_000_000  # between two tries of one who does nothing else
MOST_FILES = 64
_held: dict[tuple[int, str], int] = {}  # descriptor and function -> channel, while this process holds a lock
_files: dict[str, int] = {}  # channels by key


class _Tries(threading.local):
    key = ""  # of the lock that was tried last, and in vain
    first_ns = last_ns = 0


_tries = _Tries()


def patch_file_locks(module: ModuleType, into: Patches) -> None:
    """`fcntl`, and `os.close`, which gives locks back."""

    def log_lock(f: Any) -> Any:
        name = f.__name__

        def lock(fd: Any, cmd: int, /, *part: Any) -> Any:
            if this_thread.inside or part or _is_ours(sys._getframe(1).f_globals):
                return f(fd, cmd, *part)
            key, number = "", -1
            with suppress_own(OSError, ValueError, TypeError, AttributeError):
                number = fd if isinstance(fd, int) else fd.fileno()
                about = os.fstat(number)
                key = f"{name} {about.st_dev}:{about.st_ino}"
            given_back = _held.get((number, name)) if not cmd & module.LOCK_EX else None
            begun = begin_operation()
            try:
                found = f(fd, cmd, *part)
            except OSError:
                if key and cmd & module.LOCK_NB:
                    _note_try(key, begun[0])
                raise
            if given_back is not None:
                del _held[number, name]
                log.write(given_back, SEND, begun[0], begun[0])
            elif key and cmd & module.LOCK_EX:
                if _held.pop((number, name), None) is not None:  # given back in the meantime, who knows when
                    _files[key] = NO_CHANNEL
                waited = _tries.key == key and begun[0] - _tries.last_ns < SAME_WAIT_NS
                channel = _channel(key)
                if channel >= 0:
                    _held[number, name] = channel
                    end_operation((_tries.first_ns if waited else begun[0], begun[1]), channel, RECEIVE)
                _tries.key = ""
            return found

        return lock

    def log_close(f: Any) -> Any:
        def close(fd: int) -> None:
            if _held:
                _give_back(fd)
            f(fd)

        return close

    into.apply(
        [Patch(module, "flock", log_lock), Patch(module, "lockf", log_lock), Patch(os, "close", log_close)]
    )


def _is_ours(names: dict[str, Any]) -> bool:
    """Whether a call comes from this package, which locks the files that it writes (the log among them)."""
    return str(names.get("__file__") or "").startswith(PACKAGE)


def _note_try(key: str, now: int) -> None:
    if _tries.key != key or now - _tries.last_ns >= SAME_WAIT_NS:
        _tries.key, _tries.first_ns = key, now
    _tries.last_ns = now


def _give_back(descriptor: int) -> None:
    """Log that the locks of a descriptor are given back, as it is about to be closed."""
    now = now_ns()
    for name in ("flock", "lockf"):
        channel = _held.pop((descriptor, name), None)
        if channel is not None:
            log.write(channel, SEND, now, now)


def _channel(key: str) -> int:
    found = _files.get(key)
    if found is None:
        if len(_files) >= MOST_FILES:
            return NO_CHANNEL
        found = _files[key] = log.channel(key, "lock", tokens=1)
    return found


def _forget() -> None:
    """In a forked child: it has another log, and holds none of the locks of lockf."""
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
