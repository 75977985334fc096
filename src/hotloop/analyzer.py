"""`python -m hotloop.analyzer --input FILE ...`: the analysis of a capture as text, picture and JSON.

The command line of the original analyzer, kept for scripts that use it; `hotloop report` does the same
and more.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically


@dataclass(frozen=True)
class Arguments:
    """Analyse a capture: what limits training, and what would help. Files that exist are replaced."""

    input: str
    """A capture folder or the one-file JSON export of one."""
    output: Path | None = None
    """Write the report as text to this file; without it the report is printed."""
    charts: Path | None = None
    """Write the charts as PNG to this file (needs the extra `report`)."""
    detailed: Path | None = None
    """Write all findings as JSON to this file."""


def analyze(arguments: Arguments) -> str:
    """Write the files asked for; returns the text to print."""
    from hotloop.report.text import terminal
    from hotloop.report.to_json import findings_json
    from hotloop.workflows.report import report_on

    targets = [t for t in (arguments.output, arguments.charts, arguments.detailed) if t is not None]
    _check(targets)
    findings = report_on(arguments.input).findings
    if arguments.charts is not None:
        from hotloop.report.png import png_bytes

        arguments.charts.write_bytes(png_bytes(findings))
    if arguments.detailed is not None:
        write_atomically(arguments.detailed, json.dumps(findings_json(findings), indent=2) + "\n")
    written = "".join(f"wrote {target}\n" for target in targets)
    if arguments.output is not None:
        write_atomically(arguments.output, terminal(findings, 80, False, capture=arguments.input))
        return written
    width = shutil.get_terminal_size((80, 24)).columns
    return terminal(findings, width, sys.stdout.isatty(), capture=arguments.input) + written


def main(words: list[str] | None = None) -> int:
    """Entry point; a user's mistake gives one sentence and 2."""
    import tyro

    arguments = tyro.cli(
        Arguments, args=words, prog="python -m hotloop.analyzer", description=Arguments.__doc__
    )
    try:
        print(analyze(arguments), end="")
    except HotloopError as problem:
        print(f"hotloop: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"hotloop: cannot write {error.filename} ({error.strerror}).", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _check(targets: list[Path]) -> None:
    """Complain before the work is done, not after."""
    for target in targets:
        if not target.absolute().parent.is_dir():
            raise HotloopError(f"Cannot write {target}: there is no folder {target.parent}; make it first.")
        if target.is_dir():
            raise HotloopError(f"Cannot write {target}: it is a folder; name a file.")
    if len({target.absolute() for target in targets}) < len(targets):
        raise HotloopError("Two outputs have the same name; give each a file of its own.")


if __name__ == "__main__":
    sys.exit(main())
