"""`hotloop report [CAPTURE | SERIES]`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hotloop._util.units import size
from hotloop.cli.options import Flag, LatestCapture, option
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.text import terminal
from hotloop.report.to_json import findings_json, strict_json
from hotloop.workflows import series_report as series
from hotloop.workflows.report import CaptureReport, check_target, describe_output, report_on, write_report


@dataclass(frozen=True)
class Arguments:
    """Explain a recorded run: what limits it, what would help, and by how much."""

    capture: LatestCapture = None
    """Capture folder, one-file JSON export or series."""
    output: Annotated[Path | None, option("FILE", aliases=("-o",))] = None
    """Write a file instead of printing; its name chooses the format: .html, .txt, .json (all findings), .png
    (charts), .svg (a card for a README), trace.json (Perfetto), .speedscope.json. A series has .html, .txt,
    .json, and a before/after card as .png or .svg."""
    force: Flag = False
    """Overwrite the file if it exists."""
    json: Flag = False
    """Print all findings as one JSON object."""
    goal_env_steps: Annotated[int | None, option("N")] = None
    """Forecast the time left until this many env steps."""


def run(arguments: Arguments) -> int:
    """Print the report or write it to a file."""
    if series.is_series(arguments.capture):
        return report_series(arguments)
    if arguments.output is not None:
        check_target(arguments.output, arguments.force)
    report = report_on(arguments.capture, arguments.goal_env_steps)
    if arguments.output is not None:
        for warning in report.capture.all_warnings:  # not every format has a place for them
            note(f"hotloop: {warning}")
        written = write_report(report, arguments.output, arguments.force)
        note(f"wrote {arguments.output} ({size(written)})")
        if described := describe_output(report, arguments.output):
            note(described)
    if arguments.json:
        print(strict_json(findings_json(report.findings)))
    elif arguments.output is None:
        print_text(report)
        return 0
    note(where_to_open(arguments.output) or f"next: {next_command(report.name)}")
    return 0


def report_series(arguments: Arguments) -> int:
    """The same for a series of runs."""
    assert arguments.capture is not None
    report = series.series_report(arguments.capture)
    if arguments.output is not None:
        written = series.write_series_report(report, arguments.output, arguments.force)
        note(f"wrote {arguments.output} ({size(written)})")
    if arguments.json:
        print(series.as_json(report), end="")
    elif arguments.output is None:
        print(series.text(report, pen_for_stdout()), end="")
    if where := where_to_open(arguments.output):
        note(where)
    elif arguments.output is None and not arguments.json:
        note(f"next: {next_command(report.name)}")
    return 0


def next_command(name: str) -> str:
    """The page, after text or data."""
    return f"hotloop report {shlex.quote(name)} -o report.html"


def where_to_open(file: Path | None) -> str:
    """How to see a file that was written: an address that terminals open on a click; "" for none."""
    if file is None:
        return ""
    if file.name.endswith("trace.json"):
        return "next: open it at https://ui.perfetto.dev"
    if file.name.endswith(".speedscope.json"):
        return "next: open it at https://www.speedscope.app"
    return f"next: open {file.absolute().as_uri()}"


def print_text(report: CaptureReport) -> None:
    """Print the report as wide as the terminal; colour and characters follow what the terminal can show."""
    pen = pen_for_stdout()
    print(terminal(report.findings, pen.width, pen.colour, pen.unicode, report.name), end="")
