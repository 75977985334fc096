"""`hotloop merge DIR... --capture DIR`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop.cli.options import Flag, option
from hotloop.cli.output import note, terminal_width
from hotloop.report.summary_text import summary_text
from hotloop.report.to_json import strict_json
from hotloop.workflows.merge import fold_captures, merge_captures, summary_json


@dataclass(frozen=True)
class Arguments:
    """Join captures that several computers made of one run, on one clock."""

    captures: Annotated[tuple[str, ...], tyro.conf.Positional, option("DIR...")]
    """Capture folders, one from each computer."""
    capture: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-merged")] = None
    """Folder of the joined capture."""
    summary: Flag = False
    """Fold all processes into one summary, role by role, instead: for runs on very many nodes."""
    json: Flag = False
    """Print one JSON object instead of text."""


def run(arguments: Arguments) -> int:
    """Join them; notes about clocks and files that were left out go to stderr."""
    if arguments.summary:
        return fold(arguments)
    merged = merge_captures(arguments.captures, arguments.capture)
    for text in merged.notes:
        note(f"hotloop: {text}")
    if arguments.json:
        found = {"capture": str(merged.folder), "hosts": list(merged.hosts), "processes": merged.processes}
        print(strict_json({"schema_version": 1, **found, "notes": list(merged.notes)}))
    else:
        computers = "1 computer" if len(merged.hosts) == 1 else f"{len(merged.hosts)} computers"
        print(f"{merged.folder}: {merged.processes} processes of {computers}")
        print(f"next: hotloop report {merged.folder}")
    return 0


def fold(arguments: Arguments) -> int:
    """Fold them, and print the summary."""
    file, summary, left_out = fold_captures(arguments.captures, arguments.capture)
    for text in left_out:
        note(f"hotloop: {text}")
    if arguments.json:
        print(strict_json(summary_json(summary)))
    else:
        print(summary_text(summary, terminal_width()))
        print(f"\nwritten: {file}")
    return 0
