"""How collectors and learner of a run are doing, as text for people.

Two kinds of line: `[PROCESSOR]` shows the way from the collectors to the replay buffer, `[MAIN]` an epoch. On
a terminal, the latest `[PROCESSOR]` line is redrawn in place below the epochs, with a bar for each collector.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from hotloop._util.units import count, duration, percent
from hotloop.rl.collect.protocol import CollectorState


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the learner knows about the pipeline at one moment."""

    env_steps: int
    """Transitions taken so far."""
    takes: int
    """Batches of experience taken so far."""
    buffer: int
    """Transitions in the replay buffer."""
    seconds: float
    """Time since the loop began."""
    loop_env_steps: int
    """Transitions taken since then."""
    loop_batches: int
    """Batches learned from since then."""
    learning_s: float
    """Time spent learning since then."""
    collectors: CollectorState

    @property
    def busy(self) -> float:
        """Fraction of the loop in which the learner learned."""
        return self.learning_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """The figures of an epoch; None for what did not happen in it."""

    number: int
    seconds: float
    loss: float | None
    td_error: float | None
    mean_return: float | None
    distance: float | None
    epsilon: float
    buffer: int


def processor_line(now: Pipeline) -> str:
    """`[PROCESSOR] Processed: ..., Batches: ..., Drops: ..., Buffer: ..., Queue: ...`, then waits."""
    state = now.collectors
    words = [
        f"Processed: {now.env_steps:,}",
        f"Batches: {now.takes:,}",
        f"Drops: {state.dropped:,}",
        f"Buffer: {now.buffer:,}",
        f"Queue: {state.queued:,}",
        f"Learner busy: {percent(now.busy)}",
        f"Lock wait: {duration(state.lock_wait_s * 1e9) if state.lock_wait_s else '0 s'}",
        f"Stale: {_number(state.versions_behind, 1)}",
        f"Collectors busy: {_fraction(mean_busy_fraction(state))}",
    ]
    return f"[PROCESSOR] {', '.join(words)}"


def main_line(epoch: Epoch) -> str:
    """`[MAIN] Epoch n - Loss: ..., TD Error: ..., Reward: ..., Distance: ..., Epsilon: ..., Buffer: ...`."""
    words = [
        f"Loss: {_number(epoch.loss, 4)}",
        f"TD Error: {_number(epoch.td_error, 4)}",
        f"Reward: {_number(epoch.mean_return, 1)}",
        f"Distance: {_number(epoch.distance, 0)}",
        f"Epsilon: {epoch.epsilon:.3f}",
        f"Buffer: {epoch.buffer:,}",
        f"Time: {duration(epoch.seconds * 1e9)}",
    ]
    return f"[MAIN] Epoch {epoch.number} - {', '.join(words)}"


def mean_busy_fraction(state: CollectorState) -> float | None:
    """Mean fraction of their time in which collectors did not wait; None before any has begun."""
    known = [fraction for fraction in state.collector_busy_fractions if fraction is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else percent(value)


class Monitor:
    """Writes the lines to stderr: redrawn in place on a terminal, otherwise every `every_s`."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        note: Callable[[], str] | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        every_s: float = 10.0,
    ):
        self._stream = sys.stderr if stream is None else stream
        self._quiet, self._note, self._clock = quiet, note, clock
        self._live = self._stream.isatty()
        self._every_s = 0.25 if self._live else every_s
        self._due_s = clock() + self._every_s
        self._drawn = 0

    @property
    def due(self) -> bool:
        """Whether to call `show` now; ask before making a `Pipeline`, which is not free."""
        return not self._quiet and self._clock() >= self._due_s

    def show(self, now: Pipeline) -> None:
        if self._quiet:
            return
        self._due_s = self._clock() + self._every_s
        if not self._live:
            self._write(f"{processor_line(now)}{self._words()}\n")
            return
        width = shutil.get_terminal_size((100, 24)).columns - 1
        self._write("".join(f"{line[:width]}\n" for line in live_lines(now, width, self._words())))
        self._drawn = len(live_lines(now, width))

    def epoch(self, epoch: Epoch, now: Pipeline) -> None:
        """Write the line of a finished epoch."""
        if not self._quiet:
            self._write(f"{main_line(epoch)}\n")
            self.show(now)

    def line(self, sentence: str) -> None:
        """Write a sentence about a problem, such as that a collector was restarted; also when quiet."""
        self._write(f"{sentence}\n")

    def close(self) -> None:
        """Leave what was drawn last on the screen."""
        self._drawn = 0

    def _words(self) -> str:
        words = self._note() if self._note is not None else ""
        return f"  {words}" if words else ""

    def _write(self, text: str) -> None:
        erase = f"\033[{self._drawn}A\033[J" if self._drawn else ""
        self._drawn = 0
        with contextlib.suppress(OSError):  # a closed pipe or a full disk is no reason to end a training
            self._stream.write(erase + text)
            self._stream.flush()


def live_lines(now: Pipeline, width: int = 100, note: str = "") -> list[str]:
    """What is redrawn on a terminal: rates, and bars for the learner, each collector and the queue."""
    state = now.collectors
    rate = now.loop_env_steps / now.seconds if now.seconds > 0 else 0.0
    batches = now.loop_batches / now.seconds if now.seconds > 0 else 0.0
    room = max(min(width - 34, 40), 8)
    lines = [
        processor_line(now),
        f"  {count(rate)} steps/s  {batches:.2f} batches/s{note}",
        f"  learner      {_bar(now.busy, room)} {percent(now.busy):>6} learning",
    ]
    for number, fraction in enumerate(state.collector_busy_fractions):
        known = 0.0 if fraction is None else fraction
        lines.append(f"  collector {number:<2} {_bar(known, room)} {_fraction(fraction):>6} busy")
    lines.append(f"  queue        {_bar(state.queue_fraction, room)} {percent(state.queue_fraction):>6} full")
    return lines


def _bar(fraction: float, room: int) -> str:
    filled = round(max(0.0, min(fraction, 1.0)) * room)
    return "#" * filled + "." * (room - filled)
