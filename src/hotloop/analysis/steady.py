"""What one run of a series did and how fast: work counters, and times per unit of work after warm-up.

Warm-up is cut off by a rule: leading windows are dropped as long as their time per unit of work lies
outside the spread of the windows after them. Half of the run is kept in any case.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.windows import Spans, spans_by_category, work_done
from hotloop.capture.model import Capture, Process, Thread
from hotloop.capture.series import Figures
from hotloop.capture.stats import by_name

LEAST_WINDOWS = 8  # with fewer there is no spread to speak of, and nothing is cut off
SPREADS = 3.0  # median absolute deviations, scaled to a standard deviation, that count as "within"

Floats = NDArray[np.float64]


def figures(capture: Capture, resolver: Resolver | None = None) -> Figures:
    """The figures of one run."""
    driving = driving_thread(capture)
    if driving is None:
        return Figures()
    process, thread = driving
    everywhere, stats = by_name(capture.tree), by_name(thread.root)
    done = capture.progress
    spans = spans_by_category(thread, resolver or Resolver())
    timed = _timed(capture, process, thread, spans) if done.env_steps or done.updates else None
    return Figures(
        env_steps=done.env_steps or None,
        updates=done.updates or None,
        episodes=done.episodes or None,
        mean_length=done.mean_length,
        mean_return=done.mean_return,
        calls=sum(s.calls for s in everywhere.values()),
        bytes_moved=sum(s.bytes_moved for s in everywhere.values()) or None,
        s_per_env_step=timed[0] if timed else None,
        s_per_update=timed[1] if timed else None,
        warmup_s=timed[2] if timed else None,
        components_s=timed[3] if timed else {},
        thread_s=thread.wall_ns / 1e9,
        startup_s=_startup_s(spans),
        regions_s={name: s.own_ns / 1e9 for name, s in stats.items()} | {"": thread.unattributed_ns / 1e9},
        region_calls={name: s.calls for name, s in stats.items()},
    )


def _startup_s(spans: Spans) -> float | None:
    """Time in no region before the first window, which is taken when a region ends; None without."""
    column = spans.column("unattributed")
    return float(spans.own_ns[0, column]) / 1e9 if len(spans) and column is not None else None


def warm_up_windows(cost: Floats) -> int:
    """How many leading windows to drop, given the time per unit of work in each (inf: none done)."""
    worked = np.flatnonzero(np.isfinite(cost))
    if len(worked) < LEAST_WINDOWS:
        return 0
    for place, window in enumerate(worked[: len(worked) // 2]):
        later = cost[worked[place + 1 :]]
        middle = float(np.median(later))
        spread = 1.4826 * float(np.median(np.abs(later - middle)))
        if cost[window] <= middle + SPREADS * max(spread, 0.01 * middle):
            # Windows without work right before the first steady one belong to the warm-up.
            return int(worked[place - 1]) + 1 if place else 0
    return int(worked[len(worked) // 2 - 1]) + 1


def _timed(
    capture: Capture, process: Process, thread: Thread, spans: Spans
) -> tuple[float | None, float | None, float, dict[str, float]] | None:
    """Seconds per env step, per update, of warm-up; seconds per env step by category."""
    if not len(spans):
        return _whole(capture, thread)
    done = {
        counter: work_done(capture, process, thread, spans.end_ns, counter)
        for counter in ("env_steps", "updates")
        if getattr(capture.progress, counter)
    }
    unit = "env_steps" if "env_steps" in done else "updates"
    work = np.diff(done[unit], prepend=0.0)
    cost = np.divide(spans.span_ns, work, out=np.full(len(work), np.inf), where=work > 0)
    first = warm_up_windows(cost)
    last = _last_with_work(done)
    if last < first:
        return _whole(capture, thread)
    seconds = float(spans.span_ns[first : last + 1].sum()) / 1e9
    amount = {name: _between(values, first, last) for name, values in done.items()}
    if amount[unit] <= 0:
        return _whole(capture, thread)
    own_s = spans.own_ns[first : last + 1].sum(axis=0) / 1e9
    return (
        seconds / amount["env_steps"] if amount.get("env_steps") else None,
        seconds / amount["updates"] if amount.get("updates") else None,
        float(spans.span_ns[:first].sum()) / 1e9,
        {name: float(s) / amount[unit] for name, s in zip(spans.names, own_s, strict=True) if s > 0},
    )


def _last_with_work(done: dict[str, Floats]) -> int:
    """The last window that counts. Without a count of updates it cannot be known which is idle."""
    total = next(iter(done.values()))
    if len(done) < 2:
        return len(total) - 1
    rose = np.flatnonzero(sum(np.diff(values, prepend=0.0) for values in done.values()) > 0)
    return int(rose[-1]) if len(rose) else len(total) - 1


def _between(cumulative: Floats, first: int, last: int) -> float:
    return float(cumulative[last] - (cumulative[first - 1] if first else 0.0))


def _whole(
    capture: Capture, thread: Thread
) -> tuple[float | None, float | None, float, dict[str, float]] | None:
    """A run too short for windows: the thread from its first to its last sign of life."""
    seconds, done = thread.wall_ns / 1e9, capture.progress
    if not seconds:
        return None
    steps = seconds / done.env_steps if done.env_steps else None
    return steps, seconds / done.updates if done.updates else None, 0.0, {}
