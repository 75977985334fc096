"""The memory plan of `hotloop train`: what a run will hold, whether that fits, and what it held."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.memory_estimate import MemoryEstimate
from hotloop.capture.reader import load
from hotloop.machine.health import memory_available_bytes
from hotloop.machine.process_memory import children_private_bytes, peak_resident_bytes, resident_bytes
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
        available_bytes = memory_available_bytes() + held
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
        return max(children.together_bytes, peak_resident_bytes())
    if folder is None:
        return peak_resident_bytes()
    peaks = [process.rss_peak_bytes for process in load(folder).processes]
    return sum(peak for peak in peaks if peak) or None


class ChildrenWatch:
    """Looks now and then at what the processes that this one started hold for themselves.

    with ChildrenWatch() as children:
        train(...)
    children.most_bytes         # of all of them; None when there were none
    children.together_bytes     # the same and the most that this process had held until then
    """

    def __init__(
        self,
        every_s: float = LOOK_EVERY_S,
        children_bytes: Callable[[], int] = children_private_bytes,
        own_peak_bytes: Callable[[], int] = peak_resident_bytes,
    ):
        self.most_bytes: int | None = None
        self.together_bytes = self._last_bytes = 0
        self._every_s, self._children_bytes, self._own_peak_bytes = every_s, children_bytes, own_peak_bytes
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
        self._last_bytes = self._children_bytes()
        if self._last_bytes:
            self._add(self._last_bytes)

    def _add(self, held_bytes: int) -> None:
        self.most_bytes = max(held_bytes, self.most_bytes or 0)
        self.together_bytes = max(held_bytes + self._own_peak_bytes(), self.together_bytes)

    def _watch(self) -> None:
        pause_s = self._every_s
        while not self._over.wait(pause_s):
            began_s = time.thread_time()
            self.look()
            pause_s = max(self._every_s, (time.thread_time() - began_s) / LOOK_SHARE)
