"""Identifies channels: a key that is the same in every process, the other end of a pipe, the capacity."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from hotloop._util.interrupts import suppress_own

MOST_ENDS = 16_384
_READER = "_hotloop_reader"  # attribute of a queue: its key
_other_ends: dict[str, str] = {}  # of pipes that this process has made: one end -> the other


def descriptor_key(descriptor: int) -> str:
    """The key of one end of a pipe, on this host."""
    about = os.fstat(descriptor)
    return f"{about.st_dev}:{about.st_ino}"


def object_key(thing: Any) -> str:
    """The key of something that only the threads of this process can use."""
    return f"object {os.getpid()} {id(thing):x}"


def socket_ends(one: Any) -> tuple[str, str] | None:
    """The keys of both ends of a TCP connection, its own first; None unless both are on this computer."""
    import socket  # the script has done it already

    with suppress_own(OSError, ValueError, TypeError):
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.type & socket.SOCK_STREAM:
            here, there = one.getsockname()[:2], one.getpeername()[:2]
            if here[0] == there[0]:
                return f"socket {here[0]}:{here[1]}", f"socket {there[0]}:{there[1]}"
    return None


def semaphore_name(lock: Any) -> str:
    """The name of a semaphore between processes; one without a name is inherited, at the same address."""
    return str(lock._semlock.name or hex(lock._semlock.handle))


# -- pipes -----------------------------------------------------------------------------------------


def remember_ends(pipe: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `multiprocessing.Pipe`: remember which two ends belong together."""

    def remembering(duplex: bool = True) -> Any:
        one, other = pipe(duplex)
        with suppress_own(Exception):
            here, there = descriptor_key(one.fileno()), descriptor_key(other.fileno())
            if len(_other_ends) < MOST_ENDS:
                _other_ends[here], _other_ends[there] = there, here
        return one, other

    return remembering


def other_end(key: str) -> str | None:
    """The key of the other end of a pipe; None if this process has not made it."""
    return _other_ends.get(key)


def pipe_bytes(descriptor: int) -> int:
    """How many bytes a pipe holds before whoever writes to it has to wait."""
    import fcntl  # lazy: not on every system

    return (
        fcntl.fcntl(descriptor, getattr(fcntl, "F_GETPIPE_SZ", 1032)) if sys.platform == "linux" else 65_536
    )


# -- queues ----------------------------------------------------------------------------------------


def queue_key(queue: Any) -> str:
    """The key of a queue between processes: that of the end from which it is read."""
    return getattr(queue, _READER, None) or descriptor_key(queue._reader.fileno())


def remember_reader(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `SimpleQueue.__init__`: remember the key, as workers of a pool close the reader."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        with suppress_own(Exception):
            setattr(self, _READER, descriptor_key(self._reader.fileno()))

    return __init__


def queue_capacity(queue: Any) -> int | None:
    """How many messages a queue between processes can hold; None: no limit."""
    # Lazy: a process with a queue has loaded it.
    from _multiprocessing import SemLock  # type: ignore[import-not-found]

    maxsize = int(getattr(queue, "_maxsize", SemLock.SEM_VALUE_MAX))  # a SimpleQueue has none
    return maxsize if maxsize < SemLock.SEM_VALUE_MAX else None


def thread_queue_capacity(queue: Any) -> int | None:
    """How many messages a queue between threads can hold; None: no limit."""
    return int(queue.maxsize) if queue.maxsize > 0 else None
