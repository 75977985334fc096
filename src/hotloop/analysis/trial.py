"""Verdicts on patches that `hotloop try` switched on and off inside a running script.

The script writes segments: stretches of training under one set of patches (none for the baseline), each of
one kind: whole cycles of collecting and learning, only env steps, or only updates. A round is one segment
of every patch set, close together in time; a patch set is compared with the baseline of the same round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hotloop.analysis.stopping_rule import PATCHES, Schedule
from hotloop.analysis.verdict import TOLERANCE, Pairs, VariantVerdict, Verdict, holm, judge

BASELINE = "unpatched"
SMALL_SHARE = 0.1  # a phase with less of the time is assumed to take the same time under all patches
MOST_PAIRS = 64  # more rounds are merged, so that rare events are part of most pairs
Row = Mapping[str, Any]
Round = Mapping[str, tuple[float, int]]  # (seconds, work done) by patch set
How = Literal["cycles", "phases", "steps", "updates", "nothing"]
_KINDS = ("cycles", "steps", "updates")


@dataclass(frozen=True, slots=True)
class Part:
    """Segments of one kind."""

    rounds: tuple[Round, ...]
    weight: float  # units of this work per unit of the whole, such as updates per env step


@dataclass(frozen=True, slots=True)
class Rounds:
    """Segments grouped into rounds."""

    how: How  # how training was cut into segments
    unit: str  # times are per "env_step" or per "update"
    parts: tuple[Part, ...]
    same_s: float = 0.0  # time per unit that is assumed to be the same for all patch sets
    same_share: float | None = None  # its share of all time; only with phases

    def count(self, name: str) -> int:
        """Rounds of a patch set; with two parts, of the part that has fewer."""
        return min((len(_both(part, name)) for part in self.parts), default=0)

    def pairs(self, name: str, count: int | None = None) -> Pairs:
        """(baseline, patch set) times per unit, from its first `count` rounds.

        A part with more rounds than another contributes the rounds of the same stretch of time. Rounds are
        merged into at most `MOST_PAIRS` pairs.
        """
        whole = self.count(name)
        count = whole if count is None else min(count, whole)
        if not count:
            return []
        size = 1
        while count > MOST_PAIRS * size:
            size *= 2
        units = count // size
        sums = [(self.same_s, self.same_s)] * units
        for part in self.parts:
            rounds = _both(part, name)
            used = len(rounds) * count // whole
            for unit in range(units):
                group = rounds[used * unit // units : used * (unit + 1) // units]
                a, b = (
                    part.weight * sum(row[side][0] for row in group) / sum(row[side][1] for row in group)
                    for side in (BASELINE, name)
                )
                sums[unit] = (sums[unit][0] + a, sums[unit][1] + b)
        return sums


def _both(part: Part, name: str) -> list[Round]:
    return [row for row in part.rounds if name in row and BASELINE in row]


def patch_set_name(names: Sequence[str]) -> str:
    """`gc + threads`; the name of the baseline for no patch."""
    return " + ".join(names) or BASELINE


def rounds_of(rows: Sequence[Row]) -> Rounds:
    """The rounds in the rows that the script wrote.

    Where collecting and learning were measured separately, the time of a patch set is time per step + updates
    per step x time per update + the time between them, which is assumed to be the same for all patch sets.
    """
    segments = [row for row in rows if row.get("seconds") and (row["env_steps"] or row["updates"])]
    if not segments:
        return Rounds("nothing", "env_step", ())
    spent = {kind: sum(r["seconds"] for r in segments if r["kind"] == kind) for kind in _KINDS}
    if spent["cycles"] >= spent["steps"] + spent["updates"]:
        return Rounds("cycles", "env_step", (Part(_of_kind(segments, "cycles", "env_steps"), 1.0),))
    last = segments[-1]
    collecting = _of_kind(segments, "steps", "env_steps")
    learning = _of_kind(segments, "updates", "updates")
    if not last["all_updates"]:
        return Rounds("steps", "env_step", (Part(collecting, 1.0),))
    if not last["all_steps"]:
        return Rounds("updates", "update", (Part(learning, 1.0),))
    return _joined(collecting, learning, last)


def _joined(collecting: tuple[Round, ...], learning: tuple[Round, ...], last: Row) -> Rounds:
    """Collecting and learning, measured separately, as times per env step.

    A phase with less than a tenth of the time has few segments; it is assumed to be the same for all.
    """
    steps, same_s = last["all_steps"], last["between_s"]
    steps_s, updates_s = last["steps_s"], last["updates_s"]
    total_s = steps_s + updates_s + same_s
    parts = []
    if steps_s < SMALL_SHARE * total_s:
        same_s += steps_s
    else:
        parts.append(Part(collecting, 1.0))
    if updates_s < SMALL_SHARE * total_s:
        same_s += updates_s
    else:
        parts.append(Part(learning, last["all_updates"] / steps))
    return Rounds("phases", "env_step", tuple(parts), same_s / steps, same_s / total_s)


def _of_kind(segments: Sequence[Row], kind: str, work: str) -> tuple[Round, ...]:
    found: dict[int, dict[str, tuple[float, int]]] = {}
    for row in segments:
        if row["kind"] == kind and row[work]:
            found.setdefault(row["block"], {})[patch_set_name(row["patches"])] = (row["seconds"], row[work])
    return tuple(found[block] for block in sorted(found))


def cpu_change(rows: Sequence[Row], name: str) -> float | None:
    """How a patch changes the CPU time of the script's process, all threads, for the same work (-0.5: half).

    For one thread against several, this tells work from spinning: the work is the same, and threads that wait
    for each other in a loop use CPU time without doing any.
    """
    before_kept = [row for row in rows if row.get("cpu_s") and name not in row["kept"]]
    timed = [{**row, "seconds": row["cpu_s"]} for row in before_kept]
    pairs = replace(rounds_of(timed), same_s=0.0).pairs(name)
    before_s = math.fsum(a for a, _ in pairs)
    return math.fsum(b for _, b in pairs) / before_s - 1.0 if before_s else None


class SequentialTrial:
    """Verdicts on patch sets as their rounds come in.

    Each look of the schedule is taken once, and a verdict reached there stands. Holm over all patch sets; a
    settled one keeps the pairs it was settled with.
    """

    def __init__(
        self, names: Sequence[str], *, tolerance: float = TOLERANCE, schedule: Schedule = PATCHES
    ) -> None:
        self._tolerance, self._schedule = tolerance, schedule
        self._pairs: dict[str, Pairs] = {name: [] for name in names}
        self._looked = dict.fromkeys(names, 0)  # rounds at the last look
        self._settled: dict[str, Verdict] = {}
        self._last = {name: judge([], tolerance=tolerance) for name in names}

    @property
    def settled(self) -> tuple[str, ...]:
        """Patch sets that need no more segments, in the order they were settled."""
        return tuple(self._settled)

    @property
    def verdicts(self) -> tuple[VariantVerdict, ...]:
        """Verdicts as of the last look."""
        return tuple(VariantVerdict(name, verdict) for name, verdict in self._last.items())

    @property
    def all_settled(self) -> bool:
        """Whether no patch set needs more segments (true without any)."""
        return set(self._last) == set(self._settled)

    def leave_out(self, names: Sequence[str]) -> None:
        """Drop patch sets that turned out to have no effect in this script."""
        for name in names:
            for kept in (self._pairs, self._looked, self._settled, self._last):
                kept.pop(name, None)

    def update(self, rounds: Rounds, final: bool = False) -> None:
        """Take the looks that are due; `final` means that no more rounds will come."""
        counts = {name: rounds.count(name) for name in self._last if name not in self._settled}
        for due in self._schedule.looks:
            coming = [name for name, count in counts.items() if count >= due > self._looked[name]]
            if coming:
                self._take(rounds, {name: due for name in coming if name not in self._settled})
        if final:
            more = {name: n for name, n in counts.items() if n > self._looked[name]}
            self._take(rounds, {name: n for name, n in more.items() if name not in self._settled})

    def _take(self, rounds: Rounds, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self._pairs[name], self._looked[name] = rounds.pairs(name, count), count
        found = holm(self._pairs, tolerance=self._tolerance, level=self._schedule.level)
        for name in self._pairs:
            if name not in self._settled:
                verdict = self._last[name] = _unless_sums_differ(found[name], self._pairs[name])
                if _settles(verdict):
                    self._settled[name] = verdict


def _unless_sums_differ(verdict: Verdict, pairs: Pairs) -> Verdict:
    """Demand that "no difference" also holds for the summed times: a median hides rare long pauses."""
    if verdict.word == "no_difference":
        ratio = math.fsum(b for _, b in pairs) / math.fsum(a for a, _ in pairs)
        if not abs(math.log(ratio)) < math.log1p(verdict.tolerance):
            summary = "undecided: equal in most rounds, but not in a few"
            return replace(verdict, word="undecided", summary=summary)
    return verdict


def _settles(verdict: Verdict) -> bool:
    """Whether the verdict may stand; "no difference" needs a signed-rank interval."""
    if verdict.word == "no_difference":
        return verdict.method == "signed_rank"
    return verdict.word != "undecided"


def combination(
    verdicts: Sequence[VariantVerdict], conflicts: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """All patches that were faster; of two that conflict, the better one."""
    clear = [row for row in verdicts if row.verdict.word == "faster" and row.verdict.change is not None]
    clear.sort(key=lambda row: row.verdict.change.value if row.verdict.change else 0.0)
    chosen: list[str] = []
    for row in clear:
        if not any(other in conflicts.get(row.name, ()) for other in chosen):
            chosen.append(row.name)
    return tuple(chosen)
