"""Deterministic work counters: what a run did, exactly, so that A against A differs by exactly 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotloop.capture.model import Capture
from hotloop.capture.stats import by_name


@dataclass(frozen=True, slots=True)
class CounterChange:
    """A counter that is not what it was; None on the side that does not have it."""

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
    unsteady: tuple[str, ...]  # counters that differ from run to run: nothing can be said about them


def counters_of(capture: Capture) -> dict[str, float]:
    """Env steps, updates, episodes, and calls and bytes of every region."""
    done = capture.progress
    found = {"env steps": done.env_steps, "updates": done.updates, "episodes": done.episodes}
    values = {name: float(value) for name, value in found.items() if value}
    for name, stats in sorted(by_name(capture.tree).items()):
        values[f"calls of {name}"] = float(stats.calls)
        if stats.bytes_moved:
            values[f"bytes moved by {name}"] = stats.bytes_moved
    return values


def steady_counters(runs: Sequence[Mapping[str, float]]) -> Counters:
    """Counters on which all runs agree; the others by name."""
    names = sorted({name for run in runs for name in run})
    steady = {n: runs[0][n] for n in names if all(n in run and run[n] == runs[0].get(n) for run in runs)}
    return Counters(steady, tuple(name for name in names if name not in steady))


def changes(before: Counters, after: Counters) -> tuple[CounterChange, ...]:
    """Counters that differ, the progress counters first; unsteady ones are left out."""
    shaky = {*before.unsteady, *after.unsteady}
    names = dict.fromkeys([*before.values, *after.values])
    found = [CounterChange(n, before.values.get(n), after.values.get(n)) for n in names if n not in shaky]
    return tuple(c for c in found if c.before != c.after)
