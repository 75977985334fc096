"""`hotloop prove CAPTURE N`: tests a recommendation of a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.options import Flag, Repeated, option
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.pen import Pen
from hotloop.report.series_text import comparison_text
from hotloop.report.to_json import plain, strict_json
from hotloop.report.trial import trial_text
from hotloop.report.what_ifs import virtual_text
from hotloop.workflows.before_after import check_card, write_card
from hotloop.workflows.compare import ComparisonSettings
from hotloop.workflows.experiments import (
    INTERRUPTED,
    SCRIPT_FAILED,
    ExperimentResult,
    Progress,
    exit_code_of,
)
from hotloop.workflows.prove import SCHEMA_VERSION, ProofRequest, prove
from hotloop.workflows.trial import TrialResult
from hotloop.workflows.virtual_speedup import prove_virtually


@dataclass(frozen=True)
class Arguments:
    """Test a recommendation of a report: run the script as recorded and with the change, in turn.

    Variables, flags and patches are set for you. If the recommendation asks for an edit, make it, then use
    --rev.
    Writes the predicted and the measured speed-up into the capture, as proof-N.json.

    Examples:

        hotloop prove hotloop-runs/x 1
        hotloop prove hotloop-runs/x 1 --set eval-freq=10000
        hotloop prove hotloop-runs/x 2 --rev
    """

    capture: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CAPTURE")]
    """Capture folder or one-file JSON export."""
    number: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="N")]
    """Number of the recommendation in the report."""
    set: Repeated = ()
    """Setting of your script that makes the change, as key=value, for recommendations about a flag."""
    rev: Flag = False
    """Compare the working tree, in which you made the change, with the last commit."""
    virtual: Flag = False
    """Make no change: run once more, with the recommendation's region virtually twice as fast."""
    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "10m"
    """Time for all runs together."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Ignore differences below this."""
    series: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-prove-N")] = None
    """Folder for the runs."""
    card: Annotated[Path | None, option("FILE")] = None
    """Also write a before/after card to share: .html, .png or .svg."""
    json: Flag = False
    """Print the result as one JSON object."""


def run(arguments: Arguments) -> int:
    settings = ComparisonSettings(
        budget_s=parse_seconds(arguments.budget, "--budget"),
        tolerance=parse_fraction(arguments.tolerance, "--tolerance"),
    )
    if arguments.set and arguments.rev:
        raise HotloopError("--set and --rev are two ways to make the change; use one of them.")
    check_card(arguments.card)
    if arguments.virtual:
        return _virtually(arguments)
    request = ProofRequest(arguments.capture, arguments.number, arguments.set, arguments.rev)
    found = prove(request, settings, arguments.series, Progress())
    if arguments.json:
        keys = ("number", "predicted", "measured", "at_least", "conclusion", "file")
        values = {key: plain(getattr(found, key)) for key in keys}
        print(strict_json({"kind": "hotloop-proof", "schema_version": SCHEMA_VERSION, **values}))
    else:
        pen = pen_for_stdout()
        print(pen.wrap(found.recommendation.title))
        print(pen.wrap(found.conclusion))
        print()
        print(details(found.result, pen))
    if arguments.card is not None:
        note(write_card(found.card(), arguments.card))
    note(f"wrote {found.file}" if found.file else "the proof could not be written into the capture")
    return exit_code(found.result)


def _virtually(arguments: Arguments) -> int:
    if arguments.set or arguments.rev or arguments.card:
        raise HotloopError("--virtual makes no change, so it goes without --set, --rev and --card.")
    found = prove_virtually(arguments.capture, arguments.number, arguments.series)
    if arguments.json:
        values = {"number": found.number, "region": found.region, "results": plain(found.results)}
        print(strict_json({"kind": "hotloop-virtual-proof", "schema_version": SCHEMA_VERSION, **values}))
    else:
        print(virtual_text(found.results, pen_for_stdout()))
    note(f"the run is in {found.ran.folder}")
    if found.ran.interrupted:
        return INTERRUPTED
    return SCRIPT_FAILED if found.ran.exit_code else 0


def details(result: ExperimentResult | TrialResult, pen: Pen) -> str:
    """The comparison, or the trial, behind the conclusion."""
    if isinstance(result, TrialResult):
        return trial_text(result.report, pen)
    return comparison_text(result.series, result.comparison, pen)


def exit_code(result: ExperimentResult | TrialResult) -> int:
    if isinstance(result, ExperimentResult):
        return INTERRUPTED if result.interrupted else exit_code_of(result.outcome)
    if result.ran.interrupted and not result.stopped:
        return INTERRUPTED
    return SCRIPT_FAILED if result.ran.exit_code and not result.stopped else 0
