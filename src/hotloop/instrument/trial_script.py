"""Runs a trial in the process of the script: ticks come from `progress`, rows and orders are files in the
capture.

Rows for the parent process go to `trial.jsonl`. Its orders (which patch sets to measure, which patches to
keep) come back in `trial-orders.json`, checked at each switch. Worker processes follow through
`trial_workers.py`.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop._util import strict_json
from hotloop._util.interrupts import is_users, suppress_own
from hotloop.instrument import step_counting
from hotloop.instrument.trial import SEGMENT_S, Orders, PatchSet, Row, Trial
from hotloop.instrument.trial_patch import TrialPatch
from hotloop.instrument.trial_patches import all_patches, inert_patches
from hotloop.instrument.trial_workers import Board, InWorkers, follow
from hotloop.measure.profiler import default

if TYPE_CHECKING:
    from hotloop.instrument.libraries import Instrumentation

ROWS_FILE, ORDERS_FILE = "trial.jsonl", "trial-orders.json"


def plan_trial(
    only: Sequence[str] = (), selftest: int = 0, in_workers: Mapping[str, int] | None = None
) -> tuple[Mapping[str, TrialPatch], Row]:
    """The patches that apply now (with `selftest`, that many without effect), and the row that lists them.

    `in_workers` is the number of worker processes in which each would change something.
    """
    usable: dict[str, TrialPatch] = {}
    listed, left_out = [], {}
    for patch in inert_patches(selftest) if selftest else all_patches():
        if only and patch.name not in only:
            continue
        workers = (in_workers or {}).get(patch.name, 0)
        reason = patch.skip_reason()
        if reason is not None and not workers:
            left_out[patch.name] = reason
            continue
        usable[patch.name] = patch if reason is None else InWorkers(patch)
        fields = ("name", "line", "why", "needs", "place", "between_phases", "conflicts")
        listed.append({field: getattr(patch, field) for field in fields} | {"workers": workers})
    return usable, {"candidates": listed, "left_out": left_out}


def begin_trial(options: dict[str, Any], folder: Path, instrument: Instrumentation) -> Callable[[], None]:
    """Start a trial in the script's own process, before the script; returns the function that ends it."""
    file = open(folder / ROWS_FILE, "a", encoding="utf-8")  # noqa: SIM115
    board = Board(folder)

    def write(row: Row) -> None:
        with suppress_own(OSError, ValueError):  # a full disk
            file.write(strict_json.dumps(row) + "\n")
            file.flush()

    def show(applied: PatchSet | None) -> None:
        board.show("over" if applied is None else "switching", applied or ())

    trial = Trial(
        lambda: plan_trial(options.get("only", ()), options.get("selftest", 0), board.answers()),
        OrdersFile(folder / ORDERS_FILE),
        write,
        segment_s=options.get("segment_s", SEGMENT_S),
        seed=options.get("seed", 0),
        ask=board.ask,
        show=show,
    )
    end = _listen(trial, write)
    atexit.register(end)

    def in_child() -> None:
        if trial.running:
            trial.leave()
            follow(board, instrument.hook, instrument.patches)

    os.register_at_fork(after_in_child=in_child)
    return end


def follow_trial(folder: Path, instrument: Instrumentation) -> None:
    """In a process that the script started: apply the same patches as the script."""
    follow(Board(folder), instrument.hook, instrument.patches)


class OrdersFile:
    """The orders of the parent process; the file is read again only when it was replaced."""

    def __init__(self, file: Path):
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._orders = Orders()

    def __call__(self) -> Orders:
        """The latest orders."""
        try:
            found = os.stat(self._file)
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._seen:
                data = json.loads(self._file.read_text(encoding="utf-8"))
                patch_sets = [tuple(names) for names in data["patch_sets"]]
                self._orders = Orders(patch_sets, tuple(data["kept"]))
                self._seen = version
        except (OSError, ValueError, KeyError) as error:
            if is_users(error):
                raise
        return self._orders


def _listen(trial: Trial, write: Callable[[Row], None]) -> Callable[[], None]:
    """Call `trial.tick` for all reported env steps and updates; returns the function that ends this."""
    plain = default.progress
    hotloop: Any = sys.modules["hotloop"]
    owner: int | None = None

    def progress(*, env_steps: int = 0, updates: int = 0, **words: Any) -> None:
        nonlocal owner
        plain(env_steps=env_steps, updates=updates, **words)
        if not (env_steps or updates):
            return
        thread = threading.get_ident()
        if owner is None:
            owner = thread
        if thread == owner:  # the thread that trains; ticks of a second one would break up the segments
            try:
                trial.tick(env_steps, updates)
            except Exception as error:
                if is_users(error):
                    raise
                write({"failed": repr(error)})
                end()

    def end() -> None:
        with suppress_own(Exception):
            trial.stop()
        default.progress = hotloop.progress = plain
        step_counting.report_to(None)

    default.progress = hotloop.progress = progress
    step_counting.report_to(progress)
    return end
