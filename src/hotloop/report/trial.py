"""The end of `hotloop try`: a verdict for each patch, and the lines to add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotloop._util.units import percent
from hotloop.analysis.load_snapshot import MachineLoad
from hotloop.analysis.trial import BASELINE, How
from hotloop.analysis.verdict import VariantVerdict, Verdict, interval_words
from hotloop.report.pen import Pen, table
from hotloop.report.series_text import machine_load_text
from hotloop.report.to_json import plain
from hotloop.report.verdict import headline

# Version history (raised when a field changes its meaning or goes; a new field does not raise it):
#   1  first version
SCHEMA_VERSION = 1

_HOW = {
    "cycles": "Segments are whole cycles of collecting and learning.",
    "steps": "No update was seen: the times are of collecting alone.",
    "updates": "No env step was seen: the times are of updates alone.",
    "nothing": "No segment was completed.",
}


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch, its verdict, and how to keep it."""

    name: str
    why: str
    line: str  # what to write
    at: str | None  # `train.py:12`
    says: str  # `add this line at train.py:12`
    verdict: Verdict
    workers: int = 0  # worker processes in which it was switched, too


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A patch that was not tried."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrialReport:
    """All that `hotloop try` found."""

    patches: tuple[Patch, ...]  # best first
    together: VariantVerdict | None  # the best combination, where it was tried
    left_out: tuple[LeftOut, ...]
    blocks: int  # rounds: segments of every patch and of the script as it is
    unit: str
    how: How
    same_share: float | None
    seconds: float  # in segments
    began: bool  # training was seen to begin
    kept: tuple[str, ...] = ()  # faster, and left on while the others were still tried
    machine_load: MachineLoad | None = None  # how busy the computer was


def trial_text(found: TrialReport, pen: Pen | None = None) -> str:
    """The table, the lines to add, the best combination, what was left out."""
    pen = pen or Pen(unicode=False)
    if not found.began:
        return pen.wrap(
            "No training was seen: no env step or update of a library hotloop knows was counted for long "
            "enough. In a loop of your own, call hotloop.progress(env_steps=...)."
        )
    aside = f"{found.blocks} {'round' if found.blocks == 1 else 'rounds'}, {found.seconds:.0f} s measured"
    lines = [pen.heading("Patches", aside), pen.wrap(f"{_how(found)}{_on_top(found)}", "  "), ""]
    if found.patches:
        rows = [("patch", f"time per {found.unit}", "verdict"), *map(_cells, found.patches)]
        drawn = table(pen, rows)
        lines += [pen.paint(drawn[0], "dim"), *drawn[1:]]
    else:
        lines.append("  No patch could be tried.")
    for patch in found.patches:
        if patch.verdict.word == "faster":
            lines += ["", pen.wrap(f"{patch.name}: {patch.verdict.says}; {patch.says}:", "  ")]
            lines += [f"      {pen.clean(line)}" for line in patch.line.split("\n")]
            lines.append(pen.dim(pen.wrap(patch.why + _in_workers(patch), "    ")))
    lines += ["", pen.wrap(_together(found), "  ")]
    floors = [p.verdict.noise_floor for p in found.patches if p.verdict.noise_floor is not None]
    if floors:
        worst = max(floors)
        floor = percent(worst) if worst < 1 else f"{1 + worst:.0f} times"
        said = f"noise floor: {floor} at worst; all `faster` and `slower` hold together (Holm)."
        lines.append(pen.wrap(said, "  "))
    if found.machine_load is not None:
        lines.append(pen.wrap(f"machine: {machine_load_text(found.machine_load)}.", "  "))
    lines += [pen.dim(pen.wrap(f"not tried: {o.name}: {o.reason}.", "  ", "    ")) for o in found.left_out]
    return "\n".join(lines)


def _cells(patch: Patch) -> tuple[str, str, str]:
    verdict = patch.verdict
    change = "-" if verdict.change is None else f"{interval_words(verdict.change)}"
    return patch.name, change, verdict.word if verdict.word in ("faster", "slower") else verdict.says


def _on_top(found: TrialReport) -> str:
    if not found.kept:
        return ""
    return (
        f" Once found to be faster, {' and '.join(found.kept)} stayed on: what was still undecided then was "
        "measured on top of that."
    )


def _in_workers(patch: Patch) -> str:
    if not patch.workers:
        return ""
    number = "one worker process" if patch.workers == 1 else f"{patch.workers} worker processes"
    return f" It was switched in {number}, too: the line must run there as well."


def _how(found: TrialReport) -> str:
    if found.how != "phases":
        return _HOW[found.how]
    share = "" if found.same_share is None else f" ({percent(found.same_share)} of the time)"
    return (
        "Collecting and learning alternate slowly, so they were measured apart and put together; what was "
        f"not measured in turns{share} is taken as the same for all."
    )


def _together(found: TrialReport) -> str:
    faster = [patch.name for patch in found.patches if patch.verdict.word == "faster"]
    if found.together is not None:
        return f"Best combination: {headline(found.together.verdict, BASELINE, found.together.name)}."
    if len(faster) > 1:
        return "The combination of the faster ones was not tried: the script or the budget ended first."
    if faster:
        return f"Best combination: {faster[0]} alone."
    return "No patch is clearly faster than the script as it is."


def trial_json(found: TrialReport) -> dict[str, Any]:
    """The same as plain values, for `--json`."""
    return {"kind": "hotloop try", "schema_version": SCHEMA_VERSION, **plain(found)}
