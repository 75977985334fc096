"""Messages between threads: queues, semaphores, barriers, events and condition variables."""

from __future__ import annotations

import operator
import os
import sys
from types import ModuleType
from typing import Any

from hotloop.capture.message_format import MEET, RECEIVE, SEND, WAIT, WAKE
from hotloop.instrument.channels.identity import object_key, semaphore_name, thread_queue_capacity
from hotloop.instrument.channels.logged_calls import log_event_wait, log_get, log_look, logged
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.channels.thread_locks import patch_locks
from hotloop.instrument.patch import Patch, Patches

OWN_CONDITIONS = 48  # with a channel each; further ones share one
OWN_EVENTS = 64  # with a channel each; further ones are conditions
# Top modules whose events are part of something else: a started thread, a future.
_LIBRARIES = ("asyncio", "concurrent", "hotloop", "logging", "multiprocessing", "threading", "torch")
_OWN = "_hotloop_own"  # attribute of an event: it has a channel


def patch_queue(module: ModuleType, into: Patches) -> None:
    """`queue`."""
    for owner in (module.Queue, module.SimpleQueue):
        into.apply(
            [
                Patch(owner, "get", log_get(thread_queue_channel)),
                Patch(owner, "empty", log_look(thread_queue_channel, operator.not_)),
                Patch(owner, "qsize", log_look(thread_queue_channel)),
                Patch(owner, "put", logged(SEND, thread_queue_channel)),
            ]
        )


def patch_threading(module: ModuleType, into: Patches) -> None:
    """`threading`: semaphores, barriers, events, condition variables, locks."""
    patch_locks(module, into)
    wake = logged(WAKE, _condition_channel, after=True)
    events = 0

    def choose_own(f: Any) -> Any:
        def __init__(self: Any) -> None:
            nonlocal events
            f(self)
            maker = sys._getframe(1).f_globals.get("__name__", "")
            if events < OWN_EVENTS and maker.partition(".")[0] not in _LIBRARIES:
                events += 1
                setattr(self, _OWN, True)

        return __init__

    def if_own(make: Any) -> Any:
        def made(f: Any) -> Any:
            ours = make(f)

            def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                return (ours if hasattr(self, _OWN) else f)(self, *args, **kwargs)

            return call

        return made

    into.apply(
        [
            Patch(module.Event, "__init__", choose_own),
            Patch(module.Event, "set", if_own(logged(WAKE, _event_channel))),
            Patch(module.Event, "wait", if_own(log_event_wait(_event_channel))),
            Patch(module.Semaphore, "acquire", logged(RECEIVE, _semaphore_channel)),
            Patch(module.Semaphore, "__enter__", lambda f: lambda self: self.acquire()),
            Patch(module.Semaphore, "release", logged(SEND, _semaphore_channel)),
            Patch(module.Barrier, "wait", logged(MEET, _barrier_channel)),
            Patch(module.Condition, "wait", logged(WAIT, _condition_channel)),
            Patch(module.Condition, "notify", wake),
            Patch(module.Condition, "notify_all", wake),
        ]
    )


def thread_queue_channel(queue: Any) -> int:
    """The channel of a queue between threads."""
    return log.channel(object_key(queue), "thread_queue", capacity=thread_queue_capacity(queue))


def _semaphore_channel(semaphore: Any) -> int:
    return log.channel(object_key(semaphore), "semaphore", tokens=-1)  # its value is known by its counts


def _barrier_channel(barrier: Any) -> int:
    lock = getattr(getattr(barrier, "_cond", None), "_lock", None)
    is_shared = hasattr(lock, "_semlock")  # between processes
    key = f"barrier {semaphore_name(lock)}" if is_shared else object_key(barrier)
    return log.channel(key, "barrier", capacity=int(barrier.parties))


def _event_channel(event: Any) -> int:
    return log.channel(object_key(event), "event")


def _condition_channel(condition: Any) -> int:
    """One channel for each of the first conditions; some programs make a condition for each result."""
    if sum(channel["kind"] == "condition" for channel in log.channels) < OWN_CONDITIONS:
        return log.channel(object_key(condition), "condition")
    return log.channel(f"conditions {os.getpid()}", "condition")
