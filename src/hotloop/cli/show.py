"""`hotloop show`: where the time of a capture went, as a tree."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from hotloop.workflows.show import show


@dataclass(frozen=True)
class Arguments:
    """Print the tree of a capture: calls, total, own time, share, mean, p50, p99."""

    capture: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="CAPTURE")] = None
    """Capture folder or one-file export; the latest in hotloop-runs/ when none is named."""
    by: Literal["all", "process", "thread"] = "all"
    """Merge everything, or keep processes or threads apart."""
    depth: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Levels of the tree to print; all when not given."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print data instead of text (schema in docs/capture-format.md)."""


def run(arguments: Arguments) -> int:
    """Print the tree; what could not be read goes to stderr."""
    width = shutil.get_terminal_size((80, 24)).columns
    result = show(arguments.capture, arguments.by, width, arguments.depth)
    for warning in result.warnings:
        print(f"hotloop: {warning}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(result.data))
    else:
        print(result.text)
        print(f"\nnext: {next_command(arguments)}")
    return 0


def next_command(arguments: Arguments) -> str:
    """The command that helps after this one."""
    name = f" {arguments.capture}" if arguments.capture else ""
    return f"hotloop show{name} --by thread" if arguments.by == "all" else f"hotloop show{name} --json"
