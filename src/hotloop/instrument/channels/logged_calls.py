"""Wraps methods so that their outermost calls are logged: what a queue does inside is its own business.

With `hotloop run --what-if`, every logged operation takes part in the experiment: before it begins, the
thread pays its delay, and what it was blocked for counts as paid.
"""

from __future__ import annotations

import threading
import time
from _queue import Empty  # of `queue` and `multiprocessing`
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import EMPTY, FOUND, PEEK, RECEIVE, WAIT
from hotloop.capture.virtual import VirtualPlan
from hotloop.instrument.channels.message_log import NO_CHANNEL, log
from hotloop.measure.profiler import default

if TYPE_CHECKING:
    from hotloop.measure.virtual_speedup import VirtualSpeedup

ChannelOf = Callable[[Any], int]
Begun = tuple[int, float]  # when an operation began, in ns, and the delay of virtual speed-up so far
now_ns = time.monotonic_ns
_CHANNEL = "_hotloop_channel"  # attribute of an object: its number in the log
_virtual: VirtualSpeedup | None = None  # the experiment of `hotloop run --what-if`


class _Thread(threading.local):
    inside = False  # an operation, whose parts are not logged
    # Begin and end of its last wait in a selector, if that was for no channel: for another thread or a timer.
    selected: tuple[int, int] | None = None


this_thread = _Thread()


def begin_virtual_speedup(plan: dict[str, Any]) -> None:
    """Make the regions of a plan virtually faster in turn, from now on and in forked children."""
    global _virtual
    from hotloop.measure.virtual_speedup import VirtualSpeedup  # lazy: a script may want to set up numpy

    if default.folder is not None:
        made = VirtualPlan(**(plan | {"regions": tuple(plan["regions"])}))
        _virtual = VirtualSpeedup(made, default.folder, default.recorder)


def logged(kind: int, channel_of: ChannelOf, *, after: bool = False) -> Callable[[Any], Any]:
    """Wrap a method so that its outermost calls are logged; `after`: it counts as a moment at its end.

    A call that raises is not logged: an empty or full queue has sent and taken nothing.
    """

    def make(f: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if this_thread.inside:
                return f(self, *args, **kwargs)
            this_thread.inside = True
            try:  # as `begin_operation` and `end_operation`, without the calls
                delay = _virtual.pay() if _virtual is not None else 0.0
                begin = now_ns()
                found = f(self, *args, **kwargs)
                end = now_ns()
            finally:
                this_thread.inside = False
            channel = getattr(self, _CHANNEL, None)
            if channel is None:
                channel = find_channel(self, channel_of)
            log.write(channel, kind, end if after else begin, end)
            if _virtual is not None:
                _virtual.woken(delay, begin, end)
            return found

        return call

    return make


def log_look(channel_of: ChannelOf, is_there: Callable[[Any], bool] = bool) -> Callable[[Any], Any]:
    """Wrap a method that says whether there is a message, or how many, without waiting."""

    def make(f: Any) -> Any:
        def look(self: Any, *args: Any, **kwargs: Any) -> Any:
            if this_thread.inside:
                return f(self, *args, **kwargs)
            begin = now_ns()
            found = f(self, *args, **kwargs)
            end_look(self, channel_of, begin, is_there(found))
            return found

        return look

    return make


def end_look(thing: Any, channel_of: ChannelOf, begin: int, found: bool) -> None:
    """Log a look for a message that ends now."""
    log.write_look(find_channel(thing, channel_of), FOUND if found else EMPTY, begin, now_ns())


def log_get(channel_of: ChannelOf) -> Callable[[Any], Any]:
    """Wrap `get` of a queue: one that does not wait looks for a message first, and takes it if there is one.

    If none came in the time that it was given, nothing is logged.
    """

    def make(f: Any) -> Any:
        take = logged(RECEIVE, channel_of)(f)

        def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:
            if block or this_thread.inside:
                return take(self, block, timeout)
            begin = now_ns()
            this_thread.inside = True
            try:
                found = f(self, block, timeout)
            except Empty:
                end_look(self, channel_of, begin, False)
                raise
            finally:
                this_thread.inside = False
            log.write_look(find_channel(self, channel_of), FOUND, begin, begin)
            log.write(find_channel(self, channel_of), RECEIVE, begin, now_ns())
            return found

        return get

    return make


def log_event_wait(channel_of: ChannelOf) -> Callable[[Any], Any]:
    """Wrap `wait` of an event, unless it gives up; what it does with its lock is no message."""

    def make(f: Any) -> Any:
        def wait(self: Any, timeout: float | None = None) -> Any:
            if this_thread.inside:
                return f(self, timeout)
            this_thread.inside = True
            try:
                begun = begin_operation()
                is_set = f(self, timeout)
            finally:
                this_thread.inside = False
            end_operation(begun, find_channel(self, channel_of) if is_set else NO_CHANNEL, WAIT)
            return is_set

        return wait

    return make


def begin_operation() -> Begun:
    """To be called right before an operation; pays the delay of virtual speed-up."""
    delay = _virtual.pay() if _virtual is not None else 0.0
    return now_ns(), delay


def end_operation(begun: Begun, channel: int, kind: int, amount: int = 1) -> None:
    """Log an operation that ends now; `amount`: see `MessageLog.write`."""
    begin, delay = begun
    end = now_ns()
    log.write(channel, kind, begin, end, amount)
    if _virtual is not None:
        _virtual.woken(delay, begin, end)


def call_logged(
    f: Callable[..., Any], channel: int, kind: int, amount: Callable[..., int], *args: Any, **kwargs: Any
) -> Any:
    """Call f and log it, unless it is part of an operation that is; `amount(result, *args)`: see `write`."""
    if channel < 0 or this_thread.inside:
        return f(*args, **kwargs)
    this_thread.inside = True
    try:
        begun = begin_operation()
        found = f(*args, **kwargs)
    finally:
        this_thread.inside = False
    size = amount(found, *args)
    end_operation(begun, channel if size > 0 else NO_CHANNEL, kind, size)
    return found


def peek_logged(f: Callable[..., Any], channel_of: ChannelOf, *args: Any) -> Any:
    """Call f, which waits for a message in one of several channels; `channel_of(result)`: in which."""
    if this_thread.inside:
        return f(*args)
    this_thread.inside = True
    try:
        begun = begin_operation()
        found = f(*args)
    finally:
        this_thread.inside = False
    channel = channel_of(found)
    this_thread.selected = (begun[0], now_ns()) if channel < 0 else None
    end_operation(begun, channel, PEEK)
    return found


# -- the channel of an object ----------------------------------------------------------------------


def find_channel(thing: Any, channel_of: ChannelOf) -> int:
    """The number that the object remembers; at first, `channel_of` tells it."""
    found: int | None = getattr(thing, _CHANNEL, None)
    if found is None:
        found = NO_CHANNEL
        with suppress_own(Exception):
            found = channel_of(thing)
            set_channel(thing, found)
    return found


def known_channel(thing: Any) -> int:
    """The number that the object remembers, or NO_CHANNEL."""
    found: int = getattr(thing, _CHANNEL, NO_CHANNEL)
    return found


def set_channel(thing: Any, channel: int) -> None:
    """Let an object remember its channel."""
    setattr(thing, _CHANNEL, channel)
