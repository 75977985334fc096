"""The result of an investigation: variants ranked by measured gain, with their work and learning checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hotloop.analysis.findings import Estimate
from hotloop.analysis.rank_intervals import hodges_lehmann, signed_rank_interval
from hotloop.analysis.stopping_rule import LEAST_PAIRS, robust_sd
from hotloop.analysis.verdict import VariantVerdict, Verdict
from hotloop.analysis.work_counters import WorkDifference

RETURN_TOLERANCE = 0.10  # relative to the size of A's returns

LearningWord = Literal["worse", "better", "not_worse", "undecided"]
_ORDER = {"faster": 0, "undecided": 1, "no_difference": 2, "slower": 3}


@dataclass(frozen=True, slots=True)
class LearningVerdict:
    """Returns of B against those of A, in pairs with the same seed."""

    word: LearningWord
    pairs: int
    difference: Estimate | None  # return of B - return of A; None: too few pairs for an interval
    a_median: float | None  # None: no returns
    b_median: float | None
    tolerance: float  # in units of the return; a smaller loss does not count
    summary: str  # `not worse: 2.1 [-0.4, 4.6]`


@dataclass(frozen=True, slots=True)
class RankedRow:
    """One variant of an investigation."""

    name: str
    expected: str  # what the plan says to expect, "" for nothing
    safety: str  # "safe", "semantic" or ""
    verdict: Verdict
    work: tuple[WorkDifference, ...] | None  # counters that differ; None: the runs counted nothing
    learning: LearningVerdict | None  # None: no returns were reported
    note: str = ""  # for example that runs failed


@dataclass(frozen=True, slots=True)
class RankedTable:
    """All variants, best first."""

    baseline: str
    blocks: int
    rows: tuple[RankedRow, ...]
    combination: RankedRow | None  # several variants together, measured in separate runs
    noise_floor: float | None  # the largest of the variants' noise floors
    tolerance: float
    summary: str  # one sentence


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """What is known about a variant besides its times."""

    expected: str = ""
    safety: str = ""
    work: tuple[WorkDifference, ...] | None = None
    learning: LearningVerdict | None = None
    note: str = ""


def compare_returns(
    pairs: Sequence[tuple[float, float]], *, tolerance: float = RETURN_TOLERANCE, level: float = 0.05
) -> LearningVerdict:
    """Whether B learns worse than A, from the differences of their returns with the same seed.

    `tolerance` is a fraction of the median absolute return of A (of the spread of its returns when that is
    0).
    """
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    n = len(table)
    if not n:
        return LearningVerdict("undecided", 0, None, None, None, math.nan, "no returns to compare")
    a, b = table[:, 0], table[:, 1]
    size = float(np.median(np.abs(a))) or robust_sd(a) or 0.0
    margin = tolerance * size
    ends = signed_rank_interval(b - a, level) if n >= LEAST_PAIRS else None
    if ends is None and n >= LEAST_PAIRS:  # five pairs: complete separation, as for times
        ends = float(b.min() - a.max()), float(b.max() - a.min())
    medians = float(np.median(a)), float(np.median(b))
    if ends is None:
        said = f"undecided: {n} of the {LEAST_PAIRS} pairs needed"
        return LearningVerdict("undecided", n, None, *medians, margin, said)
    found = Estimate(hodges_lehmann(b - a), *ends)
    word: LearningWord = "undecided"
    if found.high < 0:
        word = "worse"
    elif found.low > 0:
        word = "better"
    elif found.low >= -margin:
        word = "not_worse"
    said = f"{word.replace('_', ' ')}: {found.value:+.3g} [{found.low:.3g}, {found.high:.3g}]"
    return LearningVerdict(word, n, found, *medians, margin, said)


def rank(
    variants: Sequence[VariantVerdict],
    baseline: str,
    blocks: int,
    facts: Mapping[str, VariantFacts] | None = None,
    combination: str | None = None,
) -> RankedTable:
    """Sort variants: faster first (largest gain first), then undecided, no difference, slower.

    `combination` names the variant that combines others; it is listed separately.
    """
    known = facts or {}
    rows = [_row(v, known.get(v.name, VariantFacts())) for v in variants]
    rows.sort(key=lambda row: (_ORDER[row.verdict.word], _change(row.verdict), row.name))
    combined = next((row for row in rows if row.name == combination), None)
    rows = [row for row in rows if row is not combined]
    floors = [v.verdict.noise_floor for v in variants if v.verdict.noise_floor is not None]
    tolerance = max((v.verdict.tolerance for v in variants), default=0.0)
    floor = max(floors, default=None)
    return RankedTable(baseline, blocks, tuple(rows), combined, floor, tolerance, _summary(rows, combined))


def _row(variant: VariantVerdict, facts: VariantFacts) -> RankedRow:
    return RankedRow(
        name=variant.name,
        expected=facts.expected,
        safety=facts.safety,
        verdict=variant.verdict,
        work=facts.work,
        learning=facts.learning,
        note=facts.note,
    )


def _change(verdict: Verdict) -> float:
    return math.inf if verdict.change is None else verdict.change.value


def _summary(rows: list[RankedRow], combined: RankedRow | None) -> str:
    faster = [row for row in rows if row.verdict.word == "faster"]
    undecided = sum(row.verdict.word == "undecided" for row in rows)
    if faster:
        said = f"The largest gain is {faster[0].name}: {faster[0].verdict.summary}"
        if len(faster) > 1:
            said += f"; {len(faster) - 1} more {'is' if len(faster) == 2 else 'are'} faster"
    else:
        said = "No variant is clearly faster than the baseline"
    if combined is not None:
        said += f"; combined ({combined.name}): {combined.verdict.summary}"
    if undecided:
        said += f"; {undecided} {'is' if undecided == 1 else 'are'} undecided"
    return f"{said}."
