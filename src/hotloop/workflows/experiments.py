"""What every verb of the lab shares: hands for the lab, a place for the series, progress on stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from hotloop import __version__
from hotloop._util.errors import HotloopError
from hotloop._util.units import duration
from hotloop.analysis.categories import Resolver
from hotloop.analysis.comparison import Comparison, compare_series, decide_series
from hotloop.analysis.steady_state import run_figures
from hotloop.capture import series as store
from hotloop.capture.folder import new_folder
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.reader import load
from hotloop.capture.series import Figures, Run, Series
from hotloop.lab.conduct import Answer, Conducted, Hands, conduct
from hotloop.lab.lanes import ONE_LANE, Cores, lanes_of
from hotloop.lab.process import Job, Outcome
from hotloop.machine.cores import available_cores
from hotloop.machine.facts import facts, library_versions
from hotloop.report.series_text import progress_text
from hotloop.workflows.launch import recording_environment
from hotloop.workflows.settings import load_settings
from hotloop.workflows.warm_start import warm_start

INTERRUPTED, SCRIPT_FAILED, OUR_FAILURE = 130, 5, 1


@dataclass(frozen=True)
class Done:
    """A series with everything that can be said about it."""

    series: Series
    found: Comparison
    conducted: Conducted

    @property
    def interrupted(self) -> bool:
        """Whether it was cut short by Ctrl-C."""
        return self.conducted.ended == "interrupted"


def exit_code_of(conducted: Conducted) -> int:
    """What a lab that ended so exits with, verdicts apart."""
    codes = {"interrupted": INTERRUPTED, "failed": SCRIPT_FAILED, "disk": OUR_FAILURE}
    return codes.get(conducted.ended, 0)


@dataclass
class Progress:
    """Tells on stderr how it goes: one line that is written over on a terminal, else a line per block."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    _last: str = ""

    def ran(self, run: Run) -> None:
        """A failure at once, a success only where the line is written over."""
        if not run.ok:
            last = run.stderr_tail.strip().splitlines()[-1:] or [""]
            self.note(f"run {run.number}, {run.variant}: {run.failure}. {last[0]}".rstrip())
        elif run.scale:
            self._line(f"run {run.number}: {run.variant}, n = {run.size}: {duration(run.wall_s * 1e9)}")
        elif self.stream.isatty():
            self._line(f"run {run.number}: {run.variant}, {duration(run.wall_s * 1e9)}")

    def looked(self, answer: Answer, series: Series) -> None:
        """The interval as it is now."""
        if not self.quiet:
            width = shutil.get_terminal_size((100, 24)).columns - 1
            self._line(progress_text(compare_series(series, final=False), width))

    def note(self, sentence: str) -> None:
        """A line of its own."""
        print(f"\r\033[K{sentence}" if self.stream.isatty() else sentence, file=self.stream, flush=True)

    def end(self) -> None:
        """Leave the line that was written over."""
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)

    def _line(self, text: str) -> None:
        if self.quiet or text == self._last:  # lanes that end together have the same to say
            return
        self._last = text
        if self.stream.isatty():
            print(f"\r\033[K{text}", end="", file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)


@dataclass(frozen=True)
class Places:
    """Where variants run: the working folder of each, and where Python looks first there."""

    folder_of: Callable[[Variant], Path] = lambda variant: Path.cwd()
    python_path_of: Callable[[Variant], tuple[Path, ...]] = lambda variant: ()


def hands(progress: Progress, places: Places, record: bool = True) -> Hands:
    """What the lab needs from the rest of the house."""
    resolver = Resolver(load_settings().category_patterns)

    def measure(folder: Path) -> Figures:
        return run_figures(load(folder), resolver)

    def environment(capture: Path, variant: Variant) -> dict[str, str]:
        base = plain_environment(places.python_path_of(variant))
        return recording_environment(capture, base) if record else base

    return Hands(
        decide=decide_series,
        watcher=progress,
        environment=environment,
        measure=measure,
        folder_of=places.folder_of,
    )


def plain_environment(python_path: tuple[Path, ...] = ()) -> dict[str, str]:
    """Our environment without what makes a process record; `python_path` goes first."""
    found = {k: v for k, v in os.environ.items() if k not in ("HOTLOOP_CAPTURE", "HOTLOOP_RUN")}
    if python_path:
        before = [found["PYTHONPATH"]] if found.get("PYTHONPATH") else []
        found["PYTHONPATH"] = os.pathsep.join([*map(str, python_path), *before])
    return found


def begin(plan: Plan, folder: Path | None, name: str) -> Series:
    """A new series in `folder`, or in hotloop-runs/<time>-<name>."""
    about: dict[str, Any] = {
        "hotloop_version": __version__,
        "started_s": time.time(),
        "working_folder": str(Path.cwd()),
        "machine": facts(),
        "versions": library_versions(),
    }
    return store.create(folder or new_folder(name), plan, about)


def resume(folder: Path | None, budget_s: float | None = None) -> Series:
    """The series in `folder` as it stands; a budget given now takes the place of the plan's."""
    if folder is None:
        raise HotloopError("--resume needs the folder of the series; name it with --series DIR.")
    found = store.read(folder)
    then, now = found.facts.get("machine", {}), facts()
    if any(then.get(key) != now[key] for key in ("cpu", "cores_present")):
        raise HotloopError(
            f"{folder} was begun on another computer ({then.get('cpu')}, {then.get('cores_present')} cores); "
            "times of two computers are not mixed: begin a new series."
        )
    return replace(found, plan=replace(found.plan, budget_s=budget_s)) if budget_s else found


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run that is going, too, and keep what was measured."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lanes_for(jobs: int) -> tuple[Cores, ...]:
    """Cores for so many runs at once; raises HotloopError when this computer has too few free ones."""
    return lanes_of(jobs, available_cores)


def carry_out(
    series: Series,
    progress: Progress,
    places: Places | None = None,
    lanes: tuple[Cores, ...] = ONE_LANE,
    measure: Callable[[Path], Figures] | None = None,
    start: Callable[[Job], Outcome] | None = None,
) -> Done:
    """Conduct the plan from where the series stands, and judge what came of it.

    `measure` takes a run's figures from its capture folder, in place of the steady state; `start` makes a
    run, in place of a fresh process that is waited for. Without it, runs of our own workloads in one lane are
    forked from a process that has everything loaded.
    """
    given = hands(progress, places or Places(), series.plan.record)
    if measure is not None:
        given = replace(given, measure=measure)
    forks = start is None and lanes == ONE_LANE
    try:
        with interruptible(), warm_start(series.plan, plain_environment(), forks) as forked:
            start = start or forked
            conducted = conduct(series, replace(given, start=start) if start else given, lanes)
    finally:
        progress.end()
    return Done(conducted.series, compare_series(conducted.series), conducted)
