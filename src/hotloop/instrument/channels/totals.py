"""Totals of pipes and queues: a region for each, who is at the other end, sizes of messages, depth of queues.

A pipe or queue gets a region when it is first used; the compiled wrapper finds it on the object itself, so
that a message costs one region more and no Python code. Sizes and depths are measured for the first messages
and for a few after each look (about once a second), by a method of the instance that removes itself again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture import layout
from hotloop.instrument.channels.identity import (
    descriptor_key,
    object_key,
    other_end,
    queue_capacity,
    queue_key,
    socket_ends,
    thread_queue_capacity,
)
from hotloop.measure.profiler import default

MOST_CHANNELS = 256  # of one process; further ones are recorded without a name
SKIPPED = 8  # first messages, which set things up
MEASURED = 24  # messages after those
MEASURED_AGAIN = 6  # messages after each look


class _Channel:
    """One pipe or queue of this process; `facts` are the fields of `hotloop.capture.channels.Channel`."""

    def __init__(self, name: str, kind: str, here: str, there: str, capacity: int | None, thing: Any):
        self.facts: dict[str, Any] = {"name": name, "kind": kind, "here": here, "there": there}
        self.facts |= {"capacity": capacity, "depth_sum": 0, "depth_count": 0, "depth_max": 0}
        self.has_news = True
        self.thing = weakref.ref(thing)

    def note_depth(self, more: int = 0) -> None:
        """Note how many messages the queue holds, and `more`."""
        thing = self.thing()
        depth = more + (0 if thing is None else max(int(getattr(thing, "_qsize", thing.qsize)()), 0))
        self.facts["depth_sum"] += depth
        self.facts["depth_count"] += 1
        self.facts["depth_max"] = max(self.facts["depth_max"], depth)
        self.has_news = True


_channels: dict[str, _Channel] = {}  # by name
_lock = threading.Lock()


def channels_with_news() -> list[dict[str, Any]]:
    """Facts about channels that are new or have changed since the last call; measures their next messages."""
    found = []
    for channel in list(_channels.values()):
        if channel.has_news:
            channel.has_news = False
            found.append(dict(channel.facts))
        thing = channel.thing()
        if thing is not None:
            with suppress_own(Exception):
                _measure(thing, channel, skip=0, count=MEASURED_AGAIN)
    return found


# -- the region of a channel -----------------------------------------------------------------------


def region_of_pipe(connection: Any) -> Any:
    """The region of one end of a pipe; None for those that only serve multiprocessing itself."""
    if threading.current_thread().name.endswith(("QueueFeederThread", "(_serve)")):
        return None
    if connection.closed:
        return None
    here = descriptor_key(connection.fileno())
    return _new_region("pipe", connection, here, other_end(here) or "", None)


def region_of_queue(queue: Any) -> Any:
    """The region of a queue between processes; None if this process has closed the end that tells which."""
    if queue._reader.closed:
        return None
    here = queue_key(queue)
    return _new_region("queue", queue, here, here, queue_capacity(queue))


def region_of_thread_queue(queue: Any) -> Any:
    """The region of a queue between threads."""
    here = object_key(queue)
    return _new_region("thread_queue", queue, here, here, thread_queue_capacity(queue))


_sockets: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # -> region, or None


def region_of_socket(one: Any) -> Any:
    """The region of a TCP connection inside this computer; None for others."""
    if one not in _sockets:  # which has no attribute for it
        ends = socket_ends(one)
        _sockets[one] = None if ends is None else _new_region("socket", one, *ends, None)
    return _sockets[one]


def count_bytes(f: Callable[..., Any]) -> Callable[..., Any]:
    """`socket.send` or `sendall`, which adds the bytes to the region of its connection."""

    def call(self: Any, data: Any, *flags: Any) -> Any:
        sent = f(self, data, *flags)
        region = _sockets.get(self)
        if region is not None:
            region.add(bytes=memoryview(data).nbytes if sent is None else sent, flops=1)
        return sent

    return call


def _new_region(kind: str, thing: Any, here: str, there: str, capacity: int | None) -> Any:
    with _lock:
        if len(_channels) >= MOST_CHANNELS:
            return None
        number = 1 + sum(channel.facts["kind"] == kind for channel in _channels.values())
        name = f"{kind.replace('_', ' ')} {number}"
        channel = _channels[name] = _Channel(name, kind, here, there, capacity, thing)
    region = default.profile(name, layout.CHANNEL_CATEGORY)
    with suppress_own(Exception):
        _measure(thing, channel, SKIPPED, MEASURED)
    return region


# -- sizes and depths ------------------------------------------------------------------------------


def _measure(thing: Any, channel: _Channel, skip: int, count: int) -> None:
    """Measure `count` messages of a pipe or queue, after the next `skip`."""
    kind = channel.facts["kind"]
    region = default.profile(channel.facts["name"], layout.CHANNEL_CATEGORY)

    def add_size(size: int) -> None:
        region.add(bytes=size, flops=1)  # `flops` of a channel counts the messages that were measured

    def taken_from_queue(args: tuple[Any, ...], result: Any) -> None:
        add_size(len(result))
        channel.note_depth()

    if kind == "pipe":
        _watch_calls(thing, "_recv_bytes", skip, count, lambda args, result: add_size(result.tell()))
        _watch_calls(thing, "_send_bytes", skip, count, lambda args, result: add_size(len(args[0])))
    elif kind == "thread_queue":
        _watch_calls(thing, "_get", skip, count, lambda args, result: channel.note_depth(more=1))
    elif kind == "queue" and hasattr(thing, "_recv_bytes"):
        _watch_calls(thing, "_recv_bytes", skip, count, taken_from_queue)


def _watch_calls(
    thing: Any, name: str, skip: int, count: int, look: Callable[[tuple[Any, ...], Any], object]
) -> None:
    """Replace a method of one object; after `skip` and then `count` calls the replacement is gone."""
    own = vars(thing).get(name)  # a queue keeps a bound method of its pipe here
    if getattr(own, "_hotloop", False):
        return
    ref, left = weakref.ref(thing), [skip + count]

    def watched(*args: Any, **kwargs: Any) -> Any:
        it = ref()
        left[0] -= 1
        if left[0] <= 0 and it is not None:
            if own is not None:
                vars(it)[name] = own
            else:
                vars(it).pop(name, None)
        result = own(*args, **kwargs) if own is not None else getattr(type(it), name)(it, *args, **kwargs)
        if left[0] < count:
            with suppress_own(Exception):
                look(args, result)
        return result

    watched._hotloop = True  # type: ignore[attr-defined]
    vars(thing)[name] = watched
