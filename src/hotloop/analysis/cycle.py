"""One typical round of training, with all members on one clock: what overlaps and what does not.

It was recorded while everyone's calls were kept (a quarter of each second), and lasts from the beginning of
one call of the driving member to the next call of the same region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.analysis.system import Cycle, Edge, Lane, Member, Role, Span, leading
from hotloop.analysis.thread_states import GAPS
from hotloop.analysis.windows import node_categories
from hotloop.capture import layout
from hotloop.capture.model import Capture, Thread

LEAST_CALLS = 4
SHORTEST_NS = 20_000  # shorter rounds show nothing
FINEST = 1 / 300  # of the round; shorter stretches are left out
MOST_LANES = 10
MOSTLY = 0.5
State = Literal["works", "waits", "blocked"]
OWN_CODE = "other"  # category of time in no region
Ints = NDArray[np.int64]


def find_cycle(
    capture: Capture,
    members: Sequence[Member],
    roles: Sequence[Role],
    edges: Sequence[Edge],
    resolver: Resolver,
) -> Cycle | None:
    """A typical round; None if the calls of the driving member were not kept."""
    shown = _lanes(members, roles, edges)
    first = leading(members)
    driver = next((i for i in shown if i in first), None)
    if driver is None or len(shown) < 2:
        return None
    thread = _thread(capture, members[driver])
    found = _typical(thread, [_thread(capture, members[i]) for i in shown if i != driver], resolver)
    if thread is None or found is None:
        return None
    path, begin, end = found
    lanes = []
    for number in shown:
        mine = _thread(capture, members[number])
        if mine is not None and _lives(mine, begin, end):
            kinds = node_categories(mine, resolver)
            lanes.append(Lane(number, _spans(mine, members[number], kinds, begin, end)))
    return Cycle(thread.paths[path][-1], end - begin, tuple(lanes)) if len(lanes) > 1 else None


def _lanes(members: Sequence[Member], roles: Sequence[Role], edges: Sequence[Edge]) -> list[int]:
    """Members to show: those with messages, the driving one first."""
    connected = {i for edge in edges for i in (edge.source, edge.target)}
    found = [i for i, m in enumerate(members) if i in connected and roles[m.role].works]
    first = leading(members)
    found.sort(key=lambda i: i not in first)
    return found[:MOST_LANES]


def _thread(capture: Capture, member: Member) -> Thread | None:
    return None if member.thread is None else capture.processes[member.process].threads[member.thread]


def _typical(
    thread: Thread | None, others: Sequence[Thread | None], resolver: Resolver
) -> tuple[int, int, int] | None:
    """Path, begin and end of a typical round, of the shortest region in which all others do something.

    Waits and messages are only taken if nothing else repeats: a step of four envs has four of them.
    """
    if thread is None or not len(thread.rounds):
        return None
    kinds = node_categories(thread, resolver)
    candidates: list[tuple[float, int, Ints, Ints]] = []
    for path in np.unique(thread.rounds["path"]):
        if not path or thread.paths[path][-1].startswith("import"):
            continue
        begins = np.sort(thread.rounds["start_ns"][thread.rounds["path"] == path].astype(np.int64))
        begins = begins[(begins >= thread.start_ns) & (begins < thread.end_ns)]
        lengths = np.diff(begins)
        burst = begins >> layout.ROUND_BURST_SHIFT
        whole = (burst[1:] == burst[:-1]) | (lengths >> layout.ROUND_LONG_SHIFT > 0)
        if int(whole.sum()) >= LEAST_CALLS and np.median(lengths[whole]) >= SHORTEST_NS:
            median = float(np.median(lengths[whole]))
            candidates.append((median, int(path), begins[:-1][whole], lengths[whole]))
    ranked = sorted(candidates, key=lambda one: (kinds[one[1]] in ("wait", "ipc"), one[0]))
    for median, path, begins, lengths in ranked:
        order = np.argsort(np.abs(lengths - median))
        for at in order[: max(len(order) // 4, 1)]:
            begin, end = int(begins[at]), int(begins[at] + lengths[at])
            living = [other for other in others if other is not None and _lives(other, begin, end)]
            if living and all(_active(other, begin, end) for other in living):
                return path, begin, end
    return None


def _lives(thread: Thread, begin: int, end: int) -> bool:
    return thread.start_ns <= begin and end <= thread.end_ns and len(thread.rounds) > 0


def _active(thread: Thread, begin: int, end: int) -> bool:
    """Whether a call of the thread began in that stretch."""
    start = thread.rounds["start_ns"].astype(np.int64)
    return bool(np.any((start >= begin) & (start < end)))


def _state(member: Member, path: tuple[str, ...], kind: str) -> State:
    """What a member mostly does in a region."""
    found = next((r.states for r in member.regions if r.path == path), None)
    if kind == "wait" or (found is not None and found.waiting > MOSTLY):
        return "waits"
    own = [r for r in member.regions if not r.path or r.path[-1].startswith(GAPS)]
    outside = sum(r.share for r in own)
    asleep = sum(r.share * r.states.blocked for r in own)
    blocked = found.blocked if found is not None and path else asleep / outside if outside else 0.0
    return "blocked" if blocked > MOSTLY else "works"


def _spans(thread: Thread, member: Member, kinds: Sequence[str], begin: int, end: int) -> tuple[Span, ...]:
    """What a thread did between two moments: the innermost call that was kept, or its own code."""
    start = thread.rounds["start_ns"].astype(np.int64)
    stop = start + thread.rounds["duration_ns"].astype(np.int64)
    inside = np.flatnonzero((stop > begin) & (start < end))
    calls = sorted(inside, key=lambda i: (-(stop[i] - start[i]), start[i]))  # outer ones first
    edges = np.unique(np.clip(np.concatenate([start[inside], stop[inside], [begin, end]]), begin, end))
    owner = np.full(len(edges) - 1, -1)
    for i in calls:
        first, last = np.searchsorted(edges, [max(start[i], begin), min(stop[i], end)])
        owner[first:last] = i
    found: list[Span] = []
    for piece, i in enumerate(owner):
        path = int(thread.rounds["path"][i]) if i >= 0 else 0
        name = thread.paths[path][-1] if path else ""
        kind = kinds[path] if path else OWN_CODE
        state = _state(member, thread.paths[path], kind)
        span = Span(int(edges[piece]) - begin, int(edges[piece + 1]) - begin, name, kind, state)
        if found and (found[-1].region == name or span.end_ns - span.begin_ns < FINEST * (end - begin)):
            found[-1] = replace(found[-1], end_ns=span.end_ns)
        else:
            found.append(span)
    return tuple(found)
