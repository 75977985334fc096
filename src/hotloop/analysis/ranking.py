"""The end of an investigation: suspects ranked by what was measured, with work and learning checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hotloop.analysis.diff import WorkDifference
from hotloop.analysis.findings import Estimate
from hotloop.analysis.rank_intervals import hodges_lehmann, signed_rank_interval
from hotloop.analysis.stopping_rule import LEAST_PAIRS, robust_sd
from hotloop.analysis.verdict import VariantVerdict, Verdict

RETURN_TOLERANCE = 0.10  # of the size of A's returns
WORK_TOLERANCE = 0.01  # counters closer than this are the same work

LearningWord = Literal["worse", "better", "not worse", "undecided"]
_ORDER = {"faster": 0, "undecided": 1, "no difference": 2, "slower": 3}


@dataclass(frozen=True, slots=True)
class LearningVerdict:
    """Returns of B against those of A, pairs with the same seed."""

    word: LearningWord
    pairs: int
    difference: Estimate | None  # return of B - return of A; None: too few pairs for an interval
    a_median: float | None  # None: no returns
    b_median: float | None
    tolerance: float  # in units of the return: a loss smaller than this does not count
    says: str  # `not worse: 2.1 [-0.4, 4.6]`


@dataclass(frozen=True, slots=True)
class RankedRow:
    """One suspect of an investigation."""

    name: str
    expected: str  # what the plan expected, in its own words; "" for nothing
    safety: str  # "safe", "semantic" or ""
    verdict: Verdict
    work: tuple[WorkDifference, ...] | None  # counters that differ; None: the runs counted nothing
    learning: LearningVerdict | None  # None: no returns were reported
    note: str = ""  # for example why runs are missing


@dataclass(frozen=True, slots=True)
class RankedTable:
    """All suspects, best first."""

    baseline: str
    blocks: int
    rows: tuple[RankedRow, ...]
    combination: RankedRow | None  # the best combination that was tried
    noise_floor: float | None  # the largest of the suspects' floors
    tolerance: float
    says: str  # one sentence


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """What an investigation knows about a suspect beside its times."""

    expected: str = ""
    safety: str = ""
    work: tuple[WorkDifference, ...] | None = None
    learning: LearningVerdict | None = None
    note: str = ""


def compare_returns(
    pairs: Sequence[tuple[float, float]], *, tolerance: float = RETURN_TOLERANCE, level: float = 0.05
) -> LearningVerdict:
    """Whether B learns worse than A: returns of A and B with the same seed, as differences.

    `tolerance` is a fraction of the median size of A's returns (of their spread when that is 0).
    """
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    n = len(table)
    if not n:
        return LearningVerdict("undecided", 0, None, None, None, math.nan, "no returns to compare")
    a, b = table[:, 0], table[:, 1]
    size = float(np.median(np.abs(a))) or robust_sd(a) or 0.0
    edge = tolerance * size
    ends = signed_rank_interval(b - a, level) if n >= LEAST_PAIRS else None
    if ends is None and n >= LEAST_PAIRS:  # five pairs: as for times, all B on one side of all A
        ends = float(b.min() - a.max()), float(b.max() - a.min())
    medians = float(np.median(a)), float(np.median(b))
    if ends is None:
        said = f"undecided: {n} {'pair' if n == 1 else 'pairs'}, {LEAST_PAIRS} are needed"
        return LearningVerdict("undecided", n, None, *medians, edge, said)
    found = Estimate(hodges_lehmann(b - a), *ends)
    word: LearningWord = "undecided"
    if found.high < 0:
        word = "worse"
    elif found.low > 0:
        word = "better"
    elif found.low >= -edge:
        word = "not worse"
    said = f"{word}: {found.value:+.3g} [{found.low:.3g}, {found.high:.3g}]"
    return LearningVerdict(word, n, found, *medians, edge, said)


def work_differences(
    runs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], tolerance: float = WORK_TOLERANCE
) -> tuple[WorkDifference, ...] | None:
    """Work counters that differ by more than `tolerance`: their medians over the pairs of runs.

    Each pair is the counters of the run of A and of that of B, by name. None when nothing was counted
    in any run, so that "the same work" is never said of work nobody counted.
    """
    names = dict.fromkeys(name for a, b in runs for name in (*a, *b))
    found, counted = [], False
    for name in names:
        both = [(a[name], b[name]) for a, b in runs if name in a and name in b]
        if not both or not any(one or two for one, two in both):
            continue
        counted = True
        one, two = (float(np.median([pair[side] for pair in both])) for side in (0, 1))
        if abs(two - one) > tolerance * max(abs(one), abs(two)):
            found.append(WorkDifference(name, one, two, two / one if one else None))
    return tuple(found) if counted else None


def rank(
    variants: Sequence[VariantVerdict],
    baseline: str,
    blocks: int,
    beside: Mapping[str, VariantFacts] | None = None,
    combination: str | None = None,
) -> RankedTable:
    """Suspects by measured gain: clear gains first, then undecided, no difference, slower.

    `combination` is the name of the variant that combines others; it stands apart.
    """
    known = beside or {}
    rows = [_row(v, known.get(v.name, VariantFacts())) for v in variants]
    rows.sort(key=lambda row: (_ORDER[row.verdict.word], _change(row.verdict), row.name))
    combined = next((row for row in rows if row.name == combination), None)
    rows = [row for row in rows if row is not combined]
    floors = [v.verdict.noise_floor for v in variants if v.verdict.noise_floor is not None]
    tolerance = max((v.verdict.tolerance for v in variants), default=0.0)
    floor = max(floors, default=None)
    return RankedTable(baseline, blocks, tuple(rows), combined, floor, tolerance, _says(rows, combined))


def _row(variant: VariantVerdict, beside: VariantFacts) -> RankedRow:
    return RankedRow(
        name=variant.name,
        expected=beside.expected,
        safety=beside.safety,
        verdict=variant.verdict,
        work=beside.work,
        learning=beside.learning,
        note=beside.note,
    )


def _change(verdict: Verdict) -> float:
    return math.inf if verdict.change is None else verdict.change.value


def _says(rows: list[RankedRow], combined: RankedRow | None) -> str:
    clear = [row for row in rows if row.verdict.word == "faster"]
    undecided = sum(row.verdict.word == "undecided" for row in rows)
    if clear:
        said = f"The largest gain is {clear[0].name}: {clear[0].verdict.says}"
        if len(clear) > 1:
            said += f"; {len(clear) - 1} more {'gains' if len(clear) == 2 else 'gain'}"
    else:
        said = "No suspect is clearly faster than the baseline"
    if combined is not None:
        said += f"; together ({combined.name}): {combined.verdict.says}"
    if undecided:
        said += f"; {undecided} {'is' if undecided == 1 else 'are'} undecided"
    return f"{said}."
