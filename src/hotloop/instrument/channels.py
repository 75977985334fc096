"""Pipes and queues by name: a region for each, who is at the other end, sizes of messages, depth of queues.

A pipe or queue gets a region when it is first used; the compiled wrapper finds it on the object itself, so
that a message costs one region more and no Python code. Sizes and depths are measured for the first messages
and for a few after each look (about once a second), by a method of the instance that removes itself again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture import layout
from hotloop.measure.profiler import default

MOST_CHANNELS = 256  # of one process; further ones are recorded without a name
SKIPPED = 8  # first messages, which set things up
MEASURED = 24  # messages after those
MEASURED_AGAIN = 6  # messages after each look
NEVER = 1 << 40  # as a capacity: none


class _Known:
    """One channel of this process."""

    def __init__(self, name: str, kind: str, here: str, there: str, capacity: int | None, thing: Any):
        self.facts: dict[str, Any] = {"name": name, "kind": kind, "here": here, "there": there}
        self.facts |= {"capacity": capacity, "depth_sum": 0, "depth_count": 0, "depth_max": 0}
        self.news = True
        self.thing = weakref.ref(thing)

    def saw_depth(self, depth: int) -> None:
        self.facts["depth_sum"] += depth
        self.facts["depth_count"] += 1
        self.facts["depth_max"] = max(self.facts["depth_max"], depth)
        self.news = True


_known: dict[str, _Known] = {}  # by name
_peers: dict[str, str] = {}  # ends of pipes that this process has made
_lock = threading.Lock()


def new_channels() -> list[dict[str, Any]]:
    """Channels with news since the last call; their next messages are measured again."""
    found = []
    for known in list(_known.values()):
        if known.news:
            known.news = False
            found.append(dict(known.facts))
        thing = known.thing()
        if thing is not None:
            with suppress_own(Exception):
                _measure(thing, known, skip=0, count=MEASURED_AGAIN)
    return found


def identity(file: int) -> str:
    """The same for everyone on this host who has this end of a pipe."""
    about = os.fstat(file)
    return f"{about.st_dev}:{about.st_ino}"


def note_pair(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Pipe`: remember which two ends belong together."""

    def pipe(duplex: bool = True) -> Any:
        one, other = function(duplex)
        with suppress_own(Exception):
            here, there = identity(one.fileno()), identity(other.fileno())
            if len(_peers) < 64 * MOST_CHANNELS:
                _peers[here], _peers[there] = there, here
        return one, other

    return pipe


def of_connection(connection: Any) -> Any:
    """The region of one end of a pipe; None for those that only serve multiprocessing itself."""
    if threading.current_thread().name.endswith(("QueueFeederThread", "(_serve)")):
        return None
    if connection.closed:
        return None
    here = identity(connection.fileno())
    return _region("pipe", connection, here, _peers.get(here, ""), None)


def of_queue(queue: Any) -> Any:
    """The region of a queue between processes; None if this process has closed the end that tells which."""
    if queue._reader.closed:
        return None
    here = identity(queue._reader.fileno())
    capacity = getattr(queue, "_maxsize", None)
    semaphores = getattr(queue, "_sem", None)
    if semaphores is None or capacity is None or capacity >= 32767:  # SEM_VALUE_MAX or more
        capacity = None
    return _region("queue", queue, here, here, capacity)


def of_thread_queue(queue: Any) -> Any:
    """The region of a queue between threads."""
    here = f"{os.getpid()}:{id(queue)}"
    return _region("thread_queue", queue, here, here, queue.maxsize if queue.maxsize > 0 else None)


def _region(kind: str, thing: Any, here: str, there: str, capacity: int | None) -> Any:
    with _lock:
        if len(_known) >= MOST_CHANNELS:
            return None
        number = 1 + sum(known.facts["kind"] == kind for known in _known.values())
        name = f"{kind.replace('_', ' ')} {number}"
        known = _known[name] = _Known(name, kind, here, there, capacity, thing)
    region = default.profile(name, layout.CHANNEL_CATEGORY)
    with suppress_own(Exception):
        _measure(thing, known, SKIPPED, MEASURED)
    return region


# -- sizes and depths ------------------------------------------------------------------------------


def _measure(thing: Any, known: _Known, skip: int, count: int) -> None:
    """Measure the next messages of a pipe or queue."""
    kind = known.facts["kind"]
    region = default.profile(known.facts["name"], layout.CHANNEL_CATEGORY)
    if kind == "pipe":
        _for_a_while(thing, "_recv_bytes", skip, count, lambda _, result: _add(region, result.tell()))
        _for_a_while(thing, "_send_bytes", skip, count, lambda args, _: _add(region, len(args[0])))
    elif kind == "thread_queue":
        _for_a_while(thing, "_get", skip, count, lambda _, __: known.saw_depth(thing_depth(known) + 1))
    elif hasattr(thing, "_recv_bytes"):
        _for_a_while(thing, "_recv_bytes", skip, count, lambda _, result: _took(region, known, len(result)))


def thing_depth(known: _Known) -> int:
    """How many messages a queue holds."""
    thing = known.thing()
    return 0 if thing is None else max(int(getattr(thing, "_qsize", thing.qsize)()), 0)


def _took(region: Any, known: _Known, size: int) -> None:
    _add(region, size)
    known.saw_depth(thing_depth(known))


def _add(region: Any, size: int) -> None:
    """One message of that size: `flops` of a channel counts the messages that were measured."""
    region.add(bytes=size, flops=1)


def _for_a_while(
    thing: Any, name: str, skip: int, count: int, look: Callable[[tuple[Any, ...], Any], object]
) -> None:
    """Replace a method of one object; after `skip` and then `count` calls the replacement is gone."""
    own = vars(thing).get(name)  # a queue keeps a bound method of its pipe here
    if getattr(own, "_hotloop", False):
        return
    ref, left = weakref.ref(thing), [skip + count]

    def counting(*args: Any, **kwargs: Any) -> Any:
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

    counting._hotloop = True  # type: ignore[attr-defined]
    vars(thing)[name] = counting
