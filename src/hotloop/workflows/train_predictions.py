"""Predictions of `hotloop train`: memory and speed of a run before it starts, and what was measured."""

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
from hotloop.rl.workloads.memory_estimates import estimate_memory
from hotloop.tuning.memory_plan import MemoryPlan
from hotloop.workflows.train import Trained

PROCESS = "Python, torch and our code"
SAMPLE_EVERY_S = 0.5
SAMPLE_SHARE = 0.01  # of one core at most: the kernel walks all pages of each process


@dataclass(frozen=True, slots=True)
class Prediction:
    """One line of the table before and after a run; None if not predicted or not measured."""

    what: str
    predicted: float | None
    measured: float | None = None
    unit: str = "bytes"


@dataclass(frozen=True, slots=True)
class Predictions:
    """Expected memory and speed of a run."""

    plan: MemoryPlan
    rate_per_s: float | None = None
    """Env steps per second, if tuning measured these settings."""


def memory_plan(name: str, config: Any, available_bytes: int | None = None) -> MemoryPlan | None:
    """Predicted peak memory of this process and its children.

    None for a workload without estimates, and for invalid settings (the workload itself reports those).
    """
    try:
        parts = estimate_memory(name, config)
    except (ArithmeticError, ValueError, HotloopError):
        return None
    if parts is None:
        return None
    held = resident_bytes()  # read now: the estimates above have imported the environments
    if available_bytes is None:
        available_bytes = memory_available_bytes() + held
    return MemoryPlan((MemoryEstimate(PROCESS, held), *parts), available_bytes)


def predict(
    name: str, config: Any, available_bytes: int | None = None, rate_per_s: float | None = None
) -> Predictions | None:
    """Memory and speed of a run; HotloopError, with a setting that would fit, if memory is too small."""
    plan = memory_plan(name, config, available_bytes)
    if plan is None or (name == "petri" and config.on):  # the learners may be on other computers
        return None

    def predicted(setting: str, value: int) -> int:
        changed = dataclasses.replace(config, **{setting: value})
        found = memory_plan(name, changed, plan.available_bytes)
        return found.total_bytes if found else 0

    refusal = plan.refusal(predicted)
    if refusal:
        raise HotloopError(refusal)
    return Predictions(plan, rate_per_s)


def prediction_table(
    expected: Predictions, trained: Trained | None = None, children: ChildrenMemory | None = None
) -> tuple[Prediction, ...]:
    """Rows of the table of predictions; after a run, with what was measured.

    `children` has measured the processes that the run started.
    """
    measured = run_peak_bytes(trained.folder, children) if trained else None
    held = children.peak_bytes if children else None
    lines = [
        Prediction(part.what, part.bytes, held if part.in_children else None) for part in expected.plan.parts
    ]
    lines.append(Prediction("total", expected.plan.total_bytes, measured))
    if expected.rate_per_s:
        seen = trained.outcome.steps_per_s if trained else None
        lines.append(Prediction("env steps", expected.rate_per_s, seen, "/s"))
    return tuple(lines)


def run_peak_bytes(folder: Path | None, children: ChildrenMemory | None = None) -> int | None:
    """Peak memory of a run; without a capture, of this process.

    With `children`, their private memory is added, so that shared pages count once. Otherwise the peaks of
    all processes in the capture are added up, shared pages included.
    """
    if children is not None and children.peak_bytes is not None:
        return max(children.total_peak_bytes, peak_resident_bytes())
    if folder is None:
        return peak_resident_bytes()
    peaks = [process.rss_peak_bytes for process in load(folder).processes]
    return sum(peak for peak in peaks if peak) or None


class ChildrenMemory:
    """Samples the private memory of the child processes in a thread.

    with ChildrenMemory() as children:
        train(...)
    children.peak_bytes         # of all children together; None if there were none
    children.total_peak_bytes   # plus the peak of this process
    """

    def __init__(
        self,
        every_s: float = SAMPLE_EVERY_S,
        children_bytes: Callable[[], int] = children_private_bytes,
        own_peak_bytes: Callable[[], int] = peak_resident_bytes,
    ):
        self.peak_bytes: int | None = None
        self.total_peak_bytes = self._last_bytes = 0
        self._every_s, self._children_bytes, self._own_peak_bytes = every_s, children_bytes, own_peak_bytes
        # A plain lock, held until the end: waiting for an event would be recorded as a thread of training.
        self._running = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="hotloop-memory")

    def __enter__(self) -> ChildrenMemory:
        self._running.acquire()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.release()
        self._thread.join()
        if self._last_bytes:  # children that lived to the end overlapped with the peak of this process
            self._add(self._last_bytes)

    def sample(self) -> None:
        """Read the memory of all children now, and keep the maximum."""
        self._last_bytes = self._children_bytes()
        if self._last_bytes:
            self._add(self._last_bytes)

    def _add(self, held_bytes: int) -> None:
        self.peak_bytes = max(held_bytes, self.peak_bytes or 0)
        self.total_peak_bytes = max(held_bytes + self._own_peak_bytes(), self.total_peak_bytes)

    def _watch(self) -> None:
        pause_s = self._every_s
        while not self._running.acquire(timeout=pause_s):
            began_s = time.thread_time()
            self.sample()
            pause_s = max(self._every_s, (time.thread_time() - began_s) / SAMPLE_SHARE)
