"""What a running job did in the last seconds: two readings of its capture -> rates, shares, stuck threads.

A reading keeps only the sums that the next one is compared with, so no whole capture is held in memory. The
caller passes the time in; nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hotloop.analysis.services import SERVICE_THREADS
from hotloop.capture.model import Capture, Node, OpenRegion, Process, Progress, Thread, merged
from hotloop.capture.nodes import NodeFacts, node_of
from hotloop.capture.region_names import RAY_IDLE

STUCK_AFTER_NS = 10_000_000_000  # in one region without entering or leaving any
STUCK_TIMES_LONGEST = 3.0  # and this many times its longest completed call
SILENT_AFTER_NS = 5_000_000_000  # without a heartbeat, which comes several times a second
UNATTRIBUTED = "(unattributed)"

State = Literal["running", "silent", "ended", "died"]
Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class ThreadReading:
    """One thread at one moment."""

    name: str
    calls: int  # completed calls of all its regions
    open: tuple[OpenRegion, ...]
    open_for_ns: int  # since the innermost open region began
    innermost_is_leaf: bool  # nothing was ever recorded inside it
    longest_ns: int | None  # longest completed call of the innermost open region
    still_since_ns: int  # first reading that saw the thread in its present state


@dataclass(frozen=True, slots=True)
class LiveNode:
    """One computer of a run on several."""

    name: str
    state: Literal["recorded", "lost", "not recorded"]
    age_ns: int | None  # of what is known of its processes; 0: they record here; None: nothing came
    running: int  # processes


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process at one moment."""

    label: str
    pid: int
    state: State
    rss_bytes: int | None
    progress: Progress
    own_ns: dict[str, int]  # by region name; including UNATTRIBUTED, the wall time of its threads
    calls: dict[str, int]
    threads: dict[tuple[int, int], ThreadReading]
    node: str = ""  # its name, in a run on several computers


@dataclass(frozen=True, slots=True)
class LiveReading:
    """A capture at one moment."""

    at_ns: int  # the caller's monotonic clock
    run_ns: int  # length of the run so far
    exit_status: str | None
    processes: dict[Key, ProcessReading]
    warnings: tuple[str, ...] = ()  # about the capture
    nodes: tuple[LiveNode, ...] = ()  # () for a run on one computer


@dataclass(frozen=True, slots=True)
class LiveRegion:
    """One region name, over the span."""

    name: str
    own_ns: int
    share: float  # own time / time of all threads in the span, 0..1
    calls_per_s: float


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """One process, over the span."""

    label: str
    pid: int
    state: State
    env_steps_per_s: float | None  # None: this process never reported env steps
    updates_per_s: float | None
    busiest: str | None  # region with the most own time in the span
    busiest_share: float | None  # of the process's thread time
    inside: str | None  # innermost open region of its first thread that is inside one
    rss_bytes: int | None
    node: str = ""  # its name, in a run on several computers


@dataclass(frozen=True, slots=True)
class Stuck:
    """A thread that has been in one region for too long."""

    process: str
    pid: int
    thread: str
    region: str
    for_ns: int


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """The whole job, over the last seconds."""

    run_ns: int  # length of the run so far
    span_ns: int  # time that rates and shares are averaged over
    since_start: bool  # the span is the whole run: there is no earlier reading
    env_steps: int  # so far
    updates: int
    episodes: int
    env_steps_per_s: float | None  # None: never reported
    updates_per_s: float | None
    episodes_per_s: float | None
    mean_return: float | None  # of the episodes that ended in the span
    mean_loss: float | None
    regions: tuple[LiveRegion, ...]  # most own time first
    processes: tuple[LiveProcess, ...]
    stuck: tuple[Stuck, ...]  # longest first
    all_ended: bool
    exit_status: str | None
    warnings: tuple[str, ...] = ()  # about the capture, such as a part that cannot be read
    nodes: tuple[LiveNode, ...] = ()  # () for a run on one computer


def take_reading(
    capture: Capture, at_ns: int, at_real_ns: int, previous: LiveReading | None = None
) -> LiveReading:
    """Read `capture` at `at_ns` (monotonic clock) and `at_real_ns` (real time)."""
    before = previous.processes if previous else {}
    found = {}
    running: dict[str, int] = {}  # by node
    nodes = {node.node: node for node in capture.nodes}
    for process in capture.processes:
        key = (process.host, process.pid, process.start_real_ns)
        own = process.origin.node if process.origin is not None else ""
        node = nodes.get(node_of(process.host, own, capture.nodes))
        # What a node sent a moment ago is no sign of silence.
        known_ns = at_real_ns if node is None or node.seen_ns is None else min(at_real_ns, node.seen_ns)
        read = _read_process(process, at_ns, known_ns, before.get(key))
        found[key] = read
        if node is not None:
            found[key] = replace(read, node=node.name)
            running[node.node] = running.get(node.node, 0) + (read.state == "running")
    warnings = capture.all_warnings if found else ()  # that there is no process is said anyway
    exit_status = capture.facts.get("exit_status")
    of_nodes = tuple(_read_node(node, running.get(node.node, 0), at_real_ns) for node in capture.nodes)
    return LiveReading(at_ns, capture.wall_ns, exit_status, found, warnings, of_nodes)


def _read_node(node: NodeFacts, running: int, at_real_ns: int) -> LiveNode:
    age_ns = None if node.seen_ns is None else max(at_real_ns - node.seen_ns, 0)
    return LiveNode(
        name=node.name,
        state="not recorded" if node.problem else "lost" if node.lost else "recorded",
        age_ns=0 if node.driver or node.shared else age_ns,
        running=running,
    )


def live_status(after: LiveReading, before: LiveReading | None = None) -> LiveStatus:
    """What happened between two readings; without an earlier one, since the start."""
    span_ns = after.at_ns - before.at_ns if before else after.run_ns
    earlier = before.processes if before else {}
    grown = {key: _growth(p, earlier.get(key)) for key, p in after.processes.items()}
    so_far = sum((p.progress for p in after.processes.values()), Progress())
    done = sum((g.progress for g in grown.values()), Progress())
    ended = [p.state in ("ended", "died") for p in after.processes.values()]
    return LiveStatus(
        run_ns=after.run_ns,
        span_ns=span_ns,
        since_start=before is None,
        env_steps=so_far.env_steps,
        updates=so_far.updates,
        episodes=so_far.episodes,
        env_steps_per_s=_rate(done.env_steps, span_ns, so_far.env_steps),
        updates_per_s=_rate(done.updates, span_ns, so_far.updates),
        episodes_per_s=_rate(done.episodes, span_ns, so_far.episodes),
        mean_return=done.mean_return,
        mean_loss=done.mean_loss,
        regions=_regions(list(grown.values()), span_ns),
        processes=tuple(_process(p, grown[key], span_ns) for key, p in after.processes.items()),
        stuck=_stuck(after),
        all_ended=bool(ended) and all(ended),
        exit_status=after.exit_status,
        warnings=after.warnings,
        nodes=after.nodes,
    )


# -- one reading ---------------------------------------------------------------------------------


def _read_process(
    process: Process, at_ns: int, at_real_ns: int, previous: ProcessReading | None
) -> ProcessReading:
    own_ns: dict[str, int] = {}
    calls: dict[str, int] = {}
    threads = [thread for thread in process.threads if not SERVICE_THREADS.search(thread.name)]
    todo = [merged(threads)]
    while todo:
        node = todo.pop()
        name = node.name or UNATTRIBUTED
        own_ns[name] = own_ns.get(name, 0) + node.own_ns
        calls[name] = calls.get(name, 0) + node.calls
        todo += node.children
    before = previous.threads if previous else {}
    return ProcessReading(
        label=process.label or "process",
        pid=process.pid,
        state=_state(process, at_real_ns),
        rss_bytes=process.rss_bytes,
        progress=sum((t.progress for t in process.threads), Progress()),
        own_ns=own_ns,
        calls=calls,
        threads={
            (t.native_id, t.start_ns): _read_thread(t, at_ns, before.get((t.native_id, t.start_ns)))
            for t in threads
            if not t.ended and not t.folded_threads
        },
    )


def _state(process: Process, at_real_ns: int) -> State:
    if process.closed:
        return "ended"
    silent = at_real_ns - (process.start_real_ns + process.end_ns - process.start_ns) > SILENT_AFTER_NS
    # On another host we cannot check whether the process is alive; its heartbeat tells.
    if process.alive:
        return "silent" if silent else "running"
    return "died" if silent else "running"


def _read_thread(thread: Thread, at_ns: int, previous: ThreadReading | None) -> ThreadReading:
    innermost = _innermost(thread)
    calls = _all_calls(thread.root)
    same = previous is not None and (previous.calls, previous.open) == (calls, thread.open)
    return ThreadReading(
        name=thread.name,
        calls=calls,
        open=thread.open,
        open_for_ns=max(thread.end_ns - thread.open[-1].since_ns, 0) if thread.open else 0,
        innermost_is_leaf=innermost is not None and not innermost.children,
        longest_ns=innermost.max_ns if innermost else None,
        still_since_ns=previous.still_since_ns if same and previous else at_ns,
    )


def _innermost(thread: Thread) -> Node | None:
    node = thread.root
    for region in thread.open:
        named = [child for child in node.children if child.name == region.name]
        if not named:
            return None
        node = max(named, key=lambda child: child.open_calls)
    return node if thread.open else None


def _all_calls(root: Node) -> int:
    calls, todo = 0, [root]
    while todo:
        node = todo.pop()
        calls += node.calls
        todo += node.children
    return calls


# -- between two readings ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Growth:
    progress: Progress
    own_ns: dict[str, int]
    calls: dict[str, int]


def _growth(after: ProcessReading, before: ProcessReading | None) -> _Growth:
    if before is None:
        return _Growth(after.progress, after.own_ns, after.calls)
    fields = Progress.__slots__
    return _Growth(
        Progress(*(getattr(after.progress, f) - getattr(before.progress, f) for f in fields)),
        {name: max(ns - before.own_ns.get(name, 0), 0) for name, ns in after.own_ns.items()},
        {name: max(n - before.calls.get(name, 0), 0) for name, n in after.calls.items()},
    )


def _rate(done: int, span_ns: int, ever: int) -> float | None:
    return done / span_ns * 1e9 if ever and span_ns > 0 else None


def _regions(grown: list[_Growth], span_ns: int) -> tuple[LiveRegion, ...]:
    own_ns: dict[str, int] = {}
    calls: dict[str, int] = {}
    for growth in grown:
        for name, ns in growth.own_ns.items():
            own_ns[name] = own_ns.get(name, 0) + ns
            calls[name] = calls.get(name, 0) + growth.calls[name]
    whole = sum(own_ns.values())
    rows = [
        LiveRegion(
            name, ns, ns / whole if whole else 0.0, calls[name] / span_ns * 1e9 if span_ns > 0 else 0.0
        )
        for name, ns in own_ns.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.own_ns, row.name)))


def _process(process: ProcessReading, growth: _Growth, span_ns: int) -> LiveProcess:
    whole = sum(growth.own_ns.values())
    busiest = max(growth.own_ns, key=lambda name: growth.own_ns[name]) if whole else None
    inside = [t.open[-1].name for t in process.threads.values() if t.open]
    running = process.state in ("running", "silent")
    return LiveProcess(
        label=process.label,
        pid=process.pid,
        state=process.state,
        env_steps_per_s=_rate(growth.progress.env_steps, span_ns, process.progress.env_steps),
        updates_per_s=_rate(growth.progress.updates, span_ns, process.progress.updates),
        busiest=busiest,
        busiest_share=growth.own_ns[busiest] / whole if busiest is not None else None,
        inside=inside[0] if inside and running else None,
        rss_bytes=process.rss_bytes if running else None,
        node=process.node,
    )


def _stuck(after: LiveReading) -> tuple[Stuck, ...]:
    found = []
    for process in after.processes.values():
        if process.state not in ("running", "silent"):
            continue
        for thread in process.threads.values():
            for_ns = _stuck_for_ns(thread, after.at_ns)
            if for_ns >= max(STUCK_AFTER_NS, STUCK_TIMES_LONGEST * (thread.longest_ns or 0)):
                region = thread.open[-1].name
                found.append(Stuck(process.label, process.pid, thread.name, region, for_ns))
    return tuple(sorted(found, key=lambda stuck: -stuck.for_ns))


def _stuck_for_ns(thread: ThreadReading, at_ns: int) -> int:
    """How long no region was entered or left: exact inside a leaf, elsewhere as far back as readings go."""
    if not thread.open or thread.open[-1].name == RAY_IDLE:  # a worker of Ray without a task
        return 0
    return (
        thread.open_for_ns
        if thread.innermost_is_leaf
        else min(at_ns - thread.still_since_ns, thread.open_for_ns)
    )
