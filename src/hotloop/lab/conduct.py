"""Conducts a plan: runs what is due, saves it, asks whether it is enough, and stops in good order."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from hotloop._util.errors import CaptureError
from hotloop.capture.plan import Plan, Variant, filled
from hotloop.capture.series import CAPTURE, Figures, Run, Series, append, begin_run, with_run
from hotloop.lab import process
from hotloop.lab.lanes import ONE_LANE, Cores, work_through
from hotloop.lab.order import Slot, block_slots, missing_sizes, next_block, usable_blocks
from hotloop.lab.process import Job, Outcome
from hotloop.lab.turns import INSIDE, only_writer, turn
from hotloop.machine.load_snapshot import load_snapshot

FAILURES_IN_A_ROW = 2  # of a variant, after which it is run no more

Ended = Literal["decided", "looks", "budget", "failed", "interrupted", "disk", "scaled"]


class Answer(Protocol):
    """What `decide` says about a series."""

    @property
    def go_on(self) -> bool:
        """Whether more runs are needed."""

    @property
    def settled(self) -> tuple[str, ...]:
        """Variants that need no more runs while the others go on."""


class Watcher(Protocol):
    """Who is told how it goes."""

    def ran(self, run: Run) -> None:
        """A run ended."""

    def looked(self, answer: Answer, series: Series) -> None:
        """A block is complete and `decide` was asked."""

    def note(self, sentence: str) -> None:
        """Something a person should know."""


@dataclass(frozen=True)
class Hands:
    """What the lab is handed, because it has no statistics and no knowledge of recording of its own."""

    decide: Callable[[Series], Answer]
    watcher: Watcher
    # capture folder, variant -> variables of a process that records there
    environment: Callable[[Path, Variant], dict[str, str]]
    measure: Callable[[Path], Figures]  # capture folder -> what the run did
    folder_of: Callable[[Variant], Path] = lambda variant: Path.cwd()
    start: Callable[[Job], Outcome] = process.run
    end: Callable[[bool], None] = process.end_running  # what runs in lanes; True: at once
    badge: Callable[[], dict[str, float]] = load_snapshot


@dataclass(frozen=True)
class Conducted:
    """How it ended."""

    series: Series
    ended: Ended
    says: str  # one sentence


@dataclass
class _Lab:
    """The series so far, and which variants are still run."""

    series: Series
    hands: Hands
    lanes: tuple[Cores, ...] = ONE_LANE
    next_number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # for everything but the runs themselves
    cut_short: bool = False  # interrupted: a run that ends now was ended by us
    failed: Counter[str] = field(default_factory=Counter)  # in a row
    settled: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.series.plan

    def wanted(self) -> list[str]:
        """Variants that are still run, the baseline first."""
        names = [v.name for v in self.plan.variants if v.name not in self.settled]
        return [name for name in names if self.failed[name] < FAILURES_IN_A_ROW]

    def blocks(self) -> list[list[Run]]:
        """Blocks that can be compared."""
        return usable_blocks(self.series)

    def ask(self) -> Answer:
        """What `decide` says now."""
        answer = self.hands.decide(self.series)
        self.settled = tuple(answer.settled)
        self.hands.watcher.looked(answer, self.series)
        return answer


def conduct(series: Series, hands: Hands, lanes: tuple[Cores, ...] = ONE_LANE) -> Conducted:
    """Run the plan of a series from where it stands to its end, in each lane one run at a time.

    A KeyboardInterrupt ends the runs that are going, which are not counted, and returns what there is.
    """
    assert series.path is not None
    lab = _Lab(series, hands, lanes)
    with only_writer(series.path):
        try:
            ended, says = _blocks(lab)
            if lab.plan.sizes and ended != "failed":
                scaled, more = _scale(lab)
                ended = scaled if lab.plan.kind == "scale" else ended
                says = f"{says} {more}".strip()
        except KeyboardInterrupt:
            ended, says = "interrupted", "Interrupted; what was measured is kept."
        except _DiskError as error:
            ended, says = "disk", f"{error}; what was measured before is kept."
    return Conducted(lab.series, ended, says)


class _DiskError(Exception):
    """A run could not be written; the series in memory has it."""


def _blocks(lab: _Lab) -> tuple[Ended, str]:
    plan = lab.plan
    if not plan.most_blocks:
        return "scaled", ""
    done = lab.blocks()
    if done and not lab.ask().go_on:
        return "decided", f"Decided after {_blocks_text(plan, len(done))}."
    first = next_block(lab.series)
    last = first + 2 * plan.most_blocks
    while first < last:
        why = _cannot_go_on(plan, lab.wanted())
        if why:
            return "failed", why
        if len(done) >= plan.most_blocks:
            return "looks", f"Stopped after {_blocks_text(plan, len(done))}, the last look."
        if _over_budget(lab, done):
            used = f"The budget of {plan.budget_s:.4g} s is used up"
            return "budget", f"{used} after {_blocks_text(plan, len(done))}."
        # Never beyond the next look: what is found there holds for exactly so many blocks.
        look = next(look for look in plan.looks if look > len(done))
        coming = range(first, min(first + (look - len(done) if len(lab.lanes) > 1 else 1), last))
        before, answer = len(done), _run_blocks(lab, coming)
        first, done = next_block(lab.series), lab.blocks()
        if len(done) > before and answer is not None and not answer.go_on:
            if len(done) >= plan.most_blocks:
                return "looks", f"Stopped after {_blocks_text(plan, len(done))}, the last look."
            return "decided", f"Decided after {_blocks_text(plan, len(done))}."
    return "failed", "Too many runs failed."


def _run_blocks(lab: _Lab, blocks: Sequence[int]) -> Answer | None:
    """Make the runs of some blocks; returns the last answer, None when no block is complete."""
    answer: Answer | None = None

    def one(block: int, cores: Cores) -> bool:
        nonlocal answer
        with lab.lock:
            before = lab.blocks()
            wanted = lab.wanted()
            if block != blocks[0] and (_cannot_go_on(lab.plan, wanted) or _over_budget(lab, before)):
                return False
        for slot in block_slots(lab.plan, block, wanted):
            if lab.cut_short:
                return False
            _run(lab, slot, cores)
        with lab.lock:
            if len(lab.blocks()) > len(before):
                answer = lab.ask()
        return True

    _in_lanes(lab, blocks, one)
    return answer


def _in_lanes(lab: _Lab, tasks: Sequence[int], do: Callable[[int, Cores], bool]) -> None:
    """One after the other in this thread, or in lanes, which hold this computer's turn together."""
    if len(lab.lanes) == 1:
        for task in tasks:
            do(task, lab.lanes[0])
        return

    def end(insist: bool) -> None:
        lab.cut_short = True
        lab.hands.end(insist)

    with turn(lab.hands.watcher.note):
        work_through(tasks, lab.lanes, do, end, process.GRACE_S)


def _blocks_text(plan: Plan, number: int) -> str:
    word = "pair" if len(plan.variants) == 2 else "block"
    return f"{number} {word}{'' if number == 1 else 's'}"


def _cannot_go_on(plan: Plan, wanted: list[str]) -> str:
    """Why there is nothing left to compare; "" when there is."""
    if plan.baseline.name not in wanted:
        return f"{plan.baseline.name!r} failed {FAILURES_IN_A_ROW} times in a row: there is no baseline."
    if len(wanted) < 2:
        return f"What was not decided failed {FAILURES_IN_A_ROW} times in a row: nothing is left to run."
    return ""


def _over_budget(lab: _Lab, done: list[list[Run]]) -> bool:
    budget, spent = lab.plan.budget_s, lab.series.spent_s
    if budget is None or not lab.series.runs:
        return False
    lately = [sum(run.wall_s for run in block) for block in done[-5:]]
    return spent + (statistics.median(lately) if lately else 0.0) > budget


def _scale(lab: _Lab) -> tuple[Ended, str]:
    plan, failed = lab.plan, Counter[int | None]()
    budget = None if plan.budget_s is None else plan.budget_s + lab.series.spent_s
    if plan.kind == "scale":
        budget = plan.budget_s

    def one(repeat: int, cores: Cores) -> bool:
        for slot in missing_sizes(lab.series, repeat):
            if failed[slot.size] < FAILURES_IN_A_ROW and not lab.cut_short:
                failed[slot.size] = 0 if _run(lab, slot, cores).ok else failed[slot.size] + 1
        return True

    for repeat in range(0, plan.repeats, len(lab.lanes)):
        coming = range(repeat, min(repeat + len(lab.lanes), plan.repeats))
        if repeat and budget is not None and lab.series.spent_s * (coming.stop / repeat) > budget:
            return "budget", f"The budget is used up: each size was run {_times(repeat)}."
        _in_lanes(lab, coming, one)
    if all(failed[size] for size in plan.sizes):
        return "failed", "Every size failed."
    return "scaled", f"{len(plan.sizes)} sizes were run, each {_times(plan.repeats)}."


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _run(lab: _Lab, slot: Slot, cores: Cores) -> Run:
    """Make one run, put it on disk, tell about it."""
    hands, variant = lab.hands, lab.plan.variant(slot.variant)
    with lab.lock, _disk_trouble():
        number, folder = begin_run(lab.series, lab.next_number)
        lab.next_number = number + 1
    capture = folder / CAPTURE
    command = tuple(filled(variant.command, slot.seed, slot.size))
    job = Job(
        command=command,
        environment=hands.environment(capture, variant)
        | seed_variables(slot.seed)
        | dict(variant.environment),
        folder=hands.folder_of(variant),
        timeout_s=lab.plan.timeout_s or lab.plan.budget_s,
        cores=cores,
    )
    with contextlib.nullcontext() if cores else turn(hands.watcher.note):
        before, started_s = hands.badge(), time.time()
        outcome = hands.start(job)
        after = hands.badge()
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
        before=before,
        after=after,
        cores=cores,
        at_once=len(lab.lanes),
        group=slot.group,
    )
    run = _with_figures(run, capture, hands)
    with lab.lock:
        _keep(lab, run, slot)
    return run


def _keep(lab: _Lab, run: Run, slot: Slot) -> None:
    """Put a run on disk and tell about it."""
    if lab.cut_short:
        return  # it was ended by us, in another lane
    watcher = lab.hands.watcher
    lab.failed[run.variant] = 0 if run.ok else lab.failed[run.variant] + 1
    try:
        lab.series = append(lab.series, run)
    except OSError as error:
        lab.series = with_run(lab.series, run)
        raise _DiskError(f"Run {run.number} cannot be written ({error.strerror})") from error
    watcher.ran(run)
    if lab.failed[run.variant] == FAILURES_IN_A_ROW and not slot.scale:
        watcher.note(f"{run.variant!r} failed {FAILURES_IN_A_ROW} times in a row and is run no more")


def seed_variables(seed: int) -> dict[str, str]:
    """The seed for programs that look for it, and for the order of Python's sets."""
    return {"HOTLOOP_SEED": str(seed), "PYTHONHASHSEED": str(seed % 2**32), INSIDE: "1"}


def _with_figures(run: Run, capture: Path, hands: Hands) -> Run:
    if not (capture / "capture.json").is_file():
        return run
    try:
        return replace(run, figures=hands.measure(capture), has_capture=True)
    except CaptureError as error:
        return replace(run, has_capture=True, note=f"its capture cannot be read: {error}")


@contextlib.contextmanager
def _disk_trouble() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _DiskError(f"No more runs can be written ({error.strerror})") from error
