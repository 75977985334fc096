"""Where a thread was: on a core, ready without one, waiting for a partner or for the GIL, or blocked.

The kernel counts time on a core and in the run queue exactly, so these two shares come from its counters.
What the thread did off the core, and where, comes from samples: each has the state of the thread, its open
region, its line and, for a sleeping thread, what it sleeps for. Nothing here is found by subtracting CPU time
from wall time: what is not known stays `unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.analysis.system import Blocked, How, RegionStates, States
from hotloop.analysis.utilisation import core_time
from hotloop.analysis.windows import node_categories, nodes_by_path
from hotloop.capture.model import Process, Thread
from hotloop.capture.region_names import RAY_IDLE, SPINNING_REGIONS
from hotloop.capture.samples import FOR_THE_GIL, REASONS, RUNNABLE, RUNNING, SLEEPING, Samples

LEAST_SAMPLES = 5  # of a region or a sleeping thread, before they are reported or believed
MOST_REGIONS = 24
MOST_BLOCKED = 8
LEAST_BLOCKED = 0.005  # share of the thread's time

POOL_WORKER = "concurrent.futures.thread._worker"
GAPS = ("between ", "before ", "after ")  # names of the time between two regions
RUN, READY, WAIT, GIL, BLOCK, UNKNOWN = range(6)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ThreadStates:
    """What was found about one thread."""

    states: States
    how: How
    regions: tuple[RegionStates, ...]
    blocked: tuple[Blocked, ...]


def thread_states(
    process: Process, thread: Thread, resolver: Resolver, also_waits: tuple[str, ...] = ()
) -> ThreadStates:
    """The states of a recorded thread, as a whole and by region.

    `also_waits` are regions in which a sleeping thread waits for a partner although they are no waits as such
    (`backward`, where gradients are added up across ranks).
    """
    kinds = np.array(node_categories(thread, resolver) or ["unattributed"])
    mine = samples_of(process, thread.native_id)
    names = np.array([path[-1] if path else "" for path in thread.paths] or [""])
    is_wait = (kinds == "wait") | np.isin(names, also_waits)
    waits = is_wait[np.clip(mine["node"], 0, len(kinds) - 1)] | _waits_for_work(process, mine)
    slots = state_slots(mine, waits)
    weights = mine["weight_ns"].astype(np.float64)
    table = np.zeros((len(kinds), 6))
    np.add.at(table, (np.clip(mine["node"], 0, len(kinds) - 1), slots), weights)
    table[:, WAIT] += _unseen_idle(thread, names, table)
    wait_share = _wait_share(thread, kinds)
    seen_asleep = int(((slots >= WAIT) & (slots < UNKNOWN)).sum())
    states, how = _whole(process, thread, table.sum(axis=0), seen_asleep, wait_share)
    spins = np.isin(names, SPINNING_REGIONS)
    if spins.any():
        states = _without_spinning(states, table, spins, _wait_share(thread, np.where(spins, "wait", "")))
    regions = _regions(thread, kinds, table, mine)
    return ThreadStates(states, how, regions, blocked_at(process, thread, mine, slots))


def _unseen_idle(thread: Thread, names: NDArray[np.str_], table: Floats) -> Floats:
    """Time of threads of Ray without a task, by path, of which there are no samples.

    Python knows a thread that Ray made in C++ only while it runs a task.
    """
    own = np.array([0 if node is None else node.own_ns for node in nodes_by_path(thread)] or [0])
    return np.where(names == RAY_IDLE, np.maximum(own - table.sum(axis=1), 0.0), 0.0)


def sampled_states(process: Process, native_id: int) -> ThreadStates:
    """The states of a thread that has opened no region."""
    mine = samples_of(process, native_id)
    slots = state_slots(mine, _waits_for_work(process, mine))
    sums = np.bincount(slots, weights=mine["weight_ns"], minlength=6).astype(np.float64)
    return ThreadStates(_states(sums), "sampled", (), blocked_at(process, None, mine, slots))


def samples_of(process: Process, native_id: int) -> Samples:
    """The samples of one thread."""
    found: Samples = process.samples[process.samples["native_id"] == native_id]
    return found


def _waits_for_work(process: Process, mine: Samples) -> NDArray[np.bool_]:
    """Which samples show a thread of a pool without work: it waits in C, where no region is opened."""
    idle = [n for n, path in enumerate(process.paths) if not path.frames and path.innermost == POOL_WORKER]
    return np.isin(mine["path"], np.array(idle, dtype=np.int64))


def state_slots(mine: Samples, waits: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Which of the six states each sample shows; `waits` says which were taken in a wait with a partner."""
    slots = np.full(len(mine), UNKNOWN)
    slots[mine["state"] == RUNNING] = RUN
    slots[mine["state"] == RUNNABLE] = READY
    asleep = mine["state"] == SLEEPING
    slots[asleep & waits] = WAIT
    slots[asleep & ~waits] = BLOCK
    slots[asleep & (mine["reason"] == FOR_THE_GIL)] = GIL
    return slots


def _states(sums: Floats) -> States:
    """Shares from sums; all unknown where nothing was seen."""
    whole = float(sums.sum())
    if whole <= 0:
        return States(0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    return States(*(float(value) / whole for value in sums))


def _wait_share(thread: Thread, kinds: NDArray[np.str_]) -> float:
    """Own time of regions of category `wait`, as a share of the thread's time."""
    own = [0 if node is None else node.own_ns for node in nodes_by_path(thread)]
    waited = sum(ns for ns, kind in zip(own, kinds, strict=False) if kind == "wait")
    return min(waited / thread.wall_ns, 1.0) if thread.wall_ns else 0.0


def _whole(
    process: Process, thread: Thread, sums: Floats, seen_asleep: int, wait_share: float
) -> tuple[States, How]:
    """The states of the whole thread: the kernel's counters first, samples for the rest.

    Few samples of a sleeping thread, as on a crowded machine, say nothing of what it mostly sleeps for; the
    regions in which it waits do.
    """
    known = float(sums[:UNKNOWN].sum())
    counted = core_time(process, thread)
    if counted is not None:
        running = min(counted.on_core, 1.0)
        ready = min(counted.run_queue, 1.0 - running)
        off = 1.0 - running - ready
        asleep = sums[WAIT:UNKNOWN]
        if seen_asleep >= LEAST_SAMPLES and asleep.sum() > 0:
            waiting, gil, blocked = (float(part) for part in off * asleep / asleep.sum())
            return States(running, ready, waiting, gil, blocked), "measured"
        waiting = min(wait_share, off)
        return States(running, ready, waiting, 0.0, 0.0, max(off - waiting, 0.0)), "measured"
    if known > 0:
        return _states(sums), "sampled"
    if thread.cpu_ns is None or not thread.wall_ns:
        return States(0.0, 0.0, wait_share, 0.0, 0.0, 1.0 - wait_share), "regions"
    running = min(thread.cpu_ns / thread.wall_ns, 1.0)
    waiting = min(wait_share, 1.0 - running)
    return States(running, 0.0, waiting, 0.0, 0.0, max(1.0 - running - waiting, 0.0)), "regions"


def _without_spinning(states: States, table: Floats, spins: NDArray[np.bool_], spin_share: float) -> States:
    """Time on a core, or ready for one, in regions that only ask again and again is waiting."""
    seen = table[:, RUN] + table[:, READY]
    on_core = states.running + states.ready
    if seen.sum() > 0:
        part = float(seen[spins].sum() / seen.sum())
    else:
        part = min(spin_share / on_core, 1.0) if on_core > 0 else 0.0
    return replace(
        states,
        running=states.running * (1 - part),
        ready=states.ready * (1 - part),
        waiting=states.waiting + on_core * part,
    )


def _regions(
    thread: Thread, kinds: NDArray[np.str_], table: Floats, mine: Samples
) -> tuple[RegionStates, ...]:
    counts = np.bincount(np.clip(mine["node"], 0, len(kinds) - 1), minlength=len(kinds))
    found = []
    for number, node in enumerate(nodes_by_path(thread)):
        if node is None or node.own_ns <= 0 or not thread.wall_ns:
            continue
        path = thread.paths[number]
        # Time between two outermost regions is named afterwards: its samples show no region.
        at = 0 if len(path) == 1 and path[0].startswith(GAPS) else number
        seen = int(counts[at]) >= LEAST_SAMPLES and float(table[at].sum()) > 0
        nothing = States(0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
        found.append(
            RegionStates(
                path=path,
                category=str(kinds[number]),
                share=node.own_ns / thread.wall_ns,
                calls=node.calls,
                states=_states(table[at]) if seen else nothing,
            )
        )
    found.sort(key=lambda region: (-region.share, region.path))
    return tuple(found[:MOST_REGIONS])


def blocked_at(
    process: Process, thread: Thread | None, mine: Samples, slots: NDArray[np.int64]
) -> tuple[Blocked, ...]:
    """Waits without a known partner, by line."""
    whole = float(mine["weight_ns"].sum())
    found: dict[tuple[str, str, str, str], float] = {}
    for row in mine[slots == BLOCK]:
        path = process.paths[row["path"]] if row["path"] < len(process.paths) else None
        line = path.line if path is not None else None
        names = thread.paths[row["node"]] if thread is not None and row["node"] < len(thread.paths) else ()
        key = (
            REASONS[row["reason"]],
            names[-1] if names else "",
            line.site if line is not None else "",
            (path.called or path.innermost) if path is not None else "",
        )
        found[key] = found.get(key, 0.0) + float(row["weight_ns"])
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Blocked(weight / whole, *key)
        for key, weight in ranked[:MOST_BLOCKED]
        if weight >= LEAST_BLOCKED * whole
    )
