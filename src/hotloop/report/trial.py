"""The result of `hotloop try`: a verdict for each patch, and the lines to add to the script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotloop._util.units import percent
from hotloop.analysis.load_snapshot import MachineLoad
from hotloop.analysis.trial import BASELINE, How
from hotloop.analysis.verdict import VariantVerdict, Verdict, interval_words
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import words
from hotloop.report.series_text import machine_load_text
from hotloop.report.to_json import json_object
from hotloop.report.verdict import HOLM, floor, headline, likely_text, short_verdict

LEAST_SPINNING = 0.05  # less CPU time without work is not mentioned
_HOW = {
    "cycles": "Each segment covers whole cycles of collecting and learning.",
    "steps": "No updates were seen, so times cover collecting only.",
    "updates": "No env steps were seen, so times cover updates only.",
    "nothing": "No segment was completed.",
}


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch, its verdict, and how to make it permanent."""

    name: str
    why: str
    line: str  # the code to add
    at: str | None  # `train.py:12`
    instruction: str  # `add this line at train.py:12`
    verdict: Verdict
    workers: int = 0  # worker processes that were patched as well
    cpu_change: float | None = None  # of the CPU time of the script's process, all its threads


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A patch that was not tried."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Everything that `hotloop try` found."""

    patches: tuple[Patch, ...]  # best first
    together: VariantVerdict | None  # the combination of all faster patches, if it was tried
    left_out: tuple[LeftOut, ...]
    blocks: int  # rounds: one segment of each patch and of the unpatched script
    unit: str
    how: How
    same_share: float | None
    seconds: float  # total length of the segments
    began: bool  # whether any training was seen
    kept: tuple[str, ...] = ()  # faster patches that stayed on while the others were still tried
    machine_load: MachineLoad | None = None


def trial_text(found: TrialReport, pen: Pen | None = None) -> str:
    """The table of patches, the lines to add, the best combination, and what was not tried."""
    pen = pen or Pen(unicode=False)
    if not found.began:
        return pen.wrap(
            "No training was seen: hotloop did not count env steps or updates of a library it knows for long "
            "enough. In a training loop of your own, call hotloop.progress(env_steps=...)."
        )
    aside = f"{found.blocks} {'round' if found.blocks == 1 else 'rounds'}, {found.seconds:.0f} s measured"
    lines = [pen.heading("Patches", aside), pen.wrap(f"{_how(found)}{_on_top(found)}", "  "), ""]
    if found.patches:
        heads = ("patch", f"time per {words(found.unit)}", "CPU time", "verdict")
        rows = [heads, *map(_cells, found.patches)]
        drawn = table(pen, rows)
        lines += [pen.paint(drawn[0], "dim"), *drawn[1:]]
    else:
        lines.append("  No patch could be tried.")
    for patch in found.patches:
        if patch.verdict.word == "faster":
            lines += ["", pen.wrap(f"{patch.name}: {patch.verdict.summary}; {patch.instruction}:", "  ")]
            lines += [f"      {pen.clean(line)}" for line in patch.line.split("\n")]
            lines.append(pen.dim(pen.wrap(patch.why + _in_workers(patch), "    ")))
    lines += [
        line for patch in found.patches if (text := _spinning(patch)) for line in ("", pen.wrap(text, "  "))
    ]
    lines += ["", pen.wrap(_together(found), "  ")]
    floors = [p.verdict.noise_floor for p in found.patches if p.verdict.noise_floor is not None]
    if floors:
        lines.append(pen.wrap(f"Noise floor: {floor(max(floors))} at worst. {HOLM}", "  "))
    if likely := likely_text(patch.verdict for patch in found.patches):
        lines.append(pen.wrap(likely, "  "))
    if found.machine_load is not None:
        lines.append(pen.wrap(f"machine: {machine_load_text(found.machine_load)}.", "  "))
    lines += [pen.dim(pen.wrap(f"not tried: {o.name}: {o.reason}.", "  ", "    ")) for o in found.left_out]
    return "\n".join(lines)


def trial_progress(found: TrialReport, spent_s: float, budget_s: float) -> str:
    """One line for a trial under way: what is done of how much, and the best patch so far."""
    if not found.began:
        return "waiting for training to begin"
    decided = sum(patch.verdict.word != "undecided" for patch in found.patches)
    rounds = f"{found.blocks} {'round' if found.blocks == 1 else 'rounds'}"
    text = f"{min(spent_s, budget_s):.0f} of {budget_s:.0f} s, {rounds}, "
    text += f"{decided} of {len(found.patches)} patches decided"
    known = [(p.verdict.change.value, p) for p in found.patches if p.verdict.change is not None]
    if not known:
        return text
    _, best = min(known, key=lambda item: item[0])
    assert best.verdict.change is not None
    return f"{text}; best so far: {best.name}, time {interval_words(best.verdict.change)}"


def _cells(patch: Patch) -> tuple[str, str, str, str]:
    verdict = patch.verdict
    change = "-" if verdict.change is None else f"{interval_words(verdict.change)}"
    cpu = "-" if patch.cpu_change is None else f"{100 * patch.cpu_change:+.0f} %"
    return patch.name, change, cpu, short_verdict(verdict)


def _spinning(patch: Patch) -> str | None:
    """What the patch to one thread says about the CPU time of several."""
    cpu = patch.cpu_change
    if patch.name != "threads" or cpu is None or cpu > -LEAST_SPINNING:
        return None
    return (
        f"With torch's threads, {percent(-cpu)} of the process's CPU time does no work: threads spin while "
        "they wait for each other, and work is split and joined. One thread does the same work without it."
    )


def _on_top(found: TrialReport) -> str:
    if not found.kept:
        return ""
    return (
        f" {' and '.join(found.kept)} stayed on once found to be faster; patches still undecided by then "
        "were measured on top."
    )


def _in_workers(patch: Patch) -> str:
    if not patch.workers:
        return ""
    number = "one worker process" if patch.workers == 1 else f"{patch.workers} worker processes"
    return f" It was also applied in {number}, so the line must run there as well."


def _how(found: TrialReport) -> str:
    if found.how != "phases":
        return _HOW[found.how]
    share = "" if found.same_share is None else f" ({percent(found.same_share)})"
    return (
        "Collecting and learning alternate slowly, so they were measured separately and added up; the rest "
        f"of the time{share} is assumed to be the same for all patches."
    )


def _together(found: TrialReport) -> str:
    faster = [patch.name for patch in found.patches if patch.verdict.word == "faster"]
    if found.together is not None:
        return f"Best combination: {headline(found.together.verdict, BASELINE, found.together.name)}."
    if len(faster) > 1:
        return "The combination of the faster patches was not tried: the script or the budget ended first."
    if faster:
        return f"Best combination: {faster[0]} alone."
    return "No patch is clearly faster than the unpatched script."


def trial_json(found: TrialReport) -> dict[str, Any]:
    """The report for `--json`."""
    return json_object("trial", found)
