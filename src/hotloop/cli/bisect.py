"""`hotloop bisect`: finds the commit that made training slower."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.options import Flag, option
from hotloop.cli.output import note
from hotloop.report.to_json import json_object, strict_json
from hotloop.workflows.bisect import Bisection, Measured, Step, bisect
from hotloop.workflows.experiments import Progress

TAKES_COMMAND = True
UNDECIDED, SCRIPT_FAILED, INTERRUPTED = 4, 5, 130


@dataclass(frozen=True)
class Arguments:
    """Find the commit that made training slower, on a noisy machine too.

    hotloop bisect --good v1.2 --bad HEAD -- python train.py --epochs 20

    Each step compares a commit in the middle with the good one, in pairs of runs that take turns, until it is
    clear whether it is as slow as the bad one. In the end, the commit found is compared with the one before.
    Commits are checked out in temporary worktrees; your files stay as they are.
    """

    good: Annotated[str, option("REVISION")] = ""
    """A commit that is fast."""
    bad: Annotated[str, option("REVISION")] = "HEAD"
    """A later commit that is slow."""
    budget: Annotated[str, option("TIME", "30m")] = "30m"
    """Time for all runs together."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Ignore differences below this between the good and the bad commit."""
    no_record: Flag = False
    """Only time whole processes; do not record them."""
    series: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-bisect")] = None
    """Folder for the runs."""
    json: Flag = False
    """Print the result as one JSON object."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    if not arguments.good or not arguments.command:
        raise HotloopError(
            "bisect needs a fast commit and a command, as in: hotloop bisect --good v1.2 -- python train.py"
        )
    steps: list[Step] = []

    def on_step(step: Step) -> None:
        steps.append(step)
        note(f"step {len(steps)}: {step_text(step)}")

    found = bisect(
        arguments.good,
        arguments.bad,
        arguments.command,
        parse_seconds(arguments.budget, "--budget"),
        parse_fraction(arguments.tolerance, "--tolerance"),
        Progress(),
        folder=arguments.series,
        record=not arguments.no_record,
        on_step=on_step,
    )
    print(strict_json(as_json(found)) if arguments.json else as_text(found))
    note(next_command(found, arguments))
    if found.interrupted:
        return INTERRUPTED
    if found.whole.failure:
        return SCRIPT_FAILED
    return 0 if found.is_sure else UNDECIDED


# -- text ----------------------------------------------------------------------------------------


def as_text(found: Bisection) -> str:
    lines = [
        f"good  {found.good.short}  {found.good.subject}",
        f"bad   {found.bad.short}  {found.bad.subject}",
    ]
    if found.whole.failure:
        return "\n".join([*lines, "", f"The command failed: {found.whole.failure}."])
    if not found.whole.is_slow:
        said = f"The change is {change_of(found.whole)}"
        return "\n".join([*lines, "", f"{said}: the bad commit is not clearly slower than the good one."])
    lines.append(f"      slower by {change_of(found.whole)}")
    lines += ["", *(f"{n:>2}  {step_text(step)}" for n, step in enumerate(found.steps, 1)), ""]
    return "\n".join([*lines, *conclusion(found)])


def conclusion(found: Bisection) -> list[str]:
    if found.first_slow is None:
        count = len(found.suspects)
        lines = [f"The first slow commit is one of these {count}; the script fails there, or time ran out:"]
        return [*lines, *(f"    {commit.short}  {commit.subject}" for commit in found.suspects)]
    first = found.first_slow
    lines = [f"The first slow commit: {first.short}  {first.subject}"]
    if found.proof is not None:
        lines.append(f"Against the commit before it: {change_of(found.proof)}")
    if shares_the_slow_down(found):
        lines.append("That is not the whole slow-down: other commits between good and bad share it.")
    if not found.is_sure:
        lines.append("Not certain: time ran out before every decision was clear; allow more with --budget.")
    return lines


def shares_the_slow_down(found: Bisection) -> bool:
    """Whether the commit found is clearly less slow against the one before it than bad against good."""
    whole, proof = found.whole.change, found.proof.change if found.proof is not None else None
    return whole is not None and proof is not None and proof.high < whole.low


def step_text(step: Step) -> str:
    subject = step.commit.subject[:22]  # 80 columns in all
    return f"{step.commit.short}  {decision(step.measured):<28} {step.left:>4} left   {subject}"


def decision(found: Measured) -> str:
    if found.interrupted:
        return "interrupted"
    if found.is_slow is None:
        return f"skipped: {found.failure or 'not measured'}"[:28]
    word = "slow" if found.is_slow else "fast"
    unsure = "" if found.is_sure else "?"
    return f"{word}{unsure} {change_of(found)}"


def change_of(found: Measured) -> str:
    change = found.change
    if change is None:
        return "unknown"
    return f"{100 * change.value:+.1f} % [{100 * change.low:.1f}, {100 * change.high:.1f}]"


def next_command(found: Bisection, arguments: Arguments) -> str:
    command = shlex.join(arguments.command)
    if found.first_slow is not None:
        return f"next: git show {found.first_slow.short}"
    slow = [s.commit.short for s in found.steps if s.measured.is_slow]
    fast = [s.commit.short for s in found.steps if s.measured.is_slow is False]
    good, bad = (fast or [found.good.short])[-1], (slow or [found.bad.short])[-1]
    return f"next: hotloop bisect --good {good} --bad {bad} --budget {arguments.budget} -- {command}"


# -- JSON ----------------------------------------------------------------------------------------


def as_json(found: Bisection) -> dict[str, Any]:
    data = json_object("bisect", found)
    first = found.first_slow
    return {**data, "first_slow": first.revision if first else None, "is_sure": found.is_sure}
