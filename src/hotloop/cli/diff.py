"""`hotloop diff A B`."""

from __future__ import annotations

import json
from dataclasses import dataclass

import tyro

from hotloop.cli.options import Flag
from hotloop.cli.output import terminal_width
from hotloop.report.side_by_side import diff_json, diff_text
from hotloop.workflows.read_captures import diff_captures


@dataclass(frozen=True)
class Arguments:
    """Show two captures side by side, region by region.

    Describes the two runs without a verdict: one run each cannot tell a difference from noise. For a
    verdict use `hotloop compare`.
    """

    a: tyro.conf.Positional[str]
    """Capture folder or one-file JSON export."""
    b: tyro.conf.Positional[str]
    """Capture folder or one-file JSON export to compare with it."""
    rows: int = 20
    """Number of regions to print, largest change first."""
    json: Flag = False
    """Print one JSON object with all regions instead of text."""


def run(arguments: Arguments) -> int:
    """Print the two captures side by side."""
    found = diff_captures(arguments.a, arguments.b)
    if arguments.json:
        print(json.dumps(diff_json(found)))
    else:
        print(diff_text(found, terminal_width(), arguments.rows))
    return 0
