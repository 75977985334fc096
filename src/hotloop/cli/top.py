"""`hotloop top [CAPTURE]`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from hotloop._util.errors import HotloopError
from hotloop.cli.options import Flag, LatestCapture, option
from hotloop.report.to_json import strict_json
from hotloop.report.top import ending, show_live, top_json, top_lines
from hotloop.workflows.read_captures import capture_to_watch, watch_capture


@dataclass(frozen=True)
class Arguments:
    """Watch a running job: throughput, where the time goes, and threads that are stuck."""

    capture: LatestCapture = None
    """Capture folder of the job."""
    interval: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 1.0
    """Time between updates."""
    iterations: Annotated[int | None, option("N", "until all processes have ended")] = None
    """Number of updates."""
    json: Flag = False
    """Print each update as one JSON object per line."""


def run(arguments: Arguments) -> int:
    """Show the job until it ends; Ctrl-C exits with 130."""
    if not 0.05 <= arguments.interval <= 3600:
        raise HotloopError(f"--interval is {arguments.interval:g}; it must be between 0.05 and 3600 seconds.")
    if arguments.iterations is not None and arguments.iterations < 1:
        raise HotloopError(f"--iterations is {arguments.iterations}; it must be at least 1.")
    path = capture_to_watch(arguments.capture)
    updates = watch_capture(path, arguments.interval, arguments.iterations)
    if arguments.json:
        for status in updates:
            print(strict_json(top_json(status)), flush=True)
    elif sys.stdout.isatty():
        show_live(updates, path)
    else:
        for status in updates:
            print(top_lines(status), flush=True)
            if status.all_ended:
                print(ending(status), flush=True)
    return 0
