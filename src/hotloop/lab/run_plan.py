"""Runs a plan: starts the runs that are due, saves each one, asks `decide` whether to go on.

`run_plan` is called once for a series. Runs come in blocks: every variant once, in random order, with
one seed; for two variants a block is a pair. The order is a pure function of the plan and of the runs
made so far, so an interrupted series resumes where it stopped and its order can be checked later.

The lab itself has no statistics: whether the runs are enough is decided by `LabCallbacks.decide`.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from hotloop._util.errors import CaptureError, HotloopError
from hotloop._util.redact import is_redacted
from hotloop.capture.folder import CAPTURE_VARIABLE, RUN_ID_VARIABLE, new_run_id
from hotloop.capture.plan import Plan, fill_command
from hotloop.capture.series import CAPTURE, Figures, Run, Series, append, begin_run, with_run
from hotloop.lab import process
from hotloop.lab.lanes import ONE_LANE, Lane, Node, NodeLost, work_through
from hotloop.lab.machine_lock import INSIDE_LAB, machine_lock, series_lock
from hotloop.lab.process import Job, Outcome
from hotloop.machine.load_snapshot import load_snapshot

MAX_FAILURES_IN_A_ROW = 2  # after which a variant is dropped
ALL_LOST = "All nodes were lost."
BLOCKS_FOR_ESTIMATE = 5  # recent blocks that predict whether another one fits the budget

Ended = Literal["decided", "looks", "budget", "failed", "interrupted", "disk", "scaled"]


class Decision(Protocol):
    """What `decide` returns."""

    @property
    def go_on(self) -> bool:
        """Whether more runs are needed."""

    @property
    def settled(self) -> tuple[str, ...]:
        """Variants that need no more runs even if the others do."""


class Progress(Protocol):
    """Shows the user how the series is coming along."""

    def run_ended(self, run: Run) -> None:
        """Called after each run, whether it failed or not."""

    def note(self, sentence: str) -> None:
        """Called for everything else worth a line."""


@dataclass(frozen=True)
class LabCallbacks:
    """What the lab cannot do without knowing about statistics or the contents of a capture."""

    decide: Callable[[Series], Decision]  # called after each complete block
    read_figures: Callable[[Path], Figures]  # from the capture folder of a run
    progress: Progress
    start: Callable[[Job], Outcome] = process.run  # makes one run and waits for it; may raise NodeLost
    take_turn: Callable[[Job], Outcome] | None = None  # instead of `start`, except for the scale check
    end_running: Callable[[bool], None] | None = None  # of all runs under way; None: of processes here


@dataclass(frozen=True)
class Workplace:
    """Where a variant runs."""

    folder: Path  # working folder
    environment: Mapping[str, str]  # the run adds its seed, its capture and the variant's own variables


@dataclass(frozen=True)
class PlanOutcome:
    """The series and why no more runs were made."""

    series: Series
    ended: Ended
    summary: str  # one sentence


def run_plan(
    series: Series,
    workplaces: Mapping[str, Workplace],
    callbacks: LabCallbacks,
    lanes: tuple[Lane, ...] = ONE_LANE,
) -> PlanOutcome:
    """Run the plan of a series from where it stands to its end; each lane makes one run at a time.

    `workplaces` has an entry for each variant. A KeyboardInterrupt ends the runs under way, which do not
    count, and returns the series as it is. A pair whose node is lost is made again on another one, as a new
    block.
    """
    assert series.path is not None
    for variant in series.plan.variants:
        if is_redacted((*variant.command, *(value for _, value in variant.environment))):
            raise HotloopError(f"The command of {variant.name!r} has a placeholder for a secret; fill it in.")
    lab = _Lab(series, workplaces, callbacks, lanes)
    with series_lock(series.path):
        try:
            ended, summary = _run_all_blocks(lab)
            if lab.plan.sizes and ended != "failed":
                scaled, more = _run_sizes(lab)
                ended = scaled if lab.plan.kind == "scale" else ended
                summary = f"{summary} {more}".strip()
        except KeyboardInterrupt:
            ended, summary = "interrupted", "Interrupted; all finished runs are kept."
        except _DiskError as error:
            ended, summary = "disk", f"{error}; all earlier runs are kept."
    return PlanOutcome(lab.series, ended, summary)


@dataclass
class _Lab:
    """The series so far, and which variants are still run."""

    series: Series
    workplaces: Mapping[str, Workplace]
    callbacks: LabCallbacks
    lanes: tuple[Lane, ...]
    next_number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # for everything but the runs themselves
    cut_short: bool = False  # interrupted: a run that ends now was ended by us
    failures_in_a_row: Counter[str] = field(default_factory=Counter)
    settled: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.series.plan

    def active_variants(self) -> list[str]:
        """Variants that still get runs, the baseline first."""
        names = [v.name for v in self.plan.variants if v.name not in self.settled]
        return [name for name in names if self.failures_in_a_row[name] < MAX_FAILURES_IN_A_ROW]

    def decide(self) -> Decision:
        decision = self.callbacks.decide(self.series)
        self.settled = tuple(decision.settled)
        return decision


class _DiskError(Exception):
    """A run could not be written; the series in memory has it."""


# -- blocks --------------------------------------------------------------------------------------


def _run_all_blocks(lab: _Lab) -> tuple[Ended, str]:
    plan = lab.plan
    if not plan.most_blocks:
        return "scaled", ""
    done = usable_blocks(lab.series)
    if done and len(done) < plan.most_blocks and not lab.decide().go_on:
        return "decided", f"Decided after {_count_blocks(plan, len(done))}."
    first = _next_block(lab.series)
    last = first + 2 * plan.most_blocks
    while first < last:
        reason = _nothing_to_compare(plan, lab.active_variants())
        if reason or not lab.lanes:
            return "failed", reason or ALL_LOST
        if len(done) >= plan.most_blocks:
            return "looks", f"Stopped after {_count_blocks(plan, len(done))}, the maximum."
        if _over_budget(lab, done):
            used = f"The budget of {plan.budget_s:.4g} s is used up"
            return "budget", f"{used} after {_count_blocks(plan, len(done))}."
        # Never run past the next look: its error level holds for exactly that many blocks.
        look = next(look for look in plan.looks if look > len(done))
        coming = range(first, min(first + (look - len(done) if len(lab.lanes) > 1 else 1), last))
        before, decision = len(done), _run_blocks(lab, coming)
        first, done = _next_block(lab.series), usable_blocks(lab.series)
        if len(done) > before and decision is not None and not decision.go_on:
            if len(done) >= plan.most_blocks:
                return "looks", f"Stopped after {_count_blocks(plan, len(done))}, the maximum."
            return "decided", f"Decided after {_count_blocks(plan, len(done))}."
    return "failed", "Too many runs failed."


def _run_blocks(lab: _Lab, blocks: Sequence[int]) -> Decision | None:
    """Make the runs of some blocks; returns the last decision, None when no block is complete."""
    decision: Decision | None = None

    def run_block(block: int, lane: Lane) -> bool:
        nonlocal decision
        with lab.lock:
            before = usable_blocks(lab.series)
            active = lab.active_variants()
            if block != blocks[0] and (_nothing_to_compare(lab.plan, active) or _over_budget(lab, before)):
                return False
        for slot in _block_slots(lab.plan, block, active):
            if lab.cut_short:
                return False
            _make_run(lab, slot, lane)
        with lab.lock:
            if len(usable_blocks(lab.series)) > len(before):
                decision = lab.decide()
        return True

    _in_lanes(lab, blocks, run_block)
    return decision


def _in_lanes(lab: _Lab, tasks: Sequence[int], do: Callable[[int, Lane], bool]) -> None:
    """Do the tasks in this thread, or in several lanes that hold the machine lock together.

    Lanes on nodes of a cluster hold the lock of their own computer, run by run.
    """
    on_nodes = any(isinstance(lane, Node) for lane in lab.lanes)
    if len(lab.lanes) == 1 and not on_nodes:
        for task in tasks:
            do(task, lab.lanes[0])
        return

    def end_runs(insist: bool) -> None:
        lab.cut_short = True
        (lab.callbacks.end_running or process.end_running)(insist)

    with contextlib.nullcontext() if on_nodes else machine_lock(lab.callbacks.progress.note):
        work_through(tasks, lab.lanes, do, end_runs, process.GRACE_S)


def _count_blocks(plan: Plan, number: int) -> str:
    word = "pair" if len(plan.variants) == 2 else "block"
    return f"{number} {word}{'' if number == 1 else 's'}"


def _nothing_to_compare(plan: Plan, active: list[str]) -> str:
    """Why there is nothing left to compare; "" when there is."""
    if plan.baseline.name not in active:
        return (
            f"The baseline {plan.baseline.name!r} failed {MAX_FAILURES_IN_A_ROW} times in a row, "
            "so there is nothing to compare with."
        )
    if len(active) < 2:
        return f"Every undecided variant failed {MAX_FAILURES_IN_A_ROW} times in a row."
    return ""


def _over_budget(lab: _Lab, done: list[list[Run]]) -> bool:
    budget, spent = lab.plan.budget_s, lab.series.spent_s
    if budget is None or not lab.series.runs:
        return False
    recent = [sum(run.wall_s for run in block) for block in done[-BLOCKS_FOR_ESTIMATE:]]
    return spent + (statistics.median(recent) if recent else 0.0) > budget


# -- sizes ---------------------------------------------------------------------------------------


def _run_sizes(lab: _Lab) -> tuple[Ended, str]:
    """Every size of the scale check, `plan.repeats` times."""
    plan, failures, finished = lab.plan, Counter[int | None](), set[int]()
    budget = None if plan.budget_s is None else plan.budget_s + lab.series.spent_s
    if plan.kind == "scale":
        budget = plan.budget_s

    def run_round(repeat: int, lane: Lane) -> bool:
        for slot in _missing_sizes(lab.series, repeat, _node_of(lane)):
            if failures[slot.size] < MAX_FAILURES_IN_A_ROW and not lab.cut_short:
                failures[slot.size] = 0 if _make_run(lab, slot, lane).ok else failures[slot.size] + 1
        finished.add(repeat)
        return True

    rounds = list(range(plan.repeats))
    while rounds:
        if not lab.lanes:
            return "failed", ALL_LOST
        coming, repeat = rounds[: len(lab.lanes)], rounds[0]
        if repeat and budget is not None and lab.series.spent_s * ((repeat + len(coming)) / repeat) > budget:
            return "budget", f"The budget is used up; each size was run {_times(repeat)}."
        _in_lanes(lab, coming, run_round)
        rounds = [number for number in rounds if number not in finished]
    if all(failures[size] for size in plan.sizes):
        return "failed", "Every size failed."
    return "scaled", f"Ran {len(plan.sizes)} sizes, each {_times(plan.repeats)}."


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


# -- one run -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slot:
    """One run to make."""

    variant: str
    block: int
    position: int
    seed: int
    size: int | None
    scale: bool = False
    group: int = 0


def _joining(capture: Path) -> dict[str, str]:
    """What makes all processes of a run record into one capture."""
    return {CAPTURE_VARIABLE: str(capture.absolute()), RUN_ID_VARIABLE: new_run_id()}


def _make_run(lab: _Lab, slot: _Slot, lane: Lane) -> Run:
    """Make one run, write it to disk, report it; raises NodeLost when its node is lost meanwhile."""
    plan, progress = lab.plan, lab.callbacks.progress
    cores, node = () if isinstance(lane, Node) else lane, _node_of(lane)
    variant, workplace = plan.variant(slot.variant), lab.workplaces[slot.variant]
    with lab.lock, _disk_errors():
        number, folder = begin_run(lab.series, lab.next_number)
        lab.next_number = number + 1
    capture = folder / CAPTURE
    command = tuple(fill_command(variant.command, slot.seed, slot.size))
    job = Job(
        command=command,
        environment={
            **workplace.environment,
            **(_joining(capture) if plan.record else {}),
            **seed_variables(slot.seed),
            **dict(variant.environment),
        },
        folder=workplace.folder,
        timeout_s=plan.timeout_s or plan.budget_s,
        cores=cores,
        node=node,
    )
    lost: NodeLost | None = None
    with contextlib.nullcontext() if cores or node else machine_lock(progress.note):
        before, started_s = load_snapshot(), time.time()
        try:
            in_turn = None if slot.scale else lab.callbacks.take_turn
            outcome = (in_turn or lab.callbacks.start)(job)
        except NodeLost as error:
            lost, outcome = error, Outcome(time.time() - started_s, failure=str(error), before={}, after={})
        after = load_snapshot()
    run = Run(
        number=number,
        variant=slot.variant,
        block=slot.block,
        position=slot.position,
        seed=slot.seed,
        command=command,
        size=slot.size,
        scale=slot.scale,
        started_s=started_s,
        wall_s=outcome.wall_s,
        cpu_s=outcome.cpu_s,
        exit_code=outcome.exit_code,
        failure=outcome.failure,
        stderr_tail=outcome.stderr_tail,
        before=before if outcome.before is None else outcome.before,
        after=after if outcome.after is None else outcome.after,
        cores=cores,
        at_once=max(len(lab.lanes), 1),
        group=slot.group,
        node=node,
    )
    if lost is not None:
        with lab.lock:
            lab.lanes = tuple(one for one in lab.lanes if one != lane)
            if not lab.cut_short:
                _write_run(lab, run)
        raise lost
    if outcome.figures is not None:
        run = replace(run, figures=outcome.figures)
    else:
        run = _with_figures(run, capture, lab.callbacks.read_figures)
    with lab.lock:
        _save_run(lab, run)
    return run


def _node_of(lane: Lane) -> str:
    return lane.name if isinstance(lane, Node) else ""


def _with_figures(run: Run, capture: Path, read_figures: Callable[[Path], Figures]) -> Run:
    if not (capture / "capture.json").is_file():
        return run
    try:
        return replace(run, figures=read_figures(capture), has_capture=True)
    except CaptureError as error:
        return replace(run, has_capture=True, note=f"its capture cannot be read: {error}")


def _save_run(lab: _Lab, run: Run) -> None:
    if lab.cut_short:
        return  # we ended it, from another lane
    lab.failures_in_a_row[run.variant] = 0 if run.ok else lab.failures_in_a_row[run.variant] + 1
    _write_run(lab, run)
    if lab.failures_in_a_row[run.variant] == MAX_FAILURES_IN_A_ROW and not run.scale:
        progress = lab.callbacks.progress
        progress.note(f"{run.variant!r} failed {MAX_FAILURES_IN_A_ROW} times in a row and is dropped")


def _write_run(lab: _Lab, run: Run) -> None:
    try:
        lab.series = append(lab.series, run)
    except OSError as error:
        lab.series = with_run(lab.series, run)
        raise _DiskError(f"Run {run.number} cannot be written ({error.strerror})") from error
    lab.callbacks.progress.run_ended(run)


def seed_variables(seed: int) -> dict[str, str]:
    """The seed for programs that read it, and for the iteration order of Python's sets."""
    return {"HOTLOOP_SEED": str(seed), "PYTHONHASHSEED": str(seed % 2**32), INSIDE_LAB: "1"}


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _DiskError(f"No more runs can be written ({error.strerror})") from error


# -- order of runs -------------------------------------------------------------------------------


def _block_slots(plan: Plan, block: int, variants: Iterable[str]) -> list[_Slot]:
    """Every variant once, in random order, with one seed; for two variants this is a coin flip.

    With `plan.neighbours`, there is one run of the baseline for every `neighbours` variants.
    """
    base = plan.baseline.name
    others = [name for name in variants if name != base]
    shuffle = random.Random(f"{plan.order_seed}/{block}").shuffle
    shuffle(others)
    each = plan.neighbours or len(others)
    groups = [[base, *others[at : at + each]] for at in range(0, len(others), each)]
    for names in groups:
        shuffle(names)
    placed = [(name, group) for group, names in enumerate(groups) for name in names]
    seed, size = plan.seed_of(block), plan.comparison_size
    return [_Slot(name, block, at, seed, size, group=group) for at, (name, group) in enumerate(placed)]


def _missing_sizes(series: Series, repeat: int, node: str) -> list[_Slot]:
    """What is left of one round of the scale check: every size once, in random order, all on one node."""
    plan, sizes = series.plan, list(series.plan.sizes)
    random.Random(f"{plan.order_seed}/scale/{repeat}").shuffle(sizes)
    name, seed = plan.baseline.name, plan.seed_of(repeat)
    done: dict[str, set[int | None]] = {node: set()}
    for run in series.runs:
        if run.scale and run.ok and run.block == repeat:
            done.setdefault(run.node, set()).add(run.size)
    if any(found >= set(sizes) for found in done.values()):
        return []
    slots = [_Slot(name, repeat, at, seed, size, scale=True) for at, size in enumerate(sizes)]
    return [slot for slot in slots if slot.size not in done[node]]


def _next_block(series: Series) -> int:
    """The block to run next. An interrupted block is not completed: its runs would be too far apart."""
    return max((run.block + 1 for run in series.runs if not run.scale), default=0)


def usable_blocks(series: Series) -> list[list[Run]]:
    """Successful runs by block, for blocks with a comparable pair: a baseline and a variant of one group."""
    blocks: dict[int, list[Run]] = {}
    for run in series.runs:
        if not run.scale and run.ok:
            blocks.setdefault(run.block, []).append(run)
    base = series.plan.baseline.name
    return [
        runs
        for _, runs in sorted(blocks.items())
        if {run.group for run in runs if run.variant == base}
        & {run.group for run in runs if run.variant != base}
    ]
