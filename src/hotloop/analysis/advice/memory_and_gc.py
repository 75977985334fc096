"""Pauses of the garbage collector, and runs that will not fit into memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop._util.units import duration, percent, size
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import COLLECTING_GARBAGE, RegionRow, RunView, tail
from hotloop.analysis.findings import Estimate, Recommendation

PAUSE_TIMES = 20  # a pause is this many times longer than the median call
LEAST_PAUSE_NS = 5e6
GOALS = ("total_timesteps", "timesteps", "total_env_steps", "env_steps", "total_steps")
FULL = 0.9  # share of memory beyond which the kernel may kill the run


def garbage_collection_pauses(run: RunView) -> Recommendation | None:
    """Rare long pauses hit unrelated regions while the thread is on the CPU."""
    named = [row for row in run.rows if row.name_has(COLLECTING_GARBAGE)]
    if sum(row.own_share for row in named) >= 0.03:
        row = max(named, key=lambda r: r.own_ns)
        share = sum(r.own_share for r in named)
        evidence = [f"Garbage collection took {percent(share)} of the wall time in {row.calls:,} calls."]
        return _collect_less(run, row, evidence, run.gain(named, (0.5, 0.95), own=True))
    hit = [(row, *_pauses(row)) for row in run.rows if row.calls >= 50 and row.end == row.number + 1]
    hit = [(row, count, excess) for row, count, excess in hit if count]
    excess_ns = sum(excess for _, _, excess in hit)
    if not _unrelated([row for row, _, _ in hit]) or run.off_cpu_ns is None:
        return None
    # A core lost to another program looks like a pause as well, but is not spent on the CPU.
    ours_ns = excess_ns - run.off_cpu_ns
    if ours_ns < 0.05 * run.wall_ns:
        return None
    # Other programs stretch pauses and work alike, so take the share of the time on a core.
    on_core = min(ours_ns / max(run.driver_busy_ns - run.off_cpu_ns, 1.0), 1.0)
    row = max(hit, key=lambda h: h[2])[0]
    pauses = sum(count for _, count, _ in hit)
    evidence = [
        f"{pauses} pauses of {duration(excess_ns / pauses)} on average hit {len(hit)} unrelated regions "
        f"({', '.join(f'`{r.name}`' for r, _, _ in hit[:4])}).",
        f"Together they take {percent(excess_ns / run.wall_ns)} of the wall time; your thread had no core "
        f"for {percent(run.off_cpu_ns / run.wall_ns)} of it, so other programs explain at most that much.",
        f"The rest is {percent(on_core)} of the busy time on a core. "
        "Assumption: between half of that share and 95 % of the pauses go away.",
    ]
    total_ns = max(sum(r.total_ns for r, _, _ in hit), 1)
    most = 0.95 * min(excess_ns / total_ns, 1.0)
    least = min(0.5 * on_core * run.driver_busy_ns / total_ns, most)
    gain = run.gain([r for r, _, _ in hit], (least, most))
    return _collect_less(run, row, evidence, gain)


def _collect_less(run: RunView, row: RegionRow, evidence: list[str], gain: Estimate | None) -> Recommendation:
    return advise(
        run,
        "garbage_collection_pauses",
        row,
        "Make the garbage collector run less often",
        evidence,
        "Call gc.freeze() after setup and raise the threshold with gc.set_threshold(50_000, 50, 50); keep "
        "transitions in arrays instead of millions of small objects, so that there is little to scan.",
        gain,
        Change("gc.freeze(); gc.set_threshold(50_000, 50, 50)", "minutes", "safe", "patch"),
    )


def _pauses(row: RegionRow) -> tuple[int, float]:
    """Number of calls with a pause, and their time beyond the median."""
    middle = row.node.percentile_ns(0.5) or 0.0
    count, total_ns = tail(row.node, max(PAUSE_TIMES * middle, LEAST_PAUSE_NS))
    if count > 0.03 * row.calls:
        return 0, 0.0  # too frequent to be pauses: the region works like that
    return count, max(total_ns - count * middle, 0.0)


def _unrelated(hit: list[RegionRow]) -> bool:
    """Whether similar pauses hit unrelated regions: three, or two whose median is a thousandth of a pause."""
    longest = sorted(float(row.node.max_ns or 0) for row in hit)
    if len(hit) < 2 or longest[-1] > 20 * longest[len(longest) // 2]:
        return False  # one region has a slow path of its own
    short = all((row.node.percentile_ns(0.5) or 0.0) < 1e-3 * longest[0] for row in hit)
    return len(hit) >= 3 or short


def memory_will_not_fit(run: RunView) -> Recommendation | None:
    """Memory grows steadily towards the limit, or is nearly full already."""
    limit = run.capture.machine.get("memory_bytes")
    now = sum(process.rss_bytes or 0 for process in run.capture.processes)
    if not limit or not now:
        return None
    evidence = [f"The run uses {size(now)} of {size(limit)}."]
    projected = float(now)
    windows = run.driver.windows
    pace = _steady_growth(windows.time_ns.astype(np.float64), windows.rss_bytes.astype(np.float64))
    goal = next((int(g) for k in GOALS if (g := run.capture.facts.get("config", {}).get(k))), 0)
    if pace is not None:
        more_ns = 9.0 * run.wall_ns
        what = "a run ten times as long"
        if goal and run.env_steps:
            more_ns = run.wall_ns * max(goal / run.env_steps - 1.0, 0.0)
            what = f"the goal of {goal:,} env steps"
        projected = now + pace * more_ns
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
    )


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
