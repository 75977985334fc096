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
from hotloop.instrument.channels.logged_calls import Begun, begin_operation, end_operation
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.core_choice import compiled
from hotloop.measure.core_shared import LIBRARIES, PACKAGE

LONG_NS = 100_000  # how long a lock must be held to be logged, if nobody waits for it


def patch_locks(module: ModuleType, into: Patches) -> None:
    """`threading`. Since Python 3.13 `Lock` is a class: a function in its place would break `isinstance`."""
    watched: Any = getattr(compiled, "WatchedLock", None)
    if watched is None:
        return
    folders = (PACKAGE, *LIBRARIES)

    def for_scripts(f: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            found = f(*args, **kwargs)
            file = sys._getframe(1).f_globals.get("__file__") or ""
            if not file or file.startswith(folders):
                return found
            return watched(found, LONG_NS, begin_operation, _waited, _freeing)

        return make

    into.apply([Patch(module, "Lock", for_scripts)])


def _waited(lock: Any, begun: Begun) -> None:
    end_operation(begun, _channel(lock), RECEIVE)


def _freeing(lock: Any, since_ns: int, now_ns: int) -> None:
    channel = _channel(lock)
    if since_ns:
        log.write(channel, RECEIVE, since_ns, since_ns)
    log.write(channel, SEND, now_ns, now_ns)


def _channel(lock: Any) -> int:
    if lock.channel is None:
        lock.channel = log.channel(object_key(lock), "lock", tokens=1)
    found: int = lock.channel
    return found
