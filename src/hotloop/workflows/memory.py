"""The memory plan of `hotloop train`: what a run will hold, whether that fits, and what it held."""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.memory_estimate import MemoryEstimate
from hotloop.capture.reader import load
from hotloop.machine.health import memory_available_bytes
from hotloop.rl.collect.memory import process_memory
from hotloop.rl.workloads.needs import needs_of
from hotloop.tuning.memory import MemoryPlan
from hotloop.workflows.train import Trained

PROCESS = "Python, torch and our code"
LOOK_EVERY_S = 0.5
LOOK_SHARE = 0.01  # of the time that may go into looking: the kernel walks all pages of each process


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
    """What this process and those it starts will hold at the peak of the run.

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
    return MemoryPlan((MemoryEstimate(PROCESS, held), *needs), available_bytes)


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


def lines_of(
    expected: Predictions, trained: Trained | None = None, children: ChildrenWatch | None = None
) -> tuple[Line, ...]:
    """The predictions as a table; with a training that has ended, beside what was measured.

    `children` has watched the processes that the training started.
    """
    measured = peak_bytes(trained.folder, children) if trained else None
    held = children.most_bytes if children else None
    lines = [Line(need.what, need.bytes, held if need.in_children else None) for need in expected.plan.needs]
    lines.append(Line("all together", expected.plan.total_bytes, measured))
    if expected.rate_per_s:
        seen = trained.outcome.steps_per_s if trained else None
        lines.append(Line("env steps", expected.rate_per_s, seen, "/s"))
    return tuple(lines)


def peak_bytes(folder: Path | None, children: ChildrenWatch | None = None) -> int | None:
    """The most memory that was held; without a capture, by this process.

    Children that were watched count with what each had for itself, so that shared pages count once. Where
    nobody watched, each process of the capture counts with all of its pages.
    """
    if children is not None and children.most_bytes is not None:
        return max(children.together_bytes, own_peak_bytes())
    if folder is None:
        return own_peak_bytes()
    peaks = [process.rss_peak_bytes for process in load(folder).processes]
    return sum(peak for peak in peaks if peak) or None


class ChildrenWatch:
    """Looks now and then at what the processes that this one started hold for themselves.

    with ChildrenWatch() as children:
        train(...)
    children.most_bytes         # of all of them; None when there were none
    children.together_bytes     # the same and the most that this process had held until then
    """

    def __init__(self, every_s: float = LOOK_EVERY_S, proc: Path = Path("/proc")):
        self.most_bytes: int | None = None
        self.together_bytes = self._last_bytes = 0
        self._every_s, self._proc = every_s, proc
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hotloop-memory")

    def __enter__(self) -> ChildrenWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._last_bytes:  # they were there to the end: so were they when this process held most
            self._add(self._last_bytes)

    def look(self) -> None:
        """Add up what they hold now, and keep the most."""
        found = [process_memory(pid, self._proc) for pid in descendants(os.getpid(), self._proc)]
        self._last_bytes = sum(one.private_bytes for one in found if one is not None)
        if self._last_bytes:
            self._add(self._last_bytes)

    def _add(self, held_bytes: int) -> None:
        self.most_bytes = max(held_bytes, self.most_bytes or 0)
        self.together_bytes = max(held_bytes + own_peak_bytes(self._proc), self.together_bytes)

    def _watch(self) -> None:
        pause_s = self._every_s
        while not self._over.wait(pause_s):
            began_s = time.thread_time()
            self.look()
            pause_s = max(self._every_s, (time.thread_time() - began_s) / LOOK_SHARE)


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes that a process started, and those that these started; [] where the system does not tell."""
    children: dict[int, list[int]] = {}
    for file in proc.glob("[0-9]*/stat"):
        try:
            parent = int(file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has ended
        children.setdefault(parent, []).append(int(file.parent.name))
    found, left = [], [pid]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


def own_peak_bytes(proc: Path = Path("/proc")) -> int:
    """The most that this process has held. (`getrusage` also counts what forked it, before it began.)"""
    try:
        for line in (proc / "self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident_bytes() -> int:
    """What this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
