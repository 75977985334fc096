"""`hotloop prove CAPTURE N`: tests a recommendation of a report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.options import Flag, Repeated, option
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.series_text import comparison_text
from hotloop.report.to_json import plain
from hotloop.workflows.compare import ComparisonSettings
from hotloop.workflows.experiments import INTERRUPTED, Progress, exit_code_of
from hotloop.workflows.prove import SCHEMA_VERSION, prove


@dataclass(frozen=True)
class Arguments:
    """Test a recommendation of a report: run the script as recorded and with the change, in turn.

    Writes the predicted and the measured speed-up into the capture, as proof-N.json.
    """

    capture: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CAPTURE")]
    """Capture folder or one-file JSON export."""
    number: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="N")]
    """Number of the recommendation in the report."""
    set: Repeated = ()
    """Setting of your script that makes the change, as key=value, for recommendations about a flag."""
    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "10m"
    """Time for all runs together."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Ignore differences below this."""
    series: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-prove-N")] = None
    """Folder for the runs."""
    json: Flag = False
    """Print the result as one JSON object."""


def run(arguments: Arguments) -> int:
    settings = ComparisonSettings(
        budget_s=parse_seconds(arguments.budget, "--budget"),
        tolerance=parse_fraction(arguments.tolerance, "--tolerance"),
    )
    found = prove(arguments.capture, arguments.number, arguments.set, settings, arguments.series, Progress())
    if arguments.json:
        keys = ("number", "predicted", "measured", "conclusion", "file")
        values = {key: plain(getattr(found, key)) for key in keys}
        print(json.dumps({"kind": "hotloop-proof", "schema_version": SCHEMA_VERSION, **values}))
    else:
        pen = pen_for_stdout()
        print(pen.wrap(found.recommendation.title))
        print(pen.wrap(found.conclusion))
        print()
        print(comparison_text(found.result.series, found.result.comparison, pen))
    note(f"wrote {found.file}" if found.file else "the proof could not be written into the capture")
    return INTERRUPTED if found.result.interrupted else exit_code_of(found.result.outcome)
