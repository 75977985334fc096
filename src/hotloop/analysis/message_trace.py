"""From a capture and its message logs to a trace that can be replayed (`replay.py`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.replay import Floats, Lane, Operation, ReplayEdge, Trace
from hotloop.capture.message_format import MEET, PEEK, RECEIVE, SEND, WAIT, WAKE
from hotloop.capture.messages import LoggedEdge, MessageLog
from hotloop.capture.model import Capture, Node, Process, Thread
from hotloop.capture.scheduling import Counts

LEAST_OPERATIONS = 16  # of the driving thread
MOST_OPERATIONS = 60_000  # of all threads; a long log is cut to its last part
LEAST_LANES = 2
WAITED_NS = 30_000  # a receive that came this much before its message has waited
# Kinds whose receiver is woken at once: one that comes much later than others had no core, and the replay
# shares the cores itself. Queues have a thread between both ends.
UNDELAYED = ("pipe", "semaphore", "lock")
LEAST_DELAY_NS = 60_000
PASSES_ON = (
    "(_handle_tasks)"  # a thread of multiprocessing.Pool that waits for work in C, where nothing is logged
)
HEAVY = 0.1  # share of the time on a core that tells how cores are shared
MOST_LOST = 1.25  # time in the run queue over what the others' stretch explains
NO_CORE = 0.02  # time in the run queue over time on a core; below it, nobody else took the cores


@dataclass(slots=True)
class _Raw:
    """One recorded operation."""

    begin: int
    end: int
    edge: int
    kind: int
    round: int
    blocked: bool = False
    since_sent: int = 0  # end of a receive that waited, after the end of its send
    waker: tuple[int, int] | None = None


@dataclass(slots=True)
class _Thread:
    process_index: int
    process: Process
    thread: Thread | None  # None: it has opened no region
    native_id: int
    rows: list[_Raw]
    delayed_s: float = 0.0  # time in which it had been woken but had no core


Moments = NDArray[np.int64]
_Threads = dict[tuple[int, int], _Thread]  # by process and native id
_Counts = dict[tuple[int, int, int], list[tuple[int, int]]]  # by process, edge and kind: end and count


def find_trace(
    capture: Capture,
    logs: Sequence[MessageLog],
    driver: tuple[int, int] | None,
    cores: float,
    since_ns: int = 0,
    until_ns: int | None = None,
) -> tuple[Trace | None, str]:
    """The trace of the run from `since_ns` to `until_ns` (monotonic), or None and the reason.

    `driver` is the process id and the native id of the thread that drives training. Its work is what it would
    take with a core at hand: time in the run queue is left out, and comes back when lanes share the cores.
    """
    if driver is None:
        return None, "no thread drives training"
    threads, edges, counts = _threads(capture, logs)
    if driver not in threads or len(threads) < LEAST_LANES:
        return None, "no messages between threads or processes were recorded"
    if until_ns is not None:
        for one in threads.values():
            one.rows = [row for row in one.rows if row.begin < until_ns]
    _drop_lonely(threads, edges)
    threads = {key: one for key, one in threads.items() if one.rows}
    if driver not in threads or len(threads) < LEAST_LANES:
        return None, "the driving thread exchanged no messages with others that were recorded"
    begin, end = _span(threads, driver, since_ns)
    for one in threads.values():
        one.rows = [r for r in one.rows if r.end > begin and r.begin < end]
    threads = {key: one for key, one in threads.items() if one.rows}
    if driver not in threads or len(threads[driver].rows) < LEAST_OPERATIONS:
        return None, f"the driving thread has fewer than {LEAST_OPERATIONS} recorded operations"
    _drop_incomplete_rounds(threads)
    threads = {key: one for key, one in threads.items() if one.rows}
    if driver not in threads:
        return None, "the driving thread met no other one in full rounds"
    order = sorted(threads)
    backlog = _backlogs(threads, edges, counts, begin)
    for one in threads.values():
        if one.rows[0].begin < begin:
            one.rows[0].blocked, one.rows[0].since_sent = True, -1  # how long it will take is not known
    _match(threads, edges, backlog)
    _find_wakers([threads[key] for key in order])
    costs = _costs(threads, edges)
    lanes = tuple(_lane(threads[key], costs, begin, end) for key in order)
    lanes, notes, free_cores, rivals = _contention(capture, threads, order, lanes, begin, end, cores)
    made = tuple(
        ReplayEdge(
            name=edge.key,
            kind=edge.kind,
            capacity=edge.capacity if edge.kind not in ("barrier", "collective") else None,
            backlog=backlog.get(number, 0),
            latency=costs.latency.get(number, 0.0),
            parties=_parties(edge, number, threads),
        )
        for number, edge in enumerate(edges)
    )
    seconds = (end - begin) / 1e9
    place = order.index(driver)
    trace = Trace(lanes, made, place, free_cores, seconds, tuple(notes), rivals, begin)
    return trace, ""


def _threads(
    capture: Capture, logs: Sequence[MessageLog]
) -> tuple[
    dict[tuple[int, int], _Thread], list[LoggedEdge], dict[tuple[int, int, int], list[tuple[int, int]]]
]:
    """The recorded operations by process and thread, the edges, and the counts of each process over time."""
    edges: list[LoggedEdge] = []
    index: dict[str, int] = {}
    known = {(p.pid, t.native_id): t for p in capture.processes for t in p.threads}
    threads: dict[tuple[int, int], _Thread] = {}
    counts: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    by_pid = {p.pid: (i, p) for i, p in enumerate(capture.processes)}
    peers = {edge.key: edge.peer for log in logs for edge in log.edges if edge.peer}
    for log in logs:
        if log.pid not in by_pid:
            continue
        numbers: dict[tuple[int, bool], int] = {}
        rows = log.records
        for begin, end, native, edge_index, kind, count in rows.tolist():
            sends = kind == SEND
            number = numbers.get((edge_index, sends))
            if number is None:
                edge = log.edges[edge_index]
                key = peers.get(edge.key, edge.key) if sends and edge.kind == "pipe" else edge.key
                number = index.setdefault(key, len(edges))
                if number == len(edges):
                    edges.append(replace(edge, key=key))
                elif edges[number].capacity is None and edge.capacity is not None:
                    edges[number] = replace(edges[number], capacity=edge.capacity)
                numbers[edge_index, sends] = number
            counts[log.pid, number, kind].append((end, count))
            one = threads.get((log.pid, native))
            if one is None:
                owner, process = by_pid[log.pid]
                one = _Thread(owner, process, known.get((log.pid, native)), native, [])
                threads[log.pid, native] = one
            one.rows.append(_Raw(begin, end, number, kind, count))
    for one in threads.values():
        one.rows.sort(key=lambda r: r.begin)
    return threads, edges, counts


def _drop_lonely(threads: dict[tuple[int, int], _Thread], edges: list[LoggedEdge]) -> None:
    """Remove operations whose other side was never seen: nothing can be said about them."""
    sides: dict[int, set[int]] = defaultdict(set)
    users: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for key, one in threads.items():
        for row in one.rows:
            sides[row.edge].add(row.kind)
            users[row.edge].add(key)
    alone = {
        edge
        for edge in sides
        if len(users[edge]) < 2
        or ({SEND, RECEIVE} & sides[edge] and not {SEND, RECEIVE} <= sides[edge])
        or (WAIT in sides[edge] and WAKE not in sides[edge])
        or (WAKE in sides[edge] and WAIT not in sides[edge])
    }
    for one in threads.values():
        one.rows = [r for r in one.rows if r.edge not in alone]


def _drop_incomplete_rounds(threads: _Threads) -> None:
    """Remove rounds of barriers that not everyone's log has: nobody would ever complete them."""
    rounds: dict[int, list[set[int]]] = defaultdict(list)
    for one in threads.values():
        mine: dict[int, set[int]] = defaultdict(set)
        for row in one.rows:
            if row.kind == MEET:
                mine[row.edge].add(row.round)
        for edge, seen in mine.items():
            rounds[edge].append(seen)
    common = {edge: set.intersection(*seen) for edge, seen in rounds.items()}
    for one in threads.values():
        one.rows = [r for r in one.rows if r.kind != MEET or r.round in common[r.edge]]


def _span(threads: dict[tuple[int, int], _Thread], driver: tuple[int, int], since_ns: int) -> tuple[int, int]:
    """The stretch of time that every log and every timeline covers."""
    begin = max(since_ns, min(r.begin for r in threads[driver].rows))
    end = min(max(r.end for r in one.rows) for one in threads.values())
    mine = threads[driver].rows
    end, late = max(end, mine[len(mine) // 2].end), mine[len(mine) // 2].begin
    for one in threads.values():
        first = one.rows[0]
        if first.begin > late:
            continue  # it began late: nothing of it is missing before
        if first.round > 1 and first.begin > begin and len(one.rows) > 1000:
            begin = max(begin, first.begin)  # its ring begins here
        if one.thread is not None and one.thread.events and _calls(one.thread.root) > len(one.thread.events):
            begin = max(begin, min(e.start_ns for e in one.thread.events))  # earlier regions are not known
    total = sum(len(one.rows) for one in threads.values())
    if total > MOST_OPERATIONS:
        begin = max(begin, int(end - (end - begin) * MOST_OPERATIONS / total))
    return begin, end


def _calls(root: Node) -> int:
    return root.calls + sum(map(_calls, root.children))


def _backlogs(
    threads: dict[tuple[int, int], _Thread],
    edges: list[LoggedEdge],
    counts: dict[tuple[int, int, int], list[tuple[int, int]]],
    begin: int,
) -> dict[int, int]:
    """How many messages each edge held at `begin`: what had been sent but not received."""
    before: dict[tuple[int, int], int] = defaultdict(int)
    for (_, place, kind), rows in counts.items():
        past = [count for end, count in rows if end <= begin]
        before[place, kind] += past[-1] if past else max(rows[0][1] - 1, 0)
    found = {}
    for number, edge in enumerate(edges):
        moves = sorted(
            (r.begin if r.kind == SEND else r.end, 0 if r.kind == SEND else 1)
            for one in threads.values()
            for r in one.rows
            if r.edge == number and r.kind in (SEND, RECEIVE) and r.end > begin
        )
        least = level = 0
        for _, takes in moves:
            level += -1 if takes else 1
            least = min(least, level)
        known = before[number, SEND] - before[number, RECEIVE] + max(edge.tokens, 0)
        if known < 0 and edge.tokens >= 0:
            _drop_delivered(threads, number, begin, -known)
        found[number] = max(known if edge.tokens >= 0 else -least, 0)
    return found


def _drop_delivered(threads: dict[tuple[int, int], _Thread], edge: int, begin: int, count: int) -> None:
    """Remove sends that had not returned at `begin` although their messages had been received."""
    late = sorted(
        (row.begin, key)
        for key, one in threads.items()
        for row in one.rows
        if row.edge == edge and row.kind == SEND and row.begin <= begin < row.end
    )
    for at, key in late[:count]:
        one = threads[key]
        one.rows = [r for r in one.rows if not (r.edge == edge and r.kind == SEND and r.begin == at)]


def _match(threads: dict[tuple[int, int], _Thread], edges: list[LoggedEdge], backlog: dict[int, int]) -> None:
    """Pair the messages of each edge in order, and mark the operations that waited."""
    sends: dict[int, list[_Raw]] = defaultdict(list)
    takes: dict[int, list[_Raw]] = defaultdict(list)
    for one in threads.values():
        for row in one.rows:
            (sends if row.kind == SEND else takes if row.kind == RECEIVE else defaultdict(list))[
                row.edge
            ].append(row)
    for number, edge in enumerate(edges):
        sent = sorted(sends[number], key=lambda r: r.end)
        taken = sorted(takes[number], key=lambda r: r.end)
        held = backlog.get(number, 0)
        for k, row in enumerate(taken):
            partner = k - held
            if partner >= len(sent):
                row.blocked, row.since_sent = True, -1  # its message was sent after the last one we know
            elif partner >= 0 and (
                sent[partner].end > row.begin + WAITED_NS
                # A thread of the sender passes on what was put, once it gets the GIL.
                or (edge.kind == "queue" and row.end - row.begin > 3 * WAITED_NS)
            ):
                row.blocked = True
                # Below 0: it was faster than the sender's return. No longer than it was there to receive.
                row.since_sent = min(row.end - sent[partner].end, row.end - row.begin)
        if edge.capacity:
            order = sorted(sends[number], key=lambda r: r.begin)
            for k, row in enumerate(order):
                frees = k + held - edge.capacity
                if 0 <= frees < len(taken) and taken[frees].end > row.begin + WAITED_NS:
                    row.blocked = True


def _find_wakers(threads: Sequence[_Thread]) -> None:
    """For each wait on a condition, the operation that ended it."""
    wakes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for lane, one in enumerate(threads):
        for at, row in enumerate(one.rows):
            if row.kind == WAKE:
                wakes[row.edge].append((row.end, lane, at))
    for found in wakes.values():
        found.sort()
    for lane, one in enumerate(threads):
        for row in one.rows:
            if row.kind != WAIT:
                continue
            rows = wakes.get(row.edge, [])
            times = [r[0] for r in rows]
            at = int(np.searchsorted(times, row.end, side="right")) - 1
            while at >= 0 and rows[at][0] >= row.begin:
                if rows[at][1] != lane:
                    row.waker = rows[at][1], rows[at][2]
                    row.since_sent = row.end - rows[at][0]
                    break
                at -= 1


@dataclass(frozen=True, slots=True)
class _Costs:
    latency: dict[int, float]  # by edge
    usual: dict[tuple[int, int], float]  # by edge and kind, when it does not wait
    meets: dict[tuple[int, int], float]  # by edge and round: the shortest


def _costs(threads: dict[tuple[int, int], _Thread], edges: list[LoggedEdge]) -> _Costs:
    free: dict[tuple[int, int], list[int]] = defaultdict(list)
    late: dict[int, list[int]] = defaultdict(list)
    waited: dict[tuple[int, int], list[int]] = defaultdict(list)
    meets: dict[tuple[int, int], int] = {}
    for one in threads.values():
        for row in one.rows:
            if row.kind == MEET:
                key = row.edge, row.round
                meets[key] = min(meets.get(key, row.end - row.begin), row.end - row.begin)
            elif row.kind == WAIT:
                waited[row.edge, WAIT].append(row.since_sent)
            elif row.blocked and row.kind == RECEIVE:
                if row.since_sent != -1:
                    late[row.edge].append(row.since_sent)
            elif not row.blocked and row.kind != PEEK:
                free[row.edge, row.kind].append(row.end - row.begin)
    for kind in UNDELAYED:
        mine = [number for number, edge in enumerate(edges) if edge.kind == kind and late.get(number)]
        found = np.array([value for number in mine for value in late[number] if value > 0])
        if len(found):
            most = max(2 * int(np.quantile(found, 0.25)), LEAST_DELAY_NS)
            for one in threads.values():
                for row in one.rows:
                    if row.blocked and row.edge in mine and row.since_sent > most:
                        one.delayed_s += (row.since_sent - most) / 1e9
                        row.since_sent = most
            for number in mine:
                late[number] = [min(value, most) for value in late[number]]
    usual = {key: _typical(values) for key, values in free.items()}
    latency = {edge: _typical(values) for edge, values in late.items()}
    for number in range(len(edges)):
        if number in latency:  # one that need not wait is no slower
            usual[number, RECEIVE] = max(min(latency[number], usual.get((number, RECEIVE), 50e-6)), 0.0)
        latency.setdefault(number, usual.get((number, RECEIVE), 0.0))
        usual.setdefault((number, SEND), 20e-6)
    for key, values in waited.items():
        usual[key] = _typical(values)
    return _Costs(latency, usual, {key: value / 1e9 for key, value in meets.items()})


def _typical(values_ns: Sequence[int]) -> float:
    """Median in seconds: the longest ones are of threads that lost their core."""
    return float(np.median(np.asarray(values_ns, dtype=np.float64))) / 1e9


def _parties(edge: LoggedEdge, number: int, threads: dict[tuple[int, int], _Thread]) -> int:
    if edge.kind not in ("barrier", "collective"):
        return 0
    seen = sum(any(r.edge == number and r.kind == MEET for r in one.rows) for one in threads.values())
    return min(seen, edge.capacity) if edge.capacity else seen


def _lane(one: _Thread, costs: _Costs, begin: int, end: int) -> Lane:
    rows = one.rows
    operations: list[Operation] = []
    excess = np.zeros(len(rows) + 1)
    starts = np.array([begin, *(max(r.end, begin) for r in rows)], dtype=np.int64)
    ends = np.array([*(max(r.begin, begin) for r in rows), end], dtype=np.int64)
    ends = np.maximum(ends, starts)
    for row in rows:
        if row.kind == MEET:
            cost = costs.meets.get((row.edge, row.round), 0.0)
        elif row.kind in (PEEK,):
            cost = 0.0
        elif row.kind == WAIT:
            cost = costs.usual[row.edge, WAIT] if row.waker is not None else (row.end - row.begin) / 1e9
        elif row.blocked:
            cost = costs.usual.get((row.edge, row.kind), 0.0)
        else:
            cost = (row.end - row.begin) / 1e9
        operations.append(
            Operation(
                row.kind,
                row.edge,
                (row.begin - begin) / 1e9,
                (row.end - begin) / 1e9,
                cost,
                row.round,
                row.waker,
                max(row.since_sent, 0) / 1e9 if row.blocked and row.since_sent != -1 else None,
            )
        )
        usual = costs.usual.get((row.edge, row.kind))
        if row.kind in (SEND, RECEIVE) and usual is not None and cost > 3 * usual:
            operations[-1] = replace(operations[-1], cost=usual)
            excess[len(operations)] = cost - usual  # it lost its core: the message itself was on time
    work = (ends - starts) / 1e9 + excess
    regions, inside = _regions(one, starts, ends)
    main = max(regions, key=lambda name: _exclusive(regions, name, inside), default="")
    label = f"{one.process.label or 'process'} (pid {one.process.pid})"
    name = f"{label}, {one.thread.name}" if one.thread is not None and one.thread.name else label
    key, recorded_s = (one.process.pid, one.native_id), float(work.sum())
    return Lane(
        name, one.process_index, tuple(operations), work, regions, 1.0, 0.0, main, inside, key, recorded_s
    )


def _exclusive(regions: dict[str, Floats], name: str, inside: frozenset[str]) -> float:
    """What a region took, for choosing the one that matters most; hulls around waits count less."""
    return float(regions[name].sum()) * (0.5 if name in inside else 1.0)


def _regions(one: _Thread, starts: Moments, ends: Moments) -> tuple[dict[str, Floats], frozenset[str]]:
    """The part of each stretch that each region took, and the regions with operations inside."""
    found: dict[str, Floats] = {}
    inside: set[str] = set()
    if one.thread is None:
        return found, frozenset()
    by_name: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in one.thread.events:
        path = one.thread.paths[event.path] if event.path < len(one.thread.paths) else ()
        if path:
            by_name[path[-1]].append((event.start_ns, event.start_ns + event.duration_ns))
    begins = np.array([r.begin for r in one.rows])
    finishes = np.array([r.end for r in one.rows])
    for name, intervals in by_name.items():
        covered = _union(intervals)
        part = _overlap(covered, starts, ends) / 1e9
        if part.sum() > 0:
            found[name] = part
        hulls = 0
        for low, high in covered:
            at = int(np.searchsorted(begins, low))
            hulls += at < len(begins) and finishes[at] <= high
        if hulls * 2 > len(covered):
            inside.add(name)
    return found, frozenset(inside)


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return merged


def _overlap(covered: list[tuple[int, int]], starts: Moments, ends: Moments) -> Floats:
    """How much of each stretch [starts, ends] is covered by disjoint intervals, in nanoseconds."""
    lows = np.array([low for low, _ in covered], dtype=np.int64)
    highs = np.array([high for _, high in covered], dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(highs - lows)])

    def up_to(moments: Moments) -> Moments:
        at = np.searchsorted(lows, moments, side="right")
        last = np.maximum(at - 1, 0)
        return np.asarray(np.where(at > 0, total[last] + np.minimum(moments, highs[last]) - lows[last], 0))

    return np.asarray(np.maximum(up_to(ends) - up_to(starts), 0), dtype=np.float64)


# -- cores and the GIL -----------------------------------------------------------------------------


def _between(time_ns: Counts, values: Counts | None, begin: int, end: int) -> float | None:
    """Growth of a cumulative figure between two moments, in seconds."""
    if values is None or len(time_ns) < 2:
        return None
    low, high = np.interp([begin, end], time_ns.astype(np.float64), values.astype(np.float64))
    seen = min(end, int(time_ns[-1])) - max(begin, int(time_ns[0]))
    return float(high - low) / 1e9 * ((end - begin) / seen if 0 < seen < end - begin else 1.0)


def _contention(
    capture: Capture,
    threads: dict[tuple[int, int], _Thread],
    order: list[tuple[int, int]],
    lanes: tuple[Lane, ...],
    begin: int,
    end: int,
    cores: float,
) -> tuple[tuple[Lane, ...], list[str], float, float]:
    """The lanes with the work they would have with a core and the GIL at hand, notes, the cores they share,
    and how many busy threads of other programs would explain the time in the run queue.
    """
    span = (end - begin) / 1e9
    used, queued, busy = [], [], []
    for key, lane in zip(order, lanes, strict=True):
        thread = threads[key].thread
        figures = thread.scheduling if thread is not None else None
        on_core = _between(figures.time_ns, figures.on_core_ns, begin, end) if figures else None
        in_queue = _between(figures.time_ns, figures.run_queue_ns, begin, end) if figures else None
        busy.append(max(float(lane.work.sum()), 1e-9))
        used.append(min(on_core, span) if on_core is not None else None)
        queued.append(in_queue or 0.0)
    everything = 0.0
    for process in capture.processes:
        cpu = process.scheduling
        everything += (
            (_between(cpu.time_ns, cpu.cpu_ns, begin, end) or 0.0) / span if cpu is not None else 0.0
        )
    delayed = [threads[key].delayed_s for key in order]
    stretch = _stretch([u or 0.0 for u in used], queued, busy, delayed, span)
    mine = sum(u for u in used if u is not None) / span
    free = max(cores - max(everything - mine, 0.0), 0.5)
    notes: list[str] = []
    made = list(lanes)
    shared: dict[int, list[int]] = defaultdict(list)
    for i, lane in enumerate(lanes):
        shared[lane.process].append(i)
    for i, lane in enumerate(lanes):
        on_core = used[i]
        if on_core is None:
            continue
        lost = min(queued[i], max(busy[i] - on_core, 0.0), MOST_LOST * on_core * (stretch - 1))
        if lane.name.endswith(PASSES_ON):
            lost = max(busy[i] - on_core, 0.0)
        left = max(busy[i] - lost, on_core * 0.5, 1e-9)
        scale = left / busy[i]
        made[i] = _scaled(lane, scale, min(on_core / left, 1.0), 0.0)
    for owner, members in shared.items():
        active = [i for i in members if (used[i] or 0.0) > 0.03 * span]
        if _share_a_gil([lanes[i] for i in active], [(used[i] or 0.0) + queued[i] for i in active], span):
            label = capture.processes[owner].label or "the process"
            notes.append(f"threads of {label} take turns: they share its GIL")
            for i in active:
                needs = (used[i] or 0.0) / busy[i]
                made[i] = _scaled(lanes[i], min(needs, 1.0), 1.0, 1.0)
    rivals = _rivals([u or 0.0 for u in used], stretch, span, free)
    return tuple(made), notes, free, rivals


def _stretch(
    used: Sequence[float],
    queued: Sequence[float],
    busy: Sequence[float],
    delayed: Sequence[float],
    span: float,
) -> float:
    """How many times as long work on a core took because lanes had to share the cores.

    From lanes that use a core much. One that sleeps and wakes up may wait longer for a core than it then
    needs it: that is no sharing, and stays part of its work.
    """
    heavy = [i for i, on_core in enumerate(used) if on_core > HEAVY * span]
    whole = sum(used[i] for i in heavy)
    waited = sum(min(queued[i], max(busy[i] - used[i], 0.0) + delayed[i]) for i in heavy)
    return 1 + waited / whole if waited > NO_CORE * whole else 1.0


def _rivals(used: Sequence[float], stretch: float, span: float, cores: float) -> float:
    """Busy threads of other programs that would explain the stretch.

    A lane that wants a core gets one of `cores` in turn with every other thread that wants one.
    """
    whole = sum(used)
    if stretch <= 1 or whole <= 0:
        return 0.0
    wants = [u * stretch / span for u in used]
    beside = sum(u * (1 + sum(wants) - w) for u, w in zip(used, wants, strict=True)) / whole
    return max(cores * stretch - beside, 0.0)


def _share_a_gil(lanes: Sequence[Lane], wanted: Sequence[float], span: float) -> bool:
    """Whether lanes of one process took turns while they worked at the same time.

    Then all of them together wanted a core for as long as at least one of them worked, and each for less
    than it worked. Lanes that sleep want less, lanes in native code more.
    """
    if len(lanes) < 2:
        return False
    worked = [float(lane.work.sum()) for lane in lanes]
    if not all(0.15 * work < want < 0.92 * work for work, want in zip(worked, wanted, strict=True)):
        return False
    moments = [
        moment
        for lane in lanes
        for start, length in zip(_starts(lane), lane.work, strict=True)
        for moment in ((start, 1), (start + length, -1))
    ]
    union, level, since = 0.0, 0, 0.0
    for moment, change in sorted(moments):
        if level > 0:
            union += moment - since
        level, since = level + change, moment
    return 0.85 * union < sum(wanted) < 1.15 * union and sum(worked) > 1.1 * union


def _starts(lane: Lane) -> list[float]:
    return [0.0, *(max(operation.end, 0.0) for operation in lane.operations)]


def _scaled(lane: Lane, factor: float, core: float, gil: float) -> Lane:
    regions = {name: part * factor for name, part in lane.regions.items()}
    return replace(lane, work=lane.work * factor, regions=regions, core=core, gil=gil)
