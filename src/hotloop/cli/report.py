"""`hotloop report`: what limits a recorded run, and what would help."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.units import size
from hotloop.cli.series import report_series
from hotloop.report.text import terminal
from hotloop.report.to_json import findings_json
from hotloop.workflows.report import CaptureReport, check_target, report_on, write_report
from hotloop.workflows.series_report import is_series


@dataclass(frozen=True)
class Arguments:
    """Say what limits a recorded run, what would help and by how much."""

    capture: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="CAPTURE")] = None
    """Capture folder or one-file JSON export; the latest in hotloop-runs/ when none is named."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = None
    """Write a file instead of printing; its name chooses the format: .html, .txt, .json (all findings),
    .png (charts), .svg (a card for a README), trace.json (Perfetto), .speedscope.json."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace the file if it exists."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print all findings as one JSON object."""
    goal_env_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Forecast the time left until this many env steps."""


def run(arguments: Arguments) -> int:
    """Print the report or write it to a file."""
    if arguments.capture is not None and is_series(arguments.capture):
        return report_series(arguments.capture, arguments.output, arguments.force, arguments.json)
    if arguments.output is not None:
        check_target(arguments.output, arguments.force)
    result = report_on(arguments.capture, arguments.goal_env_steps)
    if arguments.output is not None:
        written = write_report(result, arguments.output, arguments.force)
        note(f"wrote {arguments.output} ({size(written)})")
    if arguments.json:
        print(json.dumps(findings_json(result.findings)))
    elif arguments.output is None:
        print_text(result)
        return 0
    note(f"next: {next_command(arguments, shlex.quote(result.name))}")
    return 0


def next_command(arguments: Arguments, name: str) -> str:
    """The page after the data, the text after a file."""
    return f"hotloop report {name}" + ("" if arguments.output is not None else " -o report.html")


def print_text(result: CaptureReport) -> None:
    """The report as wide as the terminal, in colour where that is welcome, in ASCII where it must be."""
    on_terminal = sys.stdout.isatty()
    colour = on_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    width = min(shutil.get_terminal_size((80, 24)).columns, 120)
    text = terminal(result.findings, width, colour, encoding.startswith("utf"), result.name)
    print(text, end="")


def note(sentence: str) -> None:
    """Something beside the result: goes to stderr."""
    print(sentence, file=sys.stderr)
