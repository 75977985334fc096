"""`hotloop.arm`: an A/B test inside any loop; the verdict is printed when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hotloop.measure.inline_ab import SEGMENT_S, Segment, VariantRotation, append_to_capture, read_segments

if TYPE_CHECKING:
    from hotloop.analysis.verdict import VariantVerdict

Unit = Literal["env step", "iteration"]

_running: dict[tuple[str, ...], VariantRotation] = {}


@dataclass(frozen=True, slots=True)
class ArmsVerdict:
    """Every variant against the first."""

    baseline: str
    unit: Unit  # what the times are per
    blocks: int
    variants: tuple[VariantVerdict, ...]


def arm(*names: str, segment_s: float = SEGMENT_S, seed: int = 0) -> str:
    """Which of the variants to run now; call it once at the top of each iteration, from one thread.

    Variants take turns of `segment_s` seconds in random order. The first name is the baseline. At the
    end of the program the verdict goes to stderr: time per env step where steps are recorded, else per
    iteration.
    """
    arms = _running.get(names)
    if arms is None:
        made = VariantRotation(
            names, clock=time.perf_counter_ns, segment_s=segment_s, seed=seed, keep=append_to_capture
        )
        if not _running:
            atexit.register(_print_verdicts, os.getpid())
        arms = _running[names] = made
    return arms.next_variant()


def read_arms(folder: str | os.PathLike[str]) -> dict[tuple[str, ...], list[Segment]]:
    """The segments in a capture, by the names that took turns."""
    found: dict[tuple[str, ...], list[Segment]] = {}
    for segment in read_segments(Path(folder)):
        found.setdefault(segment.arms, []).append(segment)
    return found


def verdict_of(segments: Sequence[Segment]) -> ArmsVerdict | None:
    """Each variant against the first, judged once, by complete blocks; None without segments."""
    from hotloop.analysis.stopping_rule import one_look
    from hotloop.analysis.verdict import decide_blocks

    if not segments:
        return None
    baseline, *others = segments[0].arms
    counted = all(segment.env_steps for segment in segments)
    blocks: dict[int, dict[str, float]] = {}
    for segment in segments:
        work = segment.env_steps if counted and segment.env_steps else segment.iterations
        blocks.setdefault(segment.block, {})[segment.variant] = segment.seconds / work
    whole = [block for block in blocks.values() if len(block) == len(others) + 1]
    decision = decide_blocks(whole, baseline, others, schedule=one_look(len(whole)), final=True)
    return ArmsVerdict(baseline, "env step" if counted else "iteration", len(whole), decision.variants)


def arms_text(found: ArmsVerdict) -> str:
    """The verdicts in words."""
    from hotloop.report.verdict import verdict_text

    texts = []
    for row in found.variants:
        note = f"time per {found.unit}; {found.blocks} blocks of segments inside one process."
        texts.append(verdict_text(row.verdict, a=found.baseline, b=row.name, notes=(note,)))
    return "\n".join(texts)


def _print_verdicts(pid: int) -> None:
    """At exit; a forked child that gets here has nothing to say."""
    if os.getpid() != pid:
        return
    for arms in _running.values():
        found = verdict_of(arms.segments)
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed by now
            if found is None:
                names = ", ".join(arms.names)
                print(f"hotloop: arm({names}): the loop ended before the first segment did", file=sys.stderr)
            else:
                print(f"hotloop: {arms_text(found)}", file=sys.stderr)
