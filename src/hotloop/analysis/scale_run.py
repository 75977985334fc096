"""One capture as a point of a scaling curve: time by region, with the start-up taken out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.scaling import RegionRun, ScaleRun
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.windows import UNATTRIBUTED, Spans, spans_by_name, work_done
from hotloop.capture.model import Capture, Node, Thread

_NEXT = 4  # windows from which the time of the first steps is told


def scale_run(size: float, capture: Capture) -> ScaleRun | None:
    """The thread that drives training as one point; None when the capture holds no thread.

    Start-up (imports, making environments) ends with the first env steps. Without env steps, or
    without windows, it is not known and stays in.
    """
    found = driving_thread(capture)
    if found is None:
        return None
    process, thread = found
    regions = _totals(thread)
    spans = spans_by_name(thread)
    startup_s = None
    if capture.progress.env_steps and len(spans):
        done = work_done(capture, process, thread, spans.end_ns, "env_steps")
        startup_s = _take_out_startup(regions, spans, done)
    return ScaleRun(
        size=size,
        wall_s=sum(region.own_s for region in regions.values()),
        regions=regions,
        env_steps=capture.progress.env_steps or None,
        startup_s=startup_s,
    )


def _totals(thread: Thread) -> dict[str, RegionRun]:
    """Calls and own time of the whole thread by region name."""
    found = {UNATTRIBUTED: RegionRun(0, thread.root.own_ns / 1e9)}
    stack: list[Node] = list(thread.root.children)
    while stack:
        node = stack.pop()
        before = found.get(node.name, RegionRun(0, 0.0))
        found[node.name] = RegionRun(before.calls + node.calls, before.own_s + node.own_ns / 1e9)
        stack += node.children
    return found


def _take_out_startup(regions: dict[str, RegionRun], spans: Spans, done: NDArray[np.float64]) -> float | None:
    """Take the time before the first env steps out of `regions`; returns how much it was."""
    if done[-1] < 1:
        return None
    first = int(np.searchsorted(done, 1.0))  # the window with the first env steps
    taken_s = 0.0
    for column, name in enumerate(spans.names):
        own_s = float(spans.own_ns[:first, column].sum()) / 1e9
        calls = int(spans.calls[:first, column].sum())
        taken_s += _take(regions, name, calls, own_s)
    # That window also holds the end of the start-up: what its steps do not account for, as far as
    # it was spent in no region.
    gained = np.diff(done)[first : first + _NEXT]
    took = spans.span_ns[first + 1 : first + 1 + _NEXT]
    if len(gained) and (gained > 0).any():
        step_ns = float(np.median(took[gained > 0] / gained[gained > 0]))
        before = float(done[first - 1]) if first else 0.0
        spare_ns = float(spans.span_ns[first]) - step_ns * float(done[first] - before)
        column = spans.names.index(UNATTRIBUTED) if UNATTRIBUTED in spans.names else -1
        idle_ns = float(spans.own_ns[first, column]) if column >= 0 else 0.0
        taken_s += _take(regions, UNATTRIBUTED, 0, max(min(spare_ns, idle_ns), 0.0) / 1e9)
    return taken_s


def _take(regions: dict[str, RegionRun], name: str, calls: int, own_s: float) -> float:
    had = regions.get(name)
    if had is None:
        return 0.0
    taken = min(own_s, had.own_s)
    regions[name] = RegionRun(max(had.calls - calls, 0), had.own_s - taken)
    return taken
