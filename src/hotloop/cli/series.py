"""`hotloop report SERIES`: what `hotloop report` does when it is given a series."""

from __future__ import annotations

import shlex
from pathlib import Path

from hotloop._util.units import size
from hotloop.cli.output import note, pen_for_stdout
from hotloop.workflows.series_report import as_json, series_report, text, write_series_report


def report_series(path: str, output: Path | None = None, force: bool = False, json: bool = False) -> int:
    """Print the series, or write it to a file whose extension chooses the format."""
    report = series_report(path)
    if output is not None:
        note(f"wrote {output} ({size(write_series_report(report, output, force))})")
    if json:
        print(as_json(report), end="")
    elif output is None:
        print(text(report, pen_for_stdout()), end="")
        note(f"next: hotloop report {shlex.quote(path)} -o report.html")
    return 0
