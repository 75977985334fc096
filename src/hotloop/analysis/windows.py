"""A thread's cumulative windows as differences, by region or category; progress of all threads over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.capture.model import Capture, Node, Process, Thread

WHOLE = ("shut_down",)  # regions that are one thing, whatever runs inside
UNATTRIBUTED = ""  # name of the time in no region: the root's name

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spans:
    """What happened between consecutive windows, by name; windows of zero length are left out.

    Arrays are [windows] or [windows, names]. The first span starts with the thread.
    """

    names: tuple[str, ...]
    end_ns: Floats  # since the thread's start
    span_ns: Floats
    own_ns: Floats
    calls: Floats

    def __len__(self) -> int:
        return len(self.end_ns)

    def column(self, name: str) -> int | None:
        """Column of a name; None if no window of the thread has that region."""
        return self.names.index(name) if name in self.names else None


def spans_by_name(thread: Thread) -> Spans:
    """Differences of the thread's windows, by region name (`UNATTRIBUTED` for no region).

    What runs inside a region of `WHOLE` is its own.
    """
    return _spans(thread, [_name_of(path) for path in thread.paths])


def _name_of(path: tuple[str, ...]) -> str:
    whole = [name for name in path if name in WHOLE]
    return whole[0] if whole else path[-1] if path else UNATTRIBUTED


def spans_by_category(thread: Thread, resolver: Resolver) -> Spans:
    """Differences of the thread's windows, by category."""
    return _spans(thread, node_categories(thread, resolver))


def nodes_by_path(thread: Thread) -> list[Node | None]:
    """The node of every entry of `Thread.paths`; None where the tree has none.

    Two nodes may share a path (same names, different explicit categories). They are matched in tree order,
    which is the order in which the thread first entered them.
    """
    known: dict[tuple[str, ...], list[Node]] = {}
    todo: list[tuple[tuple[str, ...], Node]] = [((), thread.root)]
    while todo:
        path, node = todo.pop()
        known.setdefault(path, []).append(node)
        todo += [((*path, child.name), child) for child in reversed(node.children)]
    return [known[path].pop(0) if known.get(path) else None for path in thread.paths]


def node_categories(thread: Thread, resolver: Resolver) -> list[str]:
    """Category of every node, in the order of `Thread.paths`; `unattributed` for the root."""
    # Two nodes may share a path (same names, different explicit categories). They are matched in tree order,
    # which is the order in which the thread first entered them.
    known: dict[tuple[str, ...], list[str]] = {}
    paths: list[tuple[str, ...]] = [()]
    for node, kind, _, parent in resolver.walk(thread.root):
        path = (*paths[parent], node.name)
        paths.append(path)
        known.setdefault(path, []).append(kind)
    found = []
    for path in thread.paths:
        kinds = known.get(path)
        if not path:
            found.append("unattributed")
        elif not kinds:
            found.append("other")
        else:
            found.append(kinds.pop(0) if len(kinds) > 1 else kinds[0])
    return found


def _spans(thread: Thread, groups: Sequence[str]) -> Spans:
    windows = thread.windows
    names = tuple(dict.fromkeys(groups))
    if not len(windows) or not names or thread.folded_threads:
        none = np.zeros((0, len(names)))
        return Spans(names, np.zeros(0), np.zeros(0), none, none)
    end_ns = windows.time_ns.astype(np.int64) - thread.start_ns
    keep = np.diff(end_ns, prepend=0) > 0
    end_ns = end_ns[keep]
    number = {name: i for i, name in enumerate(names)}
    column = np.array([number[g] for g in groups])
    order = np.argsort(column, kind="stable")
    first = np.searchsorted(column[order], np.arange(len(names)))

    def differences(cumulative: NDArray[np.uint64]) -> Floats:
        table = cumulative[keep].astype(np.int64)[:, order]
        summed = np.add.reduceat(table, first, axis=1)
        return np.maximum(np.diff(summed, axis=0, prepend=0), 0).astype(np.float64)

    return Spans(
        names=names,
        end_ns=end_ns.astype(np.float64),
        span_ns=np.diff(end_ns, prepend=0).astype(np.float64),
        own_ns=differences(windows.own_ns),
        calls=differences(windows.calls),
    )


def clock_shift_ns(capture: Capture, process: Process, other: Process) -> int:
    """Add this to a time of `other` to convert it to the clock of `process`.

    Processes of one host share the monotonic clock; several hosts are aligned by real time.
    """
    if len({p.host for p in capture.processes}) == 1:
        return 0
    return (other.start_real_ns - other.start_ns) - (process.start_real_ns - process.start_ns)


def work_done(capture: Capture, process: Process, thread: Thread, end_ns: Floats, counter: str) -> Floats:
    """A progress counter summed over all threads, at times `end_ns` after the start of `thread`.

    Counters of other threads are interpolated between their windows.
    """
    total = np.zeros(len(end_ns))
    for other in capture.processes:
        shift = clock_shift_ns(capture, process, other)
        for worker in other.threads:
            final = float(getattr(worker.progress, counter))
            if final == 0:
                continue
            at = worker.windows.time_ns.astype(np.float64)
            values = worker.windows.progress[counter].astype(np.float64) if len(at) else at
            at = np.concatenate([[worker.start_ns], at, [max(worker.end_ns, at[-1] if len(at) else 0)]])
            values = np.concatenate([[0.0], values, [final]])
            total += np.interp(end_ns + thread.start_ns - shift, at, values)
    return total


def time_series(
    capture: Capture, process: Process, thread: Thread, resolver: Resolver
) -> dict[str, tuple[float, ...]]:
    """The run over time: series with one value for each window of `thread`; unmeasured ones are absent.

    "time_s" (end of the window, since the thread's start), "env_steps_per_s" and "updates_per_s" of all
    threads, "share:<category>" of the thread's time (they add up to 1), "rss_bytes" of its process.
    """
    spans = spans_by_category(thread, resolver)
    if not len(spans):
        return {}
    found: dict[str, tuple[float, ...]] = {"time_s": _floats(spans.end_ns / 1e9)}
    for counter in ("env_steps", "updates"):
        if getattr(capture.progress, counter):
            done = work_done(capture, process, thread, spans.end_ns, counter)
            found[f"{counter}_per_s"] = _floats(np.diff(done, prepend=0.0) / spans.span_ns * 1e9)
    whole = spans.own_ns.sum(axis=1)
    whole[whole == 0] = 1.0
    most_first = np.argsort(-spans.own_ns.sum(axis=0), kind="stable")
    for column in most_first:
        found[f"share:{spans.names[column]}"] = _floats(spans.own_ns[:, column] / whole)
    rss = _sampled_rss(thread)
    if rss is not None:
        found["rss_bytes"] = _floats(rss)
    return found


def _sampled_rss(thread: Thread) -> NDArray[np.float64] | None:
    """Memory at the windows with a length; None if it was never sampled."""
    windows = thread.windows
    if not windows.rss_bytes.any():
        return None
    end_ns = windows.time_ns.astype(np.int64) - thread.start_ns
    return windows.rss_bytes[np.diff(end_ns, prepend=0) > 0].astype(np.float64)


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
