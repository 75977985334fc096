"""`hotloop top [CAPTURE]`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from hotloop._util.errors import HotloopError
from hotloop.report.top import ending, show, top_json, top_lines
from hotloop.workflows.top import capture_to_watch, watch


@dataclass(frozen=True)
class Arguments:
    """Watch a running job: rates and shares over the last seconds, and threads that are stuck."""

    capture: tyro.conf.Positional[str | None] = None
    """The capture of the job; the latest one when none is named."""
    interval: float = 1.0
    """Seconds between two looks."""
    iterations: int | None = None
    """Looks to take; without it the view ends when all processes of the capture have ended."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print each look as one JSON object on a line of its own."""


def run(arguments: Arguments) -> int:
    """Show the job until it ends; Ctrl-C ends the view with 130."""
    if not 0.05 <= arguments.interval <= 3600:
        raise HotloopError(f"--interval is {arguments.interval:g}; it must be from 0.05 to 3600 seconds.")
    if arguments.iterations is not None and arguments.iterations < 1:
        raise HotloopError(f"--iterations is {arguments.iterations}; it must be at least 1.")
    path = capture_to_watch(arguments.capture)
    looks = watch(path, arguments.interval, arguments.iterations)
    if arguments.json:
        for live in looks:
            print(json.dumps(top_json(live)), flush=True)
    elif sys.stdout.isatty():
        show(looks, path)
    else:
        for live in looks:
            print(top_lines(live), flush=True)
            if live.all_ended:
                print(ending(live), flush=True)
    return 0
