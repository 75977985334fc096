"""`hotloop serve [FOLDER]`."""

from __future__ import annotations

import contextlib
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop.cli.options import Flag, option
from hotloop.cli.output import note
from hotloop.workflows.serve import prepare


@dataclass(frozen=True)
class Arguments:
    """Show the runs of a folder in the browser: reports, jobs under way, two runs side by side.

    Only this computer can open the page, and only with the address that is printed. Nothing is changed.
    """

    folder: Annotated[Path | None, tyro.conf.Positional, option("FOLDER", "hotloop-runs")] = None
    """Folder with captures and series."""
    port: Annotated[int, option("N", "any that is free")] = 0
    """Port to listen on."""
    open: Flag = False
    """Open the page in the browser."""


def run(arguments: Arguments) -> int:
    """Serve until Ctrl-C."""
    served = prepare(arguments.folder, arguments.port)
    print(served.address, flush=True)
    note("serving this computer only; end with Ctrl-C")
    if arguments.open:
        webbrowser.open(served.address)
    with contextlib.suppress(KeyboardInterrupt):
        served.run()
    return 0
