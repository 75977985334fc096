"""What `hotloop run` says while a script runs: how to watch it and, on request, a line now and then."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop._util.console import note
from hotloop._util.errors import HotloopError
from hotloop._util.units import count, duration

if TYPE_CHECKING:
    from hotloop.analysis.live import LiveStatus

EVERY_S = 10.0
_GOAL = re.compile(r"--(?:total[-_])?(?:timesteps|time[-_]steps|env[-_]steps|steps)")


@contextlib.contextmanager
def following(
    folder: Path,
    command: Sequence[str],
    wanted: bool,
    every_s: float = EVERY_S,
    tell: Callable[[str], None] = note,
) -> Iterator[None]:
    """While the block runs, print the state of the job on stderr now and then, if `wanted`.

    Otherwise a terminal gets one line before the script starts, and nothing while it runs.
    """
    if not wanted:
        if sys.stderr.isatty():
            tell(f"hotloop: recording into {folder}; watch it with: hotloop top {shlex.quote(str(folder))}")
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(folder, goal_of(command), every_s, ended, tell), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _follow(
    folder: Path, goal: int | None, every_s: float, ended: threading.Event, tell: Callable[[str], None]
) -> None:
    from hotloop.workflows.read_captures import watch_capture  # only here: verbs that start runs import this

    def wait(seconds: float) -> None:
        ended.wait(seconds)

    while not ended.wait(every_s):
        with contextlib.suppress(HotloopError, OSError):  # nothing was recorded yet, or the folder is gone
            for status in watch_capture(str(folder), every_s, sleep=wait):
                if ended.is_set():
                    return
                tell(f"hotloop: {progress_line(status, goal)}")


def progress_line(status: LiveStatus, goal: int | None = None) -> str:
    """`80.0 s  12,000 of 50,000 env steps  4 min 13 s left  150 env steps/s  env_step 61 %`."""
    from hotloop.report.top import top_lines

    elapsed, *rest = top_lines(status).splitlines()[0].split("  ")
    parts = [elapsed]
    if goal and status.env_steps:
        parts.append(f"{count(status.env_steps)} of {count(goal)} env steps")
        if status.env_steps_per_s and status.env_steps < goal:
            parts.append(f"{duration((goal - status.env_steps) / status.env_steps_per_s * 1e9)} left")
    elif status.env_steps:
        parts.append(f"{count(status.env_steps)} env steps")
    return "  ".join([*parts, *rest])


def goal_of(command: Sequence[str]) -> int | None:
    """Env steps that the script was told to make, by a flag such as --total-timesteps; None if none is."""
    words = [part for word in command for part in word.split("=", 1)]
    for flag, value in itertools.pairwise(words):
        if _GOAL.fullmatch(flag) and re.fullmatch(r"\d[\d_]*(?:\.0*)?(?:e\d+)?", value):
            return int(float(value.replace("_", "")))
    return None
