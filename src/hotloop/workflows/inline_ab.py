"""`hotloop.arm`: an A/B test inside any loop; the verdict is printed when the program ends.

Variants take turns in segments. Segments come in blocks: every variant once, in random order (for two
variants a coin flip). The first iteration after a switch belongs to no segment.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hotloop._util import strict_json
from hotloop._util.errors import HotloopError
from hotloop._util.interrupts import suppress_own
from hotloop.measure.profiler import default

if TYPE_CHECKING:
    from hotloop.analysis.verdict import VariantVerdict

SEGMENT_S = 0.3
FILE = "arms.jsonl"  # in the capture, if there is one
Unit = Literal["env step", "iteration"]
Work = tuple[int, int]  # env steps and updates since the recording began


def arm(*names: str, segment_s: float = SEGMENT_S, seed: int = 0) -> str:
    """The variant to run now; call it once at the top of each iteration, always from the same thread.

    Variants take turns of `segment_s` seconds in random order (`seed`). The first name is the baseline. At
    the end of the program the verdict goes to stderr: time per env step if steps are recorded, otherwise per
    iteration. Raises HotloopError for fewer than two different names.
    """
    test = _running.get(names)
    if test is None:
        test = VariantRotation(
            names, clock=time.perf_counter_ns, segment_s=segment_s, seed=seed, save=append_to_capture
        )
        if not _running:
            atexit.register(_print_verdicts, os.getpid())
        _running[names] = test
    return test.next_variant()


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of iterations of one variant."""

    variants: tuple[str, ...]  # all variants of the test, as named
    variant: str
    block: int
    seconds: float
    iterations: int
    env_steps: int | None  # None: nothing was recorded
    updates: int | None


def recorded_work() -> Work | None:
    """What the default profiler has counted so far; None when it is not recording."""
    if not default.is_recording:
        return None
    progress = default.capture().progress
    return progress.env_steps, progress.updates


class VariantRotation:
    """The turns of the variants in one loop."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        clock: Callable[[], int],
        segment_s: float = SEGMENT_S,
        seed: int = 0,
        work: Callable[[], Work | None] = recorded_work,
        save: Callable[[Segment], None] = lambda segment: None,
    ):
        """`clock` returns nanoseconds, `work` what was counted so far; `save` is called for each segment."""
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
        self._save = save
        self._block = -1
        self._remaining: list[str] = []  # variants of the block that had no segment yet
        self._start_ns = 0
        self._start_work: Work | None = None
        self._iterations = -2  # -2: not called yet; -1: in the dropped iteration; otherwise the count
        self._current = self._take_variant()

    def next_variant(self) -> str:
        """The variant for the iteration that begins now."""
        if self._iterations < 0:
            self._iterations += 1
            if self._iterations == 0:
                self._begin_segment()
            return self._current
        self._iterations += 1
        now_ns = self._clock()
        if now_ns - self._start_ns >= self._segment_ns:
            self._end_segment(now_ns)
            self._current = self._take_variant()
            self._iterations = -1
        return self._current

    def _begin_segment(self) -> None:
        self._start_work = self._read_work()
        self._start_ns = self._clock()  # after reading the work, which takes a millisecond

    def _end_segment(self, now_ns: int) -> None:
        work, began = self._read_work(), self._start_work
        known = work is not None and began is not None
        segment = Segment(
            variants=self.names,
            variant=self._current,
            block=self._block,
            seconds=(now_ns - self._start_ns) / 1e9,
            iterations=self._iterations,
            env_steps=work[0] - began[0] if known and work and began else None,
            updates=work[1] - began[1] if known and work and began else None,
        )
        self.segments.append(segment)
        self._save(segment)

    def _take_variant(self) -> str:
        if not self._remaining:
            self._block += 1
            self._remaining = list(self.names)
            random.Random(f"{self._seed}/{self._block}").shuffle(self._remaining)
        return self._remaining.pop()


_running: dict[tuple[str, ...], VariantRotation] = {}  # by the names of the variants


def append_to_capture(segment: Segment) -> None:
    """Append a segment to the capture being recorded, if there is one; a full disk is ignored."""
    folder = default.folder if default.is_recording else None
    if folder is None:
        return
    with suppress_own(OSError), open(folder / FILE, "a", encoding="utf-8") as file:
        file.write(strict_json.dumps(dataclasses.asdict(segment)) + "\n")


# -- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InlineVerdict:
    """Every variant against the first."""

    baseline: str
    unit: Unit  # of the times
    blocks: int
    variants: tuple[VariantVerdict, ...]


def judge_segments(segments: Sequence[Segment]) -> InlineVerdict | None:
    """Compare each variant with the first, using complete blocks only; None without segments."""
    # Loaded at the end of the program only: a training loop should not pay for it.
    from hotloop.analysis.stopping_rule import one_look
    from hotloop.analysis.verdict import decide_blocks

    if not segments:
        return None
    baseline, *others = segments[0].variants
    counted = all(segment.env_steps for segment in segments)
    blocks: dict[int, dict[str, float]] = {}
    for segment in segments:
        work = segment.env_steps if counted and segment.env_steps else segment.iterations
        blocks.setdefault(segment.block, {})[segment.variant] = segment.seconds / work
    whole = [block for block in blocks.values() if len(block) == len(others) + 1]
    decision = decide_blocks(whole, baseline, others, schedule=one_look(len(whole)), final=True)
    return InlineVerdict(baseline, "env step" if counted else "iteration", len(whole), decision.variants)


def verdict_lines(found: InlineVerdict) -> str:
    """The verdicts as text."""
    from hotloop.report.verdict import verdict_text  # see `judge_segments`

    texts = []
    for row in found.variants:
        note = f"time per {found.unit}; {found.blocks} blocks of segments inside one process."
        texts.append(verdict_text(row.verdict, a=found.baseline, b=row.name, notes=(note,)))
    return "\n".join(texts)


def _print_verdicts(pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child
    for test in _running.values():
        found = judge_segments(test.segments)
        with suppress_own(OSError, ValueError):  # stderr may be closed by now
            if found is None:
                names = ", ".join(test.names)
                print(f"hotloop: arm({names}): the loop ended before the first segment", file=sys.stderr)
            else:
                print(f"hotloop: {verdict_lines(found)}", file=sys.stderr)
