"""The machine badge of a series: how busy the computer was while the runs were made.

It is shown, never used to discard a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hotloop.capture.series import Run

Totals = Mapping[str, float]  # see machine/load_snapshot.py


@dataclass(frozen=True, slots=True)
class RunLoad:
    """One run's share of the trouble; None for what the system did not tell."""

    load: float | None  # 1-minute load before the run
    cpu_stall: float | None  # share of the run's time in which some task waited for a CPU
    memory_stall: float | None
    io_stall: float | None
    steal: float | None  # share of all CPU time taken by other guests of the same computer
    throttled: float | None  # seconds our cgroup was held back, per second


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A figure over all runs."""

    median: float
    max: float


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Each figure over all runs; None when unknown."""

    load: LoadLevel | None
    cpu_stall: LoadLevel | None
    memory_stall: LoadLevel | None
    io_stall: LoadLevel | None
    steal: LoadLevel | None
    throttled: LoadLevel | None


def run_load(run: Run) -> RunLoad:
    """What one run had to bear, from the totals before and after it."""
    return load_between(run.before, run.after)


def load_between(before: Totals, after: Totals) -> RunLoad:
    """What there was to bear between two readings of the totals."""
    seconds = _gap(before, after, "at_s")
    return RunLoad(
        load=before.get("load_1min"),
        cpu_stall=_share(_gap(before, after, "cpu_stall_s"), seconds),
        memory_stall=_share(_gap(before, after, "memory_stall_s"), seconds),
        io_stall=_share(_gap(before, after, "io_stall_s"), seconds),
        steal=_share(_gap(before, after, "steal_s"), _gap(before, after, "cpu_s")),
        throttled=_share(_gap(before, after, "throttled_s"), seconds),
    )


def machine_load_of(runs: Sequence[Run]) -> MachineLoad:
    """The badge of several runs."""
    return _machine_load([run_load(run) for run in runs])


def machine_load_over(readings: Sequence[Totals]) -> MachineLoad:
    """The badge of one long run whose totals were read now and then."""
    return _machine_load([load_between(before, after) for before, after in itertools.pairwise(readings)])


def _machine_load(each: Sequence[RunLoad]) -> MachineLoad:
    levels = {}
    for name in MachineLoad.__slots__:
        values = [value for one in each if (value := getattr(one, name)) is not None]
        levels[name] = LoadLevel(median(values), max(values)) if values else None
    return MachineLoad(**levels)


def _gap(before: Totals, after: Totals, key: str) -> float | None:
    first, last = before.get(key), after.get(key)
    return None if first is None or last is None else last - first


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else max(part / whole, 0.0)
