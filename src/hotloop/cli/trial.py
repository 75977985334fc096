"""`hotloop try`: finds out which safe patches make a script faster, measured inside it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.options import Flag, Number, option
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.to_json import strict_json
from hotloop.report.trial import TrialReport, trial_json, trial_text
from hotloop.workflows.before_after import check_card, write_card
from hotloop.workflows.project_settings import save_patches_to_keep
from hotloop.workflows.trial import TrialSettings, run_trial

TAKES_COMMAND = True
OPTIONS_WITH_VALUE = ("--budget", "--only", "--tolerance", "--seed", "--capture", "--save", "--card")
SCRIPT_FAILED, NOTHING_MEASURED, INTERRUPTED = 5, 1, 130


@dataclass(frozen=True)
class Arguments:
    """Try safe patches inside a running script and find out which make it faster.

    Examples:

        hotloop try train.py --its arguments
        hotloop try --budget 2m -- python train.py --its arguments
    """

    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "60s"
    """Time to measure, starting with training; afterwards the script continues unpatched."""
    only: Annotated[str, option("NAME,...")] = ""
    """Try only these patches."""
    stop: Flag = False
    """End the script once the verdicts are known."""
    selftest: Flag = False
    """Try patches without effect: any difference found is noise."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="SHARE")] = "3%"
    """Ignore differences below this."""
    seed: Number = 0
    """Seed of the random order of patches."""
    capture: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-<script>")] = None
    """Folder for the recording."""
    save: Annotated[Path | None, option("FILE")] = None
    """Write the patches that were faster to this file (hotloop.toml), for hotloop boost --keep FILE."""
    card: Annotated[Path | None, option("FILE")] = None
    """Write a before/after card of the best patches: .html, .png or .svg."""
    json: Flag = False
    """Print the verdicts as one JSON object; the script's stdout goes to stderr."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    check_card(arguments.card)
    settings = TrialSettings(
        budget_s=parse_seconds(arguments.budget, "--budget"),
        only=tuple(word.strip() for word in arguments.only.split(",") if word.strip()),
        seed=arguments.seed,
        tolerance=parse_fraction(arguments.tolerance, "--tolerance"),
        stop=arguments.stop,
        selftest=arguments.selftest,
    )

    def on_report(report: TrialReport) -> None:
        if not arguments.json:
            show(report)
            note("hotloop: " + ("ending the script" if settings.stop else "the script continues, unpatched"))

    result = run_trial(
        arguments.command,
        arguments.capture,
        settings,
        quiet=arguments.json,
        on_report=on_report,
        on_progress=lambda line: note(f"hotloop: {line}"),
    )
    if arguments.json:
        script = {"exit_code": result.ran.exit_code, "ending": result.ran.ending}
        print(strict_json(trial_json(result.report) | {"script": script, "capture": str(result.ran.folder)}))
    elif not result.reported:
        show(result.report)
    if arguments.save is not None:
        keep(result.report, arguments.save)
    if arguments.card is not None:
        note(write_card(result.card(), arguments.card))
    if result.stopped:
        return 0
    if result.ran.interrupted:
        return INTERRUPTED
    if result.ran.exit_code:
        note(f"hotloop: the script failed ({result.ran.ending})")
        return SCRIPT_FAILED
    return 0 if result.report.began else NOTHING_MEASURED


def keep(report: TrialReport, file: Path) -> None:
    """Save the faster patches, or say that there are none."""
    faster = [patch.name for patch in report.patches if patch.verdict.word == "faster"]
    if not faster:
        note(f"hotloop: no patch is clearly faster, so {file} was not written")
        return
    save_patches_to_keep(file, faster)
    note(f"wrote {file}: {', '.join(faster)}; use it with: hotloop boost --keep {file} ...")


def show(report: TrialReport) -> None:
    sys.stdout.flush()
    print(f"\n{trial_text(report, pen_for_stdout())}", flush=True)
