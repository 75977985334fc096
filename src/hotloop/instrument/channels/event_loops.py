"""What wakes an event loop up: results of `run_in_executor`, whatever else other threads hand to it, timers.

An asyncio program that waits in its selector mostly waits for a thread of a pool. `call_soon_threadsafe` is
how that thread reaches it, so each such call is a message, received when the loop runs it. A timer, as of
`asyncio.sleep`, is a message of the loop to itself that is there later.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from hotloop.capture.message_format import LATER, RECEIVE, SEND
from hotloop.instrument.channels.identity import object_key
from hotloop.instrument.channels.logged_calls import find_channel, now_ns, this_thread
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.patch import Patch, Patches


def patch_event_loops(module: ModuleType, into: Patches) -> None:
    """`asyncio.base_events`."""
    into.apply(
        [
            Patch(module.BaseEventLoop, "call_soon_threadsafe", _log_call),
            Patch(module.BaseEventLoop, "call_at", _log_timer),
        ]
    )


def _log_call(f: Any) -> Any:
    def call_soon_threadsafe(self: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_thread_id", None) in (None, threading.get_ident()):
            return f(self, callback, *args, **kwargs)
        channel = find_channel(self, _loop_channel)

        def received(*given: Any) -> Any:
            _log_received(channel)
            return callback(*given)

        inside, this_thread.inside = this_thread.inside, True
        try:
            now = now_ns()
            handle = f(self, received, *args, **kwargs)
        finally:
            this_thread.inside = inside
        log.write(channel, SEND, now, now)
        return handle

    return call_soon_threadsafe


def _log_timer(f: Any) -> Any:
    def call_at(self: Any, when: float, callback: Any, *args: Any, **kwargs: Any) -> Any:
        channel, begin = find_channel(self, _loop_channel), now_ns()
        due = begin + max(int((when - self.time()) * 1e9), 0)

        def fired(*given: Any) -> Any:  # one that is cancelled is no message
            log.write(channel, LATER, begin, due)
            _log_received(channel)
            return callback(*given)

        return f(self, when, fired, *args, **kwargs)

    return call_at


def _log_received(channel: int) -> None:
    """The loop runs what it was handed; it may have waited in its selector for it."""
    waited, this_thread.selected = this_thread.selected, None
    now = now_ns()
    log.write(channel, RECEIVE, *(waited or (now, now)))


def _loop_channel(loop: Any) -> int:
    return log.channel(object_key(loop), "thread_queue")
