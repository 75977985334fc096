"""How busy the machine was during each run of a series, from load snapshots taken before and after it.

Shown beside the results, never used to discard a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hotloop.capture.series import Run

LoadSnapshot = Mapping[str, float]  # as taken by machine/load_snapshot.py


@dataclass(frozen=True, slots=True)
class RunLoad:
    """How busy the machine was during one run; None for what the system does not report."""

    load: float | None  # 1-minute load before the run
    cpu_stall: float | None  # share of the time in which some task waited for a CPU (pressure stall)
    memory_stall: float | None
    io_stall: float | None
    steal: float | None  # share of CPU time taken by other virtual machines on the same host
    throttled: float | None  # share of the time in which our cgroup was throttled


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One figure over all runs."""

    median: float
    max: float


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """How busy the machine was over a whole series; None for unknown figures."""

    load: LoadLevel | None
    cpu_stall: LoadLevel | None
    memory_stall: LoadLevel | None
    io_stall: LoadLevel | None
    steal: LoadLevel | None
    throttled: LoadLevel | None


def run_load(run: Run) -> RunLoad:
    """The load during one run."""
    return load_between(run.before, run.after)


def load_between(before: LoadSnapshot, after: LoadSnapshot) -> RunLoad:
    """The load between two snapshots."""
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
    """The load over several runs."""
    return _machine_load([run_load(run) for run in runs])


def machine_load_over(readings: Sequence[LoadSnapshot]) -> MachineLoad:
    """The load over one long run of which snapshots were taken at intervals."""
    return _machine_load([load_between(before, after) for before, after in itertools.pairwise(readings)])


def _machine_load(each: Sequence[RunLoad]) -> MachineLoad:
    levels = {}
    for name in MachineLoad.__slots__:
        values = [value for one in each if (value := getattr(one, name)) is not None]
        levels[name] = LoadLevel(median(values), max(values)) if values else None
    return MachineLoad(**levels)


def _gap(before: LoadSnapshot, after: LoadSnapshot, key: str) -> float | None:
    first, last = before.get(key), after.get(key)
    return None if first is None or last is None else last - first


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else max(part / whole, 0.0)
