"""`hotloop try`: which safe patches make a script faster, measured inside it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.trial import TrialReport, trial_json, trial_text
from hotloop.workflows.trial import Terms, try_patches

TAKES_COMMAND = True
SCRIPT_FAILED, NOTHING_MEASURED, INTERRUPTED = 5, 1, 130

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class Arguments:
    """Switch safe patches on and off inside a running script and say which make it faster.

    hotloop try train.py --its arguments
    hotloop try --budget 2m -- python train.py --its arguments
    """

    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "60s"
    """Time to measure, from the first update on; then the script goes on as it is."""
    only: Annotated[str, tyro.conf.arg(metavar="NAME,...")] = ""
    """Try these patches alone."""
    stop: Flag = False
    """End the script when the verdicts are known."""
    selftest: Flag = False
    """Try patches that do nothing: what is found then is noise."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="SHARE")] = "3%"
    """Differences below this need not be told apart."""
    seed: int = 0
    """Of the order in which patches take turns."""
    capture: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the recording goes; hotloop-runs/<time>-<script> when not given."""
    json: Flag = False
    """Print the verdicts as one JSON object; the script's stdout goes to stderr."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


_FLAGS = ("--stop", "--selftest", "--json", "-h", "--help")


def command_starts(words: list[str]) -> int | None:
    """Where the script's own words begin: at the first that is no option of ours, or after `--`."""
    at = 0
    while at < len(words):
        if words[at] == "--":
            return None  # the general rule
        if words[at] == "-m" or not words[at].startswith("-"):
            return at
        at += 1 if words[at] in _FLAGS or "=" in words[at] else 2
    return None


def run(arguments: Arguments) -> int:
    """Try, print the verdicts; the exit code says how the script ended."""
    terms = Terms(
        budget_s=parse_seconds(arguments.budget, "--budget"),
        only=tuple(word.strip() for word in arguments.only.split(",") if word.strip()),
        seed=arguments.seed,
        tolerance=parse_fraction(arguments.tolerance, "--tolerance"),
        stop=arguments.stop,
        selftest=arguments.selftest,
    )

    def tell(report: TrialReport) -> None:
        if not arguments.json:
            show(report)
            note("hotloop: " + ("the script is ended" if terms.stop else "the script goes on, unchanged"))

    tried = try_patches(arguments.command, arguments.capture, terms, quiet=arguments.json, tell=tell)
    if arguments.json:
        script = {"exit_code": tried.ran.exit_code, "ending": tried.ran.ending}
        print(json.dumps(trial_json(tried.report) | {"script": script, "capture": str(tried.ran.folder)}))
    elif not tried.told:
        show(tried.report)
    if tried.stopped:
        return 0
    if tried.ran.interrupted:
        return INTERRUPTED
    if tried.ran.exit_code:
        note(f"hotloop: the script failed ({tried.ran.ending})")
        return SCRIPT_FAILED
    return 0 if tried.report.began else NOTHING_MEASURED


def show(report: TrialReport) -> None:
    """The report on stdout."""
    sys.stdout.flush()
    print(f"\n{trial_text(report, pen_for_stdout())}", flush=True)
