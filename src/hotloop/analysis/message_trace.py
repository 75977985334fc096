"""From a capture and its message logs to a trace that can be replayed (`replay.py`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hotloop.analysis.lane_contention import (
    between,
    processes_sharing_a_gil,
    processes_with_known_gil,
    share_cores,
    with_parts,
    with_samples,
)
from hotloop.analysis.logged_threads import (
    LoggedOperation,
    LoggedThread,
    LoggedThreads,
    Moments,
    common_span,
    drop_incomplete_rounds,
    drop_lonely,
    find_awaited_regions,
    find_backlogs,
    find_wakers,
    keep_own_looks,
    match_messages,
    read_threads,
)
from hotloop.analysis.replay import Floats, Lane, Operation, ReplayChannel, Trace, services
from hotloop.capture.message_format import EMPTY, FOUND, LATER, MEET, PEEK, RECEIVE, SEND, WAIT
from hotloop.capture.messages import LoggedChannel, MessageLog
from hotloop.capture.model import Capture

LEAST_OPERATIONS = 16  # of the driving thread
LEAST_LANES = 2
# Kinds whose receiver is woken at once: one that comes much later than others had no core, and the replay
# shares the cores itself. Queues have a thread between both ends.
UNDELAYED = ("pipe", "socket", "semaphore", "lock")
LEAST_DELAY_NS = 60_000
NOBODY = "nobody"  # kind of the channel of threads that log no messages
_NO_CHANNEL = -1  # until there is one
LEAST_PIECES, MOST_PIECES = 256, 4096  # of the work of a thread that logs no messages: one for each call
LEAST_FREE = (
    0.1  # of a core, for a thread that logs no messages to matter; and if it may need the driver's GIL
)
LEAST_FREE_BESIDE = 0.02
COVERS = 0.8  # share of training that such a thread has to cover
MOST_WRONG = 0.05  # services in which another one is answered, of a lane that serves who comes first
SEEN = 0.3  # part of a region's time that recorded calls account for; below, they say nothing about it
LEAST_UNSEEN = 0.005  # share of a thread that matters
SAME_COUNT = 0.1  # by which calls of a region and progress differ at most if one is the other
FREE = 0.1  # quantile of latencies: when the GIL was free


def find_trace(
    capture: Capture,
    logs: Sequence[MessageLog],
    driver: tuple[int, int] | None,
    cores: float,
    since_ns: int = 0,
    until_ns: int | None = None,
    *,
    crowded: bool = False,
    use_gil_samples: bool = True,
) -> tuple[Trace | None, str]:
    """The trace of the run from `since_ns` to `until_ns` (monotonic), or None and the reason.

    `driver` is the process id and the native id of the thread that drives training. Its work is what it would
    take with a core at hand: time in the run queue is left out, and comes back when lanes share the cores.
    `crowded`: see `share_cores`. Without `use_gil_samples`, threads that were seen waiting for a GIL share it
    evenly, even if samples say who had it.
    """
    if driver is None:
        return None, "no thread drives training"
    why = ""
    threads, channels, counts = read_threads(capture, logs)
    if driver not in threads or not _wait_for_something(threads):
        threads, why = {}, "no messages between threads or processes were recorded"
    free = _free_threads(capture, driver, since_ns, until_ns)
    if until_ns is not None:
        for one in threads.values():
            one.rows = [row for row in one.rows if row.begin < until_ns]
    keep_own_looks(threads)
    drop_lonely(threads, channels)
    threads = {key: one for key, one in threads.items() if one.rows}
    if driver not in threads or not _wait_for_something(threads):
        why = why or "the driving thread exchanged no messages with others that were recorded"
        if driver not in free or len(free) < LEAST_LANES:
            return None, why
        threads = {driver: free.pop(driver)}
    begin, end = common_span(threads, driver, since_ns)
    for one in [*threads.values(), *free.values()]:
        one.rows = [r for r in one.rows if r.end > begin and r.begin < end]
    threads = {key: one for key, one in [*free.items(), *threads.items()] if one.rows}
    if driver not in threads or len(threads[driver].rows) < LEAST_OPERATIONS:
        return None, f"the driving thread has fewer than {LEAST_OPERATIONS} recorded operations"
    channels.append(LoggedChannel(NOBODY, NOBODY))
    for one in threads.values():
        for row in one.rows:
            row.channel = len(channels) - 1 if row.channel == _NO_CHANNEL else row.channel
    drop_incomplete_rounds(threads)
    threads = {key: one for key, one in threads.items() if one.rows}
    if driver not in threads:
        return None, "the driving thread met no other one in full rounds"
    order = sorted(threads)
    backlog = find_backlogs(threads, channels, counts, begin)
    for one in threads.values():
        if one.rows[0].begin < begin:
            one.rows[0].blocked, one.rows[0].since_sent = True, -1  # how long it will take is not known
    match_messages(threads, channels, backlog)
    find_wakers([threads[key] for key in order], channels)
    for one in threads.values():
        find_awaited_regions(one)
    known = processes_with_known_gil(capture, threads, begin, end) if use_gil_samples else set()
    alone = {key for key, one in threads.items() if all(r.kind == WAIT and r.waker is None for r in one.rows)}
    sharing = known | processes_sharing_a_gil(threads, begin, end)
    costs = _costs(threads, channels, sharing)
    lanes = tuple(_choosing(_lane(threads[key], costs, begin, end), channels) for key in order)
    lanes = tuple(
        replace(_with_even_regions(lane, threads[key]), repeats=key != driver) if key in alone else lane
        for key, lane in zip(order, lanes, strict=True)
    )
    lanes = tuple(
        with_samples(lane, threads[key], begin, end, key[0] in sharing - known)
        for key, lane in zip(order, lanes, strict=True)
    )
    shared = share_cores(capture, threads, order, lanes, begin, end, cores, sharing, crowded=crowded)
    made = tuple(
        ReplayChannel(
            name=channel.key,
            kind=channel.kind,
            capacity=channel.capacity if channel.kind not in ("barrier", "collective") else None,
            backlog=backlog.get(number, 0),
            latency=costs.latency.get(number, 0.0),
            parties=_parties(channel, number, threads),
        )
        for number, channel in enumerate(channels)
    )
    seconds = (end - begin) / 1e9
    place = order.index(driver)
    notes = tuple(shared.notes)
    made_lanes = [
        with_parts(raw, threads[key], begin, end) if key[0] in known else lane
        for key, raw, lane in zip(order, lanes, shared.lanes, strict=True)
    ]
    if any(o.kind in (FOUND, EMPTY) for o in made_lanes[place].operations):
        region, marks = _progress(threads[driver], made_lanes[place])
        if not region:
            return None, "the driving thread polls, and no region of it is known to be one step of progress"
        made_lanes[place] = replace(made_lanes[place], marks=marks)
        notes = (*notes, f"the driving thread polls; progress is counted in `{region}`")
    trace = Trace(tuple(made_lanes), made, place, shared.cores, seconds, notes, shared.rivals, begin)
    return trace, ""


def _progress(one: LoggedThread, lane: Lane) -> tuple[str, tuple[int, ...]]:
    """The region whose calls are the progress of a thread that polls, and how many end at each operation.

    It takes what is there and goes on, so operations count nothing. It is the region that is called once for
    each update (or env step), or else the one that takes most of its time and takes no messages.
    """
    if one.thread is None:
        return "", ()
    calls: dict[str, int] = defaultdict(int)
    takes: dict[str, int] = defaultdict(int)
    nodes = list(one.thread.root.children)
    while nodes:
        node = nodes.pop()
        calls[node.name] += node.calls
        takes[node.name] += node.total_ns
        nodes += node.children
    known = [name for name in sorted(takes, key=lambda name: -takes[name]) if name in lane.regions]
    best = next((name for name in known if name not in lane.waits_inside), "")
    for unit in ("updates", "env_steps"):
        counts = one.thread.windows.progress.get(unit) if len(one.thread.windows) else None
        done = int(counts[-1]) if counts is not None and len(counts) else 0
        alike = [name for name in known if done and abs(calls[name] / done - 1) < SAME_COUNT]
        if alike:
            best = alike[0]
            break
    paths = one.thread.paths
    ends = np.array(
        sorted(
            event.start_ns + event.duration_ns
            for event in one.thread.events
            if best and event.path < len(paths) and paths[event.path] and paths[event.path][-1] == best
        )
    )
    borders = np.array([one.rows[0].begin, *(row.end for row in one.rows)])
    marks = np.diff(np.searchsorted(ends, borders, side="right")) if len(ends) else np.zeros(0, dtype=int)
    return (best, tuple(marks.tolist())) if marks.any() else ("", ())


def _free_threads(
    capture: Capture, driver: tuple[int, int], since_ns: int, until_ns: int | None
) -> LoggedThreads:
    """Threads that use a core, or the GIL of others: lanes that wait for nobody if they log no messages.

    Their work is cut into even pieces.
    """
    found: LoggedThreads = {}
    for index, process in enumerate(capture.processes):
        for thread in process.threads:
            begin = max(since_ns, thread.start_ns)
            end = thread.end_ns if until_ns is None else min(until_ns, thread.end_ns)
            span = (end if until_ns is None else until_ns) - since_ns if since_ns else end - begin
            figures = thread.scheduling
            if thread.folded_threads or figures is None or not thread.root.children or end <= begin:
                continue
            on_core = between(figures.time_ns, figures.on_core_ns, begin, end) or 0.0
            least = LEAST_FREE_BESIDE if process.pid == driver[0] else LEAST_FREE
            key = process.pid, thread.native_id
            if end - begin < COVERS * span or (on_core < least * (end - begin) / 1e9 and key != driver):
                continue
            calls = max(
                (node.calls for node in thread.root.children if node.total_ns > 0.3 * thread.wall_ns),
                default=0,
            )
            pieces = min(max(calls, LEAST_PIECES), MOST_PIECES)
            moments = np.linspace(begin, end, pieces + 2)[1:-1].astype(np.int64).tolist()
            rows = [
                LoggedOperation(at, at, _NO_CHANNEL, WAIT, number + 1) for number, at in enumerate(moments)
            ]
            found[key] = LoggedThread(index, process, thread, thread.native_id, rows)
    return found


def _with_even_regions(lane: Lane, one: LoggedThread) -> Lane:
    """The lane with regions of which no single calls were recorded, spread evenly over its work."""
    if one.thread is None or lane.regions or not float(lane.work.sum()):
        return lane
    whole: dict[str, int] = defaultdict(int)
    nodes = list(one.thread.root.children)
    while nodes:
        node = nodes.pop()
        whole[node.name] += node.total_ns
        nodes += node.children
    wall = max(one.thread.wall_ns, 1)
    regions = {name: lane.work * min(time / wall, 1.0) for name, time in whole.items() if name}
    main = max(regions, key=lambda name: float(regions[name].sum()), default="")
    return replace(lane, regions=regions, main=main, unseen=frozenset())


def _wait_for_something(threads: LoggedThreads) -> bool:
    """Whether there are threads that wait for each other, or one that waits for its timers."""
    return len(threads) >= LEAST_LANES or any(r.kind == LATER for one in threads.values() for r in one.rows)


@dataclass(frozen=True, slots=True)
class _Costs:
    latency: dict[int, float]  # by channel
    usual: dict[tuple[int, int], float]  # by channel and kind, when it does not wait
    meets: dict[tuple[int, int], float]  # by channel and round: the shortest


def _costs(threads: LoggedThreads, channels: list[LoggedChannel], sharing: set[int]) -> _Costs:
    free: dict[tuple[int, int], list[int]] = defaultdict(list)
    late: dict[int, list[int]] = defaultdict(list)
    waited: dict[tuple[int, int], list[int]] = defaultdict(list)
    meets: dict[tuple[int, int], int] = {}
    for one in threads.values():
        for row in one.rows:
            if row.kind == MEET:
                key = row.channel, row.round
                meets[key] = min(meets.get(key, row.end - row.begin), row.end - row.begin)
            elif row.kind == WAIT:
                waited[row.channel, WAIT].append(row.since_sent)
            elif row.blocked and row.kind == RECEIVE:
                if row.since_sent != -1:
                    late[row.channel].append(row.since_sent)
            elif not row.blocked and row.kind != PEEK:
                free[row.channel, row.kind].append(row.end - row.begin)
    _take_gil_waits_away(threads, sharing, late, waited)
    for kind in UNDELAYED:
        mine = [
            number for number, channel in enumerate(channels) if channel.kind == kind and late.get(number)
        ]
        found = np.array([value for number in mine for value in late[number] if value > 0])
        if len(found):
            most = max(2 * int(np.quantile(found, 0.25)), LEAST_DELAY_NS)
            for one in threads.values():
                for row in one.rows:
                    if row.blocked and row.channel in mine and row.since_sent > most:
                        one.delayed_s += (row.since_sent - most) / 1e9
                        row.since_sent = most
            for number in mine:
                late[number] = [min(value, most) for value in late[number]]
    usual = {key: _typical(values) for key, values in free.items()}
    latency = {channel: _typical(values) for channel, values in late.items()}
    for number in range(len(channels)):
        if number in latency:  # one that need not wait is no slower
            usual[number, RECEIVE] = max(min(latency[number], usual.get((number, RECEIVE), 50e-6)), 0.0)
        latency.setdefault(number, usual.get((number, RECEIVE), 0.0))
        usual.setdefault((number, SEND), 20e-6)
    for key, values in waited.items():
        usual[key] = _typical(values)
    return _Costs(latency, usual, {key: value / 1e9 for key, value in meets.items()})


def _take_gil_waits_away(
    threads: LoggedThreads,
    sharing: set[int],
    late: dict[int, list[int]],
    waited: dict[tuple[int, int], list[int]],
) -> None:
    """Where threads share a GIL, being woken takes as long as when it was free.

    The replay shares the GIL itself: waiting for it must not count twice.
    """
    users: dict[int, set[int]] = defaultdict(set)
    for (pid, _), one in threads.items():
        for row in one.rows:
            users[row.channel].add(pid)
    inside = {channel for channel, pids in users.items() if len(pids) == 1 and pids <= sharing}
    most = {
        channel: max(int(np.quantile(late[channel], FREE)), 0)
        for channel in inside & late.keys()
        if late[channel]
    }
    for one in threads.values():
        for row in one.rows:
            if row.blocked and row.kind == RECEIVE and row.channel in most and row.since_sent != -1:
                row.since_sent = min(row.since_sent, most[row.channel])
    for channel, value in most.items():
        late[channel] = [min(late_ns, value) for late_ns in late[channel]]
    for channel, kind in waited:
        if channel in inside:
            waited[channel, kind] = [int(np.quantile(waited[channel, kind], FREE))]


def _typical(values_ns: Sequence[int]) -> float:
    """Median in seconds: the longest ones are of threads that lost their core."""
    return float(np.median(np.asarray(values_ns, dtype=np.float64))) / 1e9


def _parties(channel: LoggedChannel, number: int, threads: LoggedThreads) -> int:
    if channel.kind not in ("barrier", "collective"):
        return 0
    seen = sum(any(r.channel == number and r.kind == MEET for r in one.rows) for one in threads.values())
    return min(seen, channel.capacity) if channel.capacity else seen


def _lane(one: LoggedThread, costs: _Costs, begin: int, end: int) -> Lane:
    rows = one.rows
    operations: list[Operation] = []
    excess = np.zeros(len(rows) + 1)
    starts = np.array([begin, *(max(r.end, begin) for r in rows)], dtype=np.int64)
    ends = np.array([*(max(r.begin, begin) for r in rows), end], dtype=np.int64)
    ends = np.maximum(ends, starts)
    for row in rows:
        if row.kind == MEET:
            cost = costs.meets.get((row.channel, row.round), 0.0)
        elif row.kind in (PEEK,):
            cost = 0.0
        elif row.kind == WAIT:
            cost = costs.usual[row.channel, WAIT] if row.waker is not None else (row.end - row.begin) / 1e9
        elif row.blocked:
            cost = costs.usual.get((row.channel, row.kind), 0.0)
        else:
            cost = (row.end - row.begin) / 1e9
        operations.append(
            Operation(
                row.kind,
                row.channel,
                (row.begin - begin) / 1e9,
                (row.end - begin) / 1e9,
                cost,
                row.round,
                row.waker,
                max(row.since_sent, 0) / 1e9 if row.blocked and row.since_sent != -1 else None,
                row.delay / 1e9,
                row.region,
            )
        )
        usual = costs.usual.get((row.channel, row.kind))
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
        name, one.process_index, tuple(operations), work, regions, 1.0, 0.0, main, inside, key, recorded_s,
        unseen=_unseen(one, regions, inside, (ends[-1] - starts[0]) / 1e9),
    )  # fmt: skip


def _choosing(lane: Lane, channels: Sequence[LoggedChannel]) -> Lane:
    """The lane with the channels of which it serves whichever has a message first.

    It waits for any of several, and answers nobody but the one whose message it has taken. One that gathers
    messages from several and then answers all of them does so in the recorded order.
    """
    chooses = frozenset(o.channel for o in lane.operations if o.kind == PEEK)
    if len(chooses) < 2:
        return lane
    number = {channel.key: i for i, channel in enumerate(channels)}
    answers = {channel: number.get(channels[channel].peer or "") for channel in chooses}
    begins = services(lane.operations, chooses)
    ends = [*(place for place, _ in begins[1:]), len(lane.operations)]
    wrong = 0
    for (begin, served), end in zip(begins, ends, strict=True):
        others = {answer for channel, answer in answers.items() if channel != served} - {None}
        wrong += any(o.kind == SEND and o.channel in others for o in lane.operations[begin:end])
    return lane if wrong > MOST_WRONG * len(begins) else replace(lane, chooses=chooses)


def _exclusive(regions: dict[str, Floats], name: str, inside: frozenset[str]) -> float:
    """What a region took, for choosing the one that matters most; hulls around waits count less."""
    return float(regions[name].sum()) * (0.5 if name in inside else 1.0)


def _regions(one: LoggedThread, starts: Moments, ends: Moments) -> tuple[dict[str, Floats], frozenset[str]]:
    """The part of each stretch that each region took, and the regions with operations inside."""
    found: dict[str, Floats] = {}
    inside: set[str] = set()
    if one.thread is None:
        return found, frozenset()
    by_name: dict[str, list[tuple[int, int]]] = defaultdict(list)
    awaited = {row.region for row in one.rows}  # by one task, while the loop does the work of others
    for event in one.thread.events:
        path = one.thread.paths[event.path] if event.path < len(one.thread.paths) else ()
        if path and path[-1] not in awaited:
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


def _unseen(
    one: LoggedThread, regions: dict[str, Floats], inside: frozenset[str], span_s: float
) -> frozenset[str]:
    """Regions with much more time in the tree of the thread than in the single calls that were recorded.

    A program with few messages and many short calls, such as one that logs to TensorBoard, has next to none
    of those.
    """
    if one.thread is None or span_s <= 0:
        return frozenset()
    whole: dict[str, int] = defaultdict(int)
    nodes = list(one.thread.root.children)
    while nodes:
        node = nodes.pop()
        whole[node.name] += node.total_ns
        nodes += node.children
    awaited = {row.region for row in one.rows}
    found = set()
    for name, time_ns in whole.items():
        share = time_ns / max(one.thread.wall_ns, 1)
        seen = float(regions[name].sum()) / span_s if name in regions else 0.0
        if share > LEAST_UNSEEN and seen < SEEN * share and name not in inside and name not in awaited:
            found.add(name)
    return frozenset(found)


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
