"""Work handed to pools of threads and processes, and the results they hand back."""

from __future__ import annotations

import os
import threading
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.instrument.channels.identity import object_key
from hotloop.instrument.channels.logged_calls import (
    Begun,
    begin_operation,
    end_operation,
    find_channel,
    known_channel,
    logged,
    now_ns,
    set_channel,
    this_thread,
)
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.channels.threads import thread_queue_channel
from hotloop.instrument.patch import Patch, Patches, Replacement
from hotloop.instrument.queue_in_c import queue_in_c

_RECEIVED = "_hotloop_received"  # attribute of a pool's result: somebody has asked for it


# -- concurrent.futures ----------------------------------------------------------------------------


class _Worker(threading.local):
    idle_since: Begun | None = None  # the end of its last task


_this_worker = _Worker()
_submitting: list[tuple[int, int]] = []  # executors and their channels, while a task is submitted


def patch_executor(module: ModuleType, into: Patches) -> None:
    """`concurrent.futures.thread`: work handed to a pool of threads, which waits in C code."""

    def log_run(f: Any) -> Any:
        def run(self: Any) -> Any:
            end_operation(_this_worker.idle_since or (now_ns(), 0.0), known_channel(self), RECEIVE)
            try:
                return f(self)
            finally:
                _this_worker.idle_since = begin_operation()

        return run

    def log_submit(f: Any) -> Any:
        def submit(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            begin, channel = now_ns(), find_channel(self, _executor_channel)
            inside, this_thread.inside = this_thread.inside, True
            try:
                _submitting.append((id(self), channel))
                return f(self, *args, **kwargs)
            finally:
                this_thread.inside = inside
                with suppress_own(ValueError):
                    _submitting.remove((id(self), channel))
                log.write(channel, SEND, begin, now_ns())

        return submit

    def remember_channel(f: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            f(self, *args, **kwargs)
            if _submitting:
                set_channel(self, _submitting[-1][1])

        return __init__

    into.apply(
        [
            Patch(module._WorkItem, "__init__", remember_channel),
            Patch(module._WorkItem, "run", log_run),
            Patch(module.ThreadPoolExecutor, "submit", log_submit),
            Replacement(module, "queue", _with_original_queue),
        ]
    )


def _executor_channel(executor: Any) -> int:
    return log.channel(object_key(executor), "thread_queue")


def patch_futures(module: ModuleType, into: Patches) -> None:
    """`concurrent.futures._base`: each future has a condition, and those are too many to tell apart."""

    def share_channel(f: Any) -> Any:
        def __init__(self: Any) -> None:
            f(self)
            with suppress_own(Exception):
                set_channel(self._condition, log.channel(f"futures {os.getpid()}", "condition"))

        return __init__

    into.apply([Patch(module.Future, "__init__", share_channel)])


# -- multiprocessing.pool --------------------------------------------------------------------------


def patch_pool(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.pool`: a queue in C hands tasks to a thread, and a thread hands over results.

    A result is a message that is received once, by the first to ask for it. Logging the event inside it would
    not work, as it may be set before the wait begins. A callback runs in the thread that hands over results,
    before that, and what it sends is the script's own.
    """

    def log_set(f: Any) -> Any:
        def _set(self: Any, *args: Any) -> None:
            for name in ("_callback", "_error_callback"):
                if callable(getattr(self, name, None)):
                    setattr(self, name, _WithMessages(getattr(self, name)))
            inside, this_thread.inside = this_thread.inside, True
            try:
                f(self, *args)
            finally:
                this_thread.inside = inside
            if isinstance(self, module.IMapIterator) or self.ready():  # a map has many parts
                now = now_ns()
                log.write(find_channel(self, _results_channel), SEND, now, now)

        return _set

    def log_wait(f: Any) -> Any:
        receive = logged(RECEIVE, _results_channel)(f)

        def wait(self: Any, timeout: float | None = None) -> Any:
            if timeout is not None or getattr(self, _RECEIVED, False):
                return f(self, timeout)
            setattr(self, _RECEIVED, True)
            return receive(self)

        return wait

    log_next = logged(RECEIVE, _results_channel)
    into.apply(
        [
            Replacement(module, "queue", _with_logged_queue),
            Patch(module.ApplyResult, "wait", log_wait),
            Patch(module.ApplyResult, "_set", log_set),
            Patch(module.MapResult, "_set", log_set),
            Patch(module.IMapIterator, "_set", log_set),
            Patch(module.IMapIterator, "next", log_next),
            Patch(module.IMapIterator, "__next__", log_next),
        ]
    )


class _WithMessages:
    """A callback of the script whose messages are logged, though it is called within an operation."""

    def __init__(self, callback: Any):
        self.plain: Any = callback.plain if isinstance(callback, _WithMessages) else callback

    def __call__(self, *args: Any) -> Any:
        inside, this_thread.inside = this_thread.inside, False
        try:
            return self.plain(*args)
        finally:
            this_thread.inside = inside


def _results_channel(result: Any) -> int:
    return log.channel(f"pool results {os.getpid()}", "thread_queue")


def _with_logged_queue(module: Any) -> Any:
    """The module `queue` with messages of its queue in C logged, but without a region for its waits."""
    original: Any = queue_in_c(module)

    class SimpleQueue(original):  # type: ignore[misc]
        maxsize = 0
        get = logged(RECEIVE, thread_queue_channel)(original.get)
        put = logged(SEND, thread_queue_channel)(original.put)

    return _with_queue(module, SimpleQueue)


def _with_original_queue(module: Any) -> Any:
    """The module `queue` for an executor, whose tasks are logged elsewhere."""
    return _with_queue(module, queue_in_c(module))


def _with_queue(module: Any, simple_queue: Any) -> Any:
    made = ModuleType(module.__name__)
    vars(made).update(vars(module), SimpleQueue=simple_queue)
    return made
