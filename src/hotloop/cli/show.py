"""`hotloop show`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hotloop.cli.options import Flag, LatestCapture, option
from hotloop.cli.output import note, terminal_width
from hotloop.report.to_json import strict_json
from hotloop.workflows.read_captures import show_capture


@dataclass(frozen=True)
class Arguments:
    """Print the region tree of a capture: calls, total and own time, share, mean, p50 and p99."""

    capture: LatestCapture = None
    """Capture folder or one-file JSON export."""
    by: Literal["all", "process", "thread"] = "all"
    """Merge everything, or print one tree for each process or thread."""
    depth: Annotated[int | None, option("N", "all")] = None
    """Number of levels to print."""
    whole_run: Flag = False
    """Include start-up, warm-up and shutdown."""
    json: Flag = False
    """Print one JSON object instead of text (fields: docs/capture-format.md)."""


def run(arguments: Arguments) -> int:
    """Print the tree; warnings about the capture go to stderr."""
    width, whole_run = terminal_width(), arguments.whole_run
    shown = show_capture(arguments.capture, arguments.by, width, arguments.depth, whole_run)
    for warning in shown.warnings:
        note(f"hotloop: {warning}")
    if arguments.json:
        print(strict_json(shown.data))
    else:
        print(shown.text)
        print(f"\nnext: {next_command(arguments)}")
    return 0


def next_command(arguments: Arguments) -> str:
    """The command to suggest after this one."""
    name = f" {arguments.capture}" if arguments.capture else ""
    return f"hotloop show{name} --by thread" if arguments.by == "all" else f"hotloop show{name} --json"
