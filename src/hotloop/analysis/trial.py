"""Verdicts on patches that were switched on and off inside a running script.

The rows come from `hotloop try`: segments under an arm (a set of patches, none for the baseline), each
of one kind: whole cycles of collecting and learning, or only steps, or only updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.analysis.looks import SEGMENTS, Schedule
from hotloop.analysis.verdict import TOLERANCE, VariantVerdict, Verdict, decide_blocks, judge

BASELINE = "as it is"
SMALL_SHARE = 0.2  # of the time: a phase below it is taken as the same for all patches
Row = Mapping[str, Any]
Block = dict[str, float]  # time per unit of work, by arm
How = Literal["cycles", "phases", "steps", "updates", "nothing"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Segments put together to blocks of times per unit of work."""

    how: How  # how they were cut
    unit: str  # what the times are per: "env step" or "update"
    blocks: tuple[Block, ...]
    same_share: float | None  # of the time, taken as the same for all arms; only with phases


@dataclass(frozen=True, slots=True)
class Settled:
    """What can be said at the last look, and what needs no more segments."""

    verdicts: tuple[VariantVerdict, ...]
    settled: tuple[str, ...]
    looks: int


def arm_name(arm: Sequence[str]) -> str:
    """`gc + threads`; what the baseline is called for no patch."""
    return " + ".join(arm) or BASELINE


def blocks_of(rows: Sequence[Row], names: Sequence[str]) -> Blocks:
    """Blocks in which at least one of the named arms and the baseline ran.

    Where collecting and learning were cut apart, block k is made of the k-th block of each: time per
    step + updates per step x time per update + the time between them, taken as the same for all arms.
    """
    segments = [row for row in rows if row.get("seconds") and (row["env_steps"] or row["updates"])]
    spent = {kind: sum(r["seconds"] for r in segments if r["kind"] == kind) for kind in _KINDS}
    if not segments:
        return Blocks("nothing", "env step", (), None)
    if spent["cycles"] >= spent["steps"] + spent["updates"]:
        return Blocks("cycles", "env step", _of_kind(segments, "cycles", "env_steps", names), None)
    last = segments[-1]
    collecting = _of_kind(segments, "steps", "env_steps", names)
    learning = _of_kind(segments, "updates", "updates", names)
    if not last["all_updates"]:
        return Blocks("steps", "env step", collecting, None)
    if not last["all_steps"]:
        return Blocks("updates", "update", learning, None)
    return _joined(collecting, learning, last)


def _joined(collecting: tuple[Block, ...], learning: tuple[Block, ...], last: Row) -> Blocks:
    """Collecting and learning, which were cut apart, as times per env step.

    A phase with less than a fifth of the time has few segments; it is then taken as the same for all.
    """
    steps = last["all_steps"]
    per_step = last["all_updates"] / steps
    same_s = last["between_s"]
    total_s = last["steps_s"] + last["updates_s"] + same_s
    if last["steps_s"] < SMALL_SHARE * total_s:
        same_s += last["steps_s"]
        joined = [{name: per_step * time for name, time in block.items()} for block in learning]
    elif last["updates_s"] < SMALL_SHARE * total_s:
        same_s += last["updates_s"]
        joined = [dict(block) for block in collecting]
    else:
        joined = [
            {name: a[name] + per_step * b[name] for name in a if name in b}
            for a, b in zip(collecting, learning, strict=False)
        ]
    blocks = tuple({name: time + same_s / steps for name, time in block.items()} for block in joined)
    return Blocks("phases", "env step", blocks, same_s / total_s)


_KINDS = ("cycles", "steps", "updates")


def _of_kind(segments: Sequence[Row], kind: str, work: str, names: Sequence[str]) -> tuple[Block, ...]:
    found: dict[int, Block] = {}
    for row in segments:
        if row["kind"] == kind and row[work]:
            found.setdefault(row["block"], {})[arm_name(row["arm"])] = row["seconds"] / row[work]
    wanted = {*names}
    return tuple(block for _, block in sorted(found.items()) if BASELINE in block and wanted & set(block))


def settle(
    blocks: Sequence[Block],
    names: Sequence[str],
    *,
    final: bool = False,
    tolerance: float = TOLERANCE,
    schedule: Schedule = SEGMENTS,
) -> Settled:
    """Go through all looks so far, as if each had been taken at its time.

    What is settled at a look keeps that verdict: segments it had later are not used. `final` says that
    no more will come.
    """
    return _Looks(blocks, names, tolerance, schedule).take(final)


class _Looks:
    def __init__(self, blocks: Sequence[Block], names: Sequence[str], tolerance: float, schedule: Schedule):
        self._blocks, self._names = blocks, names
        self._tolerance, self._schedule = tolerance, schedule
        self._until: dict[str, int] = {}  # settled at so many blocks

    def take(self, final: bool) -> Settled:
        looks = [look for look in self._schedule.looks if look <= len(self._blocks)]
        verdicts = {name: judge([], tolerance=self._tolerance) for name in self._names}
        for look in looks:
            verdicts |= self._look(look, False)
        if final:
            verdicts |= self._look(len(self._blocks), True)
        rows = tuple(VariantVerdict(name, verdicts[name]) for name in self._names)
        return Settled(rows, tuple(self._until), len(looks))

    def _look(self, count: int, final: bool) -> dict[str, Verdict]:
        seen = [
            {name: time for name, time in block.items() if at < self._until.get(name, count)}
            for at, block in enumerate(self._blocks[:count])
        ]
        schedule, tolerance = self._schedule, self._tolerance
        decided = decide_blocks(
            seen, BASELINE, self._names, tolerance=tolerance, schedule=schedule, final=final
        )
        found = {row.name: row.verdict for row in decided.variants if row.name not in self._until}
        for name in decided.settled:
            self._until.setdefault(name, count)
        return found


def combination(
    verdicts: Sequence[VariantVerdict], conflicts: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """All patches that were faster, the better one of any two that do not go together."""
    clear = [row for row in verdicts if row.verdict.word == "faster" and row.verdict.change is not None]
    clear.sort(key=lambda row: row.verdict.change.value if row.verdict.change else 0.0)
    chosen: list[str] = []
    for row in clear:
        if not any(other in conflicts.get(row.name, ()) for other in chosen):
            chosen.append(row.name)
    return tuple(chosen)
