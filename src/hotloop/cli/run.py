"""`hotloop run`: records an unmodified training script and explains it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.redact import redact
from hotloop._util.units import size
from hotloop.cli.options import Flag, option
from hotloop.cli.output import note, pen_for_stdout
from hotloop.cli.report import print_text
from hotloop.report.to_json import findings_json, plain, strict_json
from hotloop.report.what_ifs import virtual_text
from hotloop.workflows.report import check_target, report_on, write_report
from hotloop.workflows.run import ScriptRun, did_nothing, run_recorded
from hotloop.workflows.virtual_speedup import new_plan, regions_of, results_of

TAKES_COMMAND = True
OPTIONS_WITH_VALUE = ("--capture", "--output", "-o", "--what-if")
SCRIPT_FAILED, NOTHING_RECORDED, INTERRUPTED = 5, 1, 130
# Options that add a file to the capture: the file and what it contains.
EXTRAS = {
    "torch_profile": ("torch-trace.json", "torch's own trace, for ui.perfetto.dev"),
    "detailed": ("detailed.txt", "functions by time, with callers and callees"),
}


@dataclass(frozen=True)
class Arguments:
    """Record an unmodified training script and all processes it starts, and explain it.

    Examples:

        hotloop run train.py --its arguments
        hotloop run -m package.train
        hotloop run --capture runs/a -- python train.py --its arguments
    """

    capture: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-<script>")] = None
    """Folder for the recording."""
    output: Annotated[Path | None, option("FILE", aliases=("-o",))] = None
    """Also write the report to this file; the extension selects the format (see hotloop report)."""
    modules: Flag = False
    """Add a region for every torch module, not only the outermost (costs more)."""
    torch_profile: Flag = False
    """Run torch's own profiler for two seconds of training; the trace goes into the capture."""
    detailed: Flag = False
    """Run cProfile: the top 50 functions with callers and callees, in detailed.txt (slows down the run)."""
    timeline: Flag = False
    """Also record the last 8,192 calls of each thread, for hotloop report -o trace.json."""
    no_source: Flag = False
    """Keep no source text of the script's busiest functions in the capture."""
    what_if: Annotated[str | None, option("REGION[,REGION]")] = None
    """Measure what these regions, twice as fast, would give, inside the run (docs/whatif.md)."""
    progress: Flag = False
    """Print a line on stderr every 10 s: env steps, time left, steps/s, where the time goes."""
    json: Flag = False
    """Print all findings and how the script ended as one JSON object; stdout of the script goes to stderr."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    if arguments.output is not None:
        check_target(arguments.output, force=False)
    options = {
        name: True
        for name in ("modules", "torch_profile", "detailed", "timeline")
        if getattr(arguments, name)
    }
    options |= {"on": True, "source": not arguments.no_source}
    plan = new_plan(regions_of(arguments.what_if)) if arguments.what_if is not None else None
    ran = run_recorded(
        arguments.command, arguments.capture, options, arguments.json, plan, arguments.progress
    )
    result = report_on(str(ran.folder))
    measured = results_of(result.capture)
    files = {name: ran.folder / file for name, (file, _) in EXTRAS.items() if getattr(arguments, name)}
    if arguments.json:
        script = {
            "exit_code": ran.exit_code,
            "ending": ran.ending,
            "command": list(redact(ran.command).words),
        }
        there = {name: str(file) if file.exists() else None for name, file in files.items()}
        more = {"script": script, "capture": str(ran.folder), "files": there}
        more |= {"what_if": plain(measured)} if plan is not None else {}
        print(strict_json(findings_json(result.findings) | more))
    if not result.capture.processes:
        note(
            f"hotloop: nothing was recorded into {ran.folder}: the command started no Python program; "
            f"try: hotloop run {shlex.join(redact(ran.command[1:]).words)}"
        )
        return SCRIPT_FAILED if ran.exit_code else NOTHING_RECORDED
    did_no_work = bool(ran.exit_code) and not ran.interrupted and did_nothing(result.capture)
    if not arguments.json and not did_no_work:
        sys.stdout.flush()
        print()
        print_text(dataclasses.replace(result, name=shlex.quote(str(ran.folder))))
        if plan is not None:
            print(virtual_text(measured, pen_for_stdout()))
    if arguments.output is not None:
        note(f"wrote {arguments.output} ({size(write_report(result, arguments.output))})")
    print_files(files)
    if did_no_work:
        note(
            f"hotloop: the script {ran.ending_as_predicate} before it did anything that hotloop records; "
            f"see what was recorded: hotloop report {shlex.quote(str(ran.folder))}"
        )
    elif ran.exit_code:
        note(f"hotloop: the script {ran.ending_as_predicate}; everything up to then is in {ran.folder}")
    return exit_code(ran)


def print_files(files: dict[str, Path]) -> None:
    """Print where the requested extra files are, by option, or that they are missing."""
    for name, file in files.items():
        if file.exists():
            note(f"{EXTRAS[name][1]}: {file}")
        else:
            option = "--" + name.replace("_", "-")
            note(
                f"hotloop: {option} wrote no {file.name}: the script was killed, or ended before any training"
            )


def exit_code(ran: ScriptRun) -> int:
    """0, 5 if the script failed, or 130 if it was interrupted."""
    if ran.interrupted:
        return INTERRUPTED
    return SCRIPT_FAILED if ran.exit_code else 0
