"""`hotloop.arm`: says which variant a loop is to run now, switching often, and times each stretch.

A stretch of one variant is a segment. Segments come in blocks: every variant once, in random order (for
two variants a coin flip). What this gives is raw; who judges it is told in `workflows/arm.py`.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.measure.profiler import default

SEGMENT_S = 0.3
FILE = "arms.jsonl"
Work = tuple[int, int]  # env steps and updates since the recording began


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of one variant; the first iteration after a switch is not in it."""

    arms: tuple[str, ...]  # all variants, as they were named
    variant: str
    block: int
    seconds: float
    iterations: int
    env_steps: int | None  # None: nothing was recorded
    updates: int | None


def recorded_work() -> Work | None:
    """What the default profiler has counted so far; None when it does not record."""
    if not default.is_recording:
        return None
    progress = default.capture().progress
    return progress.env_steps, progress.updates


class VariantRotation:
    """The turns of some variants in one loop."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        clock: Callable[[], int],
        segment_s: float = SEGMENT_S,
        seed: int = 0,
        work: Callable[[], Work | None] = recorded_work,
        keep: Callable[[Segment], None] = lambda segment: None,
    ):
        """`clock` gives nanoseconds, `work` what was counted so far; `keep` is handed each segment."""
        if len(set(names)) < 2 or len(set(names)) < len(names):
            raise HotloopError(f"arm{names!r} needs two or more different names, as in arm('a', 'b').")
        if not segment_s > 0:
            raise HotloopError(f"segment_s is {segment_s:g}; it must be above 0 (0.3 is usual).")
        self.names = names
        self.segments: list[Segment] = []
        self._clock = clock
        self._segment_ns = round(segment_s * 1e9)
        self._seed = seed
        self._read_work = work
        self._keep = keep
        self._block = -1
        self._left: list[str] = []
        self._start_ns = 0
        self._start_work: Work | None = None
        self._iterations = -2  # -2: not called yet; -1: the iteration under way is dropped; else: counted
        self._current = self._draw()

    def next_variant(self) -> str:
        """The variant for the iteration that begins now."""
        if self._iterations < 0:
            self._iterations += 1
            if self._iterations == 0:
                self._begin()
            return self._current
        self._iterations += 1
        now_ns = self._clock()
        if now_ns - self._start_ns >= self._segment_ns:
            self._end(now_ns)
            self._current = self._draw()
            self._iterations = -1
        return self._current

    def _begin(self) -> None:
        self._start_work = self._read_work()
        self._start_ns = self._clock()  # after the reading, which takes a millisecond

    def _end(self, now_ns: int) -> None:
        work, began = self._read_work(), self._start_work
        known = work is not None and began is not None
        segment = Segment(
            arms=self.names,
            variant=self._current,
            block=self._block,
            seconds=(now_ns - self._start_ns) / 1e9,
            iterations=self._iterations,
            env_steps=work[0] - began[0] if known and work and began else None,
            updates=work[1] - began[1] if known and work and began else None,
        )
        self.segments.append(segment)
        self._keep(segment)

    def _draw(self) -> str:
        if not self._left:
            self._block += 1
            self._left = list(self.names)
            random.Random(f"{self._seed}/{self._block}").shuffle(self._left)
        return self._left.pop()


def append_to_capture(segment: Segment) -> None:
    """Add a segment to the capture that is being recorded; without one, or with a full disk, nothing."""
    folder = default.folder if default.is_recording else None
    if folder is None:
        return
    try:
        with open(folder / FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(segment)) + "\n")
    except OSError:
        return  # it is still in memory


def read_segments(folder: Path) -> list[Segment]:
    """The segments in a capture, in their order; a last line that was cut off is left out."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            row: dict[str, Any] = json.loads(line)
            found.append(Segment(**(row | {"arms": tuple(row["arms"])})))
        except (ValueError, TypeError, KeyError):
            continue
    return found
