"""`hotloop diff A B`."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import Annotated

import tyro

from hotloop.report.diff import diff_json, diff_text
from hotloop.workflows.diff import diff_captures


@dataclass(frozen=True)
class Arguments:
    """Set two captures side by side, region by region and per env step; describes, proves nothing."""

    a: tyro.conf.Positional[str]
    """A capture folder or its one-file JSON export."""
    b: tyro.conf.Positional[str]
    """The other one."""
    rows: int = 20
    """Regions to print, largest change first."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print everything as one JSON object."""


def run(arguments: Arguments) -> int:
    """Print the comparison."""
    found = diff_captures(arguments.a, arguments.b)
    if arguments.json:
        print(json.dumps(diff_json(found)))
    else:
        print(diff_text(found, shutil.get_terminal_size((80, 24)).columns, arguments.rows))
    return 0
