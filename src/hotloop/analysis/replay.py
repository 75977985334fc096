"""Replays a recorded run from its message log: what would it have done with other work, queues or workers?

Every thread that sent or received something is a lane: stretches of work, and operations on edges (pipes,
queues, semaphores, barriers) between them, in the order in which they happened. `replay` lets the lanes run
again: a message is received when it has been sent and the receiver is there, a full queue blocks its sender,
ranks wait for each other, and lanes share the cores and the GIL of their process.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.capture.message_format import MEET, PEEK, RECEIVE, SEND, WAIT, WAKE

Floats = NDArray[np.float64]
SWITCH_S = 20e-6  # an operation that lasts this much longer than usual has waited


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as it was recorded, in seconds from the beginning of the replay."""

    kind: int
    edge: int
    begin: float
    end: float
    cost: float  # what it takes when it does not wait
    round: int = 0  # of a barrier
    waker: tuple[int, int] | None = None  # lane and operation that ended a wait on a condition
    latency: float | None = None  # of a receive that waited: after the end of its send


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
    recorded_s: float = (
        0.0  # time between its operations as it was recorded, without a core or the GIL included
    )


@dataclass(frozen=True, slots=True)
class ReplayEdge:
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
    edges: tuple[ReplayEdge, ...]
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

    times: Floats  # seconds at the end of each operation of the driver that was reached
    busy: Floats  # share of the time in which each lane worked
    core_load: float  # cores in use / cores, while the replay ran
    gil_load: float  # the most contended GIL: share of its time in use
    seconds: float
    stuck: bool = False  # lanes waited for each other, which the recorded run did not


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
            operations = lane.operations
            if region == "backward" and any(o.kind == MEET for o in operations):
                operations = tuple(
                    replace(o, cost=o.cost * factor) if o.kind == MEET else o for o in operations
                )
            lanes[i] = replace(lane, work=work, regions=regions, operations=operations)
    return replace(trace, lanes=tuple(lanes), outside_s=outside_s, outside=outside)


def with_less_work(lane: Lane, factor: float) -> Lane:
    """The lane with all of its work multiplied by a factor."""
    if factor == 1.0:
        return lane
    regions = {name: part * factor for name, part in lane.regions.items()}
    return replace(lane, work=lane.work * factor, regions=regions)


def without_edges(trace: Trace, edges: set[int]) -> Trace:
    """The trace without operations on some edges, and so without the waits for them."""
    if not edges:
        return trace
    return replace(trace, lanes=tuple(_without(lane, edges) for lane in trace.lanes))


def with_capacity(trace: Trace, capacity: int) -> Trace:
    """The trace with another depth of every bounded queue."""
    edges = tuple(replace(e, capacity=capacity) if e.capacity and not e.parties else e for e in trace.edges)
    return replace(trace, edges=edges)


def with_workers(trace: Trace, role: Sequence[int], count: int) -> tuple[Trace, float]:
    """The trace with `count` lanes in a role, and how many times as much one round of the driver then does.

    New lanes repeat those that are there. What others do on the private edges of a lane they also do for its
    copy.
    """
    lanes, edges = list(trace.lanes), list(trace.edges)
    before = len(role)
    users: dict[int, set[int]] = {}
    for number, lane in enumerate(lanes):
        for operation in lane.operations:
            users.setdefault(operation.edge, set()).add(number)
    gives = {m: {o.edge for o in lanes[m].operations if o.kind == SEND} for m in role}
    private = {
        m: {
            e
            for e, who in users.items()
            if m in who
            and not (who & (set(role) - {m}))
            # Workers put into one queue, even if there is only one of them now; pipes have two ends.
            and (edges[e].kind == "pipe" or e not in gives[m])
        }
        for m in role
    }
    driver_takes = {o.edge for o in lanes[trace.driver].operations if o.kind == RECEIVE}
    per_round = any(private[m] & driver_takes for m in role)
    driver_gives = {o.edge for o in lanes[trace.driver].operations if o.kind == SEND}
    if not per_round and all(private[m] & driver_gives for m in role):
        return _with_shared_work(trace, role, count, {m: private[m] & driver_gives for m in role}), 1.0
    if count < before:
        gone = set(list(role)[count:])
        dropped = set().union(*(private[m] for m in gone)) if gone else set()
        lanes = [
            replace(lane, operations=(), work=lane.work[:0]) if i in gone else _without(lane, dropped)
            for i, lane in enumerate(lanes)
        ]
    copies: dict[int, list[int]] = {}
    for extra in range(max(count - before, 0)):
        model = role[extra % before]
        renamed = {}
        for edge in private[model]:
            renamed[edge] = len(edges)
            copies.setdefault(edge, []).append(len(edges))
            edges.append(edges[edge])
        lane = trace.lanes[model]
        shift = (7 * extra + 3) % max(len(lane.operations) // 2, 1) if not per_round else 0
        own = tuple(replace(o, edge=renamed.get(o.edge, o.edge)) for o in lane.operations[shift:])
        regions = {name: part[shift:] for name, part in lane.regions.items()}
        lanes.append(
            replace(lane, name=f"{lane.name} (copy)", operations=own, work=lane.work[shift:], regions=regions)
        )
    if copies:
        lanes = [
            _with_copies(lane, copies) if i < len(trace.lanes) and i not in role else lane
            for i, lane in enumerate(lanes)
        ]
    changed = replace(trace, lanes=tuple(lanes), edges=tuple(edges))
    return changed, count / before if per_round else 1.0


def _with_shared_work(trace: Trace, role: Sequence[int], count: int, given: dict[int, set[int]]) -> Trace:
    """The trace with another number of workers to which the driver hands work, as a data loader does.

    Each has a queue of its own in the recording. Here whoever is free takes the next piece, and every worker
    repeats its recorded work as long as there is some.
    """
    shared = {edge: len(trace.edges) for edges in given.values() for edge in edges}
    backlog = sum(trace.edges[edge].backlog for edge in shared)
    like = trace.edges[next(iter(shared))]
    edges = (*trace.edges, replace(like, capacity=None, backlog=backlog))
    times = -(-len(role) // count)
    lanes = [
        replace(lane, operations=tuple(replace(o, edge=shared.get(o.edge, o.edge)) for o in lane.operations))
        for lane in trace.lanes
    ]
    workers = [_repeated(lanes[role[n % len(role)]], times) for n in range(count)]
    for place, number in enumerate(role):
        gone = replace(lanes[number], operations=(), work=lanes[number].work[:0], regions={})
        lanes[number] = workers[place] if place < count else gone
    return replace(trace, lanes=(*lanes, *workers[len(role) :]), edges=edges)


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


def _without(lane: Lane, edges: set[int]) -> Lane:
    if not edges:
        return lane
    keep = [i for i, o in enumerate(lane.operations) if o.edge not in edges]
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
        for edge in copies.get(operation.edge, ()):
            operations.append(replace(operation, edge=edge))
            source.append(-1)
    if len(operations) == len(lane.operations):
        return lane
    index = np.array([*source, len(lane.operations)])

    def spread(parts: Floats) -> Floats:
        return np.where(index >= 0, parts[np.maximum(index, 0)], 0.0)

    return replace(
        lane,
        operations=tuple(operations),
        work=spread(lane.work),
        regions={name: spread(part) for name, part in lane.regions.items()},
    )


# -- the replay itself -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Running:
    """The state of one lane."""

    at: int = 0  # next operation
    left: float = 0.0  # work left before it, or time left of the operation
    state: str = "work"  # work, busy (in an operation that takes its time), blocked, done
    worked: float = 0.0


@dataclass(slots=True)
class _Place:
    """The state of one edge."""

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
        self.running = [
            _Running(left=float(lane.work[0])) if lane.operations else _Running(state="gone")
            for lane in trace.lanes
        ]
        self.places = [_Place(deque([-math.inf] * e.backlog), e.backlog) for e in trace.edges]
        self.now = 0.0
        self.times: list[float] = []
        self.woken: dict[tuple[int, int], float] = {}
        self.waiting_for: dict[tuple[int, int], list[int]] = {}
        self.core_s = 0.0
        self.gil_s: dict[int, float] = {}
        self.done = False

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
        working = [i for i, one in enumerate(self.running) if one.state == "work"]
        rates = [1.0 if one.state == "busy" else 0.0 for one in self.running]
        gil: dict[int, float] = {}
        for i in working:
            lane = self.lanes[i]
            gil[lane.process] = gil.get(lane.process, 0.0) + lane.gil
        wanted = 0.0
        takes = []
        for i in working:
            lane = self.lanes[i]
            stretch = max(gil[lane.process], 1.0)
            duration = 1.0 + lane.gil * (stretch - 1.0)
            takes.append((duration, stretch))
            wanted += lane.core / duration
        short = max((wanted + self.trace.others) / self.trace.cores, 1.0)
        for i, (duration, stretch) in zip(working, takes, strict=True):
            lane = self.lanes[i]
            if short > 1.0:
                duration = (
                    1.0 - lane.core + max(lane.core - lane.gil, 0.0) * short + lane.gil * max(stretch, short)
                )
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
                    self.core_s += step * rate * lane.core
                    if lane.gil:
                        self.gil_s[lane.process] = self.gil_s.get(lane.process, 0.0) + step * rate * lane.gil

    def _ended(self, i: int) -> None:
        """The work before an operation, or the operation itself, has ended."""
        one = self.running[i]
        if one.state == "work":
            if one.at >= len(self.lanes[i].operations):
                one.state = "done"
                self.done = True
                return
            self._begin(i)
        else:
            self._finish(i)

    def _begin(self, i: int) -> None:
        one = self.running[i]
        operation = self.lanes[i].operations[one.at]
        place = self.places[operation.edge]
        edge = self.trace.edges[operation.edge]
        if operation.kind == RECEIVE:
            if place.ready and not place.takers:
                self._take(i, place, edge, operation)
            else:
                one.state, one.left = "blocked", math.inf
                place.takers.append(i)
        elif operation.kind == SEND:
            if edge.capacity is not None and place.held >= edge.capacity:
                one.state, one.left = "blocked", math.inf
                place.senders.append(i)
            else:
                place.held += 1
                one.state, one.left = "busy", operation.cost
        elif operation.kind == PEEK:
            if place.ready:
                one.state, one.left = "busy", operation.cost
            else:
                one.state, one.left = "blocked", math.inf
                place.takers.appendleft(i)
        elif operation.kind == MEET:
            here = place.arrived.setdefault(operation.round, [])
            here.append(i)
            one.state, one.left = "blocked", math.inf
            if len(here) >= edge.parties:
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

    def _take(self, i: int, place: _Place, edge: ReplayEdge, operation: Operation) -> None:
        sent = place.ready.popleft()
        one = self.running[i]
        one.state = "busy"
        latency = edge.latency if operation.latency is None else operation.latency
        one.left = max(operation.cost, sent + latency - self.now)

    def _finish(self, i: int) -> None:
        one = self.running[i]
        lane = self.lanes[i]
        operation = lane.operations[one.at]
        place = self.places[operation.edge]
        if operation.kind == SEND:
            place.ready.append(self.now)
            self._serve(operation.edge)
        elif operation.kind == RECEIVE:
            place.held -= 1
            if place.senders:
                other = place.senders.popleft()
                place.held += 1
                sender = self.running[other]
                sender.state = "busy"
                sender.left = lane_cost(self.lanes[other], sender.at)
        elif operation.kind == WAKE:
            self.woken[i, one.at] = self.now
            for other in self.waiting_for.pop((i, one.at), ()):
                woken = self.running[other]
                woken.state, woken.left = "busy", lane_cost(self.lanes[other], woken.at)
        if i == self.trace.driver:
            self.times.append(self.now)
        one.at += 1
        one.state, one.left = "work", float(lane.work[one.at])

    def _serve(self, edge_index: int) -> None:
        place, edge = self.places[edge_index], self.trace.edges[edge_index]
        while place.takers and place.ready:
            j = place.takers.popleft()
            operation = self.lanes[j].operations[self.running[j].at]
            if operation.kind == PEEK:
                self.running[j].state = "busy"
                self.running[j].left = max(operation.cost, edge.latency)
            else:
                self._take(j, place, edge, operation)


def lane_cost(lane: Lane, at: int) -> float:
    return lane.operations[at].cost
