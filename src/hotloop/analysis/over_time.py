"""A run over time, for traces: rates, memory and cores of a process, and the regions of each window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hotloop.analysis.categories import Resolver
from hotloop.analysis.windows import Floats, nodes_by_path, spans_by_category
from hotloop.capture.model import Process, Thread

LEAST_SHARE = 0.002  # of a window: shorter regions are not drawn
LEAST_CATEGORY_SHARE = 0.01  # of the whole time of the thread


@dataclass(frozen=True)
class Counter:
    """A figure over time: `values[i]` holds from `time_ns[i]` to the next time; the last one is the end."""

    name: str
    unit: str
    time_ns: Floats  # monotonic, of the process
    values: Floats


@dataclass(frozen=True)
class WindowRegion:
    """A region in one window, drawn with its total time there; its place in the window is made up."""

    path: int  # index into Thread.paths
    start_ns: int
    end_ns: int
    calls: int  # completed in the window


def counters(process: Process, resolver: Resolver) -> list[Counter]:
    """Env steps and updates per second, memory, busy cores, and the share of each category of one thread.

    That thread is the one that was recorded for the longest time.
    """
    found = []
    for field, name in (("env_steps", "env steps"), ("updates", "updates")):
        if (rate := _rate(process, field)) is not None:
            found.append(Counter(name, "per second", *rate))
    threads = [thread for thread in process.threads if len(thread.windows) and not thread.folded_threads]
    sampled = [thread for thread in threads if thread.windows.rss_bytes.any()]
    if sampled:
        windows = max(sampled, key=lambda thread: len(thread.windows)).windows
        found.append(Counter("memory", "MiB", windows.time_ns.astype(np.float64), windows.rss_bytes / 2**20))
    found += _cores(process)
    if threads:
        found += _shares(max(threads, key=lambda thread: thread.wall_ns), resolver)
    return found


def _rate(process: Process, field: str) -> tuple[Floats, Floats] | None:
    """Times and rates of a progress counter, summed over the threads of the process."""
    threads = [t for t in process.threads if getattr(t.progress, field) and not t.folded_threads]
    if not threads:
        return None
    ends = [np.concatenate([[t.start_ns], t.windows.time_ns, [t.end_ns]]).astype(np.float64) for t in threads]
    grid = np.unique(np.concatenate(ends))
    done = np.zeros(len(grid))
    for thread, at in zip(threads, ends, strict=True):
        final = float(getattr(thread.progress, field))
        totals = np.concatenate([[0.0], thread.windows.progress[field].astype(np.float64), [final]])
        done += np.interp(grid, at, totals)
    if len(grid) < 2:
        return None
    return grid, np.append(np.diff(done) / np.diff(grid) * 1e9, 0.0)


def _cores(process: Process) -> list[Counter]:
    """CPU time of all threads of the process over elapsed time."""
    if process.scheduling is None or not len(process.scheduling):
        return []
    at = np.concatenate([[process.start_ns], process.scheduling.time_ns]).astype(np.float64)
    used = np.concatenate([[0], process.scheduling.cpu_ns]).astype(np.float64)
    later = np.append(True, np.diff(at) > 0)
    at, used = at[later], used[later]
    return [Counter("cores", "busy", at, np.append(np.maximum(np.diff(used) / np.diff(at), 0), 0.0))]


def _shares(thread: Thread, resolver: Resolver) -> list[Counter]:
    spans = spans_by_category(thread, resolver)
    whole = spans.own_ns.sum()
    if not whole:
        return []
    at = np.append(spans.end_ns - spans.span_ns, spans.end_ns[-1:]) + thread.start_ns
    by_window = spans.own_ns / np.maximum(spans.own_ns.sum(axis=1, keepdims=True), 1)
    by_size = np.argsort(-spans.own_ns.sum(axis=0), kind="stable")
    return [
        Counter(f"time in {spans.names[column]}", "%", at, np.append(100 * by_window[:, column], 0.0))
        for column in by_size
        if spans.own_ns[:, column].sum() >= LEAST_CATEGORY_SHARE * whole
    ]


def window_regions(thread: Thread) -> Iterator[WindowRegion]:
    """The regions of each window, parents first, with their total times.

    A window begins where the one before ended; the last one ends with the thread. Within a window, a
    region is drawn once, in the order in which regions first ran, at a place that is made up.
    """
    if thread.folded_threads or not thread.paths:
        return
    nodes = nodes_by_path(thread)
    last = [node.total_ns if node else 0 for node in nodes], [node.calls if node else 0 for node in nodes]
    at = [thread.start_ns, *thread.windows.time_ns.tolist(), thread.end_ns]
    none = np.zeros((1, len(nodes)), dtype=np.uint64)
    totals, calls = (
        np.maximum(np.diff(np.concatenate([none, rows, [final]]).astype(np.int64), axis=0), 0).tolist()
        for rows, final in zip((thread.windows.total_ns, thread.windows.calls), last, strict=True)
    )
    below = _children(thread.paths)
    for begin, end, total, called in zip(at[:-1], at[1:], totals, calls, strict=True):
        todo = [(0, begin, end)]
        while todo:
            parent, start, limit = todo.pop()
            for child in below[parent]:
                stop = min(start + total[child], limit)
                if stop - start >= max(LEAST_SHARE * (end - begin), 1):
                    yield WindowRegion(child, start, stop, called[child])
                    todo.append((child, start, stop))
                start = max(stop, start)


def _children(paths: tuple[tuple[str, ...], ...]) -> list[list[int]]:
    number = {path: at for at, path in reversed(list(enumerate(paths)))}
    below: list[list[int]] = [[] for _ in paths]
    for at, path in enumerate(paths):
        if path and (parent := number.get(path[:-1], 0)) != at:
            below[parent].append(at)
    return below
