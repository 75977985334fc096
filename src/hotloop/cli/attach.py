"""`hotloop attach PID`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from hotloop._util.units import parse_seconds
from hotloop.cli.options import Flag
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.attached import attached_json, attached_text
from hotloop.report.to_json import strict_json
from hotloop.workflows.attach import attach


@dataclass(frozen=True)
class Arguments:
    """Watch a job that was started without hotloop: its lines, threads and states, read from outside.

    Needs py-spy (pip install 'hotloop[attach]') and the right to read the process. Nothing is put into it.

    Examples:

        hotloop attach 4242
        hotloop attach 4242 --seconds 10 --json
    """

    pid: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="PID")]
    """Number of the process; its children are watched as well."""
    seconds: Annotated[str, tyro.conf.arg(metavar="TIME")] = "30"
    """How long to watch."""
    json: Flag = False
    """Print one JSON object instead of text."""


def run(arguments: Arguments) -> int:
    """Watch, then print."""
    seconds = parse_seconds(arguments.seconds, "--seconds")
    said = f"hotloop: watching process {arguments.pid} for {seconds:g} s"
    found = attach(arguments.pid, seconds, lambda: note(said))
    print(strict_json(attached_json(found)) if arguments.json else attached_text(found, pen_for_stdout()))
    return 0
