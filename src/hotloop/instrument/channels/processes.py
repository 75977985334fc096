"""Messages between processes: pipes, queues, semaphores, locks and events of multiprocessing."""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import PEEK, RECEIVE, SEND, WAKE
from hotloop.instrument.channels.identity import (
    descriptor_key,
    other_end,
    pipe_bytes,
    queue_capacity,
    queue_key,
    remember_reader,
    semaphore_name,
)
from hotloop.instrument.channels.logged_calls import (
    begin_operation,
    end_operation,
    find_channel,
    log_event_wait,
    log_get,
    log_look,
    logged,
    peek_logged,
    set_channel,
    this_thread,
)
from hotloop.instrument.channels.message_log import NO_CHANNEL, log
from hotloop.instrument.patch import Patch, Patches

MEASURED = 4  # messages of a SimpleQueue, to know how many its pipe holds
_SIZES = "_hotloop_sizes"  # attribute of a SimpleQueue: of the messages measured so far, in bytes
_TO_MEASURE = "_hotloop_to_measure"  # attribute of a SimpleQueue: messages to be measured
_TOKENS = "_hotloop_tokens"  # attribute of a semaphore: its initial value


# -- pipes -----------------------------------------------------------------------------------------


def patch_connection(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.connection`: pipes, one message at a time, and waiting for several of them."""
    into.apply(
        [
            Patch(module.Connection, "send", logged(SEND, _pipe_channel)),
            Patch(module.Connection, "recv", logged(RECEIVE, _pipe_channel)),
            Patch(module.Connection, "send_bytes", logged(SEND, _pipe_channel)),
            Patch(module.Connection, "recv_bytes", logged(RECEIVE, _pipe_channel)),
            Patch(module.Connection, "recv_bytes_into", logged(RECEIVE, _pipe_channel)),
            Patch(module.Connection, "poll", _log_poll),
            Patch(module, "Client", _never_log_connection),
            Patch(module.SocketListener, "accept", _never_log_connection),
            Patch(module, "wait", _log_wait),
        ]
    )


def _pipe_channel(connection: Any) -> int:
    key = descriptor_key(connection.fileno())
    return log.channel(key, "pipe", peer=other_end(key))


def _never_log_connection(f: Any) -> Any:
    """Connections to servers, such as those that pass file descriptors on: one for each, and soon closed."""

    def connect(*args: Any, **kwargs: Any) -> Any:
        inside, this_thread.inside = this_thread.inside, True  # both ends prove who they are
        try:
            made = f(*args, **kwargs)
        finally:
            this_thread.inside = inside
        with suppress_own(Exception):
            set_channel(made, NO_CHANNEL)
        return made

    return connect


def _log_poll(f: Any) -> Any:
    peek, look = logged(PEEK, _pipe_channel)(f), log_look(_pipe_channel)(f)

    def poll(self: Any, timeout: float | None = 0.0) -> Any:
        return look(self, timeout) if timeout == 0.0 else peek(self, timeout)

    return poll


def _log_wait(f: Any) -> Any:
    def wait(object_list: Any, timeout: float | None = None) -> Any:
        if timeout == 0.0:
            return f(object_list, timeout)
        return peek_logged(f, _channel_of_first, object_list, timeout)

    return wait


def _channel_of_first(ready: Any) -> int:
    first = ready[0] if ready else None
    return find_channel(first, _pipe_channel) if hasattr(first, "recv") else NO_CHANNEL


# -- queues ----------------------------------------------------------------------------------------


def patch_queues(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.queues`."""
    into.apply(
        [
            Patch(module.Queue, "get", log_get(_queue_channel)),
            Patch(module.Queue, "empty", log_look(_queue_channel, operator.not_)),
            Patch(module.Queue, "qsize", log_look(_queue_channel)),
            Patch(module.Queue, "put", logged(SEND, _queue_channel)),
            Patch(module.Queue, "_feed", _never_log_thread),
            Patch(module.SimpleQueue, "get", logged(RECEIVE, _simple_queue_channel)),
            Patch(module.SimpleQueue, "empty", log_look(_simple_queue_channel, operator.not_)),
            Patch(module.SimpleQueue, "put", _log_put),
            Patch(module.SimpleQueue, "__init__", remember_reader),
        ]
    )


def _queue_channel(queue: Any) -> int:
    return log.channel(queue_key(queue), "queue", capacity=queue_capacity(queue))


def _simple_queue_channel(queue: Any) -> int:
    return log.channel(queue_key(queue), "simple_queue")


def _log_put(f: Any) -> Any:
    """`put` of a SimpleQueue: it blocks while the pipe is full, so the size of the first messages matters."""
    put = logged(SEND, _simple_queue_channel)(f)

    def measured(self: Any, obj: Any) -> Any:
        left = getattr(self, _TO_MEASURE, MEASURED)
        if left <= 0 or this_thread.inside:
            return put(self, obj)
        sizes, writer = getattr(self, _SIZES, []), self._writer

        def send_bytes(data: Any, *more: Any) -> None:
            sizes.append(len(data))
            type(writer).send_bytes(writer, data, *more)

        writer.send_bytes = send_bytes
        try:
            found = put(self, obj)
        finally:
            vars(writer).pop("send_bytes", None)
        with suppress_own(Exception):
            setattr(self, _SIZES, sizes)
            setattr(self, _TO_MEASURE, left - 1)
            if left == 1 and sizes:
                places = pipe_bytes(writer.fileno()) * len(sizes) // sum(sizes)
                log.add_fact(find_channel(self, _simple_queue_channel), "capacity", max(places, 1))
        return found

    return measured


def _never_log_thread(f: Any) -> Any:
    """The thread behind a queue only passes on what was put."""

    def run(*args: Any, **kwargs: Any) -> Any:
        this_thread.inside = True
        return f(*args, **kwargs)

    return run


# -- semaphores and locks --------------------------------------------------------------------------


def patch_synchronize(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.synchronize`: semaphores, locks and events; not those of an RLock."""

    def remember_tokens(f: Any) -> Any:
        def __init__(self: Any, kind: int, value: int, maxvalue: int, **more: Any) -> None:
            setattr(self, _TOKENS, value)
            f(self, kind, value, maxvalue, **more)

        return __init__

    def log_methods(f: Any) -> Any:
        def _make_methods(self: Any) -> None:
            f(self)
            if self._semlock.kind == module.SEMAPHORE:
                take, give = self.acquire, self.release
                self.acquire = _log_tokens(self, take, RECEIVE)
                self.release = _log_tokens(self, give, SEND)

        return _make_methods

    into.apply(
        [
            Patch(module.SemLock, "__init__", remember_tokens),
            Patch(module.SemLock, "_make_methods", log_methods),
            Patch(module.SemLock, "__enter__", lambda f: lambda self: self.acquire()),
            Patch(module.SemLock, "__exit__", lambda f: lambda self, *args: self.release()),
            Patch(module.Event, "set", logged(WAKE, _event_channel)),
            Patch(module.Event, "wait", log_event_wait(_event_channel)),
            Patch(module.Event, "clear", _never_log_call),
            Patch(module.Event, "is_set", _never_log_call),
        ]
    )


def _log_tokens(lock: Any, f: Any, kind: int) -> Any:
    """`acquire` takes a token, if it succeeds, and `release` adds one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if this_thread.inside:
            return f(*args, **kwargs)
        begun = begin_operation()
        got = f(*args, **kwargs)
        done = got or kind == SEND
        end_operation(begun, find_channel(lock, _semaphore_channel) if done else NO_CHANNEL, kind)
        return got

    return call


def _never_log_call(f: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        inside, this_thread.inside = this_thread.inside, True
        try:
            return f(*args, **kwargs)
        finally:
            this_thread.inside = inside

    return call


def _event_channel(event: Any) -> int:
    return log.channel(f"event {semaphore_name(event._flag)}", "event")


def _semaphore_channel(lock: Any) -> int:
    kind = "lock" if lock._semlock.maxvalue == 1 else "semaphore"
    return log.channel(f"semaphore {semaphore_name(lock)}", kind, tokens=getattr(lock, _TOKENS, 1))
