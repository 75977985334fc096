"""A capture as Chrome/Perfetto trace-event JSON, to open in ui.perfetto.dev or chrome://tracing.

A thread has up to two tracks over the whole run: recorded calls (bursts of calls in a row, long calls, and
the last calls) as they happened, and the regions of each window, rebuilt from its totals. Names and metadata
of the trace say which is which. Processes have counters: steps per second, memory, cores, categories.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hotloop._util.units import duration
from hotloop.analysis.categories import CategoryPatterns, Resolver
from hotloop.analysis.over_time import counters, window_regions
from hotloop.analysis.windows import node_categories
from hotloop.capture.model import Capture, Process, Thread
from hotloop.report.safe_text import shown

Row = dict[str, Any]
Call = tuple[int, int, str, str, dict[str, Any]]  # start_ns, end_ns, name, category, arguments

RECORDED = (
    "a sample of the calls over the whole run, as they happened; tracks marked (rebuilt) show each window"
)
REBUILT = (
    "each window of the run, rebuilt from its totals: a region is drawn once, with all its time in the "
    "window, in the order in which regions first ran; no calls were recorded"
)


def perfetto_trace(capture: Capture, category_patterns: CategoryPatterns = ()) -> dict[str, Any]:
    """The trace as plain values; `otherData` says whether any calls in it were recorded."""
    resolver = Resolver(tuple(category_patterns))
    rows: list[Row] = []
    origin_ns = min((p.start_real_ns for p in capture.processes), default=0)
    for pid, process in zip(_pids(capture), capture.processes, strict=True):
        shift_ns = process.start_real_ns - process.start_ns - origin_ns
        rows += _process_names(pid, process)
        rows += _counters(process, pid, shift_ns, resolver)
        tid = 0
        for number, thread in enumerate(process.threads):
            name = shown(thread.name or f"thread {number + 1}")
            categories = node_categories(thread, resolver)
            recorded = list(_recorded(thread, categories))
            rebuilt = list(_rebuilt(thread, categories))
            for calls, title in ((recorded, name), (rebuilt, f"{name}: each window (rebuilt)")):
                if calls or (calls is recorded and not rebuilt):
                    tid += 1
                    rows.append(_metadata("thread_name", pid, tid, name=title))
                    rows.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
                    rows += _complete(calls, pid, tid, shift_ns)
    has_calls = _recorded_calls(capture) > 0
    return {
        "traceEvents": rows,
        "displayTimeUnit": "ms",
        "otherData": {
            "made_by": "hotloop",
            "rebuilt": not has_calls,
            "shows": RECORDED if has_calls else REBUILT,
            "command": " ".join(shown(str(word)) for word in capture.command),
        },
    }


def describe_trace(capture: Capture) -> str:
    """What the trace of this capture shows, in one sentence."""
    windows = max((len(thread.windows) for thread in capture.threads), default=0) + 1
    count = _recorded_calls(capture)
    if not count:
        return (
            f"This trace is rebuilt from the totals of {windows} windows: no calls were recorded. "
            "For calls as they happened, record with `hotloop run`, or with `hotloop.start(timeline=True)`."
        )
    calls = f"{count:,} call" + "s" * (count != 1)
    return (
        f"This trace shows {calls} as they happened, sampled over {duration(capture.wall_ns)}; tracks marked "
        f"(rebuilt) are drawn from the totals of {windows} windows."
    )


def _recorded_calls(capture: Capture) -> int:
    return sum(len(_distinct(thread)) for thread in capture.threads)


def _pids(capture: Capture) -> list[int]:
    """The processes' pids, or 1, 2, ... if two hosts used the same one."""
    pids = [process.pid for process in capture.processes]
    return pids if len(set(pids)) == len(pids) else list(range(1, len(pids) + 1))


def _process_names(pid: int, process: Process) -> list[Row]:
    name = f"{shown(process.label or 'process')} (pid {process.pid} on {shown(process.host or '?')})"
    return [_metadata("process_name", pid, 0, name=name)]


def _metadata(what: str, pid: int, tid: int, **values: Any) -> Row:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": values}


def _counters(process: Process, pid: int, shift_ns: int, resolver: Resolver) -> Iterator[Row]:
    for counter in counters(process, resolver):
        for time_ns, value in zip(counter.time_ns.tolist(), counter.values.tolist(), strict=True):
            yield {
                "name": shown(counter.name),
                "ph": "C",
                "ts": max(time_ns + shift_ns, 0) / 1000,
                "pid": pid,
                "tid": 0,
                "args": {counter.unit: round(value, 3)},
            }


def _distinct(thread: Thread) -> list[tuple[int, int, int]]:
    """Start, duration and path of every call that was recorded anywhere, in order of time."""
    rows = np.unique(np.concatenate([thread.calls, thread.rounds]))
    kept = {(start, length, path) for path, start, length in rows.tolist()}
    kept |= {(event.start_ns, event.duration_ns, event.path) for event in thread.events}
    return sorted(kept)


def _recorded(thread: Thread, categories: list[str]) -> Iterator[Call]:
    """Completed calls that were kept, and regions that were still open."""
    calls = _distinct(thread)
    # An open region may be hours old; draw it from where the first call begins.
    first_ns = calls[0][0] if calls else thread.start_ns
    for region in thread.open if calls else ():
        start_ns = max(region.since_ns, min(first_ns, thread.end_ns))
        note = {"still open": True, "open_s": (thread.end_ns - region.since_ns) / 1e9}
        yield start_ns, max(thread.end_ns, start_ns), region.name, "open", note
    # Shallow calls first, so that of two with the same start and end the outer one comes first.
    depth = [len(path) for path in thread.paths]
    for start_ns, length_ns, at in sorted(calls, key=lambda c: depth[c[2]] if c[2] < len(depth) else 0):
        path = thread.paths[at] if at < len(depth) else ()
        kind = categories[at] if at < len(depth) else "other"
        yield start_ns, start_ns + length_ns, path[-1] if path else "?", kind, {"path": " > ".join(path)}


def _rebuilt(thread: Thread, categories: list[str]) -> Iterator[Call]:
    for region in window_regions(thread):
        note = {"rebuilt": True, "calls": region.calls, "path": " > ".join(thread.paths[region.path])}
        name = thread.paths[region.path][-1]
        yield region.start_ns, region.end_ns, name, categories[region.path], note


def _complete(calls: list[Call], pid: int, tid: int, shift_ns: int) -> Iterator[Row]:
    """Complete events in time order; a call that outlives its caller is cut to fit."""
    ends: list[int] = []
    for start_ns, end_ns, name, category, note in sorted(calls, key=lambda call: (call[0], -call[1])):
        while ends and ends[-1] <= start_ns:
            ends.pop()
        if ends and end_ns > ends[-1]:
            end_ns, note = ends[-1], note | {"cut to fit": True}
        ends.append(end_ns)
        yield {
            "name": shown(name),
            "cat": shown(category),
            "ph": "X",
            "ts": max(start_ns + shift_ns, 0) / 1000,
            "dur": (end_ns - start_ns) / 1000,
            "pid": pid,
            "tid": tid,
            "args": {key: shown(v) if isinstance(v, str) else v for key, v in note.items()},
        }
