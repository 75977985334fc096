"""Logs what goes through TCP sockets between processes of this computer, and who waits for it.

A socket has no messages, only bytes: the log counts bytes, and the analysis finds out which `recv` waited for
which `send`. `selectors` is where asyncio waits for whichever socket has something.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.instrument.channels.identity import socket_ends
from hotloop.instrument.channels.logged_calls import call_logged, peek_logged, this_thread
from hotloop.instrument.channels.message_log import NO_CHANNEL, log
from hotloop.instrument.patch import Patch, Patches

NOWHERE = (NO_CHANNEL, NO_CHANNEL)
_OTHER_MAKERS = ("asyncio", "multiprocessing", "hotloop")  # of pairs that are part of something else


class _SocketChannels:
    """The channels of each connection, by socket and by file descriptor: of what it sends, and receives."""

    def __init__(self) -> None:
        self._by_socket: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self.by_descriptor: dict[int, tuple[int, int]] = {}
        self._lock = threading.RLock()

    def find(self, one: Any) -> tuple[int, int]:
        found = self._by_socket.get(one)
        if found is None:
            found = _channels_of(one)
            with self._lock:
                self._by_socket[one] = self.by_descriptor[one.fileno()] = found
        return found

    def add_pair(self, one: Any, other: Any) -> None:
        """Both ends of a pair, which this process and its forked children use."""
        ends = [f"socket pair {os.getpid()} {end.fileno()} {id(end):x}" for end in (one, other)]
        with self._lock:
            self._by_socket[one] = self.by_descriptor[one.fileno()] = _between(ends[0], ends[1])
            self._by_socket[other] = self.by_descriptor[other.fileno()] = _between(ends[1], ends[0])


_channels = _SocketChannels()


def _channels_of(one: Any) -> tuple[int, int]:
    ends = socket_ends(one)
    return NOWHERE if ends is None else _between(*ends)


def _between(here: str, there: str) -> tuple[int, int]:
    goes, comes = f"{here} -> {there}", f"{there} -> {here}"
    return log.channel(goes, "socket", peer=comes), log.channel(comes, "socket", peer=goes)


def _sending(amount: Callable[..., int]) -> Callable[[Any], Any]:
    def make(f: Any) -> Any:
        def call(self: Any, *args: Any) -> Any:
            return call_logged(f, _channels.find(self)[0], SEND, amount, self, *args)

        return call

    return make


def _receiving(amount: Callable[..., int]) -> Callable[[Any], Any]:
    def make(f: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return call_logged(f, _channels.find(self)[1], RECEIVE, amount, self, *args, **kwargs)

        return call

    return make


def _bytes_in(_: Any, __: Any, data: Any, *more: Any) -> int:
    return memoryview(data).nbytes


def _result(count: int, *_: Any) -> int:
    return count


def _length(data: bytes, *_: Any) -> int:
    return len(data)


def patch_socket(module: ModuleType, into: Patches) -> None:
    """`socket`."""

    def remember_pair(f: Any) -> Any:
        def socketpair(*args: Any, **kwargs: Any) -> Any:
            made = f(*args, **kwargs)
            maker = sys._getframe(1).f_globals.get("__name__", "")
            if maker.partition(".")[0] not in _OTHER_MAKERS:
                with suppress_own(Exception):
                    _channels.add_pair(*made)
            return made

        return socketpair

    into.apply(
        [
            Patch(module, "socketpair", remember_pair),
            Patch(module.socket, "send", _sending(_result)),
            Patch(module.socket, "sendall", _sending(_bytes_in)),
            Patch(module.socket, "recv", _receiving(_length)),
            Patch(module.socket, "recv_into", _receiving(_result)),
        ]
    )


def patch_selectors(module: ModuleType, into: Patches) -> None:
    """`selectors`: waiting for whichever socket has something, as asyncio does."""

    def selecting(f: Any) -> Any:
        def select(self: Any, timeout: float | None = None) -> Any:
            if timeout is not None and timeout <= 0:
                this_thread.selected = None
                return f(self, timeout)
            return peek_logged(f, _first_socket, self, timeout)

        return select

    for name in ("EpollSelector", "PollSelector", "SelectSelector", "KqueueSelector"):
        if hasattr(module, name):
            into.apply([Patch(getattr(module, name), "select", selecting)])


def _first_socket(events: Any) -> int:
    for key, _ in events:
        channel = _channels.by_descriptor.get(key.fd, NOWHERE)[1]
        if channel >= 0:
            return channel
    return NO_CHANNEL
