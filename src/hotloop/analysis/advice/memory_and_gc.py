"""Pauses of the garbage collector, and runs that will not fit into memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop._util.units import duration, percent, size
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Recommendation

LEAST_SHARE = 0.05  # of training
PAUSE = "gc_pause"  # the region that `hotloop run` records around every collection
GOALS = ("total_timesteps", "timesteps", "total_env_steps", "env_steps", "total_steps")
CAPACITIES = ("buffer_size", "replay_size", "memory_size", "capacity")  # of a replay buffer, in transitions
FULL = 0.9  # share of memory beyond which the kernel may kill the run


def garbage_collection_pauses(run: RunView) -> Recommendation | None:
    """The garbage collector itself takes a noticeable share of training, as measured by its own callbacks."""
    rows = [row for row in run.rows if row.name == PAUSE]
    share = sum(row.own_share for row in rows)
    if share < LEAST_SHARE:
        return None
    row = max(rows, key=lambda r: r.own_ns)
    calls = sum(r.calls for r in rows)
    return advise(
        run,
        "garbage_collection_pauses",
        None,
        f"Make the garbage collector run less often (it takes {percent(share)})",
        [
            f"Garbage collection took {percent(share)} of training: {calls:,} collections of "
            f"{duration(row.mean_ns)} each.",
            "Assumption: between 50 % and 95 % of it goes away.",
        ],
        "Add this line where training begins; keep transitions in arrays instead of millions of small "
        "objects, so that there is little to scan. Programs that create much cyclic garbage use more memory.",
        run.gain(rows, (0.5, 0.95), own=True),
        Change(
            "gc.collect(); gc.freeze(); gc.set_threshold(50_000, 20, 100)",
            "minutes",
            "safe",
            "patch",
            patch="gc",
        ),
        claimed=rows,
        own=True,
    )


def memory_will_not_fit(run: RunView) -> Recommendation | None:
    """Memory grows steadily towards the limit, or is nearly full already."""
    limit = run.capture.machine.get("memory_bytes")
    last_ns = run.driver.end_ns - 0.02 * run.wall_ns  # workers that ended earlier hold nothing any more
    alive = [process for process in run.capture.processes if process.end_ns >= last_ns]
    now = sum(process.rss_bytes or 0 for process in alive)
    if not limit or not now:
        return None
    evidence = [f"The run uses {size(now)} of {size(limit)}."]
    projected = float(now)
    windows = run.driver.windows
    pace = _steady_growth(windows.time_ns.astype(np.float64), windows.rss_bytes.astype(np.float64))
    goal, capacity = _setting(run, GOALS), _setting(run, CAPACITIES)
    until = min(goal, capacity) if capacity else goal  # a full replay buffer grows no more
    if pace is not None and until and run.env_steps:
        projected = now + pace * run.wall_ns * max(until / run.env_steps - 1.0, 0.0)
        what = f"the goal of {goal:,} env steps" if until == goal else f"a full buffer of {capacity:,}"
        evidence.append(
            f"It grows by {size(pace * 60e9)} per minute, in every third of the run; {what} would need "
            f"{size(projected)}."
        )
    if projected < FULL * limit:
        return None
    grows = [r for r in run.rows if (r.node.rss_growth_bytes or 0) > 0]
    row = max(grows, key=lambda r: r.node.rss_growth_bytes or 0) if grows else None
    if row is not None:
        evidence.append(f"Most of the growth happened in `{row.name}` ({size(row.node.rss_growth_bytes)}).")
    return advise(
        run,
        "memory_will_not_fit",
        row,
        "This run will not fit into memory",
        [*evidence, "This is about finishing the run, not about its speed."],
        "Preallocate the buffer at its final size, so that a run that cannot fit fails at once; store frames "
        "as uint8 and only once; bound every list that grows.",
        None,
        Change("a smaller or more compact buffer", effort="hours", safety="semantic"),
        tier="high",
        claimed=(),
    )


def _setting(run: RunView, names: tuple[str, ...]) -> int:
    """The first of these settings in the recorded config; 0 if it has none."""
    config = run.capture.facts.get("config", {})
    given = (config.get(name) for name in names)
    return next((int(value) for value in given if type(value) in (int, float) and 0 < value < 1e15), 0)


def _steady_growth(time_ns: NDArray[np.float64], rss: NDArray[np.float64]) -> float | None:
    """Bytes per ns if memory grows at a similar rate in every third of the run (without its start)."""
    if len(time_ns) < 9 or rss[-1] <= 0:
        return None
    start = len(time_ns) // 10
    cuts = np.linspace(start, len(time_ns) - 1, 4).round().astype(int)
    slopes = np.diff(rss[cuts]) / np.maximum(np.diff(time_ns[cuts]), 1.0)
    if slopes.min() <= 0 or slopes.min() < 0.3 * slopes.max() or rss[-1] < 1.1 * rss[start]:
        return None
    return float(slopes[1:].mean())
