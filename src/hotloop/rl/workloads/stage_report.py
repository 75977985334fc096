"""Stages of a pipeline: a progress bar for each, and a report of what it did and where its time went."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from hotloop._util.units import count, duration, percent, size
from hotloop.machine.process_memory import ProcessMemory
from hotloop.rl.workloads.outcome import Note

BAR, LEAST_BAR = 24, 6  # characters; fewer where the line would not fit on the terminal


class StageBar:
    """Progress of a stage on stderr: a bar redrawn on a terminal, otherwise a line every 10 s.

    The time left follows from the rate since the first update: what comes before is mostly warm-up.
    """

    def __init__(
        self,
        name: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        quiet: bool = False,
        note: Note | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._name, self._total, self._unit, self._note, self._clock = name, total, unit, note, clock
        self._stream = sys.stderr if stream is None else stream
        self._quiet, self._redraw = quiet, self._stream.isatty()
        self._every_s = 0.1 if self._redraw else 10.0
        self._first = self._done = done
        self._began_s = clock()
        self._due_s = self._began_s + self._every_s
        self._words = ""
        self._first_update: tuple[float, int] | None = None  # when, and what was done then

    def update(self, done: int, words: str = "") -> None:
        """Set what is done in total, and draw the bar if it is due."""
        self._done, self._words = done, words
        now = self._clock()
        if self._first_update is None:
            self._first_update = now, done
        if not self._quiet and now >= self._due_s:
            self._due_s = now + self._every_s
            self._draw(now)

    def close(self) -> None:
        """Draw the last state and end the line."""
        if not self._quiet:
            self._draw(self._clock(), last=True)

    def _draw(self, now: float, last: bool = False) -> None:
        passed_s, here = max(now - self._began_s, 1e-9), self._done - self._first
        head = f"{count(self._done)} / {count(self._total)} {self._unit}"
        rate = left = ""
        if here:
            per_s, left_s = here / passed_s, self._left_s(now)
            rate = f"{count(per_s) if per_s >= 10 else f'{per_s:.1f}'}/s"
            if last:
                left = f"in {duration(1e9 * passed_s)}"
            elif left_s is not None:
                left = f"{duration(1e9 * left_s)} left"
        note = "" if self._note is None or last else self._note()
        # What to show: everything, or without what is least missed.
        shown = [
            (head, rate, left, self._words, note),
            (head, rate, left, self._words),
            (head, left, self._words),
        ]
        lines = ["  ".join(part for part in parts if part) for parts in shown]
        if self._redraw:  # a line that wraps cannot be drawn over
            room = shutil.get_terminal_size().columns - 1 - len(f"{self._name:<5} [] ")
            line = next((one for one in lines if len(one) <= room - LEAST_BAR), lines[-1])
            bar = self._bar(max(min(BAR, room - len(line)), LEAST_BAR))
            line = f"{self._name:<5} {bar} {line}"[: room + len(f"{self._name:<5} [] ")]
            text = f"\r\033[K{line}" + ("\n" if last else "")
        else:
            text = f"{self._name:<5} {self._bar(BAR)} {lines[0]}\n"
        with suppress(OSError):  # a closed pipe or a full disk is no reason to end a training
            self._stream.write(text)
            self._stream.flush()

    def _bar(self, width: int) -> str:
        filled = min(width * self._done // max(self._total, 1), width)
        return f"[{'#' * filled}{'.' * (width - filled)}]"

    def _left_s(self, now: float) -> float | None:
        """Seconds that the rest will take; None while it is not known."""
        if self._first_update is None:
            return None
        since_s, since = self._first_update
        if not since < self._done < self._total or now <= since_s:
            return None
        return (self._total - self._done) * (now - since_s) / (self._done - since)


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a stage did and where its time went."""

    stage: str
    """demos, bc or rl."""
    summary: str
    """The work and its rate in one sentence."""
    seconds: float
    """Wall time of the work, without start-up and compilation."""
    parts_s: dict[str, float]
    """Seconds by part, the rest as `other`; they add up to `parts_of_s`."""
    parts_of_s: float
    """The time that was split: wall time, or the time of all workers together."""
    parts_of: str
    """Which of the two, in words."""
    remarks: tuple[str, ...]
    """Further sentences for the user."""
    work: float = 0.0
    """Env steps, or samples cloned."""
    worker_memory: ProcessMemory | None = None
    """Of the worker process with most memory; None without worker processes, or when unknown."""


def split(parts_s: dict[str, float], whole_s: float) -> dict[str, float]:
    """The parts, and the rest of the whole as `other`."""
    return {**parts_s, "other": max(whole_s - sum(parts_s.values()), 0.0)}


def nothing_done(stopped_by: str | None, what: str) -> str:
    """The summary of a stage that did nothing; `what` is a unit of its work."""
    return "nothing was left to do" if stopped_by is None else f"stopped before the first {what} was done"


def report_lines(report: StageReport) -> list[str]:
    """The report as lines of at most 100 characters."""
    whole = max(report.parts_of_s, 1e-12)
    shares = sorted(report.parts_s.items(), key=lambda part: (part[0] == "other", -part[1]))
    shown = ", ".join(f"{name} {percent(seconds / whole)}" for name, seconds in shares)
    lines = [f"{report.stage}: {report.summary}"]
    if report.work:
        lines.append(f"  {report.parts_of}: {shown}")
    if report.worker_memory is not None:
        memory = report.worker_memory
        own = size(memory.private_bytes)
        lines.append(f"  memory per worker: {size(memory.resident_bytes)}, {own} of it private")
    return lines + [f"  {remark}" for remark in report.remarks]


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    """Columns of text, the first aligned left, the others right."""
    cells = [tuple(str(cell) for cell in row) for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
