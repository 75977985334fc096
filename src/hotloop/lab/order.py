"""In which order to run: complete blocks in random order, then the sizes of a scale check.

Pure functions of the plan and of what was run already, so that a series resumes as if it had never
been interrupted, and its order can be checked afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from hotloop.capture.plan import Plan
from hotloop.capture.series import Run, Series


@dataclass(frozen=True, slots=True)
class Slot:
    """One run to be made."""

    variant: str
    block: int
    position: int
    seed: int
    size: int | None
    scale: bool = False
    group: int = 0


def block_slots(plan: Plan, block: int, variants: Iterable[str]) -> list[Slot]:
    """Every variant once, in random order, with one seed; for two variants this is a coin flip.

    With `neighbours`, so many at a time have a run of the baseline among them.
    """
    base = plan.baseline.name
    others = [name for name in variants if name != base]
    shuffle = random.Random(f"{plan.order_seed}/{block}").shuffle
    shuffle(others)
    each = plan.neighbours or len(others)
    groups = [[base, *others[at : at + each]] for at in range(0, len(others), each)]
    for names in groups:
        shuffle(names)
    size = plan.size if plan.size is not None else plan.sizes[0] if plan.sizes else None
    placed = [(name, group) for group, names in enumerate(groups) for name in names]
    seed = plan.seed_of(block)
    return [Slot(name, block, at, seed, size, group=group) for at, (name, group) in enumerate(placed)]


def scale_slots(plan: Plan, repeat: int) -> list[Slot]:
    """Every size of the scale check once, in random order."""
    sizes = list(plan.sizes)
    random.Random(f"{plan.order_seed}/scale/{repeat}").shuffle(sizes)
    name = plan.baseline.name
    return [Slot(name, repeat, at, plan.seed_of(repeat), size, True) for at, size in enumerate(sizes)]


def next_block(series: Series) -> int:
    """The block to run next. A block that was cut off is left as it is: its runs were apart in time."""
    return max((run.block + 1 for run in series.runs if not run.scale), default=0)


def usable_blocks(series: Series) -> list[list[Run]]:
    """Runs that ended as they should, by block, where the baseline and another variant did."""
    blocks: dict[int, list[Run]] = {}
    for run in series.runs:
        if not run.scale and run.ok:
            blocks.setdefault(run.block, []).append(run)
    base = series.plan.baseline.name
    return [
        runs
        for _, runs in sorted(blocks.items())
        if {run.group for run in runs if run.variant == base}
        & {run.group for run in runs if run.variant != base}
    ]


def missing_sizes(series: Series, repeat: int) -> list[Slot]:
    """What is left of one round of the scale check."""
    done = {run.size for run in series.runs if run.scale and run.ok and run.block == repeat}
    return [slot for slot in scale_slots(series.plan, repeat) if slot.size not in done]
