"""`python -m hotloop.analyzer --input FILE ...`: the analysis of a capture as text, charts and JSON.

The command line of the original analyzer, kept for scripts that use it; `hotloop report` does the same and
more.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from hotloop._util.console import guarded
from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop.report.png import png_bytes
from hotloop.report.text import terminal
from hotloop.report.to_json import findings_json, strict_json
from hotloop.workflows.report import report_on


@dataclass(frozen=True)
class Arguments:
    """Analyse a capture: what limits training, and what would help. Overwrites existing files."""

    input: str
    """Capture folder or one-file JSON export."""
    output: Path | None = None
    """Write the report to this text file instead of printing it."""
    charts: Path | None = None
    """Write the charts to this PNG file (needs the extra `report`)."""
    detailed: Path | None = None
    """Write all findings to this JSON file."""


def analyze(arguments: Arguments) -> str:
    """Write the requested files; returns the text to print."""
    targets = [t for t in (arguments.output, arguments.charts, arguments.detailed) if t is not None]
    _check(targets)
    findings = report_on(arguments.input).findings
    if arguments.charts is not None:
        _write(arguments.charts, png_bytes(findings))
    if arguments.detailed is not None:
        _write(arguments.detailed, strict_json(findings_json(findings), indent=2) + "\n")
    written = "".join(f"wrote {target}\n" for target in targets)
    if arguments.output is not None:
        _write(arguments.output, terminal(findings, 80, False, capture=arguments.input))
        return written
    width = shutil.get_terminal_size((80, 24)).columns
    return terminal(findings, width, sys.stdout.isatty(), capture=arguments.input) + written


def main(words: list[str] | None = None) -> int:
    """Entry point; a mistake of the user gives one sentence and exit code 2."""
    return guarded(lambda: run(words))


def run(words: list[str] | None) -> int:
    arguments = tyro.cli(
        Arguments, args=words, prog="python -m hotloop.analyzer", description=Arguments.__doc__
    )
    print(analyze(arguments), end="")
    return 0


def _write(file: Path, content: str | bytes) -> None:
    try:
        write_atomically(file.absolute(), content)
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another place.") from error


def _check(targets: list[Path]) -> None:
    """Raise HotloopError before the work is done, not after."""
    for target in targets:
        if not target.absolute().parent.is_dir():
            raise HotloopError(f"{target.parent} does not exist; create the folder for {target.name} first.")
        if target.is_dir():
            raise HotloopError(f"{target} is a folder; name a file in it.")
    if len({target.absolute() for target in targets}) < len(targets):
        raise HotloopError("Two outputs have the same name; give each its own file.")


if __name__ == "__main__":
    sys.exit(main())
