"""Lanes as they would work with a core and the GIL at hand: what they lost to each other is taken away.

The replay shares cores and the GIL again. Time on a core and in the run queue comes from the kernel's
counters, waits for the GIL and the regions that need a core from samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hotloop.analysis.logged_threads import LoggedThread, LoggedThreads
from hotloop.analysis.replay import Lane, Part, own_work
from hotloop.analysis.thread_states import samples_of
from hotloop.capture.message_format import RECEIVE
from hotloop.capture.model import Capture
from hotloop.capture.samples import (
    FOR_THE_GIL,
    GIL_ELSEWHERE,
    GIL_HELD,
    RUNNABLE,
    RUNNING,
    SLEEPING,
    Samples,
)
from hotloop.capture.scheduling import Counts

HEAVY = 0.1  # share of the time on a core that tells how cores are shared
MOST_LOST = 1.25  # time in the run queue over what the others' stretch explains
LIGHT = (
    0.5  # of the cores that a run has, and of the time on them: who needs, and waits for, less has them free
)
NO_CORE = 0.02  # time in the run queue over time on a core; below it, nothing else used the cores
GIL_WAIT = 0.2  # seconds that threads of a process wait for the GIL in a second, from which on they share it
ONE_CORE = 1.1  # cores that they use then at most
NEEDS_GIL = 0.02  # share of the time for which a thread has the GIL; less does not hold others up
MEET = 0.3  # share of the time for which threads have it in all, from which on they meet
MOST_CORRECTED = 5.0  # by how much the kernel's figures and samples differ at most
LEAST_WORK = 0.02  # of the time between samples of a thread
MOST_GIL = 0.95  # of the time of a region
LEAST_SAMPLES = 5  # of a region, to tell how much of it needs a core


class SharedCores(NamedTuple):
    """Lanes with the work they would have with a core and the GIL at hand, and what they share."""

    lanes: tuple[Lane, ...]
    notes: list[str]
    cores: float  # that the lanes and other programs share
    rivals: float  # busy threads of other programs that would explain the time in the run queue


@dataclass(frozen=True, slots=True)
class _Usage:
    """What one lane did, in seconds."""

    on_core: float | None  # None: not measured
    queued: float  # in the run queue
    busy: float  # at work, with a core or without
    delayed: float  # woken, but without a core


def share_cores(
    capture: Capture,
    threads: LoggedThreads,
    order: list[tuple[int, int]],
    lanes: tuple[Lane, ...],
    begin: int,
    end: int,
    cores: float,
    sharing: set[int],
    *,
    crowded: bool = False,
) -> SharedCores:
    """Take from the lanes what they lost to each other; `sharing` are the processes whose GIL is shared.

    Where the run needs less than half of its cores, and waits less than half as long for one as it uses it,
    its threads did not lose to each other: the time in which one had been woken but did not run yet is what
    waking up takes, and stays where it was recorded. With `crowded` it counts as lost to other programs,
    which will not make room for more workers.
    """
    span = (end - begin) / 1e9
    usages = [_usage(threads[key], lane, begin, end) for key, lane in zip(order, lanes, strict=True)]
    free = max(cores - _cores_of_others(capture, usages, begin, end), 0.5)
    stretch = _stretch(usages, span)
    is_light = sum(usage.on_core or 0.0 for usage in usages) < LIGHT * free * span and stretch < 1 + LIGHT
    if is_light and not crowded:
        stretch = 1.0
    made = [
        _with_a_core(lane, usage, stretch, shares_gil=lane.thread[0] in sharing)
        for lane, usage in zip(lanes, usages, strict=True)
    ]
    by_process: dict[int, list[int]] = defaultdict(list)
    for i, lane in enumerate(lanes):
        by_process[lane.process].append(i)
    notes: list[str] = []
    for process, members in by_process.items():
        label = capture.processes[process].label or "the process"
        active = [i for i in members if (usages[i].on_core or 0.0) > 0.03 * span]
        if lanes[members[0]].thread[0] in sharing:
            notes.append(f"threads of {label} share its GIL")
        elif _take_turns([lanes[i] for i in active], [usages[i] for i in active]):
            notes.append(f"threads of {label} take turns: they share its GIL")
            for i in active:
                needs = (usages[i].on_core or 0.0) / usages[i].busy
                made[i] = _scaled(lanes[i], min(needs, 1.0), 1.0, 1.0)
    return SharedCores(tuple(made), notes, free, _rivals(usages, stretch, span, free))


def _usage(one: LoggedThread, lane: Lane, begin: int, end: int) -> _Usage:
    figures = one.thread.scheduling if one.thread is not None else None
    on_core = between(figures.time_ns, figures.on_core_ns, begin, end) if figures else None
    queued = between(figures.time_ns, figures.run_queue_ns, begin, end) if figures else None
    return _Usage(
        on_core=min(on_core, (end - begin) / 1e9) if on_core is not None else None,
        queued=queued or 0.0,
        busy=max(float(lane.work.sum()), 1e-9),
        delayed=one.delayed_s,
    )


def between(time_ns: Counts, values: Counts | None, begin: int, end: int) -> float | None:
    """Growth of a cumulative figure between two moments, in seconds."""
    if values is None or len(time_ns) < 2:
        return None
    low, high = np.interp([begin, end], time_ns.astype(np.float64), values.astype(np.float64))
    seen = min(end, int(time_ns[-1])) - max(begin, int(time_ns[0]))
    return float(high - low) / 1e9 * ((end - begin) / seen if 0 < seen < end - begin else 1.0)


def _cores_of_others(capture: Capture, usages: Sequence[_Usage], begin: int, end: int) -> float:
    """Cores that threads of the run use which are no lanes."""
    known = [process.scheduling for process in capture.processes if process.scheduling is not None]
    whole_s = sum(between(cpu.time_ns, cpu.cpu_ns, begin, end) or 0.0 for cpu in known)
    return max(whole_s - sum(usage.on_core or 0.0 for usage in usages), 0.0) / ((end - begin) / 1e9)


def _with_a_core(lane: Lane, usage: _Usage, stretch: float, *, shares_gil: bool) -> Lane:
    """The lane without the time that it waited for a core while others used it."""
    if usage.on_core is None:
        return lane
    waited = max(usage.busy - usage.on_core, 0.0)
    lost = min(usage.queued, waited, MOST_LOST * usage.on_core * (stretch - 1))
    left = max(usage.busy - lost, usage.on_core * 0.5, 1e-9)
    core = min(usage.on_core / left, 1.0)
    scaled = _scaled(lane, left / usage.busy, core, core if shares_gil else 0.0)
    return with_cost_of_receiving(scaled, usage.on_core - usage.busy)


def with_cost_of_receiving(lane: Lane, inside: float) -> Lane:
    """The lane with receives that take a core for `inside` seconds in all, what was left beside its work.

    One that always waited for its messages has never been seen to receive one that was there.
    """
    waited = [i for i, o in enumerate(lane.operations) if o.kind == RECEIVE and o.latency is not None]
    if inside <= 0 or not waited:
        return lane
    each = inside / len(waited)
    operations = list(lane.operations)
    for i in waited:
        latency = operations[i].latency or 0.0
        operations[i] = replace(operations[i], cost=max(operations[i].cost, min(each, latency)))
    return replace(lane, operations=tuple(operations))


def _stretch(usages: Sequence[_Usage], span: float) -> float:
    """How many times as long work on a core took because lanes had to share the cores.

    From lanes that use a core much. One that sleeps and wakes up may wait longer for a core than it then
    needs it: that is no sharing, and stays part of its work.
    """
    used = waited = 0.0
    for usage in usages:
        on_core = usage.on_core or 0.0
        if on_core > HEAVY * span:
            used += on_core
            waited += min(usage.queued, max(usage.busy - on_core, 0.0) + usage.delayed)
    return 1 + waited / used if waited > NO_CORE * used else 1.0


def _rivals(usages: Sequence[_Usage], stretch: float, span: float, cores: float) -> float:
    """Busy threads of other programs that would explain the stretch.

    A lane that wants a core gets one of `cores` in turn with every other thread that wants one.
    """
    used = [usage.on_core or 0.0 for usage in usages]
    whole = sum(used)
    if stretch <= 1 or whole <= 0:
        return 0.0
    wants = [u * stretch / span for u in used]
    beside = sum(u * (1 + sum(wants) - w) for u, w in zip(used, wants, strict=True)) / whole
    return max(cores * stretch - beside, 0.0)


def processes_sharing_a_gil(threads: LoggedThreads, begin: int, end: int) -> set[int]:
    """Processes whose threads were seen waiting for the GIL, and had no more than one core together.

    Those that have more compute in native code without it.
    """
    span = (end - begin) / 1e9
    waits: dict[int, float] = defaultdict(float)
    on_core: dict[int, float] = defaultdict(float)
    for (pid, _), one in threads.items():
        waits[pid] += float(_waiting_for_gil(one, begin, end)["weight_ns"].sum()) / 1e9
        figures = one.thread.scheduling if one.thread is not None else None
        if figures is not None:
            on_core[pid] += between(figures.time_ns, figures.on_core_ns, begin, end) or 0.0
    return {pid for pid, wait in waits.items() if wait > GIL_WAIT * span and on_core[pid] < ONE_CORE * span}


def processes_with_known_gil(capture: Capture, threads: LoggedThreads, begin: int, end: int) -> set[int]:
    """Processes of which samples say who had the GIL, and several threads need it so much that they meet."""
    found: set[int] = set()
    whole = max(end - begin, 1)
    for process in capture.processes:
        mine = process.samples
        mine = mine[(mine["time_ns"] >= begin) & (mine["time_ns"] < end)]
        held = mine[mine["gil"] == GIL_HELD]
        each = [
            float(held["weight_ns"][held["native_id"] == tid].sum()) for tid in np.unique(held["native_id"])
        ]
        lanes = {native for pid, native in threads if pid == process.pid}
        if len(lanes) > 1 and sum(time > NEEDS_GIL * whole for time in each) > 1 and sum(each) > MEET * whole:
            found.add(process.pid)
    return found


def with_parts(lane: Lane, one: LoggedThread, begin: int, end: int) -> Lane:
    """The lane with what the work of each region needs of the GIL, as samples saw it.

    Time without the GIL or a core is taken from the region that it was lost in.
    """
    mine = _between_operations(one, _samples(one, begin, end))
    paths = one.thread.paths if one.thread is not None else ()
    known = set(lane.regions)
    inner = [
        next((name for name in reversed(paths[node]) if name in known), "") if node < len(paths) else ""
        for node in mine["node"].tolist()
    ]
    names = np.array(inner, dtype=object)
    parents, order = _nesting(one, known)
    parts: list[Part] = []
    left: list[float] = []
    sampled: list[bool] = []
    for name in sorted({"", *known}, key=lambda name: order.get(name, 0.0)):
        need = _need_of(mine[names == name] if len(mine) else mine)
        parts.append(Part(name, parents.get(name, "") if name else None, need.core * need.gil, need.core))
        left.append(need.left)
        sampled.append(need.sampled or name != "")
    lane = replace(lane, parts=tuple(parts))
    own = own_work(lane) * np.array(left)[:, None]
    figures = one.thread.scheduling if one.thread is not None else None
    on_core = between(figures.time_ns, figures.on_core_ns, begin, end) if figures is not None else None
    cores, gils = (np.array([getattr(part, name) for part in parts]) for name in ("core", "gil"))
    unseen = ~np.array(sampled)
    if on_core is not None and unseen.any():
        # Threads of a pool have no line of the user's between two jobs: they work, or wait for the GIL.
        rest = on_core - float((own[~unseen].sum(axis=1) * cores[~unseen]).sum())
        own[unseen] *= min(max(rest / max(float(own[unseen].sum()), 1e-9), LEAST_WORK), 1.0)
    needed = float((own.sum(axis=1) * cores).sum())
    if on_core is not None and needed > 0:  # samples say where, the kernel says how much
        more = min(max(on_core / needed, 1 / MOST_CORRECTED), MOST_CORRECTED)
        own *= (1 + (more - 1) * cores)[:, None]
    regions = {name: own[i].copy() for i, name in enumerate(part.name for part in parts) if name}
    for part, row in zip(parts, own, strict=True):
        outer, seen = part.parent, {part.name}
        while outer and outer in regions and outer not in seen:
            regions[outer] += row
            seen.add(outer)
            outer = parents.get(outer)
    total = max(float(own.sum()), 1e-9)
    core, gil = (float((own.sum(axis=1) * share).sum()) / total for share in (cores, gils))
    return replace(lane, work=own.sum(axis=0), regions=regions, core=core, gil=max(gil, 1e-6))


class _Needs(NamedTuple):
    """What samples of a region tell: shares of its work that need a core, and of that the GIL."""

    core: float
    gil: float
    left: float  # of the recorded time, without waits for the GIL and for a core
    sampled: bool = True  # False: samples are too few to tell


def _need_of(rows: Samples) -> _Needs:
    seen = {
        (state, gil): float(rows["weight_ns"][(rows["state"] == state) & (rows["gil"] == gil)].sum())
        for state in (RUNNING, RUNNABLE)
        for gil in (GIL_ELSEWHERE, GIL_HELD)
    }
    asleep = rows[rows["state"] == SLEEPING]
    waits = float(asleep["weight_ns"][asleep["reason"] == FOR_THE_GIL].sum())
    sleeps = float(asleep["weight_ns"].sum()) - waits
    ran = seen[RUNNING, GIL_HELD] + seen[RUNNING, GIL_ELSEWHERE]
    ready = seen[RUNNABLE, GIL_HELD] + seen[RUNNABLE, GIL_ELSEWHERE]
    whole = ran + ready + waits + sleeps
    if len(rows) < LEAST_SAMPLES or not whole:
        return _Needs(1.0, 1.0, 1.0, sampled=False)
    if int((rows["state"] == RUNNING).sum()) >= LEAST_SAMPLES:
        # Who is ready without the GIL may only wait for it; who runs without it works in native code.
        return _Needs(ran / (ran + sleeps), seen[RUNNING, GIL_HELD] / ran, (ran + sleeps) / whole)
    with_it = seen[RUNNING, GIL_HELD] + seen[RUNNABLE, GIL_HELD]
    awake = ran + ready
    return _Needs(awake / max(awake + sleeps, 1.0), with_it / max(awake, 1.0), (awake + sleeps) / whole)


def _nesting(one: LoggedThread, known: set[str]) -> tuple[dict[str, str], dict[str, float]]:
    """The region around each region, and where in a stretch between two operations it usually begins."""
    if one.thread is None:
        return {}, {}
    around: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    starts: dict[str, list[int]] = defaultdict(list)
    ends = np.array([row.end for row in one.rows], dtype=np.int64)
    for event in one.thread.events:
        path = one.thread.paths[event.path] if event.path < len(one.thread.paths) else ()
        if path and path[-1] in known:
            outer = next((name for name in reversed(path[:-1]) if name in known and name != path[-1]), "")
            around[path[-1]][outer] += 1
            at = int(np.searchsorted(ends, event.start_ns, side="right"))
            if at:
                starts[path[-1]].append(event.start_ns - int(ends[at - 1]))
    parents = {name: max(found, key=lambda outer: found[outer]) for name, found in around.items()}
    order = {name: 1.0 + float(np.median(found)) for name, found in starts.items()}
    return parents, order


def _waiting_for_gil(one: LoggedThread, begin: int, end: int) -> Samples:
    mine = _samples(one, begin, end)
    found: Samples = mine[(mine["state"] == SLEEPING) & (mine["reason"] == FOR_THE_GIL)]
    return found


def _samples(one: LoggedThread, begin: int, end: int) -> Samples:
    mine = samples_of(one.process, one.native_id)
    found: Samples = mine[(mine["time_ns"] >= begin) & (mine["time_ns"] < end)]
    return found


def _between_operations(one: LoggedThread, samples: Samples) -> Samples:
    """Those that were not taken during an operation."""
    begins, ends = (np.array([getattr(row, name) for row in one.rows]) for name in ("begin", "end"))
    times = samples["time_ns"].astype(np.int64)
    at = np.searchsorted(begins, times, side="right") - 1
    found: Samples = samples[(at < 0) | (times > ends[np.maximum(at, 0)])]
    return found


def _by_region(one: LoggedThread, samples: Samples) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds that samples stand for: by region with those inside it, and by innermost region."""
    inside: dict[str, float] = defaultdict(float)
    innermost: dict[str, float] = defaultdict(float)
    for node, weight in zip(samples["node"].tolist(), samples["weight_ns"].tolist(), strict=True):
        path = one.thread.paths[node] if one.thread is not None and node < len(one.thread.paths) else ()
        innermost[path[-1] if path else ""] += weight / 1e9
        for name in set(path):
            inside[name] += weight / 1e9
    return inside, innermost


def with_samples(lane: Lane, one: LoggedThread, begin: int, end: int, shares_gil: bool) -> Lane:
    """The lane with what samples tell: which of its regions need a core, and its waits for the GIL."""
    found = _without_gil_waits(lane, one, begin, end) if shares_gil else lane
    return replace(found, on_core=_on_core(one, begin, end))


def _on_core(one: LoggedThread, begin: int, end: int) -> dict[str, float]:
    """Share of the work in each region that needs a core, where there are samples enough to tell."""
    mine = _between_operations(one, _samples(one, begin, end))
    needs = (mine["state"] == RUNNING) | (mine["state"] == RUNNABLE)
    sleeps = (mine["state"] == SLEEPING) & (mine["reason"] != FOR_THE_GIL)
    computes, waits = (_by_region(one, mine[chosen])[0] for chosen in (needs, sleeps))
    mean_s = float(mine["weight_ns"].mean()) / 1e9 if len(mine) else 0.0
    return {
        name: computes[name] / (computes[name] + waits[name])
        for name in {*computes, *waits}
        if computes[name] + waits[name] > LEAST_SAMPLES * mean_s
    }


def _without_gil_waits(lane: Lane, one: LoggedThread, begin: int, end: int) -> Lane:
    """The lane without the time in which it was seen waiting for the GIL between its operations."""
    waits = _between_operations(one, _waiting_for_gil(one, begin, end))
    inside, innermost = _by_region(one, waits)
    gone = np.zeros_like(lane.work)
    for name, seconds in innermost.items():
        part = lane.regions.get(name, lane.work)
        gone += part * min(seconds / max(float(part.sum()), 1e-9), MOST_GIL)
    regions = {
        name: part * (1 - min(inside[name] / max(float(part.sum()), 1e-9), MOST_GIL))
        for name, part in lane.regions.items()
    }
    return replace(lane, work=np.maximum(lane.work - gone, (1 - MOST_GIL) * lane.work), regions=regions)


def _take_turns(lanes: Sequence[Lane], usages: Sequence[_Usage]) -> bool:
    """Whether lanes of one process took turns while they worked at the same time.

    Then all of them together wanted a core for as long as at least one of them worked, and each for less
    than it worked. Lanes that sleep want less, lanes in native code more.
    """
    if len(lanes) < 2:
        return False
    worked = [float(lane.work.sum()) for lane in lanes]
    wanted = [(usage.on_core or 0.0) + usage.queued for usage in usages]
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
