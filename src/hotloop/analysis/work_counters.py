"""Work counters: what runs did, compared with a baseline or between variants.

Env steps, updates, calls and bytes of a deterministic program are exact: A against A differs by exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.capture.model import Capture
from hotloop.capture.stats import by_name

WORK_TOLERANCE = 0.01  # counters closer than this count as the same work


@dataclass(frozen=True, slots=True)
class WorkDifference:
    """A work counter that differs between two runs or variants."""

    counter: str  # "env_steps", "updates", "mean_episode_length", ...
    a: float
    b: float
    ratio: float | None  # b / a; None when a is 0


@dataclass(frozen=True, slots=True)
class CounterChange:
    """A counter that differs from the baseline; None on a side that does not have it."""

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """after / before - 1; None when one of them is missing or before is 0."""
        if self.before is None or self.after is None or not self.before:
            return None
        return self.after / self.before - 1


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one or more runs of the same thing."""

    values: dict[str, float]
    unsteady: tuple[str, ...]  # names of counters that vary from run to run, so they prove nothing


def counters_of(capture: Capture) -> dict[str, float]:
    """Env steps, updates and episodes, and calls and bytes of every region."""
    done = capture.progress
    found = {"env steps": done.env_steps, "updates": done.updates, "episodes": done.episodes}
    values = {name: float(value) for name, value in found.items() if value}
    for name, stats in sorted(by_name(capture.tree).items()):
        values[f"calls of {name}"] = float(stats.calls)
        if stats.bytes_moved:
            values[f"bytes moved by {name}"] = stats.bytes_moved
    return values


def steady_counters(runs: Sequence[Mapping[str, float]]) -> Counters:
    """The counters on which all runs agree, and the names of the others."""
    names = sorted({name for run in runs for name in run})
    steady = {n: runs[0][n] for n in names if all(n in run and run[n] == runs[0].get(n) for run in runs)}
    return Counters(steady, tuple(name for name in names if name not in steady))


def counter_changes(before: Counters, after: Counters) -> tuple[CounterChange, ...]:
    """Counters that differ, progress counters first; unsteady ones are left out."""
    unsteady = {*before.unsteady, *after.unsteady}
    names = dict.fromkeys([*before.values, *after.values])
    found = [CounterChange(n, before.values.get(n), after.values.get(n)) for n in names if n not in unsteady]
    return tuple(c for c in found if c.before != c.after)


def work_differences(
    runs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], tolerance: float = WORK_TOLERANCE
) -> tuple[WorkDifference, ...] | None:
    """Counters whose medians over the pairs of runs differ by more than `tolerance`.

    Each pair holds the counters of the run of A and of the run of B, by name. None when no run counted
    anything, so that "same work" is never claimed for work that was not counted.
    """
    names = dict.fromkeys(name for a, b in runs for name in (*a, *b))
    found, counted = [], False
    for name in names:
        both = [(a[name], b[name]) for a, b in runs if name in a and name in b]
        if not both or not any(one or two for one, two in both):
            continue
        counted = True
        one, two = (float(np.median([pair[side] for pair in both])) for side in (0, 1))
        if abs(two - one) > tolerance * max(abs(one), abs(two)):
            found.append(WorkDifference(name, one, two, two / one if one else None))
    return tuple(found) if counted else None
