"""What one run of a series did and how fast: work counters, and times per unit of work after warm-up.

Times are those of training, as `phases` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.analysis.phases import cumulative_work, training_windows
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.utilisation import covered, share_of
from hotloop.analysis.windows import UNATTRIBUTED, Spans, spans_by_category, spans_by_name, work_done
from hotloop.capture.model import Capture, Process, Thread
from hotloop.capture.series import Figures
from hotloop.capture.stats import by_name

WARM_UP_CYCLES = 1  # left out if enough others remain

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of training, without warm-up."""

    s_per_env_step: float | None = None
    s_per_update: float | None = None
    warmup_s: float | None = None
    components_s: dict[str, float] = field(default_factory=dict)  # per env step (or update) by category


def run_figures(capture: Capture, resolver: Resolver | None = None) -> Figures:
    """Work counters and times of one run, from its capture."""
    driving = driving_thread(capture)
    if driving is None:
        return Figures()
    process, thread = driving
    everywhere, done = by_name(capture.tree), capture.progress
    spans = spans_by_category(thread, resolver or Resolver())
    times = _training_times(capture, process, thread, spans) if done.env_steps or done.updates else _Times()
    cpu_s_per_env_step, waiting = _cpu_time(capture, process, thread, times.s_per_env_step)
    startup_s, regions_s = _after_startup(capture, process, thread)
    return Figures(
        env_steps=done.env_steps or None,
        updates=done.updates or None,
        episodes=done.episodes or None,
        mean_length=done.mean_length,
        mean_return=done.mean_return,
        calls=sum(s.calls for s in everywhere.values()),
        bytes_moved=sum(s.bytes_moved for s in everywhere.values()) or None,
        s_per_env_step=times.s_per_env_step,
        s_per_update=times.s_per_update,
        cpu_s_per_env_step=cpu_s_per_env_step,
        waiting_fraction=waiting,
        warmup_s=times.warmup_s,
        components_s=times.components_s,
        startup_s=startup_s,
        regions_s=regions_s,
        region_calls={name: s.calls for name, s in by_name(thread.root).items()},
    )


def _after_startup(
    capture: Capture, process: Process, thread: Thread
) -> tuple[float | None, dict[str, float]]:
    """Start-up in seconds, and own seconds of every region of the thread after it ("" for no region).

    Start-up ends with the last window before any work was done. Without work counters it is the time in no
    region before the first window, which is taken at the end of a region.
    """
    own_s = {name: stats.own_ns / 1e9 for name, stats in by_name(thread.root).items()}
    own_s[UNATTRIBUTED] = thread.unattributed_ns / 1e9
    spans = spans_by_name(thread)
    if not len(spans):
        return None, own_s
    counters = [name for name in ("env_steps", "updates") if getattr(capture.progress, name)]
    if not counters:
        column = spans.column(UNATTRIBUTED)
        startup_s = float(spans.own_ns[0, column]) / 1e9 if column is not None else 0.0
        own_s[UNATTRIBUTED] = max(own_s[UNATTRIBUTED] - startup_s, 0.0)
        return startup_s, own_s
    done = sum(work_done(capture, process, thread, spans.end_ns, name) for name in counters)
    idle = int(np.argmax(np.asarray(done) > 0))
    for name, seconds in zip(spans.names, spans.own_ns[:idle].sum(axis=0) / 1e9, strict=True):
        own_s[name] = max(own_s.get(name, 0.0) - float(seconds), 0.0)
    return float(spans.span_ns[:idle].sum()) / 1e9, {name: s for name, s in own_s.items() if s > 0}


def _training_times(capture: Capture, process: Process, thread: Thread, spans: Spans) -> _Times:
    if not len(spans):
        return _times_of_whole_run(capture, thread)
    done = cumulative_work(capture, process, thread, spans.end_ns)
    unit = "env_steps" if "env_steps" in done else "updates"
    _, first, end = training_windows(spans_by_name(thread), done)
    last = end - 1
    if last < first:
        return _times_of_whole_run(capture, thread)
    seconds = float(spans.span_ns[first : last + 1].sum()) / 1e9
    amount = {name: _between(values, first, last) for name, values in done.items()}
    if amount[unit] <= 0:
        return _times_of_whole_run(capture, thread)
    own_s = spans.own_ns[first : last + 1].sum(axis=0) / 1e9
    return _Times(
        s_per_env_step=seconds / amount["env_steps"] if amount.get("env_steps") else None,
        s_per_update=seconds / amount["updates"] if amount.get("updates") else None,
        warmup_s=float(spans.span_ns[:first].sum()) / 1e9,
        components_s={
            name: float(s) / amount[unit] for name, s in zip(spans.names, own_s, strict=True) if s > 0
        },
    )


def _cpu_time(
    capture: Capture, process: Process, thread: Thread, s_per_env_step: float | None
) -> tuple[float | None, float | None]:
    """CPU seconds of the thread per env step of training, and the fraction of it spent waiting.

    A thread waits when it is neither on a core nor in the run queue: for a disk, a lock, another process.
    Both are None if the system does not report them, or not for most of training.
    """
    spans = spans_by_name(thread)
    figures = thread.scheduling
    if s_per_env_step is None or not len(spans) or figures is None or figures.run_queue_ns is None:
        return None, None
    done = cumulative_work(capture, process, thread, spans.end_ns)
    _, first, end = training_windows(spans, done)
    begin_ns = thread.start_ns + (int(spans.end_ns[first - 1]) if first else 0)
    stretch = begin_ns, thread.start_ns + int(spans.end_ns[end - 1])
    queued, timed = (covered(times, *stretch) for times in (figures.time_ns, thread.windows.time_ns))
    if queued is None or timed is None:
        return None, None
    on_core = share_of(thread.windows.time_ns, thread.windows.cpu_ns, timed)
    in_queue = share_of(figures.time_ns, figures.run_queue_ns, queued)
    if not on_core or in_queue is None:
        return None, None
    return min(on_core, 1.0) * s_per_env_step, max(round(1.0 - on_core - in_queue, 6), 0.0)


def _between(cumulative: Floats, first: int, last: int) -> float:
    return float(cumulative[last] - (cumulative[first - 1] if first else 0.0))


def _times_of_whole_run(capture: Capture, thread: Thread) -> _Times:
    """For a run too short for windows: from the thread's wall time."""
    seconds, done = thread.wall_ns / 1e9, capture.progress
    if not seconds:
        return _Times()
    return _Times(
        s_per_env_step=seconds / done.env_steps if done.env_steps else None,
        s_per_update=seconds / done.updates if done.updates else None,
        warmup_s=0.0,
    )


# -- whole cycles of collecting and learning -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run has got."""

    env_steps: int
    updates: int
    cycles: int  # whole cycles of collecting and learning that can be timed


def progress_so_far(capture: Capture) -> RunProgress:
    """Progress in a capture, which may belong to a running job."""
    done = capture.progress
    return RunProgress(done.env_steps, done.updates, max(len(_marks(capture)[0]) - 1, 0))


def run_figures_over_cycles(
    capture: Capture, resolver: Resolver | None = None, warm_up_updates: int = 0
) -> Figures:
    """`run_figures` with times over whole cycles of collecting and learning, if there are any.

    A run that collects for seconds and then learns for seconds has, at most moments, done more of one than of
    the other; from the first update of one round of learning to that of a later round it has done whole
    cycles. Cycles before `warm_up_updates` are left out if enough others remain.
    """
    known = run_figures(capture, resolver)
    marks, end_ns, done = _marks(capture)
    if len(marks) < 2:
        return known
    early = int(np.count_nonzero(done["updates"][marks] < warm_up_updates))
    warm_up = max(WARM_UP_CYCLES, early)
    first = marks[warm_up] if len(marks) > warm_up + 1 else marks[max(len(marks) - 2, 0)]
    last = marks[-1]
    steps, updates = (float(done[name][last] - done[name][first]) for name in ("env_steps", "updates"))
    seconds = float(end_ns[last] - end_ns[first]) / 1e9
    driving = driving_thread(capture)
    if driving is None or steps <= 0 or seconds <= 0:
        return known
    spans = spans_by_category(driving[1], resolver or Resolver())
    own_s = spans.own_ns[first + 1 : last + 1].sum(axis=0) / 1e9
    return replace(
        known,
        s_per_env_step=seconds / steps,
        s_per_update=seconds / updates if updates > 0 else None,
        components_s={name: float(s) / steps for name, s in zip(spans.names, own_s, strict=True) if s > 0},
    )


def _marks(capture: Capture) -> tuple[list[int], NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """The windows in which a round of learning began; the windows' ends; cumulative progress at them.

    If most windows with updates also have env steps, collecting and learning alternate faster than windows
    are taken, and every window with updates counts.
    """
    driving = driving_thread(capture)
    none = np.zeros(0)
    if driving is None:
        return [], none, {}
    process, thread = driving
    end_ns = spans_by_category(thread, Resolver()).end_ns
    if not len(end_ns):
        return [], none, {}
    done = {name: work_done(capture, process, thread, end_ns, name) for name in ("env_steps", "updates")}
    collected, learned = (np.diff(done[name], prepend=0.0) > 0 for name in ("env_steps", "updates"))
    if learned.any() and float(np.mean(collected[learned])) > 0.5:
        began = learned
    else:
        began = learned & ~np.concatenate([[False], learned[:-1]])
    marks = [int(window) for window in np.flatnonzero(began)]
    return marks, end_ns, done
