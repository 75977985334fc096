"""Messages between threads: queues, semaphores, barriers and condition variables."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from hotloop.capture.message_format import MEET, RECEIVE, SEND, WAIT, WAKE
from hotloop.instrument.channels.identity import object_key, semaphore_name, thread_queue_capacity
from hotloop.instrument.channels.logged_calls import logged
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.patch import Patch, Patches

OWN_CONDITIONS = 48  # with a channel each; further ones share one


def patch_queue(module: ModuleType, into: Patches) -> None:
    """`queue`."""
    into.apply(
        [
            Patch(module.Queue, "get", logged(RECEIVE, thread_queue_channel)),
            Patch(module.Queue, "put", logged(SEND, thread_queue_channel)),
        ]
    )


def patch_threading(module: ModuleType, into: Patches) -> None:
    """`threading`: semaphores, barriers and condition variables; locks are out of reach, and too frequent."""
    wake = logged(WAKE, _condition_channel, after=True)
    into.apply(
        [
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


def _condition_channel(condition: Any) -> int:
    """One channel for each of the first conditions; some programs make a condition for each result."""
    if sum(channel["kind"] == "condition" for channel in log.channels) < OWN_CONDITIONS:
        return log.channel(object_key(condition), "condition")
    return log.channel(f"conditions {os.getpid()}", "condition")
