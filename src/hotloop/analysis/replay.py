"""Replays a recorded run from its message log: what would it have done with other work, queues or workers?

Every thread that sent or received something is a lane: stretches of work, and operations on channels (pipes,
queues, semaphores, barriers) between them, in the order in which they happened. `replay` lets the lanes run
again: a message is received when it has been sent and the receiver is there, a full queue blocks its sender,
ranks wait for each other, and lanes share the cores and the GIL of their process. A lane that served whoever
came first does so again, in whatever order they come now.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.capture.message_format import EMPTY, FOUND, LATER, MEET, PEEK, RECEIVE, SEND, WAIT, WAKE

Floats = NDArray[np.float64]
IN_FLIGHT = 0.25  # share of the workers that always have work, from which on the driver keeps them busy
AS_MANY = 1.1  # times as many pieces of work as another worker: up to here they take turns
MOST_STRETCHED = 1e4  # the most that sharing cores or the GIL lengthens work, as a factor
SWITCH_S = (
    0.005  # for which Python lets a thread keep the GIL while another one waits (sys.setswitchinterval)
)
ALL_OR_NONE = (
    0.1  # share of a part's work that needs the GIL, or does not, from which on it is a slice of its own
)
GIVES_UP_S = 0.001  # an operation that takes longer does without the GIL
LEAST_SLICE_S = 2e-6


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as it was recorded, in seconds from the beginning of the replay."""

    kind: int
    channel: int
    begin: float
    end: float
    cost: float  # what it takes when it does not wait
    round: int = 0  # of a barrier
    waker: tuple[int, int] | None = None  # lane and operation that ended a wait on a condition
    latency: float | None = None  # of a receive that waited: after the end of its send
    delay: float = 0.0  # of a timer: when its message is there
    region: str = ""  # that a task waits in for a timer


@dataclass(frozen=True, slots=True)
class Part:
    """A region of a lane without the regions inside it, and what its work needs."""

    name: str  # "": outside of regions
    parent: str | None  # None: this is the outside
    gil: float  # share of its work that needs the GIL, and with it a core
    core: float  # share that needs a core


@dataclass(frozen=True, slots=True)
class Lane:
    """One thread: `work[i]` is done before `operations[i]`, and one more stretch after the last one.

    `regions` has the part of each stretch that a region took, by name, regions inside it included.
    """

    name: str
    process: int  # lanes of one process share a GIL
    operations: tuple[Operation, ...]
    work: Floats  # seconds, with a core and the GIL at hand
    regions: Mapping[str, Floats]
    core: float  # share of the work that needs a core
    gil: float  # share of the work that needs the GIL
    main: str = ""  # the region that takes most of its work
    waits_inside: frozenset[str] = frozenset()  # regions with operations inside them
    thread: tuple[int, int] = (0, 0)  # process id and native id
    # Recorded time between its operations, including time without a core or the GIL.
    recorded_s: float = 0.0
    chooses: frozenset[int] = frozenset()  # channels of which it serves the first that has a message
    # Share of the work in a region that needs a core, and the GIL if its lane does; `core` where not known.
    on_core: Mapping[str, float] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()  # regions with too many calls for the log of single ones
    # Where it was measured who has the GIL: the parts of each stretch, in the order in which they come.
    # Then threads take the GIL one after the other, as Python hands it on, and `gil` is for reports alone.
    parts: tuple[Part, ...] = ()
    slices: int = 1  # how often a part that needs the GIL in between gives it up in a stretch
    # Progress of training that the work before each operation made; empty: each operation is some.
    marks: tuple[int, ...] = ()
    repeats: bool = False  # begins again when its record ends: it depends on nobody


@dataclass(frozen=True, slots=True)
class ReplayChannel:
    """A place for messages."""

    name: str
    kind: str
    capacity: int | None
    backlog: int  # messages in it at the beginning
    latency: float  # from the end of a send to the end of the receive that waited for it
    parties: int = 0  # of a barrier


@dataclass(frozen=True)
class Trace:
    """A recorded run, ready to be replayed."""

    lanes: tuple[Lane, ...]
    channels: tuple[ReplayChannel, ...]
    driver: int  # the lane whose pace is the pace of training
    cores: float  # that these lanes and other programs share
    seconds: float
    notes: tuple[str, ...] = ()
    others: float = 0.0  # busy threads of other programs, which get a core as often as a lane does
    begin_ns: int = 0  # monotonic time at which it begins
    # Seconds of the driver that the trace lacks because the log is shorter than a cycle of training, such as
    # those between two rollouts, and its part in each region; below 0 if the trace has too many of them.
    outside_s: float = 0.0
    outside: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Replayed:
    """When the driving lane ended each of its operations, and how the time was used."""

    times: Floats  # seconds at the end of each operation of the driver that was reached, or at its marks
    busy: Floats  # share of the time in which each lane worked
    core_load: float  # cores in use / cores, while the replay ran
    gil_load: float  # the most contended GIL: share of its time in use
    seconds: float
    stuck: bool = False  # lanes waited for each other, which the recorded run did not


def progress_times(lane: Lane) -> list[float]:
    """When the driver made progress in the recording; see `Replayed.times`."""
    if not lane.marks:
        return [operation.end for operation in lane.operations]
    found: list[float] = []
    for operation, mark in zip(lane.operations, lane.marks, strict=True):
        found += [operation.begin] * mark
    return found


def scaled(trace: Trace, factors: Mapping[str, float]) -> Trace:
    """The trace with the work in regions multiplied by factors.

    Where lanes run a region without waiting inside it, only those are changed: around a wait, the same name
    stands for handing the work out.
    """
    lanes = list(trace.lanes)
    outside_s, outside = trace.outside_s, dict(trace.outside)
    for region, factor in factors.items():
        if region in outside:
            outside_s -= (1 - factor) * outside[region]
            outside[region] *= factor
        lanes = [_with_timers(lane, region, factor) for lane in lanes]
        has = [i for i, lane in enumerate(lanes) if region in lane.regions]
        plain = [i for i in has if region not in lanes[i].waits_inside]
        for i in plain or has:
            lane = lanes[i]
            work = np.maximum(lane.work - (1 - factor) * lane.regions[region], 0.0)
            ratio = np.divide(work, lane.work, out=np.ones_like(work), where=lane.work > 0)
            regions = {
                name: part * factor if name == region else np.minimum(part * ratio, work)
                for name, part in lane.regions.items()
            }
            if lane.parts:
                regions = _with_less_in(lane, region, factor)
            operations = lane.operations
            if region == "backward" and any(o.kind == MEET for o in operations):
                operations = tuple(
                    replace(o, cost=o.cost * factor) if o.kind == MEET else o for o in operations
                )
            lane = replace(lane, work=work, regions=regions, operations=operations)
            if lane.gil > 0 and not lane.parts:
                share = _core_without(lanes[i], region, factor, float(work.sum()))
                lane = replace(lane, core=share, gil=share)
            lanes[i] = lane
    return replace(trace, lanes=tuple(lanes), outside_s=outside_s, outside=outside)


def _with_less_in(lane: Lane, region: str, factor: float) -> dict[str, Floats]:
    """The regions of a lane when one takes `factor` of its time, those inside and around it included."""
    parents = {part.name: part.parent for part in lane.parts}

    def is_inside(name: str, other: str) -> bool:
        at: str | None = name
        for _ in range(len(parents)):
            at = parents.get(at or "")
            if at == other:
                return True
        return False

    saved = (1 - factor) * lane.regions[region]
    return {
        name: part * factor
        if name == region or is_inside(name, region)
        else np.maximum(part - saved, 0.0)
        if is_inside(region, name)
        else part
        for name, part in lane.regions.items()
    }


def own_work(lane: Lane) -> Floats:
    """Seconds of each part in each stretch, [parts, stretches]; they add up to the work of the stretch."""
    whole = np.array([lane.regions.get(part.name, lane.work) for part in lane.parts])
    own = whole.copy()
    place = {part.name: i for i, part in enumerate(lane.parts)}
    for i, part in enumerate(lane.parts):
        if part.parent is not None:
            own[place.get(part.parent, place[""])] -= whole[i]
    own = np.maximum(own, 0.0)
    total = own.sum(axis=0)
    result: Floats = own * np.divide(lane.work, total, out=np.zeros_like(total), where=total > 0)
    return result


def _with_timers(lane: Lane, region: str, factor: float) -> Lane:
    """The lane with the delays of timers multiplied for which tasks wait in a region."""
    if not any(o.delay and o.region == region for o in lane.operations):
        return lane
    changed = (replace(o, delay=o.delay * factor) if o.region == region else o for o in lane.operations)
    return replace(lane, operations=tuple(changed))


def _core_without(lane: Lane, region: str, factor: float, work: float) -> float:
    """Share of the work that needs a core and the GIL when a region takes `factor` of its time.

    What a full GIL has to do decides how fast all of its threads are. Cores are less often all in use, and
    then it matters who works at the same time, which the share of a whole lane does not tell: it stays there.
    """
    if work <= 0:
        return lane.core
    saved = (1 - factor) * lane.on_core.get(region, lane.core) * float(lane.regions[region].sum())
    return min(max((lane.core * float(lane.work.sum()) - saved) / work, 0.0), 1.0)


def with_less_work(lane: Lane, factor: float) -> Lane:
    """The lane with all of its work multiplied by a factor."""
    if factor == 1.0:
        return lane
    regions = {name: part * factor for name, part in lane.regions.items()}
    return replace(lane, work=lane.work * factor, regions=regions)


def without_channels(trace: Trace, channels: set[int]) -> Trace:
    """The trace without operations on some channels, and so without the waits for them."""
    if not channels:
        return trace
    return replace(trace, lanes=tuple(_without(lane, channels) for lane in trace.lanes))


def with_capacity(trace: Trace, capacity: int) -> Trace:
    """The trace with another depth of every queue that has one."""
    channels = tuple(
        replace(channel, capacity=capacity) if has_depth(channel) else channel for channel in trace.channels
    )
    return replace(trace, channels=channels)


def pieces_under_way(trace: Trace, role: Sequence[int]) -> float | None:
    """Pieces of work per worker that the driver has handed out over their own queues and not yet got back.

    At the beginning; None if it does not hand out work in this way. A data loader calls it prefetching.
    """
    given = _own_queues(trace, role)
    if given is None:
        return None
    handed_out = set(given.values())
    driver = trace.lanes[trace.driver].operations
    gives_back = {o.channel for m in role for o in trace.lanes[m].operations if o.kind == SEND}
    back = gives_back & {o.channel for o in driver if o.kind == RECEIVE}
    at_work = sum(_has_work(trace.lanes[m], handed_out | back) for m in role)
    held = sum(trace.channels[channel].backlog for channel in handed_out | back)
    return (held + at_work) / len(role)


def _has_work(lane: Lane, channels: set[int]) -> bool:
    """Whether a worker has a piece of work at the beginning: its next operation hands over the result."""
    first = next((o for o in lane.operations if o.channel in channels), None)
    return first is not None and first.kind == SEND


def with_pieces_under_way(trace: Trace, role: Sequence[int], pieces: int) -> Trace | None:
    """The trace with another number of pieces of work under way per worker; None: see `pieces_under_way`."""
    given, now = _own_queues(trace, role), pieces_under_way(trace, role)
    if given is None or now is None:
        return None
    channels = list(trace.channels)
    for channel in given.values():
        more = pieces - round(now)
        channels[channel] = replace(channels[channel], backlog=max(channels[channel].backlog + more, 0))
    return replace(trace, channels=tuple(channels))


def _own_queues(trace: Trace, role: Sequence[int]) -> dict[int, int] | None:
    """The queue over which the driver hands work to each worker alone; None unless each has just one."""
    queues = {
        e for e, one in enumerate(trace.channels) if one.kind in ("queue", "simple_queue", "thread_queue")
    }
    gives = queues & {o.channel for o in trace.lanes[trace.driver].operations if o.kind == SEND}
    found: dict[int, int] = {}
    for m in role:
        mine = gives & {o.channel for o in trace.lanes[m].operations if o.kind == RECEIVE}
        if len(mine) != 1:
            return None
        found[m] = mine.pop()
    return found if len(set(found.values())) == len(role) > 0 else None


def has_depth(channel: ReplayChannel) -> bool:
    """Whether a program sets how many messages it holds; the pipe of a SimpleQueue is as large as it is."""
    return bool(channel.capacity) and not channel.parties and channel.kind != "simple_queue"


def with_workers(trace: Trace, role: Sequence[int], count: int) -> tuple[Trace, float]:
    """The trace with `count` lanes in a role, and how many times as much one round of the driver then does.

    New lanes repeat those that are there. What others do on the private channels of a lane they also do for
    its copy. Where the driver keeps its workers busy all the time, handing out a piece of work for each one
    that comes back, it is taken to have one more under way for each worker; where it hands out a round of
    work and waits for all of it, a round stays as it is.
    """
    lanes, channels = list(trace.lanes), list(trace.channels)
    before = len(role)
    users: dict[int, set[int]] = {}
    for number, lane in enumerate(lanes):
        for operation in lane.operations:
            users.setdefault(operation.channel, set()).add(number)
    gives = {m: {o.channel for o in lanes[m].operations if o.kind == SEND} for m in role}
    private = {
        m: {
            e
            for e, who in users.items()
            if m in who
            and not (who & (set(role) - {m}))
            # Workers put into one queue, even if there is only one of them now; pipes have two ends.
            and (channels[e].kind == "pipe" or e not in gives[m])
        }
        for m in role
    }
    driver_takes = {o.channel for o in lanes[trace.driver].operations if o.kind == RECEIVE}
    per_round = any(private[m] & driver_takes for m in role)
    driver_gives = {o.channel for o in lanes[trace.driver].operations if o.kind == SEND}
    if not per_round and all(private[m] & driver_gives for m in role):
        return _with_shared_work(trace, role, count, {m: private[m] & driver_gives for m in role}), 1.0
    if count < before:
        gone = set(list(role)[count:])
        dropped = set().union(*(private[m] for m in gone)) if gone else set()
        lanes = [
            replace(lane, operations=(), work=lane.work[:0]) if i in gone else _without(lane, dropped)
            for i, lane in enumerate(lanes)
        ]
    handed_out = {o.channel for m in role for o in lanes[m].operations if o.kind == RECEIVE} & driver_gives
    handed_out -= set().union(*private.values())
    keeps_busy = count_in_flight(trace, role, handed_out) >= IN_FLIGHT * before
    copies: dict[int, list[int]] = {}
    for extra in range(max(count - before, 0)):
        model = role[extra % before]
        renamed = {}
        for channel in private[model]:
            renamed[channel] = len(channels)
            copies.setdefault(channel, []).append(len(channels))
            channels.append(channels[channel])
        lane = trace.lanes[model]
        shift = (7 * extra + 3) % max(len(lane.operations) // 2, 1) if not per_round else 0
        if handed_out:
            shift = _where_work_begins(lane, shift, handed_out, brings=keeps_busy)
        own = tuple(replace(o, channel=renamed.get(o.channel, o.channel)) for o in lane.operations[shift:])
        regions = {name: part[shift:] for name, part in lane.regions.items()}
        copy = replace(
            lane, name=f"{lane.name} (copy)", operations=own, work=lane.work[shift:], regions=regions
        )
        lanes.append(_without_foreign_tokens(copy, channels))
    if copies:
        lanes = [
            lane
            if i >= len(trace.lanes) or i in role
            else _with_copied_services(lane, copies)
            if lane.chooses & copies.keys()
            else _with_copies(lane, copies)
            for i, lane in enumerate(lanes)
        ]
    changed = replace(trace, lanes=tuple(lanes), channels=tuple(channels))
    chooses = bool(trace.lanes[trace.driver].chooses)  # then one operation is about one worker
    return changed, count / before if per_round and not chooses else 1.0


def count_in_flight(trace: Trace, role: Sequence[int], handed_out: set[int]) -> float:
    """How many workers have a piece of work, at most of the moments at which the driver hands out another.

    None of them has one when a round of work begins.
    """
    moments = [
        o.begin for o in trace.lanes[trace.driver].operations if o.kind == SEND and o.channel in handed_out
    ]
    if not moments:
        return 0.0
    busy = np.zeros(len(moments))
    for m in role:
        takes = [o for o in trace.lanes[m].operations if o.kind == RECEIVE and o.channel in handed_out]
        begins, ends = [o.end for o in takes], [*(o.begin for o in takes[1:]), math.inf]
        at = np.searchsorted(begins, moments) - 1
        busy += (at >= 0) & (np.array([*ends, 0.0])[at] > moments)
    return float(np.quantile(busy, 0.1))


def _where_work_begins(lane: Lane, shift: int, handed_out: set[int], *, brings: bool) -> int:
    """The place from `shift` on where a lane has just got a piece of work (`brings`), or asks for one."""
    for i in range(shift, len(lane.operations)):
        operation = lane.operations[i]
        if operation.kind == RECEIVE and operation.channel in handed_out:
            return i + 1 if brings else i
    return shift


def _with_shared_work(trace: Trace, role: Sequence[int], count: int, given: dict[int, set[int]]) -> Trace:
    """The trace with another number of workers to which the driver hands work, as a data loader does.

    Each has its own queue. If all of them got as many pieces, they take turns, however long each takes: a
    loader hands its batches over in order. Otherwise the first that is free takes the next piece. Every
    worker repeats its recorded work as long as there is some.
    """
    pieces = [
        sum(o.kind == SEND and o.channel in given[m] for o in trace.lanes[trace.driver].operations)
        for m in role
    ]
    in_turn = all(len(channels) == 1 for channels in given.values()) and max(pieces) <= AS_MANY * min(pieces)
    own = [next(iter(given[m])) for m in role]
    channels = list(trace.channels)
    if in_turn:
        under_way = round(pieces_under_way(trace, role) or 0.0)  # of each worker
        over = set(own) | {o.channel for m in role for o in trace.lanes[m].operations if o.kind == SEND}
        for extra in range(count - len(role)):
            copied = extra % len(role)
            waiting = under_way - _has_work(trace.lanes[role[copied]], over)
            own.append(len(channels))
            channels.append(replace(trace.channels[own[copied]], backlog=max(waiting, 0)))
    else:
        shared = set().union(*given.values())
        own = [len(channels)] * count
        backlog = sum(trace.channels[channel].backlog for channel in shared)
        channels.append(replace(trace.channels[min(shared)], capacity=None, backlog=backlog))
    times = -(-len(role) // count)
    lanes = list(trace.lanes)
    for n in range(max(count, len(role))):
        model = trace.lanes[role[n % len(role)]]
        if n >= count:
            lanes[role[n]] = replace(model, operations=(), work=model.work[:0], regions={})
            continue
        renamed = dict.fromkeys(given[role[n % len(role)]], own[n])
        made = _repeated(_with_channels(model, renamed), times)
        if n < len(role):
            lanes[role[n]] = made
        else:
            lanes.append(_without_foreign_tokens(made, channels))
    driver, handed_out, operations = lanes[trace.driver], 0, []
    for operation in driver.operations:
        if operation.kind == SEND and any(operation.channel in channels for channels in given.values()):
            operation = replace(operation, channel=own[handed_out % count])
            handed_out += 1
        operations.append(operation)
    lanes[trace.driver] = replace(driver, operations=tuple(operations))
    return replace(trace, lanes=tuple(lanes), channels=tuple(channels))


def _with_channels(lane: Lane, renamed: Mapping[int, int]) -> Lane:
    operations = tuple(replace(o, channel=renamed.get(o.channel, o.channel)) for o in lane.operations)
    return replace(lane, operations=operations)


def _repeated(lane: Lane, times: int) -> Lane:
    """The lane doing its recorded work several times, one after the other."""
    if times <= 1:
        return lane

    def again(parts: Floats) -> Floats:
        return np.concatenate([np.tile(parts[:-1], times), parts[-1:]])

    return replace(
        lane,
        operations=lane.operations * times,
        work=again(lane.work),
        regions={name: again(part) for name, part in lane.regions.items()},
    )


def _without_foreign_tokens(lane: Lane, channels: Sequence[ReplayChannel]) -> Lane:
    """A copy that gives back no more than it has taken of locks, and of semaphores that it uses like a lock.

    It may begin where the lane that it repeats held one: giving that back would let two in at a time.
    """
    tokens = {number for number, one in enumerate(channels) if one.kind in ("lock", "semaphore")}
    taken = {o.channel: 0 for o in lane.operations if o.kind == RECEIVE and o.channel in tokens}
    keep = []
    for i, operation in enumerate(lane.operations):
        if operation.channel in taken and operation.kind in (SEND, RECEIVE):
            taken[operation.channel] += 1 if operation.kind == RECEIVE else -1
            if taken[operation.channel] < 0:
                taken[operation.channel] = 0
                continue
        keep.append(i)
    return lane if len(keep) == len(lane.operations) else _keeping(lane, keep)


def _without(lane: Lane, channels: set[int]) -> Lane:
    if not channels:
        return lane
    return _keeping(lane, [i for i, o in enumerate(lane.operations) if o.channel not in channels])


def _keeping(lane: Lane, keep: list[int]) -> Lane:
    work, regions = _merged(lane, keep)
    return replace(lane, operations=tuple(lane.operations[i] for i in keep), work=work, regions=regions)


def _merged(lane: Lane, keep: list[int]) -> tuple[Floats, dict[str, Floats]]:
    """Work and regions when only some operations stay: stretches around the others are joined."""
    ends = np.array([*keep, len(lane.operations)], dtype=int)

    def join(parts: Floats) -> Floats:
        total = np.concatenate([[0.0], np.cumsum(parts)])
        return np.diff(np.concatenate([[0.0], total[ends + 1]]))

    return join(lane.work), {name: join(part) for name, part in lane.regions.items()}


def _with_copies(lane: Lane, copies: dict[int, list[int]]) -> Lane:
    operations: list[Operation] = []
    source: list[int] = []
    for i, operation in enumerate(lane.operations):
        operations.append(operation)
        source.append(i)
        for channel in copies.get(operation.channel, ()):
            operations.append(replace(operation, channel=channel))
            source.append(-1)
    if len(operations) == len(lane.operations):
        return lane
    index = np.array([*source, len(lane.operations)])
    return _rearranged(lane, operations, index)


def _with_copied_services(lane: Lane, copies: dict[int, list[int]]) -> Lane:
    """A lane that serves whoever comes first, and serves the copies of those whom it serves, too."""
    begins = services(lane.operations, lane.chooses)
    operations: list[Operation] = []
    source: list[int] = []
    ends = [*(place for place, _ in begins[1:]), len(lane.operations)]
    first = begins[0][0] if begins else len(lane.operations)
    operations += lane.operations[:first]
    source += range(first)
    for (begin, served), end in zip(begins, ends, strict=True):
        for number in range(1 + len(copies.get(served, ()))):
            for i in range(begin, end):
                operation = lane.operations[i]
                channel = (
                    copies[operation.channel][number - 1]
                    if number and operation.channel in copies
                    else operation.channel
                )
                operations.append(replace(operation, channel=channel))
                source.append(i)
    made = _rearranged(lane, operations, np.array([*source, len(lane.operations)]))
    more = {copy for channel in lane.chooses for copy in copies.get(channel, ())}
    return replace(made, chooses=lane.chooses | more)


def _rearranged(lane: Lane, operations: list[Operation], index: NDArray[np.int_]) -> Lane:
    """The lane with other operations; `index` says whose work is done before each, -1: nothing."""

    def spread(parts: Floats) -> Floats:
        return np.where(index >= 0, parts[np.maximum(index, 0)], 0.0)

    return replace(
        lane,
        operations=tuple(operations),
        work=spread(lane.work),
        regions={name: spread(part) for name, part in lane.regions.items()},
    )


def services(operations: Sequence[Operation], chooses: frozenset[int]) -> list[tuple[int, int]]:
    """Where a lane that serves whoever comes first begins to serve somebody: place and channel, in order."""
    found: list[tuple[int, int]] = []
    for i, operation in enumerate(operations):
        if operation.channel not in chooses or operation.kind not in (PEEK, RECEIVE):
            continue
        before = operations[i - 1] if i else None
        if before is not None and before.kind == PEEK and before.channel == operation.channel:
            continue  # it has begun by waiting for this message
        found.append((i, operation.channel))
    return found


# -- the replay itself -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Running:
    """The state of one lane."""

    at: int = 0  # next operation
    left: float = 0.0  # work left before it, or time left of the operation
    # work, busy (in an operation that takes its time), gil (waits for it), blocked, done, gone
    state: str = "work"
    worked: float = 0.0
    finished: int = 0  # operations
    core: float = 0.0  # share of the present work that needs a core
    slices: list[tuple[float, bool, float]] = field(default_factory=list)  # work to come, last one first


@dataclass(slots=True)
class _Gil:
    """Who has the GIL of a process, since when, and who waits for it since when."""

    holder: int = -1
    since: float = 0.0
    waiters: deque[tuple[int, float]] = field(default_factory=deque)


@dataclass(slots=True)
class _Place:
    """The state of one channel."""

    ready: deque[float] = field(default_factory=deque)  # when each message was sent
    held: int = 0  # messages sent (or being sent) and not yet received
    takers: deque[int] = field(default_factory=deque)  # lanes that wait for a message
    senders: deque[int] = field(default_factory=deque)  # lanes that wait for room
    arrived: dict[int, list[int]] = field(default_factory=dict)  # of a barrier: lanes by round


def replay(trace: Trace, most_events: int = 400_000) -> Replayed:
    """Let the lanes run until one of them has no more recorded work."""
    return _Replay(trace).run(most_events)


class _Replay:
    def __init__(self, trace: Trace):
        self.trace = trace
        self.lanes = trace.lanes
        self.running = [_Running(state="work" if lane.operations else "gone") for lane in trace.lanes]
        self.gils: dict[int, _Gil] = {lane.process: _Gil() for lane in trace.lanes if lane.parts}
        self.own = [own_work(lane) if lane.parts else None for lane in trace.lanes]
        # Of each lane that looks for messages, by channel and whether it found one: where to go on.
        self.looks = [_looks(lane) for lane in trace.lanes]
        self.places = [_Place(deque([-math.inf] * one.backlog), one.backlog) for one in trace.channels]
        self.now = 0.0
        self.times: list[float] = []
        self.woken: dict[tuple[int, int], float] = {}
        self.waiting_for: dict[tuple[int, int], list[int]] = {}
        self.core_s = 0.0
        self.gil_s: dict[int, float] = {}
        self.done = False
        # Of each lane, by channel: where to go on, again and again.
        self.services = [_services(lane) for lane in trace.lanes]
        self.begins = [frozenset(i for places in by.values() for i in places) for by in self.services]
        self.idle: set[int] = set()  # lanes that wait for whoever comes first
        self.later: list[tuple[float, int]] = []  # messages of timers: when they are there, and where
        self.known_rates: dict[tuple[tuple[str, float], ...], list[float]] = {}
        for i, lane in enumerate(trace.lanes):
            if lane.operations:
                self._start_work(i)

    def run(self, most_events: int) -> Replayed:
        rates = self._rates()
        stuck = False
        for _ in range(most_events):
            step, who = math.inf, -1
            for i, one in enumerate(self.running):
                rate = rates[i]
                if rate > 0.0:
                    needs = one.left / rate
                    if needs < step:
                        step, who = needs, i
            switch = min((self._switch_at(gil) for gil in self.gils.values()), default=math.inf) - self.now
            if switch < step and not (self.later and self.later[0][0] - self.now <= switch):
                self._advance(max(switch, 0.0), rates)
                self._switch()
                rates = self._rates()
                continue
            if self.later and self.later[0][0] - self.now <= step:
                at, channel = heapq.heappop(self.later)
                self._advance(max(at - self.now, 0.0), rates)
                self.places[channel].ready.append(self.now)
                self._serve(channel)
                rates = self._rates()
                continue
            if who < 0:
                if self._release():
                    rates = self._rates()
                    continue
                stuck = True
                break
            self._advance(step, rates)
            self._ended(who)
            if self.done:
                break
            rates = self._rates()
        seconds = self.now
        return Replayed(
            np.array(self.times),
            np.array([one.worked / seconds if seconds else 0.0 for one in self.running]),
            self.core_s / seconds / self.trace.cores if seconds else 0.0,
            max(self.gil_s.values(), default=0.0) / seconds if seconds else 0.0,
            seconds,
            stuck,
        )

    def _release(self) -> bool:
        """Everyone waits: end a wait on a condition, because whatever it waits for has been done.

        Another lane than the recorded one did it: threads of a pool take what comes.
        """
        for waker, lanes in self.waiting_for.items():
            one = self.running[lanes[0]]
            one.state, one.left = "busy", lane_cost(self.lanes[lanes[0]], one.at)
            del lanes[0]
            if not lanes:
                del self.waiting_for[waker]
            return True
        return False

    def _rates(self) -> list[float]:
        """How fast each lane proceeds: less than 1 where cores or a GIL are short, 0 where it waits."""
        states = tuple((one.state, one.core if one.state == "work" else 0.0) for one in self.running)
        found = self.known_rates.get(states)
        if found is None:
            found = self.known_rates[states] = self._find_rates(states)
        return found

    def _find_rates(self, states: tuple[tuple[str, float], ...]) -> list[float]:
        rates = [1.0 if state == "busy" else 0.0 for state, _ in states]
        working = [i for i, (state, _) in enumerate(states) if state == "work"]
        needs = [
            _Need(states[i][1], 0.0 if self.lanes[i].parts else self.lanes[i].gil, self.lanes[i].process)
            for i in working
        ]
        for i, duration in zip(working, _durations(needs, self.trace.cores, self.trace.others), strict=True):
            rates[i] = 1.0 / duration
        return rates

    def _advance(self, step: float, rates: list[float]) -> None:
        self.now += step
        for i, one in enumerate(self.running):
            rate = rates[i]
            if rate > 0.0:
                one.left -= step * rate
                if one.state == "work":
                    one.worked += step
                    lane = self.lanes[i]
                    self.core_s += step * rate * one.core
                    if lane.parts:
                        if self.gils[lane.process].holder == i:
                            self.gil_s[lane.process] = self.gil_s.get(lane.process, 0.0) + step
                    elif lane.gil:
                        self.gil_s[lane.process] = self.gil_s.get(lane.process, 0.0) + step * rate * lane.gil

    def _ended(self, i: int) -> None:
        """The work before an operation, or the operation itself, has ended."""
        one = self.running[i]
        if one.state != "work":
            self._finish(i)
            return
        if one.slices:
            self._next_slice(i)
            return
        marks = self.lanes[i].marks if i == self.trace.driver else ()
        if one.at < len(marks):
            self.times.extend([self.now] * marks[one.at])
        if one.at >= len(self.lanes[i].operations) and self.lanes[i].repeats:
            one.at = 0
            self._start_work(i)
        elif self.looks[i] and not self.services[i]:
            self._look(i)
        elif self.services[i] and one.finished and one.finished >= len(self.lanes[i].operations):
            self._end(i)
        elif self.services[i] and (one.at in self.begins[i] or one.at >= len(self.lanes[i].operations)):
            self._choose(i)
        elif one.at >= len(self.lanes[i].operations):
            self._end(i)
        else:
            self._begin(i)

    def _start_work(self, i: int) -> None:
        """Begin the stretch of work before the next operation."""
        one, lane, own = self.running[i], self.lanes[i], self.own[i]
        if own is None:
            one.state, one.left, one.core = "work", float(lane.work[one.at]), lane.core
            return
        one.slices = _slices(lane, own[:, one.at])[::-1]
        self._next_slice(i)

    def _next_slice(self, i: int) -> None:
        """Go on with the next piece of work, for which the lane may have to wait for the GIL."""
        one, gil = self.running[i], self.gils[self.lanes[i].process]
        one.left, needs_gil, one.core = one.slices.pop() if one.slices else (0.0, False, 0.0)
        one.state = "work"
        if not needs_gil:
            if one.left > 0:
                self._give_up_gil(i)
        elif gil.holder < 0:
            gil.holder, gil.since = i, self.now
        elif gil.holder != i:
            one.state = "gil"
            gil.waiters.append((i, self.now))

    def _give_up_gil(self, i: int) -> None:
        gil = self.gils.get(self.lanes[i].process)
        if gil is not None and gil.holder == i:
            self._hand_on(gil)

    def _hand_on(self, gil: _Gil) -> None:
        gil.holder, gil.since = -1, self.now
        if gil.waiters:
            gil.holder, _ = gil.waiters.popleft()
            self.running[gil.holder].state = "work"

    def _switch_at(self, gil: _Gil) -> float:
        """When the holder has to hand the GIL on, because another thread has waited for it long enough."""
        if gil.holder < 0 or not gil.waiters or self.running[gil.holder].state != "work":
            return math.inf
        return max(gil.since, gil.waiters[0][1]) + SWITCH_S

    def _switch(self) -> None:
        for gil in self.gils.values():
            if self._switch_at(gil) <= self.now + 1e-12:
                before = gil.holder
                self._hand_on(gil)
                self.running[before].state = "gil"
                gil.waiters.append((before, self.now))

    def _look(self, i: int) -> None:
        """Do what the lane did when it found a message, or none: each time that was recorded, in turn."""
        one, lane = self.running[i], self.lanes[i]
        if one.finished >= len(lane.operations):
            self._end(i)
            return
        if one.at >= len(lane.operations):
            one.at = next(at for at, o in enumerate(lane.operations) if o.kind in (FOUND, EMPTY))
        operation = lane.operations[one.at]
        if operation.kind in (FOUND, EMPTY):
            place = self.places[operation.channel]
            found = FOUND if len(place.ready) > len(place.takers) else EMPTY
            places = self.looks[i].get((operation.channel, found))
            if places is not None:
                one.at = places[0]
                places.rotate(-1)
        self._begin(i)

    def _end(self, i: int) -> None:
        self.running[i].state, self.done = "done", True

    def _choose(self, i: int) -> None:
        """Serve the message that was sent first, or wait for one; each sender as it was recorded, in turn."""
        one = self.running[i]
        waiting = [channel for channel in self.services[i] if self.places[channel].ready]
        if not waiting:
            one.state, one.left = "blocked", math.inf
            self._give_up_gil(i)
            self.idle.add(i)
            return
        self.idle.discard(i)
        channel = min(waiting, key=lambda channel: self.places[channel].ready[0])
        one.at = self.services[i][channel][0]
        self.services[i][channel].rotate(-1)
        self._begin(i)

    def _begin(self, i: int) -> None:
        one = self.running[i]
        operation = self.lanes[i].operations[one.at]
        place = self.places[operation.channel]
        channel = self.trace.channels[operation.channel]
        if operation.kind == RECEIVE:
            if place.ready and not place.takers:
                self._take(i, place, channel, operation)
            else:
                one.state, one.left = "blocked", math.inf
                place.takers.append(i)
        elif operation.kind == SEND:
            if channel.capacity is not None and place.held >= channel.capacity:
                one.state, one.left = "blocked", math.inf
                place.senders.append(i)
            else:
                place.held += 1
                one.state, one.left = "busy", operation.cost
        elif operation.kind == PEEK or (
            operation.kind == FOUND and (operation.channel, EMPTY) not in self.looks[i]
        ):
            if place.ready:
                one.state, one.left = "busy", operation.cost
            else:
                one.state, one.left = "blocked", math.inf
                place.takers.appendleft(i)
        elif operation.kind == MEET:
            here = place.arrived.setdefault(operation.round, [])
            here.append(i)
            one.state, one.left = "blocked", math.inf
            if len(here) >= channel.parties:
                last = max(self.lanes[j].operations[self.running[j].at].cost for j in here)
                for j in here:
                    self.running[j].state, self.running[j].left = "busy", last
                del place.arrived[operation.round]
        elif operation.kind == WAIT and operation.waker is not None:
            at = self.woken.get(operation.waker)
            if at is None:
                one.state, one.left = "blocked", math.inf
                self.waiting_for.setdefault(operation.waker, []).append(i)
            else:
                one.state, one.left = "busy", operation.cost
        else:
            one.state, one.left = "busy", operation.cost
        if one.state == "blocked" or (operation.cost > GIVES_UP_S and operation.kind != EMPTY):
            self._give_up_gil(i)

    def _take(self, i: int, place: _Place, channel: ReplayChannel, operation: Operation) -> None:
        sent = place.ready.popleft()
        one = self.running[i]
        one.state = "busy"
        latency = channel.latency if operation.latency is None else operation.latency
        one.left = max(operation.cost, sent + latency - self.now)

    def _finish(self, i: int) -> None:
        one = self.running[i]
        lane = self.lanes[i]
        operation = lane.operations[one.at]
        place = self.places[operation.channel]
        if operation.kind == SEND:
            place.ready.append(self.now)
            self._serve(operation.channel)
        elif operation.kind == RECEIVE:
            place.held -= 1
            if place.senders:
                other = place.senders.popleft()
                place.held += 1
                sender = self.running[other]
                sender.state = "busy"
                sender.left = lane_cost(self.lanes[other], sender.at)
        elif operation.kind == LATER:
            heapq.heappush(self.later, (self.now + operation.delay, operation.channel))
        elif operation.kind == WAKE:
            self.woken[i, one.at] = self.now
            for other in self.waiting_for.pop((i, one.at), ()):
                woken = self.running[other]
                woken.state, woken.left = "busy", lane_cost(self.lanes[other], woken.at)
        if i == self.trace.driver and not lane.marks:
            self.times.append(self.now)
        one.at += 1
        one.finished += 1
        self._start_work(i)

    def _serve(self, channel_index: int) -> None:
        place, channel = self.places[channel_index], self.trace.channels[channel_index]
        while place.takers and place.ready:
            j = place.takers.popleft()
            operation = self.lanes[j].operations[self.running[j].at]
            if operation.kind == PEEK:
                self.running[j].state = "busy"
                self.running[j].left = max(operation.cost, channel.latency)
            else:
                self._take(j, place, channel, operation)
        for i in [i for i in self.idle if place.ready and channel_index in self.lanes[i].chooses]:
            self._choose(i)


class _Need(NamedTuple):
    """What the work of a lane needs at the moment."""

    core: float
    gil: float
    process: int


def _slices(lane: Lane, seconds: Floats) -> list[tuple[float, bool, float]]:
    """A stretch of work in pieces that need the GIL all the time or never: seconds, GIL, share of a core.

    Whoever comes back from an operation needs the GIL to go on. Where a part needs it for some of the time,
    it has it in between.
    """
    found: list[tuple[float, bool, float]] = [(0.0, True, 1.0)]
    for part, own in zip(lane.parts, seconds.tolist(), strict=True):
        if own < LEAST_SLICE_S:
            continue
        if part.gil > 1 - ALL_OR_NONE:
            found.append((own, True, min(part.core, 1.0)))
        elif part.gil < ALL_OR_NONE:
            found.append((own, False, part.core))
        else:
            free = min(max((part.core - part.gil) / (1 - part.gil), 0.0), 1.0)
            for _ in range(lane.slices):
                found.append(((1 - part.gil) * own / lane.slices, False, free))
                found.append((part.gil * own / lane.slices, True, 1.0))
    return found


def _looks(lane: Lane) -> dict[tuple[int, int], deque[int]]:
    found: dict[tuple[int, int], deque[int]] = {}
    for at, operation in enumerate(lane.operations):
        if operation.kind in (FOUND, EMPTY):
            found.setdefault((operation.channel, operation.kind), deque()).append(at)
    return found


def _durations(lanes: Sequence[_Need], cores: float, others: float) -> list[float]:
    """How long a second of work takes each of the lanes that work at the same time.

    Work that needs a full GIL takes `turns` times as long, so that it is just in use all the time; work that
    needs a core takes `short` times as long where cores are short, so that just all of them are in use.
    """
    turns: dict[int, float] = {}
    for process in {lane.process for lane in lanes}:
        turns[process] = _turns([lane.gil for lane in lanes if lane.process == process])

    def durations(short: float) -> list[float]:
        return [
            1.0
            - lane.core
            + max(lane.core - lane.gil, 0.0) * short
            + min(lane.gil, lane.core) * max(turns[lane.process], short)
            for lane in lanes
        ]

    def in_use(short: float) -> float:
        return others / short + sum(lane.core / d for lane, d in zip(lanes, durations(short), strict=True))

    return durations(_solve(in_use, cores))


def _turns(needs: Sequence[float]) -> float:
    """How many times as long work that needs a GIL takes if so much of the work of each lane needs it."""
    return _solve(lambda times: sum(need / (1 + need * (times - 1)) for need in needs), 1.0)


def _solve(used: Callable[[float], float], most: float) -> float:
    """The factor by which work must be stretched so that no more than `most` is used; at least 1."""
    if used(1.0) <= most:
        return 1.0
    low, high = 1.0, 2.0
    while used(high) > most and high < MOST_STRETCHED:
        low, high = high, 2 * high
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if used(middle) > most else (low, middle)
    return high


def _services(lane: Lane) -> dict[int, deque[int]]:
    found: dict[int, deque[int]] = {}
    for place, channel in services(lane.operations, lane.chooses) if lane.chooses else ():
        found.setdefault(channel, deque()).append(place)
    return found


def lane_cost(lane: Lane, at: int) -> float:
    return lane.operations[at].cost
