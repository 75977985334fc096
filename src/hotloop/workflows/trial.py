"""`hotloop try`: safe patches switched on and off inside a running script, and a verdict on each."""

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
from hotloop.analysis.trial import Looking, arm_name, combination, rounds_of
from hotloop.analysis.verdict import TOLERANCE
from hotloop.capture.folder import new_folder, update_facts
from hotloop.instrument.trial import SEGMENT_S
from hotloop.instrument.trial_patches import NAMES
from hotloop.instrument.trial_script import FILE, ORDERS
from hotloop.machine.load_snapshot import load_snapshot
from hotloop.report.trial import LeftOut, Patch, TrialReport
from hotloop.workflows.insertion_point import addition, script_of
from hotloop.workflows.run import (
    Ran,
    begin_capture,
    name_of,
    normal_command,
    recording_environment,
    wait_for,
)

EACH_SHARE = 0.75  # of the budget, for the patches by themselves; the rest for the best combination
LOOK_INTERVAL_S = 0.25
BADGE_INTERVAL_S = 2.0
SELFTEST = 8  # patches that do nothing, about as many as apply to a usual script
TOO_SLOW = "it acts between collecting and learning, which alternate too slowly here to be switched in turns"


@dataclass(frozen=True)
class Terms:
    """How long to measure, and what."""

    budget_s: float = 60.0
    only: tuple[str, ...] = ()
    segment_s: float = SEGMENT_S
    seed: int = 0
    tolerance: float = TOLERANCE
    stop: bool = False  # end the script when the verdicts are known
    selftest: bool = False  # patches that do nothing


@dataclass(frozen=True)
class Tried:
    """How the script ended, and the verdicts."""

    ran: Ran
    report: TrialReport
    told: bool  # the report was handed over while the script was running
    stopped: bool  # by us


def try_patches(
    words: tuple[str, ...],
    folder: Path | None,
    terms: Terms,
    *,
    quiet: bool = False,
    tell: Callable[[TrialReport], None] = lambda report: None,
) -> Tried:
    """Run the command with patches switched in turns; `tell` gets the report as soon as it is known."""
    unknown = [name for name in terms.only if name not in NAMES]
    if unknown:
        raise HotloopError(f"There is no patch {unknown[0]!r}; there is {', '.join(NAMES)}.")
    if terms.selftest and terms.only:
        raise HotloopError("--selftest tries patches that do nothing; leave out --only.")
    command = normal_command(words)
    target = folder or new_folder(name_of(command))
    begin_capture(target, command)
    trial = {
        "only": list(terms.only),
        "segment_s": terms.segment_s,
        "seed": terms.seed,
        "selftest": SELFTEST if terms.selftest else 0,
    }
    environment = recording_environment(target, options={"on": True, "trial": trial})
    judge = Judge(target, terms, script_of(command))
    child = subprocess.Popen(command, env=environment, stdout=sys.stderr if quiet else None)
    over = threading.Event()
    watching = threading.Thread(
        target=_watch, args=(judge, child, over, terms.stop, tell), name="hotloop try", daemon=True
    )
    watching.start()
    interrupted = wait_for(child)
    over.set()
    watching.join()
    ran = Ran(target, tuple(command), child.returncode, interrupted)
    with contextlib.suppress(OSError, ValueError):
        update_facts(target, {"ended_at_ns": time.time_ns(), "exit_status": ran.ending})
    told = judge.finished
    judge.look(final=True)
    return Tried(ran, judge.report(), told, told and terms.stop and child.returncode == -signal.SIGTERM)


def _watch(
    judge: Judge,
    child: subprocess.Popen[bytes],
    over: threading.Event,
    stop: bool,
    tell: Callable[[TrialReport], None],
) -> None:
    while not over.wait(LOOK_INTERVAL_S):
        judge.look()
        if judge.finished:
            tell(judge.report())
            if stop and child.poll() is None:
                child.send_signal(signal.SIGTERM)
            return


class Judge:
    """Reads the segments as they come, asks for verdicts, and tells the script how to go on."""

    def __init__(
        self, folder: Path, terms: Terms, script: Path | None, clock: Callable[[], float] = time.monotonic
    ):
        self.finished = False  # nothing more is to be measured
        self._folder, self._terms, self._script, self._clock = folder, terms, script, clock
        self._read_bytes = 0
        self._rows: list[dict[str, Any]] = []
        self._toggles: list[dict[str, Any]] = []
        self._left_out: dict[str, str] = {}
        self._began_s: float | None = None
        self._each: Looking | None = None
        self._together: Looking | None = None
        self._chosen: tuple[str, ...] = ()
        self._kept: tuple[str, ...] = ()
        self._badges: list[dict[str, float]] = []

    def look(self, final: bool = False) -> None:
        """Take in what is new; `final` when the script has ended."""
        self._read()
        if self._began_s is None or self.finished:
            return
        self._read_badge(final)
        spent_s = self._clock() - self._began_s
        if not self._chosen:
            self._look_at_each(final, spent_s)
        if self._chosen and not self.finished:
            self._look_at_combination(final, spent_s)
        self.finished |= final

    def _read_badge(self, final: bool) -> None:
        now = load_snapshot()
        if final or not self._badges or now["at_s"] - self._badges[-1]["at_s"] >= BADGE_INTERVAL_S:
            self._badges.append(now)

    def _look_at_each(self, final: bool, spent_s: float) -> None:
        if self._each is None:
            names = [toggle["name"] for toggle in self._toggles]
            self._each = Looking(names, tolerance=self._terms.tolerance)
        each, names = self._each, self._names()
        each.leave_out([row.name for row in each.verdicts if row.name not in names])
        before = each.settled
        over = final or spent_s >= EACH_SHARE * self._terms.budget_s
        each.look(rounds_of(self._rows), final=over)
        if not over and not each.all_settled:
            if each.settled != before:
                left = [name for name in names if name not in each.settled]
                self._kept = self._to_keep(each, left)
                self._order([(name,) for name in left], self._kept)
            return
        self._chosen = combination(each.verdicts, self._conflicts())
        if len(self._chosen) > 1 and not final:
            self._order([self._chosen])
        else:
            self._finish()

    def _to_keep(self, each: Looking, left: Sequence[str]) -> tuple[str, ...]:
        """What was found to be faster and goes with all that is still tried."""
        conflicts = self._conflicts()
        found = combination(each.verdicts, conflicts)
        return tuple(name for name in found if not set(conflicts.get(name, ())) & set(left))

    def _conflicts(self) -> dict[str, list[str]]:
        return {toggle["name"]: toggle["conflicts"] for toggle in self._toggles}

    def _look_at_combination(self, final: bool, spent_s: float) -> None:
        over = final or spent_s >= self._terms.budget_s
        if self._together is None:
            self._together = Looking([arm_name(self._chosen)], tolerance=self._terms.tolerance)
        self._together.look(rounds_of(self._rows), final=over)
        if over or self._together.all_settled:
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._order([])

    def _order(self, arms: Sequence[tuple[str, ...]], base: tuple[str, ...] = ()) -> None:
        with contextlib.suppress(OSError):
            write_atomically(self._folder / ORDERS, json.dumps({"arms": arms, "base": base}))

    def _names(self) -> list[str]:
        """The patches that can be judged; those that broke or cannot show are left out."""
        names = [toggle["name"] for toggle in self._toggles if toggle["name"] not in self._left_out]
        if rounds_of(self._rows).how in ("cycles", "nothing"):
            return names
        return [t["name"] for t in self._toggles if t["name"] in names and not t["between"]]

    def _read(self) -> None:
        try:
            with open(self._folder / FILE, "rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            if "toggles" in row:
                self._toggles, self._left_out = row["toggles"], dict(row["left_out"])
                self._began_s = self._clock()
            elif "broken" in row:
                self._left_out[row["broken"]] = f"it could not be switched on ({row['error']})"
            elif "failed" in row:
                self._left_out["all"] = f"switching failed ({row['failed']})"
            elif "seconds" in row:
                self._rows.append(row)

    def report(self) -> TrialReport:
        """What can be said now."""
        rounds = rounds_of(self._rows)
        verdicts = {row.name: row.verdict for row in self._each.verdicts} if self._each is not None else {}
        told = {toggle["name"]: toggle for toggle in self._toggles}
        rows = []
        for name, verdict in verdicts.items():
            toggle = told[name]
            place = addition(self._script, toggle["line"], toggle["needs"], toggle["place"])
            workers = toggle.get("workers", 0)
            rows.append(Patch(name, toggle["why"], place.text, place.at, place.says, verdict, workers))
        left_out = dict(self._left_out)
        left_out |= {name: TOO_SLOW for name in told if name not in verdicts and name not in left_out}
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
            machine_load=machine_load_over(self._badges) if len(self._badges) > 1 else None,
        )


_ORDER = ("faster", "undecided", "no difference", "slower")


def _gain(patch: Patch) -> tuple[int, float]:
    change = patch.verdict.change
    return _ORDER.index(patch.verdict.word), change.value if change is not None else 0.0
