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
from hotloop.analysis.trial import Blocks, Settled, arm_name, blocks_of, combination, settle
from hotloop.analysis.verdict import TOLERANCE
from hotloop.capture import store
from hotloop.instrument.toggles import NAMES
from hotloop.instrument.trial import FILE, ORDERS, SEGMENT_S
from hotloop.report.trial import LeftOut, Patch, TryReport
from hotloop.workflows.launch import recording_environment
from hotloop.workflows.run import Ran, begin_capture, name_of, normal_command, wait_for
from hotloop.workflows.where import addition, script_of

EACH_SHARE = 0.75  # of the budget, for the patches by themselves; the rest for the best combination
LOOK_INTERVAL_S = 0.25
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


@dataclass(frozen=True)
class Tried:
    """How the script ended, and the verdicts."""

    ran: Ran
    report: TryReport
    told: bool  # the report was handed over while the script was running
    stopped: bool  # by us


def try_patches(
    words: tuple[str, ...],
    folder: Path | None,
    terms: Terms,
    *,
    quiet: bool = False,
    tell: Callable[[TryReport], None] = lambda report: None,
) -> Tried:
    """Run the command with patches switched in turns; `tell` gets the report as soon as it is known."""
    unknown = [name for name in terms.only if name not in NAMES]
    if unknown:
        raise HotloopError(f"There is no patch {unknown[0]!r}; there is {', '.join(NAMES)}.")
    command = normal_command(words)
    target = folder or store.new_folder(name_of(command))
    begin_capture(target, command)
    trial = {"only": list(terms.only), "segment_s": terms.segment_s, "seed": terms.seed}
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
        store.update_facts(target, {"ended_at_ns": time.time_ns(), "exit_status": ran.ending})
    told = judge.finished
    judge.look(final=True)
    return Tried(ran, judge.report(), told, told and terms.stop and child.returncode == -signal.SIGTERM)


def _watch(
    judge: Judge,
    child: subprocess.Popen[bytes],
    over: threading.Event,
    stop: bool,
    tell: Callable[[TryReport], None],
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
        self._each = Settled((), (), 0)
        self._together: Settled | None = None
        self._chosen: tuple[str, ...] = ()
        self._looked = (-1, -1)

    def look(self, final: bool = False) -> None:
        """Take in what is new; `final` when the script has ended."""
        self._read()
        if self._began_s is None or self.finished:
            return
        spent_s = self._clock() - self._began_s
        if not self._chosen:
            self._look_at_each(final, spent_s)
        if self._chosen and not self.finished:
            self._look_at_combination(final, spent_s)
        self.finished |= final

    def _look_at_each(self, final: bool, spent_s: float) -> None:
        names = self._names()
        blocks = self._blocks(names)
        over = final or spent_s >= EACH_SHARE * self._terms.budget_s
        looked = (len(blocks.blocks), len(names))
        if not over and looked == self._looked:
            return
        self._looked = looked
        before = self._each.settled
        self._each = settle(blocks.blocks, names, final=over, tolerance=self._terms.tolerance)
        over = over or set(names) == set(self._each.settled)
        if not over:
            if self._each.settled != before:
                self._order([(name,) for name in names if name not in self._each.settled])
            return
        conflicts = {toggle["name"]: toggle["conflicts"] for toggle in self._toggles}
        self._chosen = combination(self._each.verdicts, conflicts)
        if len(self._chosen) > 1 and not final:
            self._order([self._chosen])
        else:
            self._finish()

    def _look_at_combination(self, final: bool, spent_s: float) -> None:
        over = final or spent_s >= self._terms.budget_s
        name = arm_name(self._chosen)
        blocks = self._blocks([name])
        self._together = settle(blocks.blocks, [name], final=over, tolerance=self._terms.tolerance)
        if over or self._together.settled:
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._order([])

    def _order(self, arms: Sequence[tuple[str, ...]]) -> None:
        with contextlib.suppress(OSError):
            write_atomically(self._folder / ORDERS, json.dumps({"arms": arms}))

    def _names(self) -> list[str]:
        """The patches that can be judged; those that broke or cannot show are left out."""
        names = [toggle["name"] for toggle in self._toggles if toggle["name"] not in self._left_out]
        if blocks_of(self._rows, names).how == "cycles":
            return names
        return [t["name"] for t in self._toggles if t["name"] in names and not t["between"]]

    def _blocks(self, names: Sequence[str]) -> Blocks:
        return blocks_of(self._rows, names)

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

    def report(self) -> TryReport:
        """What can be said now."""
        names = self._names()
        blocks = self._blocks(names)
        verdicts = {row.name: row.verdict for row in self._each.verdicts}
        told = {toggle["name"]: toggle for toggle in self._toggles}
        rows = []
        for name in names:
            if name in verdicts:
                toggle = told[name]
                place = addition(self._script, toggle["line"], toggle["needs"], toggle["place"])
                rows.append(Patch(name, toggle["why"], place.text, place.at, place.says, verdicts[name]))
        left_out = dict(self._left_out)
        left_out |= {name: TOO_SLOW for name in told if name not in names and name not in left_out}
        together = self._together.verdicts[0] if self._together is not None else None
        return TryReport(
            patches=tuple(sorted(rows, key=_gain)),
            together=together if together is not None and together.verdict.pairs else None,
            left_out=tuple(LeftOut(name, reason) for name, reason in sorted(left_out.items())),
            blocks=len(blocks.blocks),
            unit=blocks.unit,
            how=blocks.how,
            same_share=blocks.same_share,
            seconds=sum(row["seconds"] for row in self._rows),
            began=self._began_s is not None,
        )


_ORDER = ("faster", "undecided", "no difference", "slower")


def _gain(patch: Patch) -> tuple[int, float]:
    change = patch.verdict.change
    return _ORDER.index(patch.verdict.word), change.value if change is not None else 0.0
