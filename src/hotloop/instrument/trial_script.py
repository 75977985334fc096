"""A trial in the process of the script: ticks from its progress, rows and orders as files in the capture.

What is told to the parent lies in `trial.jsonl`; its orders (which arms to go on with, what to keep on) come
back in `trial-orders.json`, looked for at each switch. Worker processes of the script follow by way of the
board in `trial_workers.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.instrument import step_counting
from hotloop.instrument.trial import SEGMENT_S, Arm, Ordered, Row, Trial
from hotloop.instrument.trial_patches import Toggle, all_toggles, no_toggles
from hotloop.instrument.trial_workers import Board, InWorkers, follow
from hotloop.measure.profiler import default

if TYPE_CHECKING:
    from hotloop.instrument.libraries import Instrumentation

FILE, ORDERS = "trial.jsonl", "trial-orders.json"


def plan_of(
    only: Sequence[str] = (), selftest: int = 0, in_workers: Mapping[str, int] | None = None
) -> tuple[Mapping[str, Toggle], Row]:
    """The toggles that apply now (with `selftest` so many that do nothing), and the row that tells of them.

    `in_workers`: in how many worker processes each would change something.
    """
    usable: dict[str, Toggle] = {}
    told, left_out = [], {}
    for toggle in no_toggles(selftest) if selftest else all_toggles():
        if only and toggle.name not in only:
            continue
        workers = (in_workers or {}).get(toggle.name, 0)
        reason = toggle.why_not()
        if reason is not None and not workers:
            left_out[toggle.name] = reason
            continue
        usable[toggle.name] = toggle if reason is None else InWorkers(toggle)
        fields = ("name", "line", "why", "needs", "place", "between", "conflicts")
        told.append({field: getattr(toggle, field) for field in fields} | {"workers": workers})
    return usable, {"toggles": told, "left_out": left_out}


def begin_trial(options: dict[str, Any], folder: Path, instrument: Instrumentation) -> Callable[[], None]:
    """Begin; returns what ends it. Called in the script's own process, before the script."""
    file = open(folder / FILE, "a", encoding="utf-8")  # noqa: SIM115
    board = Board(folder)

    def write(row: Row) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk
            file.write(json.dumps(row) + "\n")
            file.flush()

    def show(arm: Arm | None) -> None:
        board.show("over" if arm is None else "switching", arm or ())

    trial = Trial(
        lambda: plan_of(options.get("only", ()), options.get("selftest", 0), board.answers()),
        Orders(folder / ORDERS),
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
    """In a process that the script's own process started: do as it does."""
    follow(Board(folder), instrument.hook, instrument.patches)


class Orders:
    """The parent's orders; the file is read again only when it is another one."""

    def __init__(self, file: Path):
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._ordered = Ordered()

    def __call__(self) -> Ordered:
        """As they are now."""
        try:
            found = os.stat(self._file)
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._seen:
                told = json.loads(self._file.read_text(encoding="utf-8"))
                self._ordered = Ordered([tuple(arm) for arm in told["arms"]], tuple(told["base"]))
                self._seen = version
        except (OSError, ValueError, KeyError):
            pass
        return self._ordered


def _listen(trial: Trial, write: Callable[[Row], None]) -> Callable[[], None]:
    """Hear of every env step and update by way of `progress`; returns what ends that."""
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
        if thread == owner:  # the thread that trains; a second one would cut the segments to pieces
            try:
                trial.tick(env_steps, updates)
            except Exception as error:
                write({"failed": repr(error)})
                end()

    def end() -> None:
        with contextlib.suppress(Exception):
            trial.stop()
        default.progress = hotloop.progress = plain
        step_counting.report_to(None)

    default.progress = hotloop.progress = progress
    step_counting.report_to(progress)
    return end
