"""`hotloop whatif CAPTURE CHANGE...`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from hotloop.cli.options import Flag, LatestCapture, option
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.to_json import json_object, strict_json
from hotloop.report.what_ifs import what_ifs_text
from hotloop.workflows.whatif import what_if


@dataclass(frozen=True)
class Arguments:
    """Predict what changes would give: the recorded run is replayed with the changed work.

    REGION=2x makes a region twice as fast, REGION=50% leaves half of its time. workers=8, depth=64 (queues)
    and cores=4 set a number, workers=2x doubles it. Several changes are answered one by one and together.
    Without changes, the regions with most time are tried.

    Examples:

        hotloop whatif hotloop-runs/x env_step=2x
        hotloop whatif hotloop-runs/x env_step=2x workers=8 depth=64 --json
    """

    capture: LatestCapture = None
    """Capture folder."""
    changes: Annotated[tuple[str, ...], tyro.conf.Positional, option("[CHANGE...]")] = ()
    """What would be different."""
    json: Flag = False
    """Print one JSON object instead of text."""


def run(arguments: Arguments) -> int:
    """Print the answers."""
    path, changes = arguments.capture, arguments.changes
    if path is not None and "=" in path:  # the capture was left out
        changes, path = (path, *changes), None
    found = what_if(path, changes)
    for warning in found.warnings:
        note(f"hotloop: {warning}")
    if arguments.json:
        print(strict_json(json_object("whatif", found)))
    else:
        pen = pen_for_stdout()
        print(what_ifs_text(found.limit, found.straggler, found.predictions, found.together, pen))
    return 0
