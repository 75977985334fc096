"""`hotloop diff A B`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from hotloop.cli.options import Flag
from hotloop.cli.output import terminal_width
from hotloop.report.side_by_side import diff_json, diff_text
from hotloop.report.to_json import strict_json
from hotloop.workflows.read_captures import diff_captures


@dataclass(frozen=True)
class Arguments:
    """Show two captures side by side, region by region, without a verdict (see hotloop compare)."""

    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """Capture folder or one-file JSON export."""
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """Capture folder or one-file JSON export to compare with it."""
    rows: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """Number of regions to print, largest change first."""
    whole_run: Flag = False
    """Include start-up, warm-up and shutdown."""
    json: Flag = False
    """Print one JSON object with all regions instead of text."""


def run(arguments: Arguments) -> int:
    """Print the two captures side by side."""
    found = diff_captures(arguments.a, arguments.b, arguments.whole_run)
    if arguments.json:
        print(strict_json(diff_json(found)))
    else:
        print(diff_text(found, terminal_width(), arguments.rows))
    return 0
