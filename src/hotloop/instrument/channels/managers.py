"""Messages through the server of a `multiprocessing.Manager`: its queues, locks and semaphores.

A proxy asks the server over a connection and waits for the answer. Whoever waits there waits for another
proxy of the same object, not for the server, so the call of the proxy is what is logged.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.instrument.channels.logged_calls import (
    begin_operation,
    end_operation,
    find_channel,
    this_thread,
)
from hotloop.instrument.channels.message_log import NO_CHANNEL, log
from hotloop.instrument.patch import Patch, Patches

QUEUES = ("Queue", "JoinableQueue")
TOKENS = {"Lock": 1, "Semaphore": 1, "BoundedSemaphore": 1}  # initial value unless given
_KINDS = {"put": SEND, "get": RECEIVE, "acquire": RECEIVE, "release": SEND}
_SERVERS = ("serve_forever", "accepter", "handle_request", "serve_client")  # functions of its threads
_sizes: dict[str, int] = {}  # of objects that this process has made, by key: places or tokens


def patch_managers(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.managers`."""
    makers = [
        Patch(module.SyncManager, name, _remember_size)
        for name in (*QUEUES, *TOKENS)
        if name in vars(module.SyncManager)
    ]
    into.apply(
        [
            Patch(module.BaseProxy, "_callmethod", _log_call),
            *(Patch(module.Server, name, _never_log_server) for name in _SERVERS),
            *makers,
        ]
    )


def _log_call(f: Any) -> Any:
    def _callmethod(self: Any, methodname: str, args: Any = (), kwds: Any = {}) -> Any:  # noqa: B006
        kind = _KINDS.get(methodname)
        if kind is None or this_thread.inside:
            return f(self, methodname, args, kwds)
        this_thread.inside = True
        try:
            begun = begin_operation()
            found = f(self, methodname, args, kwds)
        finally:
            this_thread.inside = False
        failed = methodname == "acquire" and not found
        end_operation(begun, NO_CHANNEL if failed else find_channel(self, _proxy_channel), kind)
        return found

    return _callmethod


def _key(proxy: Any) -> str:
    return f"manager {proxy._token.address} {proxy._token.id}"


def _proxy_channel(proxy: Any) -> int:
    name, key = proxy._token.typeid, _key(proxy)
    if name in QUEUES:
        return log.channel(key, "queue", capacity=_sizes.get(key) or None)
    if name in TOKENS:
        tokens = _sizes.get(key, -1)  # not made here: known by its counts
        return log.channel(key, "lock" if name == "Lock" else "semaphore", tokens=tokens)
    return NO_CHANNEL


def _remember_size(f: Any) -> Any:
    """Wrap `SyncManager.Queue` and the like: remember how many places or tokens it has."""

    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = f(self, *args, **kwargs)
        with suppress_own(Exception):
            name = made._token.typeid
            given = args[0] if args else kwargs.get("maxsize", kwargs.get("value", TOKENS.get(name, 0)))
            _sizes[_key(made)] = max(int(given), 0)
        return made

    return make


def _never_log_server(f: Any) -> Any:
    """A thread of the server only does what a proxy asks for."""

    def serve(*args: Any, **kwargs: Any) -> Any:
        this_thread.inside = True
        return f(*args, **kwargs)

    return serve
