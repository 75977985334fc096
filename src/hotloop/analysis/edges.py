"""Who waits for whom: pipes, queues and collectives as edges between members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.analysis.data_parallel import data_parallel_pids, gradient_bytes
from hotloop.analysis.system import NEXT_TASK, Edge, EdgeKind, Member, Role, RoleLink
from hotloop.capture.channels import Channel
from hotloop.capture.model import Capture, Node
from hotloop.capture.region_names import COLLECTIVE_REGIONS, RAY_IDLE, RAY_WAIT_FOR
from hotloop.capture.samples import FOR_THE_GIL, RUNNABLE, RUNNING, SLEEPING

MOST_EXPLAINED = 0.2  # share of a member's waiting that channels explain; with more, nothing is inferred
LEAST_WAITING = 0.05  # share of its time that a member waits; with less, nothing is inferred


@dataclass(frozen=True, slots=True)
class _End:
    """One member at one end of a channel."""

    member: int
    channel: Channel
    messages: float  # calls, during training
    waited_ns: float
    size: float | None  # mean bytes of a message


def find_edges(capture: Capture, members: Sequence[Member]) -> list[Edge]:
    """All edges, those with the most waiting first."""
    sends, receives = _ends(capture, members)
    found = [
        _edge(capture, members, source, target, receives, sends)
        for source in sends
        for target in receives
        if source.member != target.member and _connected(source.channel, target.channel)
    ]
    found += _collective_edges(capture, members)
    found += _task_edges(capture, members)
    found += _inferred(capture, members, found)
    found.sort(key=lambda edge: (-edge.target_waited_ns - edge.source_waited_ns, edge.source, edge.target))
    return found


def role_links(
    members: Sequence[Member], roles: Sequence[Role], edges: Sequence[Edge], training_ns: int
) -> list[RoleLink]:
    """Edges added up by kind and by the roles at their ends."""
    groups: dict[tuple[int, int, EdgeKind], list[Edge]] = {}
    for edge in edges:
        key = (members[edge.source].role, members[edge.target].role, edge.kind)
        groups.setdefault(key, []).append(edge)
    seconds = training_ns / 1e9 or 1.0
    found = []
    for (source, target, kind), mine in groups.items():
        sizes = [edge.bytes for edge in mine if edge.bytes is not None]
        counts = [edge.messages for edge in mine if edge.messages is not None]
        depths = [edge.depth_mean for edge in mine if edge.depth_mean is not None]
        sent_ns = sum(members[i].wall_ns for i in roles[source].members) or 1
        received_ns = sum(members[i].wall_ns for i in roles[target].members) or 1
        found.append(
            RoleLink(
                kind=kind,
                source=source,
                target=target,
                messages_per_s=sum(counts) / seconds if counts else None,
                bytes_per_s=sum(sizes) / seconds if sizes else None,
                source_wait=min(sum(edge.source_waited_ns for edge in mine) / sent_ns, 1.0),
                target_wait=min(sum(edge.target_waited_ns for edge in mine) / received_ns, 1.0),
                depth_mean=sum(depths) / len(depths) if depths else None,
                capacity=mine[0].capacity,
            )
        )
    return sorted(found, key=lambda link: -link.target_wait - link.source_wait)


def _ends(capture: Capture, members: Sequence[Member]) -> tuple[list[_End], list[_End]]:
    sends: list[_End] = []
    receives: list[_End] = []
    for number, member in enumerate(members):
        if member.thread is None:
            continue
        process = capture.processes[member.process]
        thread = process.threads[member.thread]
        known = {channel.name: channel for channel in process.channels}
        for use in thread.channels:
            channel = known.get(use.name)
            calls, waited_ns = use.between(thread.start_ns, thread.end_ns)
            if channel is not None and calls >= 1:
                end = _End(number, channel, calls, waited_ns, use.message_bytes)
                (sends if use.way == "send" else receives).append(end)
    return sends, receives


def _connected(one: Channel, other: Channel) -> bool:
    """Whether a message into `one` comes out of `other`."""
    if one.kind != other.kind:
        return False
    return one.there == other.here or other.there == one.here


def _edge(
    capture: Capture,
    members: Sequence[Member],
    source: _End,
    target: _End,
    receives: Sequence[_End],
    sends: Sequence[_End],
) -> Edge:
    """The edge between two ends; where several members share an end, by their share of the messages."""
    readers = sum(end.messages for end in receives if _connected(source.channel, end.channel))
    writers = sum(end.messages for end in sends if _connected(end.channel, target.channel))
    of_source, of_target = target.messages / readers, source.messages / writers
    messages = source.messages * of_source
    size = source.size if source.size is not None else target.size
    looked = max((source.channel, target.channel), key=lambda channel: channel.depth_count)
    return Edge(
        kind=_kind(capture, members, source, target),
        name=target.channel.name,
        source=source.member,
        target=target.member,
        messages=round(messages),
        bytes=round(size * messages) if size is not None and size * messages < 1e18 else None,
        source_waited_ns=round(source.waited_ns * of_source),
        target_waited_ns=round(target.waited_ns * of_target),
        depth_mean=looked.depth_sum / looked.depth_count if looked.depth_count else None,
        depth_max=looked.depth_max if looked.depth_count else None,
        capacity=target.channel.capacity,
    )


def _kind(capture: Capture, members: Sequence[Member], source: _End, target: _End) -> EdgeKind:
    kinds = {members[source.member].kind, members[target.member].kind}
    return "loader" if "loader_worker" in kinds else source.channel.kind


# -- waits whose channel is not known --------------------------------------------------------------


def _inferred(capture: Capture, members: Sequence[Member], known: Sequence[Edge]) -> list[Edge]:
    """Edges for waits that no channel explains: rings in shared memory, conditions, locks.

    Between processes, a parent waits for its working children and they for it. Between the threads of one
    process, a thread waits for those that were at work whenever it was seen waiting.
    """
    found = []
    for number, member in enumerate(members):
        explained = sum(e.target_waited_ns for e in known if e.target == number)
        explained += sum(e.source_waited_ns for e in known if e.source == number)
        waited = member.states.waiting * member.wall_ns
        if waited < LEAST_WAITING * member.wall_ns or member.kind in ("service", "launcher", "rank"):
            continue
        if explained > MOST_EXPLAINED * waited:
            continue
        between = _at_work_meanwhile(capture, members, number) or _relatives(capture, members, number)
        whole = sum(between.values())
        for other, weight in between.items():
            kinds = {members[number].kind, members[other].kind}
            kind: EdgeKind = "condition" if members[other].process == member.process else "unknown"
            kind = "ring" if kind == "unknown" and "collector" in kinds else kind
            kind = "pool" if kind == "unknown" and _in_a_pool(capture, member, members[other]) else kind
            name = {"ring": "ring", "condition": "condition", "pool": "multiprocessing.Pool"}.get(
                kind, "wait"
            )
            found.append(Edge(kind, name, other, number, None, None, 0, round(waited * weight / whole)))
    return found


def _in_a_pool(capture: Capture, *ends: Member) -> bool:
    """Whether one of them is a worker of a `multiprocessing.Pool`."""
    origins = [capture.processes[end.process].origin for end in ends]
    return any(origin is not None and origin.target == "multiprocessing.pool.worker" for origin in origins)


def _at_work_meanwhile(capture: Capture, members: Sequence[Member], number: int) -> dict[int, float]:
    """Threads of the same process that were not waiting when this one was, by time."""
    member = members[number]
    samples = capture.processes[member.process].samples
    mine = samples[samples["native_id"] == member.native_id]
    waits = mine["time_ns"][(mine["state"] == SLEEPING) & (mine["reason"] != FOR_THE_GIL)]
    found = {}
    for other, one in enumerate(members):
        if one.process != member.process or other == number or one.kind in ("service", "launcher", "logger"):
            continue
        theirs = samples[samples["native_id"] == one.native_id]
        busy = np.isin(theirs["state"], (RUNNING, RUNNABLE)) | (theirs["reason"] == FOR_THE_GIL)
        weight = float(theirs["weight_ns"][busy & np.isin(theirs["time_ns"], waits)].sum())
        if weight > LEAST_WAITING * member.wall_ns:
            found[other] = weight
    return found


def _relatives(capture: Capture, members: Sequence[Member], number: int) -> dict[int, float]:
    """Working members in child processes, or the driving one of the parent, by the time they do not wait."""
    pids = {process.pid: process.parent_pid for process in capture.processes}
    mine = members[number]
    found = {}
    for other, one in enumerate(members):
        if one.process == mine.process or one.kind in ("service", "launcher", "logger", "thread"):
            continue
        if mine.pid in _ancestors(one.pid, pids) or one.pid in _ancestors(mine.pid, pids):
            found[other] = max(1.0 - one.states.waiting - one.states.unknown, 0.01)
    return found


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    """Process numbers of those that started this one, directly or through a fork server."""
    found: set[int] = set()
    while pid in parents and parents[pid] not in found:
        pid = parents[pid]
        found.add(pid)
    return found


# -- tasks of Ray ----------------------------------------------------------------------------------


def _task_edges(capture: Capture, members: Sequence[Member]) -> list[Edge]:
    """Who waits for whose results, and workers that wait for the next task from those who call them."""
    waits = [_regions(capture, member, RAY_WAIT_FOR) for member in members]
    idle = [_regions(capture, member, RAY_IDLE).get(RAY_IDLE, (0, 0.0))[1] for member in members]
    runs = [
        _regions(capture, member, "") if idle[i] or _runs_tasks(capture, member) else {}
        for i, member in enumerate(members)
    ]
    found = []
    callers: dict[int, dict[int, int]] = {}  # worker -> its callers and the results they took
    for number, mine in enumerate(waits):
        for region, (_, waited) in mine.items():
            method = region.removeprefix(RAY_WAIT_FOR)
            workers = {
                i: runs[i][method][0] for i in range(len(members)) if i != number and method in runs[i]
            }
            calls = sum(workers.values())
            for worker, count in workers.items():
                callers.setdefault(worker, {}).setdefault(number, 0)
                callers[worker][number] += count
                share = round(waited * count / calls) if calls else 0
                found.append(Edge("task", method, worker, number, count, None, 0, share))
    _add_submitters(capture, members, runs, callers)
    for worker, by_caller in callers.items():
        if not idle[worker]:
            continue  # coroutines of an actor: what they wait for is in their event loop
        calls = sum(by_caller.values()) or 1
        for number, count in by_caller.items():
            share = round(idle[worker] * count / calls)
            found.append(Edge("task", NEXT_TASK, number, worker, count, None, 0, share))
    return found


def _add_submitters(
    capture: Capture,
    members: Sequence[Member],
    runs: Sequence[dict[str, tuple[int, float]]],
    callers: dict[int, dict[int, int]],
) -> None:
    """Workers whose results nobody waited for, as they went on to other tasks: who submitted their tasks.

    A sample of these is noted by each process.
    """
    submitted: dict[str, dict[int, int]] = {}  # task's name -> process id -> how many of the sample
    for library in capture.facts.get("libraries", ()):
        for name, _ in library.get("ray_tasks", {}).get("submitted", {}).values():
            by_pid = submitted.setdefault(name, {})
            by_pid[library.get("pid", 0)] = by_pid.get(library.get("pid", 0), 0) + 1
    first: dict[int, int] = {}  # process id -> the member of it that is listed first
    for number, member in enumerate(members):
        first.setdefault(member.pid, number)
    for worker, mine in enumerate(runs):
        if not mine or callers.get(worker):
            continue
        for name in mine.keys() & submitted.keys():
            known = {first[pid]: n for pid, n in submitted[name].items() if first.get(pid, worker) != worker}
            for number, count in known.items():
                share = round(mine[name][0] * count / sum(known.values()))
                by_caller = callers.setdefault(worker, {})
                by_caller[number] = by_caller.get(number, 0) + share


def _runs_tasks(capture: Capture, member: Member) -> bool:
    """Whether a member is a thread of a worker of Ray."""
    origin = capture.processes[member.process].origin
    return origin is not None and origin.ray == "worker"


def _regions(capture: Capture, member: Member, prefix: str) -> dict[str, tuple[int, float]]:
    """Calls and time of a member's regions whose names begin like this."""
    found: dict[str, tuple[int, float]] = {}
    if member.thread is None:
        return found
    todo = list(capture.processes[member.process].threads[member.thread].root.children)
    while todo:
        node = todo.pop()
        todo += node.children
        if node.name.startswith(prefix):
            calls, total_ns = found.get(node.name, (0, 0.0))
            found[node.name] = calls + node.calls, total_ns + node.total_ns
    return found


# -- collectives -----------------------------------------------------------------------------------


def collective_wait_ns(capture: Capture, member: Member) -> tuple[float, int, float]:
    """Time a rank waited in collectives, how often, and the bytes it put in."""
    if member.thread is None:
        return 0.0, 0, 0.0
    process = capture.processes[member.process]
    thread = process.threads[member.thread]
    waited, calls, moved = 0.0, 0, 0.0
    for node in _nodes(thread.root):
        if node.name in COLLECTIVE_REGIONS:
            waited += node.total_ns
            calls += node.calls
            moved += sum(child.bytes_moved for child in node.children) + node.bytes_moved
    if process.pid in data_parallel_pids(capture):
        inside = [r for r in member.regions if r.path and r.path[-1] == "backward"]
        waited += sum(r.share * r.states.waiting for r in inside) * member.wall_ns
        calls += sum(r.calls for r in inside)
    return waited, calls, moved


def _nodes(root: Node) -> Iterable[Node]:
    todo = list(root.children)
    while todo:
        node = todo.pop()
        yield node
        if node.name not in COLLECTIVE_REGIONS:
            todo += node.children


def _collective_edges(capture: Capture, members: Sequence[Member]) -> list[Edge]:
    """The rank that waits least is the one the others wait for."""
    ranks = [i for i, member in enumerate(members) if member.kind == "rank"]
    if len(ranks) < 2:
        return []
    waits = {i: collective_wait_ns(capture, members[i]) for i in ranks}
    last = min(ranks, key=lambda i: waits[i][0] / max(members[i].wall_ns, 1))
    found = []
    for rank in ranks:
        waited, calls, moved = waits[rank]
        if rank == last or not calls:
            continue
        name = "gradients" if members[rank].pid in data_parallel_pids(capture) else "collective"
        moved += gradient_bytes(capture, members[rank].pid) * members[rank].updates
        size = round(moved) if moved else None
        found.append(Edge("collective", name, last, rank, calls, size, round(waits[last][0]), round(waited)))
    return found
