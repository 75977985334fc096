"""A capture as Chrome/Perfetto trace-event JSON, to open in ui.perfetto.dev or chrome://tracing.

With a recorded timeline the trace shows the calls as they happened. Without one it shows one typical
iteration, rebuilt from the totals: every region with its mean time per iteration, in the order in which
regions first ran. Names and metadata of the trace say so.
"""

from __future__ import annotations

from typing import Any

from hotloop.capture.model import Capture, Node, Process, Thread
from hotloop.report.safe_text import shown

Row = dict[str, Any]
Calls = list[tuple[int, int, str, dict[str, Any]]]  # start_ns, end_ns, name, arguments

RECORDED = "the last calls of each thread, as recorded on the timeline"
REBUILT = (
    "one typical iteration, rebuilt from the totals of the whole run: lengths are means, "
    "the order is the order in which regions first ran; no timeline was recorded"
)


def perfetto_trace(capture: Capture) -> dict[str, Any]:
    """The trace as plain values; `otherData` tells whether it was recorded or rebuilt."""
    recorded = any(thread.events for thread in capture.threads)
    rows: list[Row] = []
    origin_ns = min((p.start_real_ns for p in capture.processes), default=0)
    divisor, unit = (1, "") if recorded else _iteration(capture)
    for pid, process in zip(_pids(capture), capture.processes, strict=True):
        rows += _process_names(pid, process)
        for number, thread in enumerate(process.threads):
            tid = number + 1
            rows.append(_named("thread_name", pid, tid, shown(thread.name or f"thread {tid}")))
            if recorded:
                shift_ns = process.start_real_ns - process.start_ns - origin_ns
                rows += _complete(_recorded(thread), pid, tid, shift_ns)
            else:
                rows += _complete(_rebuilt(thread, divisor, unit), pid, tid, 0)
    return {
        "traceEvents": rows,
        "displayTimeUnit": "ms",
        "otherData": {
            "made_by": "hotloop",
            "rebuilt": not recorded,
            "shows": RECORDED if recorded else REBUILT,
            "iteration": unit or None,
            "command": " ".join(shown(str(word)) for word in capture.command),
        },
    }


def _pids(capture: Capture) -> list[int]:
    """The processes' pids, or 1, 2, ... if two hosts used the same one."""
    pids = [process.pid for process in capture.processes]
    return pids if len(set(pids)) == len(pids) else list(range(1, len(pids) + 1))


def _process_names(pid: int, process: Process) -> list[Row]:
    name = f"{shown(process.label or 'process')} (pid {process.pid} on {shown(process.host or '?')})"
    return [_named("process_name", pid, 0, name)]


def _named(what: str, pid: int, tid: int, name: str) -> Row:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _recorded(thread: Thread) -> Calls:
    """Completed calls of the timeline, and regions that were still open."""
    events: Calls = []
    # Shallow calls first, so that of two with the same start and end the outer one comes first.
    depth = [len(path) for path in thread.paths]
    for event in sorted(thread.events, key=lambda e: depth[e.path] if e.path < len(depth) else 0):
        path = thread.paths[event.path] if event.path < len(depth) else ()
        end_ns = event.start_ns + event.duration_ns
        events.append((event.start_ns, end_ns, path[-1] if path else "?", {"path": " > ".join(path)}))
    # An open region may be hours old; draw it from where the timeline begins.
    first_ns = min((event[0] for event in events), default=thread.start_ns)
    opened: Calls = []
    for region in thread.open:
        start_ns = max(region.since_ns, min(first_ns, thread.end_ns))
        note = {"still open": True, "open_s": (thread.end_ns - region.since_ns) / 1e9}
        opened.append((start_ns, max(thread.end_ns, start_ns), region.name, note))
    return opened + events


def _iteration(capture: Capture) -> tuple[int, str]:
    """The number of iterations to divide totals by, and what an iteration is."""
    done = capture.progress
    if done.updates:
        return done.updates, "update"
    if done.env_steps:
        return done.env_steps, "env step"
    node = max((t.root for t in capture.threads), key=lambda root: root.total_ns, default=Node(""))
    while node.calls <= 1 and node.children:
        node = max(node.children, key=lambda child: child.total_ns)
    return (node.calls, f"call of {node.name}") if node.calls > 1 else (1, "run")


def _rebuilt(thread: Thread, divisor: int, unit: str) -> Calls:
    calls: Calls = []
    top = f"one typical {unit} (rebuilt)"
    todo: list[tuple[Node, int]] = [(thread.root, 0)]
    while todo:
        node, start_ns = todo.pop()
        times = node.calls / divisor
        name = top if node is thread.root else f"{node.name} {times:.3g}x"
        note = {"rebuilt": True, "calls_per_iteration": times, "mean_ns": node.mean_ns}
        calls.append((start_ns, start_ns + node.total_ns, name, {} if node is thread.root else note))
        for child in node.children:
            todo.append((child, start_ns))
            start_ns += child.total_ns
    return [(start // divisor, end // divisor, name, note) for start, end, name, note in calls]


def _complete(calls: Calls, pid: int, tid: int, shift_ns: int) -> list[Row]:
    """Complete events in time order; a call that outlives its caller is cut to fit."""
    rows: list[Row] = []
    ends: list[int] = []
    for start_ns, end_ns, name, note in sorted(calls, key=lambda call: (call[0], -call[1])):
        while ends and ends[-1] <= start_ns:
            ends.pop()
        if ends and end_ns > ends[-1]:
            end_ns, note = ends[-1], note | {"cut to fit": True}
        ends.append(end_ns)
        rows.append(
            {
                "name": shown(name),
                "cat": "hotloop",
                "ph": "X",
                "ts": (start_ns + shift_ns) / 1000,
                "dur": (end_ns - start_ns) / 1000,
                "pid": pid,
                "tid": tid,
                "args": {key: shown(v) if isinstance(v, str) else v for key, v in note.items()},
            }
        )
    return rows
