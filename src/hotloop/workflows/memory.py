"""The memory plan of `hotloop train`: what a run will hold, whether that fits, and what it held."""

from __future__ import annotations

import dataclasses
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.needs import Need
from hotloop.capture.reader import load
from hotloop.machine.health import memory_available_bytes
from hotloop.rl.workloads.needs import needs_of
from hotloop.tuning.memory import MemoryPlan
from hotloop.workflows.train import Trained

PROCESS = "Python, torch and our code"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table before and after a run; None is what was not predicted or measured."""

    what: str
    predicted: float | None
    measured: float | None = None
    unit: str = "bytes"


@dataclass(frozen=True, slots=True)
class Predictions:
    """What is expected of a run before it begins."""

    plan: MemoryPlan
    rate_per_s: float | None = None
    """Env steps per second, where tuning measured these settings before."""


def memory_plan(name: str, config: Any, available_bytes: int | None = None) -> MemoryPlan | None:
    """What this process will hold at the peak of the run.

    None for a workload that cannot say, and for settings that cannot be: the workload says which.
    """
    try:
        needs = needs_of(name, config)
    except (ArithmeticError, ValueError, HotloopError):
        return None
    if needs is None:
        return None
    held = resident_bytes()  # now, because asking for the needs has loaded the environments
    if available_bytes is None:
        free = memory_available_bytes()
        available_bytes = None if free is None else free + held
    return MemoryPlan((Need(PROCESS, held), *needs), available_bytes)


def checked_plan(
    name: str, config: Any, available_bytes: int | None = None, rate_per_s: float | None = None
) -> Predictions | None:
    """The plan, or HotloopError with the setting that would fit."""
    plan = memory_plan(name, config, available_bytes)
    if plan is None:
        return None

    def predicted(setting: str, value: int) -> int:
        changed = dataclasses.replace(config, **{setting: value})
        found = memory_plan(name, changed, plan.available_bytes)
        return found.total_bytes if found else 0

    refusal = plan.refusal(predicted)
    if refusal:
        raise HotloopError(refusal)
    return Predictions(plan, rate_per_s)


def lines_of(expected: Predictions, trained: Trained | None = None) -> tuple[Line, ...]:
    """The predictions as a table; with a training that has ended, beside what was measured."""
    measured = peak_bytes(trained.folder) if trained else None
    lines = [Line(need.what, need.bytes) for need in expected.plan.needs]
    lines.append(Line("all together", expected.plan.total_bytes, measured))
    if expected.rate_per_s:
        seen = trained.outcome.steps_per_s if trained else None
        lines.append(Line("env steps", expected.rate_per_s, seen, "/s"))
    return tuple(lines)


def peak_bytes(folder: Path | None) -> int | None:
    """The most memory all processes of a capture held, each at its own peak; without one, this process."""
    if folder is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    peaks = [process.rss_peak_bytes for process in load(folder).processes]
    return sum(peak for peak in peaks if peak) or None


def resident_bytes() -> int:
    """What this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
