"""How a pipeline of collectors and a learner is doing, for people: lines as they scroll by, or a live view.

Two kinds of line. `[PROCESSOR]` tells of the way from the collectors into the replay, now and then; `[MAIN]`
of an epoch. On a terminal the newest `[PROCESSOR]` line and a bar for each collector are redrawn in place
under the epochs.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from hotloop._util.units import count, duration, percent
from hotloop.rl.collect.protocol import CollectorState


@dataclass(frozen=True, slots=True)
class Moment:
    """What the learner knows about the pipeline now."""

    env_steps: int
    """Transitions taken so far."""
    takes: int
    """Batches of experience taken."""
    buffer: int
    """Transitions in the replay."""
    seconds: float
    """Since the loop began."""
    steps_here: int
    """Transitions since the loop began."""
    batches_here: int
    """Batches learnt from since the loop began."""
    learning_s: float
    """Of the seconds, those in which the learner learnt."""
    collectors: CollectorState

    @property
    def busy(self) -> float:
        """Share of the time in which the learner learnt."""
        return self.learning_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch came to; None for what did not happen in it."""

    number: int
    seconds: float
    loss: float | None
    td_error: float | None
    mean_return: float | None
    distance: float | None
    epsilon: float
    buffer: int


def processor_line(now: Moment) -> str:
    """`[PROCESSOR] Processed: ..., Batches: ..., Drops: ..., Buffer: ..., Queue: ...` and what waits."""
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
        f"Collectors busy: {_share(collectors_busy(state))}",
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


def collectors_busy(state: CollectorState) -> float | None:
    """Mean share of their lives in which collectors did not wait; None before any has begun."""
    known = [share for share in state.collector_busy_fractions if share is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


class Monitor:
    """Writes the lines to stderr: redrawn in place on a terminal, every `every_s` elsewhere."""

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
        """Whether it is time to show how it goes; asked before a `Moment` is made, which costs a little."""
        return not self._quiet and self._clock() >= self._due_s

    def show(self, now: Moment) -> None:
        """How it goes now."""
        if self._quiet:
            return
        self._due_s = self._clock() + self._every_s
        if not self._live:
            self._write(f"{processor_line(now)}{self._said()}\n")
            return
        width = shutil.get_terminal_size((100, 24)).columns - 1
        self._write("".join(f"{line[:width]}\n" for line in live_lines(now, width, self._said())))
        self._drawn = len(live_lines(now, width))

    def epoch(self, done: Epoch, now: Moment) -> None:
        """An epoch has ended."""
        if not self._quiet:
            self._write(f"{main_line(done)}\n")
            self.show(now)

    def line(self, sentence: str) -> None:
        """A sentence of its own, such as about a collector that was started anew."""
        if not self._quiet:
            self._write(f"{sentence}\n")

    def close(self) -> None:
        """Leave the last view standing."""
        self._drawn = 0

    def _said(self) -> str:
        said = self._note() if self._note is not None else ""
        return f"  {said}" if said else ""

    def _write(self, text: str) -> None:
        erase = f"\033[{self._drawn}A\033[J" if self._drawn else ""
        self._drawn = 0
        self._stream.write(erase + text)
        self._stream.flush()


def live_lines(now: Moment, width: int = 100, note: str = "") -> list[str]:
    """The live view: rates, what waits, and a bar for each collector and for the queue."""
    state = now.collectors
    rate = now.steps_here / now.seconds if now.seconds > 0 else 0.0
    batches = now.batches_here / now.seconds if now.seconds > 0 else 0.0
    room = max(min(width - 34, 40), 8)
    lines = [
        processor_line(now),
        f"  {count(rate)} steps/s  {batches:.2f} batches/s{note}",
        f"  learner      {_bar(now.busy, room)} {percent(now.busy):>6} learning",
    ]
    for number, share in enumerate(state.collector_busy_fractions):
        known = 0.0 if share is None else share
        lines.append(f"  collector {number:<2} {_bar(known, room)} {_share(share):>6} busy")
    lines.append(f"  queue        {_bar(state.queue_fraction, room)} {percent(state.queue_fraction):>6} full")
    return lines


def _bar(share: float, room: int) -> str:
    filled = round(max(0.0, min(share, 1.0)) * room)
    return "#" * filled + "." * (room - filled)
