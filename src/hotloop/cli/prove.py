"""`hotloop prove CAPTURE N`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.series_text import comparison_text
from hotloop.report.to_json import plain
from hotloop.workflows.compare import Terms
from hotloop.workflows.experiments import INTERRUPTED, Progress, exit_code_of
from hotloop.workflows.prove import prove

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class Arguments:
    """Test a recommendation of a report: run the script as it was and with the change, in turn.

    What was predicted and what was measured is written into the capture, as proof-N.json.
    """

    capture: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CAPTURE")]
    """Capture folder or one-file JSON export."""
    number: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="N")]
    """Number of the recommendation, as the report counts them."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """The setting of your script that makes the change, where the recommendation is about a flag."""
    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "10m"
    """Time for all runs together."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Differences below this do not matter."""
    series: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the runs are kept; hotloop-runs/<time>-prove-N when not given."""
    json: Flag = False
    """Print the result as one JSON object."""


def run(arguments: Arguments) -> int:
    """Run the pairs; print predicted against measured."""
    terms = Terms(
        budget_s=parse_seconds(arguments.budget, "--budget"),
        tolerance=parse_fraction(arguments.tolerance, "--tolerance"),
    )
    found = prove(arguments.capture, arguments.number, arguments.set, terms, arguments.series, Progress())
    if arguments.json:
        keys = ("number", "predicted", "measured", "says", "file")
        print(json.dumps({"kind": "hotloop proof", **{key: plain(getattr(found, key)) for key in keys}}))
    else:
        pen = pen_for_stdout()
        print(pen.wrap(found.recommendation.title))
        print(pen.wrap(found.says))
        print()
        print(comparison_text(found.done.series, found.done.found, pen))
    note(f"wrote {found.file}" if found.file else "the proof could not be written beside the capture")
    return INTERRUPTED if found.done.interrupted else exit_code_of(found.done.conducted)
