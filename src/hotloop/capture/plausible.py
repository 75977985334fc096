"""Whether the figures of a thread can be true: what analysis may rely on, whoever wrote the file.

A part that was not closed has no checksum, and neither have files of hotloop 0.1. Numbers that cannot come
from a recording (a century of time, windows that go back) are found here, once, for both readers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hotloop._util.errors import CaptureError
from hotloop._util.visible import visible
from hotloop.capture import layout
from hotloop.capture.model import Capture, Node, Process, Progress, Thread, Windows
from hotloop.capture.samples import GIL_HELD, REASONS, SLEEPING, Samples
from hotloop.capture.scheduling import ProcessScheduling, Scheduling

MOST = 2**62  # of anything that is counted; in nanoseconds 146 years
MOST_LEVELS = layout.MAX_DEPTH + 2  # with the root, and a node that stands for all that did not fit
_MOST_PID = 2**31
_COUNTS = ("calls", "total_ns", "own_ns", "open_calls", "open_ns", "min_ns", "max_ns")
Kind = TypeVar("Kind", Scheduling, ProcessScheduling)
_BYTES = ("device_ns", "device_growth_bytes", "device_peak_bytes", "rss_growth_bytes", "rss_peak_bytes")


def plausible_capture(capture: Capture) -> Capture:
    """A capture from an export, without samples that refer to nothing; raises CaptureError for damage."""
    warnings = [visible(warning) for warning in capture.warnings]
    processes = []
    for process in capture.processes:
        problem = implausible_process(process)
        threads = []
        for thread in process.threads:
            problem = problem or implausible_thread(thread)
            if problem is None and plausible_windows(thread) is None:
                problem = "its windows make no sense"
            warnings += with_finite_work(thread.root) if problem is None else ()
            threads.append(replace(thread, scheduling=plausible_scheduling(thread.scheduling)))
        if problem is not None:
            raise CaptureError(f"This export is damaged (process {process.pid}: {problem}); export it again.")
        processes.append(
            replace(
                process,
                threads=tuple(threads),
                warnings=tuple(visible(warning) for warning in process.warnings),
                scheduling=plausible_scheduling(process.scheduling),
                samples=plausible_samples(process.samples, len(process.paths), threads),
            )
        )
    return replace(capture, processes=tuple(processes), warnings=tuple(warnings))


def implausible_process(process: Process) -> str | None:
    """Why the figures of a process as a whole cannot be true; None if they can."""
    times = (process.start_ns, process.end_ns, process.start_real_ns)
    if not all(0 <= t < MOST for t in times) or process.end_ns < process.start_ns:
        return f"its times make no sense ({', '.join(map(str, times))})"
    if not all(0 <= pid < _MOST_PID for pid in (process.pid, process.parent_pid)):
        return f"its process numbers make no sense ({process.pid}, {process.parent_pid})"
    if not all(0 <= (size or 0) < MOST for size in (process.rss_bytes, process.rss_peak_bytes)):
        return f"its memory makes no sense ({process.rss_bytes}, {process.rss_peak_bytes})"
    return None


def implausible_thread(thread: Thread) -> str | None:
    """Why the figures of a thread cannot be true; None if they can."""
    times = (thread.start_ns, thread.end_ns, thread.wall_ns, thread.cpu_ns or 0, thread.folded_threads)
    if not all(0 <= t < MOST for t in times) or thread.end_ns < thread.start_ns:
        return f"its times make no sense ({', '.join(map(str, times))})"
    if not 0 <= thread.native_id < MOST:
        return f"its number makes no sense ({thread.native_id})"
    counts = [v for v in _values(thread.progress) if isinstance(v, int)]
    if not all(0 <= count < MOST for count in counts):
        return "its progress makes no sense"
    if any(not 0 <= region.since_ns < MOST for region in thread.open):
        return "its open regions make no sense"
    for event in thread.events:
        if not 0 <= event.path < len(thread.paths) or not 0 <= event.start_ns < MOST:
            return "its events make no sense"
        if not 0 <= event.duration_ns < MOST:
            return "its events make no sense"
    return _implausible_tree(thread.root)


def _implausible_tree(root: Node) -> str | None:
    level, levels = [root], 0
    while level:
        levels += 1
        if levels > MOST_LEVELS:
            return f"its regions are nested deeper than {layout.MAX_DEPTH} levels"
        for node in level:
            figures = [getattr(node, name) or 0 for name in _COUNTS]
            figures += [abs(getattr(node, name) or 0) for name in _BYTES]
            if not all(0 <= figure < MOST for figure in figures):
                return f"the figures of {node.name!r} make no sense"
            if not 0 <= node.squares < math.inf:
                return f"the spread of {node.name!r} makes no sense"
        level = [child for node in level for child in node.children]
    return None


def with_finite_work(root: Node) -> list[str]:
    """Set bytes and flops that are no numbers to 0, in place; returns a warning for each region."""
    warnings, todo = [], [root]
    while todo:
        node = todo.pop()
        for name in ("bytes_moved", "flops"):
            if not 0 <= getattr(node, name) < math.inf:
                what = "bytes" if name == "bytes_moved" else name
                value = getattr(node, name)
                warnings.append(f"the {what} of {node.name!r} add up to {value} and are left out")
                setattr(node, name, 0.0)
        todo += node.children
    return warnings


def plausible_windows(thread: Thread) -> Windows | None:
    """The windows of a thread if they go forward and fit to its paths; None otherwise."""
    windows = thread.windows
    count = len(windows.time_ns)
    counts = [windows.time_ns, windows.real_ns, windows.cpu_ns, windows.rss_bytes]
    columns = [*counts, *windows.progress.values()]
    matrices = (windows.calls, windows.total_ns, windows.own_ns)
    if any(column.shape != (count,) for column in columns):
        return None
    if any(matrix.shape != (count, len(thread.paths)) for matrix in matrices):
        return None
    if count == 0:
        return windows
    counts += [column for column in windows.progress.values() if column.dtype.kind == "u"]
    if any(np.any(column >= MOST) for column in (*counts, *matrices)):
        return None
    inside = thread.start_ns <= int(windows.time_ns[0]) and int(windows.time_ns[-1]) - thread.start_ns < MOST
    if not inside or np.any(windows.time_ns[1:] < windows.time_ns[:-1]):
        return None
    return windows


def no_windows(paths: int) -> Windows:
    """Windows of a thread with this many paths that has none."""
    none, flat = np.zeros(0, dtype=np.uint64), np.zeros((0, paths), dtype=np.uint64)
    names = (field[0] for field in layout.PROGRESS)
    return Windows(none, none, none, none, dict.fromkeys(names, none), flat, flat, flat)


def plausible_scheduling(found: Kind | None) -> Kind | None:
    """The figures if they are columns of one length that can be true; None otherwise."""
    if found is None:
        return None
    columns = [getattr(found, name) for name in found.__slots__]
    for column in columns:
        if column is not None and (column.shape != found.time_ns.shape or np.any(column >= MOST)):
            return None
    return None if np.any(found.time_ns[1:] < found.time_ns[:-1]) else found


def plausible_samples(samples: Samples, paths: int, threads: list[Thread]) -> Samples:
    """The samples in order of time, without those that refer to what is not there."""
    nodes = np.array([len(thread.paths) for thread in threads] or [0])
    known = (samples["thread"] >= -1) & (samples["thread"] < len(threads))
    known &= (samples["path"] >= 0) & (samples["path"] < paths)
    known &= (samples["time_ns"] < MOST) & (samples["weight_ns"] < 2**42)  # an hour, for sums
    kept = samples[known] if not known.all() else samples
    at = np.maximum(kept["thread"], 0)
    lost = (kept["node"] < 0) | ((kept["node"] > 0) & (kept["node"] >= nodes[np.minimum(at, len(nodes) - 1)]))
    odd = (kept["state"] > SLEEPING) | (kept["reason"] >= len(REASONS)) | (kept["gil"] > GIL_HELD)
    unsorted = np.any(kept["time_ns"][1:] < kept["time_ns"][:-1])
    if np.any(lost) or np.any(odd) or unsorted:
        kept = kept.copy()
        kept["node"][lost] = 0
        kept["state"][odd] = kept["reason"][odd] = kept["gil"][odd] = 0
        kept = kept[np.argsort(kept["time_ns"], kind="stable")]
    return kept


def _values(progress: Progress) -> list[float]:
    return [getattr(progress, name) for name in Progress.__slots__]
