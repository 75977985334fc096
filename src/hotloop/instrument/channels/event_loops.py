"""What other threads hand to an event loop: results of `run_in_executor` and whatever else wakes it up.

An asyncio program that waits in its selector mostly waits for a thread of a pool. `call_soon_threadsafe` is
how that thread reaches it, so each such call is a message, received when the loop runs it.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.instrument.channels.identity import object_key
from hotloop.instrument.channels.logged_calls import find_channel, now_ns, this_thread
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.patch import Patch, Patches


def patch_event_loops(module: ModuleType, into: Patches) -> None:
    """`asyncio.base_events`."""
    into.apply([Patch(module.BaseEventLoop, "call_soon_threadsafe", _log_call)])


def _log_call(f: Any) -> Any:
    def call_soon_threadsafe(self: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_thread_id", None) in (None, threading.get_ident()):
            return f(self, callback, *args, **kwargs)
        channel = find_channel(self, _loop_channel)

        def received(*given: Any) -> Any:
            waited, this_thread.selected = this_thread.selected, None
            now = now_ns()
            log.write(channel, RECEIVE, *(waited or (now, now)))
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


def _loop_channel(loop: Any) -> int:
    return log.channel(object_key(loop), "thread_queue")
