"""`hotloop try`: applies and undoes safe patches inside a running script, and judges each one."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop.analysis.load_snapshot import machine_load_over
from hotloop.analysis.trial import SequentialTrial, combination, cpu_change, patch_set_name, rounds_of
from hotloop.analysis.verdict import TOLERANCE
from hotloop.boost.bootstrap import BOOST_VARIABLE
from hotloop.boost.bootstrap import TRIAL as BOOST_TRIAL
from hotloop.capture.folder import new_folder, update_facts
from hotloop.instrument.trial import SEGMENT_S
from hotloop.instrument.trial_patches import NAMES
from hotloop.instrument.trial_script import ORDERS_FILE, ROWS_FILE
from hotloop.machine.facts import machine_facts
from hotloop.machine.load_snapshot import load_snapshot
from hotloop.report.before_after import BeforeAfter, card_of_trial
from hotloop.report.trial import LeftOut, Patch, TrialReport, trial_progress
from hotloop.workflows.insertion_point import find_insertion_point, script_of
from hotloop.workflows.run import (
    ScriptRun,
    begin_capture,
    recording_environment,
    resolve_command,
    script_name,
    wait_for,
)

ALONE_SHARE = 0.75  # of the budget, for the patches one by one; the rest is for the best combination
POLL_S = 0.25
LOAD_INTERVAL_S = 2.0
PROGRESS_S = 10.0  # between two lines on how far it is; the script's own output goes on meanwhile
SELFTEST_PATCHES = 8  # about as many as apply to a typical script
TOO_SLOW = "it takes effect between collecting and learning, which alternate too slowly here"


@dataclass(frozen=True)
class TrialSettings:
    """What to measure and for how long."""

    budget_s: float = 60.0
    only: tuple[str, ...] = ()  # names of patches; (): all
    segment_s: float = SEGMENT_S
    seed: int = 0
    tolerance: float = TOLERANCE
    stop: bool = False  # end the script once the verdicts are known
    selftest: bool = False  # use patches without effect


@dataclass(frozen=True)
class TrialResult:
    """How the script ended, and the verdicts."""

    ran: ScriptRun
    report: TrialReport
    reported: bool  # the report was passed on while the script was still running
    stopped: bool  # we ended the script

    def card(self) -> BeforeAfter | None:
        """The before/after card of the best patches."""
        started_s = self.ran.folder.stat().st_ctime if self.ran.folder.exists() else None
        return card_of_trial(self.report, self.ran.command, machine_facts(), started_s)


def run_trial(
    words: tuple[str, ...],
    folder: Path | None,
    settings: TrialSettings,
    *,
    quiet: bool = False,
    on_report: Callable[[TrialReport], None] = lambda report: None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> TrialResult:
    """Run the command while patches take turns; `on_report` is called as soon as the verdicts are known.

    `on_progress` gets a line now and then: what is done of how much, and the best patch so far.
    """
    unknown = [name for name in settings.only if name not in NAMES]
    if unknown:
        raise HotloopError(f"--only has {unknown[0]!r}, which is not a patch; use {', '.join(NAMES)}.")
    if settings.selftest and settings.only:
        raise HotloopError("--selftest uses patches without effect; remove --only.")
    command = resolve_command(words, "try")
    target = folder or new_folder(script_name(command))
    run_id = begin_capture(target, command)
    trial = {
        "only": list(settings.only),
        "segment_s": settings.segment_s,
        "seed": settings.seed,
        "selftest": SELFTEST_PATCHES if settings.selftest else 0,
    }
    environment = recording_environment(target, options={"on": True, "trial": trial}, run_id=run_id)
    environment[BOOST_VARIABLE] = json.dumps({BOOST_TRIAL: True})
    judge = TrialJudge(target, settings, script_of(command))
    child = subprocess.Popen(command, env=environment, stdout=sys.stderr if quiet else None)
    over = threading.Event()
    watching = threading.Thread(
        target=_watch,
        args=(judge, child, over, settings.stop, on_report, on_progress),
        name="hotloop try",
        daemon=True,
    )
    watching.start()
    interrupted = wait_for(child)
    over.set()
    watching.join()
    ran = ScriptRun(target, tuple(command), child.returncode, interrupted)
    with contextlib.suppress(OSError, ValueError):
        update_facts(target, {"ended_at_ns": time.time_ns(), "exit_status": ran.ending})
    reported = judge.finished
    judge.update(final=True)
    stopped = reported and settings.stop and child.returncode == -signal.SIGTERM
    return TrialResult(ran, judge.report(), reported, stopped)


def _watch(
    judge: TrialJudge,
    child: subprocess.Popen[bytes],
    over: threading.Event,
    stop: bool,
    on_report: Callable[[TrialReport], None],
    on_progress: Callable[[str], None],
) -> None:
    told_s = time.monotonic()
    while not over.wait(POLL_S):
        judge.update()
        if not judge.finished and time.monotonic() - told_s >= PROGRESS_S:
            told_s = time.monotonic()
            on_progress(judge.progress())
        if judge.finished:
            on_report(judge.report())
            if stop and child.poll() is None:
                child.send_signal(signal.SIGTERM)
            return


class TrialJudge:
    """Reads the segments as they come, judges them, and orders what the script measures next."""

    def __init__(
        self,
        folder: Path,
        settings: TrialSettings,
        script: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.finished = False  # all verdicts are known
        self._folder, self._settings, self._script, self._clock = folder, settings, script, clock
        self._read_bytes = 0
        self._rows: list[dict[str, Any]] = []
        self._candidates: list[dict[str, Any]] = []
        self._left_out: dict[str, str] = {}
        self._began_s: float | None = None
        self._alone: SequentialTrial | None = None
        self._together: SequentialTrial | None = None
        self._combination: tuple[str, ...] = ()
        self._kept: tuple[str, ...] = ()
        self._loads: list[dict[str, float]] = []

    def update(self, final: bool = False) -> None:
        """Judge the segments written since the last call; `final` when the script has ended."""
        self._read()
        if self._began_s is None or self.finished:
            return
        self._read_load(final)
        spent_s = self._clock() - self._began_s
        if not self._combination:
            self._judge_alone(final, spent_s)
        if self._combination and not self.finished:
            self._judge_combination(final, spent_s)
        self.finished |= final

    def _read_load(self, final: bool) -> None:
        now = load_snapshot()
        if final or not self._loads or now["at_s"] - self._loads[-1]["at_s"] >= LOAD_INTERVAL_S:
            self._loads.append(now)

    def _judge_alone(self, final: bool, spent_s: float) -> None:
        if self._alone is None:
            names = [patch["name"] for patch in self._candidates]
            self._alone = SequentialTrial(names, tolerance=self._settings.tolerance)
        alone, names = self._alone, self._usable_names()
        alone.leave_out([row.name for row in alone.verdicts if row.name not in names])
        before = alone.settled
        over = final or spent_s >= ALONE_SHARE * self._settings.budget_s
        alone.update(rounds_of(self._rows), final=over)
        if not over and not alone.all_settled:
            if alone.settled != before:
                left = [name for name in names if name not in alone.settled]
                self._kept = self._patches_to_keep(alone, left)
                self._order([(name,) for name in left], self._kept)
            return
        self._combination = combination(alone.verdicts, self._conflicts())
        if len(self._combination) > 1 and not final:
            self._order([self._combination])
        else:
            self._finish()

    def _patches_to_keep(self, alone: SequentialTrial, left: Sequence[str]) -> tuple[str, ...]:
        """Patches found to be faster that conflict with none of those still measured."""
        conflicts = self._conflicts()
        found = combination(alone.verdicts, conflicts)
        return tuple(name for name in found if not set(conflicts.get(name, ())) & set(left))

    def _conflicts(self) -> dict[str, list[str]]:
        return {patch["name"]: patch["conflicts"] for patch in self._candidates}

    def _judge_combination(self, final: bool, spent_s: float) -> None:
        over = final or spent_s >= self._settings.budget_s
        if self._together is None:
            self._together = SequentialTrial(
                [patch_set_name(self._combination)], tolerance=self._settings.tolerance
            )
        self._together.update(rounds_of(self._rows), final=over)
        if over or self._together.all_settled:
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._order([])

    def _order(self, patch_sets: Sequence[tuple[str, ...]], kept: tuple[str, ...] = ()) -> None:
        with contextlib.suppress(OSError):
            orders = json.dumps({"patch_sets": patch_sets, "kept": kept})
            write_atomically(self._folder / ORDERS_FILE, orders)

    def _usable_names(self) -> list[str]:
        """The patches that can be judged: those that broke or cannot take effect are left out."""
        usable = [patch for patch in self._candidates if patch["name"] not in self._left_out]
        if rounds_of(self._rows).how not in ("cycles", "nothing"):
            usable = [patch for patch in usable if not patch["between_phases"]]
        return [patch["name"] for patch in usable]

    def _read(self) -> None:
        try:
            with open(self._folder / ROWS_FILE, "rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            if "candidates" in row:
                self._candidates, self._left_out = row["candidates"], dict(row["left_out"])
                self._began_s = self._clock()
            elif "broken" in row:
                self._left_out[row["broken"]] = f"it could not be applied ({row['error']})"
            elif "failed" in row:
                self._left_out["all"] = f"the trial failed ({row['failed']})"
            elif "seconds" in row:
                self._rows.append(row)

    def progress(self) -> str:
        """How far the trial is, in one line."""
        spent_s = self._clock() - self._began_s if self._began_s is not None else 0.0
        return trial_progress(self.report(), spent_s, self._settings.budget_s)

    def report(self) -> TrialReport:
        """The verdicts so far."""
        rounds = rounds_of(self._rows)
        verdicts = {row.name: row.verdict for row in self._alone.verdicts} if self._alone is not None else {}
        candidates = {patch["name"]: patch for patch in self._candidates}
        rows = []
        for name, verdict in verdicts.items():
            patch = candidates[name]
            point = find_insertion_point(self._script, patch["line"], patch["needs"], patch["place"])
            workers = patch.get("workers", 0)
            cpu = cpu_change(self._rows, name)
            rows.append(
                Patch(name, patch["why"], point.text, point.at, point.instruction, verdict, workers, cpu)
            )
        left_out = dict(self._left_out)
        left_out |= {name: TOO_SLOW for name in candidates if name not in verdicts and name not in left_out}
        together = self._together.verdicts[0] if self._together is not None else None
        return TrialReport(
            patches=tuple(sorted(rows, key=_gain)),
            together=together if together is not None and together.verdict.pairs else None,
            left_out=tuple(LeftOut(name, reason) for name, reason in sorted(left_out.items())),
            blocks=max((rounds.count(name) for name in verdicts), default=0),
            unit=rounds.unit,
            how=rounds.how,
            same_share=rounds.same_share,
            seconds=sum(row["seconds"] for row in self._rows),
            began=self._began_s is not None,
            kept=self._kept,
            machine_load=machine_load_over(self._loads) if len(self._loads) > 1 else None,
        )


_ORDER = ("faster", "undecided", "no_difference", "slower")


def _gain(patch: Patch) -> tuple[int, float]:
    change = patch.verdict.change
    return _ORDER.index(patch.verdict.word), change.value if change is not None else 0.0
