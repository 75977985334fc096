"""Rounds in which the slowest counts: steps of a vector env, collectives of ranks.

Every round takes as long as its slowest member, so imbalance costs the mean of the slowest minus the mean.
Whether the same members are slow in each round (steady) or another one every time (random) decides what
helps: an equal share of work, or less variation and fewer barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.edges import collective_wait_ns
from hotloop.analysis.system import Barrier, BarrierMember, Edge, Member, Role
from hotloop.capture import layout
from hotloop.capture.model import Capture, Thread

LEAST_ROUNDS = 12  # seen one by one
LEAST_SHARE = 0.02  # of training; less imbalance is even
STEADY = 0.5  # share of the imbalance that is there on average, for the same members
DRAWS = 2000

Floats = NDArray[np.float64]


def find_barriers(
    capture: Capture,
    members: Sequence[Member],
    roles: Sequence[Role],
    edges: Sequence[Edge],
    training_ns: int,
) -> list[Barrier]:
    """Barriers of every role with several members, the most costly first."""
    found = []
    for number, role in enumerate(roles):
        if len(role.members) < 2 or not role.works:
            continue
        if role.kind == "rank":
            barrier = _of_ranks(capture, members, number, role, training_ns)
        else:
            barrier = _of_workers(capture, members, number, role, edges, training_ns)
        if barrier is not None:
            found.append(barrier)
    return sorted(found, key=lambda barrier: -barrier.share)


def _of_workers(
    capture: Capture,
    members: Sequence[Member],
    number: int,
    role: Role,
    edges: Sequence[Edge],
    training_ns: int,
) -> Barrier | None:
    """Workers that answer one member, each as often as the others: it waits for all of them."""
    asked = {e.source: e for e in edges if e.target in role.members and e.kind == "pipe"}
    if len(asked) != 1:
        return None
    (master,) = asked
    counts = {e.target: e.messages or 0 for e in edges if e.source == master and e.target in role.members}
    if len(counts) < len(role.members) or min(counts.values()) < 0.9 * max(counts.values()) - 2:
        return None  # whoever is free gets work: no barrier
    rounds = max(counts.values())
    seen = _rounds([_thread(capture, members[i]) for i in role.members])
    exact = len(seen) >= LEAST_ROUNDS
    times = seen if exact else _drawn([_work(capture, members[i], counts[i]) for i in role.members])
    if not len(times):
        return None
    name = f"step of {len(role.members)} {role.name}"
    return _barrier(name, number, master, rounds, times, role.members, training_ns, exact)


def _thread(capture: Capture, member: Member) -> Thread | None:
    return None if member.thread is None else capture.processes[member.process].threads[member.thread]


def _work(capture: Capture, member: Member, messages: int) -> tuple[float, float]:
    """Mean and standard deviation of what a worker does for each message."""
    thread = _thread(capture, member)
    if thread is None or not messages:
        return 0.0, 0.0
    waiting = sum(r.share for r in member.regions if r.category == "wait")
    largest = max(
        thread.root.children, key=lambda node: node.total_ns * (node.name != "ipc_wait"), default=None
    )
    sd_ns = (largest.sd_ns or 0.0) if largest is not None else 0.0
    return (1 - waiting) * member.wall_ns / messages, sd_ns


def _drawn(works: Sequence[tuple[float, float]]) -> Floats:
    """Rounds drawn from the distribution of each member (log-normal): [rounds, members]."""
    rng = np.random.default_rng(7)
    columns = []
    for mean, sd in works:
        spread = np.sqrt(np.log1p((sd / mean) ** 2)) if mean > 0 else 0.0
        columns.append(mean * np.exp(rng.normal(-(spread**2) / 2, spread, DRAWS)))
    return np.stack(columns, axis=1)


def _busy(thread: Thread | None) -> Floats:
    """When a worker worked on a message: begin and end of the time between two waits, [rounds, 2]."""
    if thread is None or not len(thread.rounds):
        return np.zeros((0, 2))
    names = np.array([path[-1] if path else "" for path in thread.paths])
    waits = thread.rounds[names[thread.rounds["path"]] == "ipc_wait"]
    order = np.argsort(waits["start_ns"])
    start = waits["start_ns"][order].astype(np.float64)
    end = start + waits["duration_ns"][order].astype(np.float64)
    if len(start) < 2:
        return np.zeros((0, 2))
    # Calls are kept in bursts, inside of which none is missing.
    burst = end.astype(np.int64) >> layout.ROUND_BURST_SHIFT
    kept = (burst[1:] == burst[:-1]) & ((burst[1:] & layout.ROUND_BURST_MASK) == 0)
    found: Floats = np.stack([end[:-1], start[1:]], axis=1)[kept]
    return found


def _rounds(threads: Sequence[Thread | None]) -> Floats:
    """Rounds in which every worker worked once, as time each of them took: [rounds, members]."""
    busy = [_busy(thread) for thread in threads]
    if min(map(len, busy)) < 2:
        return np.zeros((0, len(threads)))
    begins = busy[0][:, 0]
    early = 0.25 * float(np.median(np.diff(begins)))
    longest = 20 * float(np.median(np.diff(begins)))  # further apart: a burst of calls ended in between
    found = []
    for begin, following in pairwise(begins):
        row = []
        for times in busy:
            if following - begin > longest:
                break
            inside = times[(times[:, 0] >= begin - early) & (times[:, 0] < following - early)]
            if len(inside) != 1 or inside[0, 1] > following:
                break
            row.append(float(inside[0, 1] - inside[0, 0]))
        if len(row) == len(busy):
            found.append(row)
    return np.array(found).reshape(len(found), len(threads))


def _of_ranks(
    capture: Capture, members: Sequence[Member], number: int, role: Role, training_ns: int
) -> Barrier | None:
    """Ranks wait for each other in every update: what each of them needs without that wait."""
    rounds = max(members[i].updates for i in role.members)
    waits = {i: collective_wait_ns(capture, members[i]) for i in role.members}
    if not any(calls for _, calls, _ in waits.values()):
        return None
    rounds = rounds or max(calls for _, calls, _ in waits.values())
    means = np.array([max(members[i].wall_ns - waits[i][0], 0.0) / rounds for i in role.members])
    name = f"collective of {len(role.members)} ranks"
    return _barrier(name, number, None, rounds, means[None, :], role.members, training_ns, exact=False)


def _barrier(
    name: str,
    role: int,
    waits: int | None,
    rounds: int,
    times: Floats,
    members: Sequence[int],
    training_ns: int,
    exact: bool,
) -> Barrier:
    means, spreads = times.mean(axis=0), times.std(axis=0)
    mean, slowest = float(times.mean()), float(times.max(axis=1).mean())
    last = np.bincount(times.argmax(axis=1), minlength=len(members)) / len(times)
    share = (slowest - mean) * rounds / training_ns if training_ns else 0.0
    steady = float(means.max() - mean) >= STEADY * (slowest - mean)
    return Barrier(
        name=name,
        role=role,
        waits=waits,
        rounds=rounds,
        mean_ns=mean,
        slowest_ns=slowest,
        members=tuple(
            BarrierMember(i, float(m), float(s), float(f) if len(times) > 1 else None)
            for i, m, s, f in zip(members, means, spreads, last, strict=True)
        ),
        pattern="even" if share < LEAST_SHARE else "steady" if steady else "random",
        share=share,
        exact=exact,
    )
