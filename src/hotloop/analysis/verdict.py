"""Verdicts on paired runs: faster, slower, no difference, or undecided.

The lab runs pairs (A and B next to each other in time, in random order), passes their times per unit of
work to `decide` after each pair, and continues or stops with the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.units import counted
from hotloop.analysis.findings import Estimate
from hotloop.analysis.rank_intervals import (
    differences,
    hodges_lehmann,
    rank_sum_interval,
    signed_rank_interval,
)
from hotloop.analysis.stopping_rule import (
    LEAST_PAIRS,
    RUNS,
    Schedule,
    noise_floor,
    pairs_needed,
    robust_sd,
)

TOO_NOISY = 10  # more than this many times the pairs the budget paid for: no use asking for more
TOLERANCE = 0.03  # smaller differences do not matter

Word = Literal["faster", "slower", "no_difference", "undecided"]
DecidedBy = Literal["wall_time", "cpu_time"]
# How the interval was computed. signed_rank: exact signed-rank test of the pairs. complete_separation: with
# 5 to 7 pairs (or at a strict level), from the smallest to the largest ratio of any B to any A of the same
# node. rank_sum: exact rank-sum test of runs that are not paired.
Method = Literal["signed_rank", "complete_separation", "rank_sum", "none"]
Gate = Literal["passed", "regression", "undecided"]
Pairs = Sequence[tuple[float, float]]  # (time of A, time of B), in run order
Nodes = Sequence[str]  # where each pair was run, if on several nodes of a cluster
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """B against A, judged by the pairs so far."""

    word: Word  # "faster": B takes less time than A
    pairs: int
    change: Estimate | None  # time of B / time of A - 1: -0.04 is 4 % less time; None: no interval yet
    speed_up: Estimate | None  # time of A / time of B
    tolerance: float
    level: float  # error rate of the interval at this look; all looks together stay below 5 %
    method: Method
    more_pairs: int | None  # about how many more pairs would decide; only when undecided
    noise_sd: float | None  # robust sd of the pairs' log ratios
    noise_floor: float | None  # smallest difference this many pairs detect with 80 % power, as a fraction
    summary: str  # `faster by 4.1 % [2.0, 6.2]`
    cpu_change: Estimate | None = None  # of the training thread's CPU time, where it was judged as well
    decided_by: DecidedBy = "wall_time"  # cpu_time: by `cpu_change`, where wall time was too noisy

    @property
    def too_noisy(self) -> bool:
        """Whether a verdict would take far more pairs than the budget pays for."""
        return self.word == "undecided" and _too_many(self.more_pairs, self.pairs)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to run more pairs, and the verdict so far."""

    go_on: bool
    verdict: Verdict
    reason: str
    next_look: int | None  # number of pairs at the next look; None after the last one


@dataclass(frozen=True, slots=True)
class VariantVerdict:
    """One of several variants against the shared baseline; the verdicts hold together (Holm)."""

    name: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class BlockDecision:
    """Whether to run more blocks of k variants, and which variants still need them."""

    go_on: bool
    variants: tuple[VariantVerdict, ...]  # in the order given
    settled: tuple[str, ...]  # names that need no more runs
    reason: str
    next_look: int | None  # number of blocks at the next look


@dataclass(frozen=True, slots=True)
class ComponentVerdict:
    """One region or phase, A against B; the verdicts of all components hold together (Holm)."""

    name: str
    verdict: Verdict
    share_of_a: float | None  # its share of A's whole time, median over the pairs


def decide(
    pairs: Pairs,
    *,
    tolerance: float = TOLERANCE,
    schedule: Schedule = RUNS,
    final: bool = False,
    nodes: Nodes | None = None,
) -> Decision:
    """Continue or stop; called after each pair.

    Between looks the interval is computed for the progress line, but there is no verdict: that would be an
    extra look. `final` means that no more pairs will come (budget used up, interrupted); the pairs are then
    judged as they are, instead of at the next look.
    """
    n = len(pairs)
    found = judge(pairs, tolerance=tolerance, level=schedule.level, nodes=nodes)
    coming = schedule.next_look(n)
    if final or coming is None:
        why = f"after {counted(n, 'pair')}{', the maximum' if coming is None else ''}"
        return Decision(False, found, f"stopped {why}", None)
    if n not in schedule.looks:
        return Decision(True, _withheld(found), f"judged next at {coming} pairs", coming)
    if _settles(found):
        return Decision(False, found, f"decided at {n} pairs", coming)
    return Decision(True, _withheld(found), f"undecided at {n} pairs, judged next at {coming}", coming)


def decide_blocks(
    blocks: Sequence[Mapping[str, float]],
    baseline: str,
    variants: Sequence[str],
    *,
    tolerance: float = TOLERANCE,
    schedule: Schedule = RUNS,
    final: bool = False,
) -> BlockDecision:
    """`decide` for k variants with one shared baseline, Holm over k.

    A block holds the times of the baseline and the variants by name. Failed runs are absent, and settled
    variants may be left out of later blocks. A variant without a single run at a look does not hold up the
    others, but still counts in k.
    """
    blocks = [block for block in blocks if baseline in block]
    named = {name: [(b[baseline], b[name]) for b in blocks if name in b] for name in variants}
    return decide_named(named, len(blocks), tolerance=tolerance, schedule=schedule, final=final)


def decide_named(
    named: Mapping[str, Pairs],
    n: int,
    *,
    tolerance: float = TOLERANCE,
    schedule: Schedule = RUNS,
    final: bool = False,
    cpu: Mapping[str, Pairs] | None = None,
    nodes: Mapping[str, Nodes] | None = None,
) -> BlockDecision:
    """`decide_blocks` given the pairs of each variant out of `n` blocks.

    `cpu` has CPU times of the training thread in the same pairs, for variants whose thread hardly waits. It
    decides where wall time does not. Each of the two is judged at half the level, so both hold together.
    """
    variants, coming = tuple(named), schedule.next_look(n)
    if cpu and any(cpu.values()):
        level = schedule.level / 2
        by_wall = holm(named, tolerance=tolerance, level=level, nodes=nodes)
        by_cpu = holm({name: cpu.get(name, ()) for name in named}, tolerance=tolerance, level=level)
        found = {name: _either(by_wall[name], by_cpu[name]) for name in named}
    else:
        found = holm(named, tolerance=tolerance, level=schedule.level, nodes=nodes)
    over = final or coming is None
    # A variant left out of the latest blocks was settled at an earlier look.
    looked = {name for name in variants if over or n in schedule.looks or len(named[name]) in schedule.looks}
    settled = tuple(name for name in variants if name in looked and _settles(found[name]))
    rows = tuple(
        VariantVerdict(name, found[name] if over or name in settled else _withheld(found[name]))
        for name in variants
    )
    waiting = [name for name in variants if name not in settled and (named[name] or n < LEAST_PAIRS)]
    if over:
        why = f"after {n} blocks, the maximum" if coming is None else f"after {n} blocks"
        return BlockDecision(False, rows, settled, f"stopped {why}", None)
    if not waiting:
        return BlockDecision(False, rows, settled, f"all decided at {n} blocks", coming)
    blocks_text = f"{n} {'block' if n == 1 else 'blocks'}"
    said = f"{len(waiting)} of {len(variants)} undecided after {blocks_text}, judged next at {coming}"
    return BlockDecision(True, rows, settled, said, coming)


def judge(
    pairs: Pairs, *, tolerance: float = TOLERANCE, level: float = RUNS.level, nodes: Nodes | None = None
) -> Verdict:
    """The verdict on any number of pairs, for one look at the given level."""
    a, b = _logs(pairs)
    return _verdict(len(a), _paired(a, b, level, nodes), robust_sd(b - a), tolerance, level)


def judge_unpaired(
    a: Sequence[float], b: Sequence[float], *, tolerance: float = TOLERANCE, level: float = 0.05
) -> Verdict:
    """A verdict on runs that were not paired, from the ratios of every B to every A.

    Valid only if nothing but the variant changed between the runs of A and B: with all of A first and then
    all of B, drift of the machine makes it wrong about half of the time.
    """
    n = min(len(a), len(b))
    logs_a, logs_b = (_log(np.asarray(side, dtype=np.float64)) for side in (a, b))
    found: _Interval = _NONE
    sd = None
    if n >= 2:
        ends = rank_sum_interval(logs_a, logs_b, level) if n >= 3 else None
        middle = float(np.median(differences(logs_a, logs_b)))
        found = _Interval(middle, *ends, "rank_sum") if ends else replace(_NONE, middle=middle)
        spreads = [robust_sd(side) or 0.0 for side in (logs_a, logs_b)]
        sd = math.hypot(*spreads)
    return _verdict(n, found, sd, tolerance, level)


def holm(
    named: Mapping[str, Pairs],
    *,
    tolerance: float = TOLERANCE,
    level: float = RUNS.level,
    nodes: Mapping[str, Nodes] | None = None,
) -> dict[str, Verdict]:
    """A verdict for each name such that all `faster` and `slower` verdicts hold together at `level`.

    Holm's step-down procedure: with m names left, those whose interval at level / m excludes 0 get their
    verdict, then the rest is tested again. Each interval is that of its step, so on its own it holds at
    `level` or better. Where the step's level needs more pairs than there are, the interval at `level` is
    reported without a verdict.
    """
    left, nodes = list(named), nodes or {}
    done: dict[str, Verdict] = {}
    while left:
        step = level / len(left)
        tried = {
            name: judge(named[name], tolerance=tolerance, level=step, nodes=nodes.get(name)) for name in left
        }
        clear = [name for name, verdict in tried.items() if verdict.word in ("faster", "slower")]
        if not clear:
            done |= {
                name: _or_plain(tried[name], named[name], tolerance, level, nodes.get(name)) for name in left
            }
            break
        done |= {name: tried[name] for name in clear}
        left = [name for name in left if name not in clear]
    return {name: done[name] for name in named}


def judge_components(
    named: Mapping[str, Pairs],
    whole: Pairs,
    *,
    tolerance: float = TOLERANCE,
    level: float = RUNS.level,
) -> tuple[ComponentVerdict, ...]:
    """Verdicts on the parts of a comparison, largest share of A first, Holm over the parts.

    `named` holds each part's times in the same pairs as `whole`. Pairs in which a part took no time in A or
    in B are left out of that part's verdict: there is no ratio.
    """
    timed = {name: [p for p in pairs if p[0] > 0 and p[1] > 0] for name, pairs in named.items()}
    found = holm(timed, tolerance=tolerance, level=level)
    rows = []
    for name, verdict in found.items():
        shares = [part[0] / all_[0] for part, all_ in zip(named[name], whole, strict=False) if all_[0] > 0]
        rows.append(ComponentVerdict(name, verdict, float(np.median(shares)) if shares else None))
    return tuple(sorted(rows, key=lambda row: (-(row.share_of_a or 0.0), row.name)))


def gate(verdict: Verdict, limit: float) -> Gate:
    """`--fail-if slower:3%`: a regression is the verdict `slower` with an estimate at or above the limit.

    `slower` by less than the limit passes, and so does any interval below the limit. An interval that reaches
    the limit without that verdict, or no interval at all, is undecided.
    """
    if verdict.change is None:
        return "undecided"
    if verdict.word == "slower":
        return "regression" if verdict.change.value >= limit else "passed"
    return "undecided" if verdict.change.high >= limit else "passed"


@dataclass(frozen=True, slots=True)
class _Interval:
    """Interval of ln(B / A)."""

    middle: float
    low: float
    high: float
    method: Method


_NONE = _Interval(math.nan, -math.inf, math.inf, "none")


def _paired(a: Floats, b: Floats, level: float, nodes: Nodes | None = None) -> _Interval:
    d = b - a
    if len(d) < LEAST_PAIRS:
        return _NONE
    middle = hodges_lehmann(d)
    ends = signed_rank_interval(d, level)
    if ends is not None:
        return _Interval(middle, *ends, "signed_rank")
    # The signed-rank p value of n pairs is at least 2 / 2^n: 0.06 for five. All B on one side of all A has
    # probability 2 / C(2n, n): 0.0079 for five, and less when the machine drifts from pair to pair.
    # Shifting B until that no longer holds gives this interval. The 2 % slack covers 0.0079 against 1/128.
    # Pairs from several nodes: the same on every node at once, so that nodes may differ as they like.
    groups = _by_node(nodes if nodes is not None and len(nodes) == len(d) else [""] * len(d))
    if 2 / math.prod(math.comb(2 * len(at), len(at)) for at in groups) <= level * 1.02:
        low = min(float(b[at].min() - a[at].max()) for at in groups)
        high = max(float(b[at].max() - a[at].min()) for at in groups)
        return _Interval(middle, low, high, "complete_separation")
    return replace(_NONE, middle=middle)


def _by_node(nodes: Nodes) -> list[list[int]]:
    """The positions of each node's pairs."""
    found: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        found.setdefault(node, []).append(at)
    return list(found.values())


def _verdict(n: int, found: _Interval, sd: float | None, tolerance: float, level: float) -> Verdict:
    if not 0 < tolerance < 1:
        raise HotloopError(f"tolerance={tolerance:g} is not between 0 and 1; 0.03 means 3 %.")
    known = math.isfinite(found.low) and math.isfinite(found.high)
    word = _word(found, tolerance) if known else "undecided"
    more = _more_pairs(n, found, sd, tolerance, level) if word == "undecided" else None
    change = _estimate(found, 1.0, -1.0) if known else None
    return Verdict(
        word=word,
        pairs=n,
        change=change,
        speed_up=_estimate(found, -1.0, 0.0) if known else None,
        tolerance=tolerance,
        level=level,
        method=found.method,
        more_pairs=more,
        noise_sd=sd,
        noise_floor=None if sd is None or n < LEAST_PAIRS else noise_floor(sd, n, level),
        summary=_summary(word, change, tolerance, n, more),
    )


def _word(found: _Interval, tolerance: float) -> Word:
    margin = math.log1p(tolerance)
    if found.low > 0:
        return "slower"
    if found.high < 0:
        return "faster"
    return "no_difference" if -margin < found.low and found.high < margin else "undecided"


def _more_pairs(n: int, found: _Interval, sd: float | None, tolerance: float, level: float) -> int | None:
    """n (1.2 (h / g)^2 - 1) from a signed-rank interval; without one, from the noise."""
    if n < 2 or not math.isfinite(found.middle):
        return max(LEAST_PAIRS - n, 1)
    size, margin = abs(found.middle), math.log1p(tolerance)
    gap = max(size, margin - size)
    if found.method == "signed_rank":
        half = (found.high - found.low) / 2
        return max(math.ceil(n * (1.2 * (half / gap) ** 2 - 1)), 1)
    return max(pairs_needed(sd or 0.0, gap, level) - n, 1)


def _estimate(found: _Interval, sign: float, less: float) -> Estimate:
    ends = sorted(math.exp(sign * end) + less for end in (found.low, found.high))
    return Estimate(math.exp(sign * found.middle) + less, *ends)


def _summary(word: Word, change: Estimate | None, tolerance: float, pairs: int, more: int | None) -> str:
    if word == "faster" and change is not None:
        return f"faster by {interval_words(Estimate(-change.value, -change.high, -change.low))}"
    if word == "slower" and change is not None:
        return f"slower by {interval_words(change)}"
    if word == "no_difference":
        return f"no difference >= {100 * tolerance:g} %"
    if _too_many(more, pairs):
        return "too noisy to tell with this budget"
    return f"undecided, about {more} more {'pair' if more == 1 else 'pairs'}"


def _too_many(more: int | None, pairs: int) -> bool:
    return more is not None and more > TOO_NOISY * max(pairs, LEAST_PAIRS)


def interval_words(change: Estimate) -> str:
    """`4.1 % [2.0, 6.2]`, with more digits where the interval is narrow or ends close to 0."""
    wide = 100 * (change.high - change.low)
    digits = 0 if wide >= 20 else 1 if wide >= 0.2 else 2
    ends = [100 * abs(end) for end in (change.low, change.high)]
    if change.low * change.high > 0:  # never show an interval that excludes 0 with an end at 0
        digits = next((d for d in range(digits, 4) if round(min(ends), d) > 0), 4)
    return f"{_plain(change.value, digits)} % [{_plain(change.low, digits)}, {_plain(change.high, digits)}]"


def _plain(fraction: float, digits: int) -> str:
    """Percent without a negative zero."""
    text = f"{100 * fraction:.{digits}f}"
    return text if float(text) else text.removeprefix("-")


def _or_plain(strict: Verdict, pairs: Pairs, tolerance: float, level: float, nodes: Nodes | None) -> Verdict:
    if strict.change is not None:
        return strict
    plain = judge(pairs, tolerance=tolerance, level=level, nodes=nodes)
    return replace(strict, change=plain.change, speed_up=plain.speed_up, method=plain.method, level=level)


def _settles(verdict: Verdict) -> bool:
    """Whether the lab may stop; "no difference" needs enough pairs for a signed-rank interval."""
    if verdict.word == "no_difference":
        return verdict.method == "signed_rank"
    return verdict.word != "undecided"


def _either(wall: Verdict, cpu: Verdict) -> Verdict:
    """The verdict by wall time or, if only CPU time settles it, by CPU time; with both changes."""
    if _settles(wall) or not _settles(cpu):
        return replace(wall, cpu_change=cpu.change)
    return replace(
        cpu,
        change=wall.change,
        speed_up=wall.speed_up,
        cpu_change=cpu.change,
        decided_by="cpu_time",
        summary=f"{cpu.summary} in CPU time",
    )


def _withheld(verdict: Verdict) -> Verdict:
    """The verdict between looks: the interval alone."""
    if verdict.word == "undecided":
        return verdict
    return replace(verdict, word="undecided", summary="undecided so far")


def _logs(pairs: Pairs) -> tuple[Floats, Floats]:
    table = _log(np.array(pairs, dtype=np.float64).reshape(-1, 2))
    return table[:, 0], table[:, 1]


def _log(times: Floats) -> Floats:
    if not np.all(np.isfinite(times) & (times > 0)):
        wrong = times[~(np.isfinite(times) & (times > 0))][0]
        raise HotloopError(
            f"A time of {wrong:g} cannot be compared; leave out failed runs: times must be positive."
        )
    return np.asarray(np.log(times))
