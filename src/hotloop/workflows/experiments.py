"""What all lab verbs share: create or resume a series, run its plan, show progress, judge the result."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.errors import HotloopError
from hotloop._util.units import duration
from hotloop.analysis.categories import Resolver
from hotloop.analysis.comparison import Comparison, compare_series
from hotloop.analysis.steady_state import run_figures
from hotloop.capture import series as store
from hotloop.capture.folder import CAPTURE_VARIABLE, RUN_ID_VARIABLE, new_folder
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.reader import load
from hotloop.capture.series import Figures, Run, Series
from hotloop.instrument.bootstrap import RUN_VARIABLE
from hotloop.lab import process
from hotloop.lab.lanes import ONE_LANE, Lane, lanes_of
from hotloop.lab.process import Job, Outcome, failure_of
from hotloop.lab.ray_nodes import connect
from hotloop.lab.run_plan import LabCallbacks, PlanOutcome, Workplace, run_plan
from hotloop.machine.cores import available_cores
from hotloop.machine.facts import cores_granted, library_versions, machine_facts
from hotloop.machine.health import memory_available_bytes
from hotloop.report.before_after import BeforeAfter, card_of_series
from hotloop.report.series_text import progress_text
from hotloop.workflows.probes import Host, end, signals_deferred
from hotloop.workflows.project_settings import load_settings
from hotloop.workflows.run import startup_environment
from hotloop.workflows.secrets import plan_with_secrets
from hotloop.workflows.turns import WORKLOADS as TURN_WORKLOADS
from hotloop.workflows.turns import TurnHost

INTERRUPTED, SCRIPT_FAILED, OUR_FAILURE = 130, 5, 1
FORKED_WORKLOADS = ("ricochet", "petri", "snake")  # the others start processes themselves
POLL_S = 0.5
QUIET_S = 10.0  # a line at least this often, as long as runs end, where lines are not overwritten


@dataclass(frozen=True)
class ExperimentResult:
    """A series with the verdicts on it."""

    series: Series  # as it is shown and stored, without secrets
    comparison: Comparison
    outcome: PlanOutcome  # with the series as it was run

    @property
    def interrupted(self) -> bool:
        return self.outcome.ended == "interrupted"

    def card(self, change: str = "") -> BeforeAfter | None:
        """The before/after card; `change` is what was changed, if the commands do not say it."""
        return card_of_series(self.series, self.comparison, change)


@dataclass(frozen=True)
class Runners:
    """Where runs are made: on this machine, one or several at a time, or on the nodes of a cluster."""

    find_lanes: Callable[[], tuple[Lane, ...]] = lambda: ONE_LANE  # without nodes that were lost
    start: Callable[..., Outcome] | None = None  # of a job, and of what makes it there; None: on this machine
    end_running: Callable[[bool], None] | None = None
    nodes: Mapping[str, Mapping[str, Any]] | None = None  # facts about each node; None: no cluster

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self.find_lanes()

    @property
    def room(self) -> tuple[float, int]:
        """Cores and free memory in bytes that a run may use: those of the smallest node."""
        if self.nodes is None:
            return cores_granted(), memory_available_bytes()
        held = [min(node["cores_granted"], node["cpus_held"] or math.inf) for node in self.nodes.values()]
        return min(held), min(node["memory_available_bytes"] for node in self.nodes.values())


HERE = Runners()


@contextlib.contextmanager
def runners_for(
    jobs: int, on: str | None, resources: Sequence[tuple[str, float]], progress: Progress
) -> Iterator[Runners]:
    """`jobs` runs at a time on this machine, or one at a time on each node of the cluster `on`."""
    if on is None:
        if resources:
            raise HotloopError("Resources are those of a node; add --on ray to run on a cluster.")
        lanes = lanes_of(jobs, available_cores)
        yield Runners(lambda: lanes)
        return
    if jobs != 1:
        raise HotloopError("--jobs is for one machine; on a cluster, every node makes one run at a time.")
    with connect(on, dict(resources), progress.note) as nodes:
        many = len(nodes.lanes)
        progress.note(f"runs on {many} {'node' if many == 1 else 'nodes'}: {', '.join(nodes.machines)}")
        yield Runners(lambda: nodes.lanes, nodes.start, nodes.end_running, nodes.machines)


def run_experiment(
    series: Series,
    progress: Progress,
    workplaces: Mapping[str, Workplace] | None = None,
    runners: Runners = HERE,
    read_figures: Callable[[Path], Figures] | None = None,
    start: Callable[[Job], Outcome] | None = None,
    decide: Callable[[Series], Comparison] | None = None,
) -> ExperimentResult:
    """Run the plan of a series from where it stands, then judge all its runs.

    `workplaces` says where variants run (default: the current folder). `read_figures` takes a run's figures
    from its capture folder (default: its steady state). `runners` says on which machine. `start`
    makes a run (default: a fresh process, or a fork of a warm one for our own workloads, see `warm_start`).
    `decide` says after each block whether to go on (default: until every verdict is clear).
    """
    plan = plan_with_secrets(series.plan)
    series = replace(series, plan=plan)
    progress.begin(series)
    workplaces = workplaces or workplaces_here(plan.variants)
    if plan.record:
        workplaces = {
            name: replace(place, environment=startup_environment(place.environment))
            for name, place in workplaces.items()
        }
    start = start or runners.start
    may_fork = start is None and runners.lanes == ONE_LANE
    try:
        with (
            interruptible(),
            warm_start(plan, plain_environment(), may_fork) as fork_run,
            taking_turns(plan, plain_environment(), may_fork) as turns,
        ):
            callbacks = LabCallbacks(
                decide=decide or _decide_and_show(progress),
                read_figures=read_figures or _steady_figures(),
                progress=progress,
                start=start or fork_run or process.run,
                take_turn=turns.run if turns is not None else None,
                end_running=runners.end_running,
            )
            outcome = run_plan(series, workplaces, callbacks, runners.lanes)
    finally:
        progress.end()
    shown = store.series_without_secrets(outcome.series)
    return ExperimentResult(shown, compare_series(shown), outcome)


def _decide_and_show(progress: Progress) -> Callable[[Series], Comparison]:
    def decide(series: Series) -> Comparison:
        found = compare_series(series, final=False)
        progress.show_verdict(found)
        return found

    return decide


def _steady_figures() -> Callable[[Path], Figures]:
    resolver = Resolver(load_settings().category_patterns)
    return lambda capture: run_figures(load(capture), resolver)


def exit_code_of(outcome: PlanOutcome) -> int:
    """Exit code for how the plan ended; verdicts may still change a 0."""
    codes = {"interrupted": INTERRUPTED, "failed": SCRIPT_FAILED, "disk": OUR_FAILURE}
    return codes.get(outcome.ended, 0)


# -- the series ----------------------------------------------------------------------------------


def create_series(plan: Plan, folder: Path | None, name: str, runners: Runners = HERE) -> Series:
    """Create a series in `folder`, or in hotloop-runs/<time>-<name>."""
    about: dict[str, Any] = {
        "hotloop_version": HOTLOOP_VERSION,
        "started_s": time.time(),
        "working_folder": str(Path.cwd()),
        "machine": machine_facts(),
        "versions": library_versions(),
    } | ({} if runners.nodes is None else {"nodes": {k: dict(v) for k, v in runners.nodes.items()}})
    return store.create(folder or new_folder(name), plan, about)


def resume_series(folder: Path | None, budget_s: float | None = None, on: str | None = None) -> Series:
    """Read the series in `folder`; `budget_s` replaces the budget of its plan."""
    if folder is None:
        raise HotloopError("--resume needs the folder of the series; name it with --series DIR.")
    found = store.read(folder)
    then, now = found.facts.get("machine", {}), machine_facts()
    if (on is not None) != ("nodes" in found.facts):
        where = "on a cluster; add --on ray" if on is None else "on one machine; remove --on"
        raise HotloopError(f"The series in {folder} was started {where}.")
    if on is None and any(then.get(key) != now[key] for key in ("cpu", "cores_present")):
        raise HotloopError(
            f"{folder} was started on another machine ({then.get('cpu')}, {then.get('cores_present')} cores) "
            "and times of two machines cannot be mixed; start a new series."
        )
    return replace(found, plan=replace(found.plan, budget_s=budget_s)) if budget_s else found


def continue_series(plan: Plan, folder: Path | None) -> Series:
    """Read the series in `folder` to go on with it; raises HotloopError if it was made with another plan."""
    found = resume_series(folder, plan.budget_s)
    if found.plan.variants != plan.variants or found.plan.seeds != plan.seeds:
        raise HotloopError(
            f"{folder} was started with other settings, which cannot be mixed with these; use the command "
            "that was printed when it was stopped, or name another folder with --series."
        )
    return replace(found, plan=replace(found.plan, looks=plan.looks))


# -- where runs happen ---------------------------------------------------------------------------


def workplaces_here(variants: Sequence[Variant]) -> dict[str, Workplace]:
    """The current folder for every variant."""
    return {variant.name: Workplace(Path.cwd(), plain_environment()) for variant in variants}


def plain_environment(python_path: Sequence[Path] = ()) -> dict[str, str]:
    """The environment of this process without what makes a process record; `python_path` goes first."""
    recording = (CAPTURE_VARIABLE, RUN_ID_VARIABLE, RUN_VARIABLE)
    found = {k: v for k, v in os.environ.items() if k not in recording}
    if python_path:
        before = [found["PYTHONPATH"]] if found.get("PYTHONPATH") else []
        found["PYTHONPATH"] = os.pathsep.join([*map(str, python_path), *before])
    return found


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, which keeps all finished runs."""
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


# -- progress ------------------------------------------------------------------------------------


@dataclass
class Progress:
    """Progress on stderr: one line that is overwritten on a terminal, otherwise a line now and then."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    clock: Callable[[], float] = time.monotonic
    _last: str = ""
    _told_s: float = -math.inf
    _began_s: float = 0.0
    _budget_s: float | None = None
    _sizes_left: int = 0  # runs of a scale check that are still to be made
    _sizes: int = 0

    def begin(self, series: Series) -> None:
        """Take note of what there is to do."""
        plan = series.plan
        self._began_s, self._budget_s = self.clock() - series.spent_s, plan.budget_s
        self._sizes = len(plan.sizes) * plan.repeats
        self._sizes_left = self._sizes - sum(run.scale and run.ok for run in series.runs)

    def run_ended(self, run: Run) -> None:
        """Show failures always, successes only where the line is overwritten."""
        if not run.ok:
            last = run.stderr_tail.strip().splitlines()[-1:] or [""]
            self.note(f"run {run.number}, {run.variant}: {run.failure}. {last[0]}".rstrip())
        elif run.scale:
            self._sizes_left = max(self._sizes_left - 1, 0)
            of = f"size run {self._sizes - self._sizes_left} of {self._sizes}"
            self._line(f"{of}: {run.variant}, n = {run.size}: {duration(run.wall_s * 1e9)}{self._spent()}")
        elif self.stream.isatty() or self.clock() - self._told_s >= QUIET_S:
            self._line(f"run {run.number}: {run.variant}, {duration(run.wall_s * 1e9)}{self._spent()}")

    def show_verdict(self, found: Comparison) -> None:
        """Show the interval so far."""
        if not self.quiet:
            spent = self._spent()
            width = shutil.get_terminal_size((100, 24)).columns - 1 - len(spent)
            self._line(progress_text(found, width) + spent)

    def _spent(self) -> str:
        """`, 42 s of 10 min`: what is used up of the budget."""
        if self._budget_s is None:
            return ""
        spent_s = max(self.clock() - self._began_s, 0.0)
        return f", {duration(spent_s * 1e9)} of {duration(self._budget_s * 1e9)}"

    def show(self, text: str) -> None:
        """Show what is going on, on a terminal only; the next line replaces it."""
        if self.stream.isatty():
            width = shutil.get_terminal_size((80, 24)).columns - 1
            self._line(text if len(text) <= width else f"{text[: width - 1]}…")

    def note(self, sentence: str) -> None:
        """Print a line that stays."""
        print(f"\r\033[K{sentence}" if self.stream.isatty() else sentence, file=self.stream, flush=True)

    def end(self) -> None:
        """Clear the overwritten line."""
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)

    def _line(self, text: str) -> None:
        if self.quiet or text == self._last:  # lanes that end together would print it twice
            return
        self._last, self._told_s = text, self.clock()
        if self.stream.isatty():
            print(f"\r\033[K{text}", end="", file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)


# -- warm start ----------------------------------------------------------------------------------
# Runs of our own workloads are forked from a process that has loaded Python, torch and the kernels, which
# often takes longer than the run. Command, environment and recording are those of a fresh process; only
# the start-up is missing, which is not part of the time per env step anyway.


@contextlib.contextmanager
def warm_start(
    plan: Plan, environment: dict[str, str], allowed: bool = True
) -> Iterator[Callable[[Job], Outcome] | None]:
    """A function that makes a run by forking; None where each run must be a separate process."""
    name = forkable_workload(plan) if allowed else None
    if name is None:
        yield None
        return
    with Host(name, environment) as host:
        yield lambda job: run_forked(host, job)


@contextlib.contextmanager
def taking_turns(plan: Plan, environment: dict[str, str], allowed: bool) -> Iterator[TurnHost | None]:
    """The process in which variants take turns; None for a plan without `turns`."""
    if not plan.turns:
        yield None
        return
    name = forkable_workload(plan) if allowed else None
    if name is None or name not in TURN_WORKLOADS:
        raise HotloopError(
            "A plan with turns = true needs variants that all run `hotloop train snake` with this Python, "
            "one at a time on this machine; leave the line out to give each run its own process."
        )
    with TurnHost(name, environment) as host:
        yield host


def forkable_workload(plan: Plan) -> str | None:
    """The workload that all variants train, if its runs can be forked; otherwise None.

    Variants with their own variables cannot be forked (libraries read some at import), nor can other
    revisions, nor runs without a recording, where the time of the whole process counts.
    """
    if not plan.record or any(variant.environment or variant.revision for variant in plan.variants):
        return None
    names = {_workload_in(variant.command) for variant in plan.variants}
    return names.pop() if len(names) == 1 else None


def _workload_in(command: Sequence[str]) -> str | None:
    """NAME of `python -m hotloop train NAME` or `hotloop train NAME` with this very Python, else None."""
    program, own = shutil.which(command[0]), Path(sys.executable)
    if program is None:
        return None
    if Path(program) == own and tuple(command[1:3]) == ("-m", "hotloop"):
        rest = command[3:]
    elif Path(program) == own.with_name("hotloop"):
        rest = command[1:]
    else:
        return None
    return rest[1] if len(rest) > 1 and rest[0] == "train" and rest[1] in FORKED_WORKLOADS else None


def run_forked(host: Host, job: Job) -> Outcome:
    """Fork the job and wait for it; a KeyboardInterrupt ends it and is raised again."""
    began_s = time.perf_counter()
    host.wait_until_ready()
    with signals_deferred():
        running = host.start_command(job)
    late = False
    try:
        while not running.wait(POLL_S):
            late = job.timeout_s is not None and time.perf_counter() - began_s > job.timeout_s
            if late:
                end(running, at_once=True)
                break
    except BaseException:
        end(running, at_once=False)
        raise
    wall_s = time.perf_counter() - began_s
    code, cpu_s, tail = running.result()
    failure = f"ended after {job.timeout_s:.4g} s, the timeout of a run" if late else failure_of(code)
    return Outcome(wall_s, cpu_s, None if late else code, failure, tail)
