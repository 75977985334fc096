"""Time per env step over whole cycles of collecting and learning, from a run that was cut off anywhere.

A run that collects for seconds and then learns for seconds has, at most moments, done more of the one than
of the other. From the first update of one round of learning to that of a later one it has done whole cycles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.analysis.steady_state import run_figures
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.windows import spans_by_category, work_done
from hotloop.capture.model import Capture
from hotloop.capture.series import Figures

WARM_UP_CYCLES = 1  # left out where enough others are there


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run has come."""

    env_steps: int
    updates: int
    cycles: int
    """Whole cycles of collecting and learning that can be timed."""


def progress_so_far(capture: Capture) -> RunProgress:
    """What a capture, perhaps of a run that goes on, has in it."""
    done = capture.progress
    return RunProgress(done.env_steps, done.updates, max(len(_marks(capture)[0]) - 1, 0))


def run_figures_over_cycles(
    capture: Capture, resolver: Resolver | None = None, warm_up_updates: int = 0
) -> Figures:
    """The figures of a run, its times taken over whole cycles where it has any.

    Cycles before so many updates are left out, too, where enough others are there.
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
    """Windows in which a round of learning began.

    Where most windows with updates also have env steps, collecting and learning alternate faster than windows
    are taken, and each of them will do.
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
    collected, learnt = (np.diff(done[name], prepend=0.0) > 0 for name in ("env_steps", "updates"))
    if learnt.any() and float(np.mean(collected[learnt])) > 0.5:
        began = learnt
    else:
        began = learnt & ~np.concatenate([[False], learnt[:-1]])
    marks = [int(window) for window in np.flatnonzero(began)]
    return marks, end_ns, done
