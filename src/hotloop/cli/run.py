"""`hotloop run`: record a training script, unmodified, and explain it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.units import size
from hotloop.cli.report import note, print_text
from hotloop.report.to_json import findings_json
from hotloop.workflows.report import check_target, report_on, write_report
from hotloop.workflows.run import Ran, did_nothing, run_recorded

TAKES_COMMAND = True
SCRIPT_FAILED, NOTHING_RECORDED, INTERRUPTED = 5, 1, 130
# Options that add a file to the capture: the file, and what is in it.
EXTRAS = {
    "torch_profile": ("torch-trace.json", "torch's own trace, for ui.perfetto.dev"),
    "detailed": ("detailed.txt", "functions by time, with callers and callees"),
}


@dataclass(frozen=True)
class Arguments:
    """Record a training script nobody edited, with all processes it starts, and explain it.

    hotloop run train.py --its arguments
    hotloop run -m package.train
    hotloop run --capture runs/a -- python train.py --its arguments
    """

    capture: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the recording goes; hotloop-runs/<time>-<script> when not given."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = None
    """Also write the report to a file; its extension chooses the format (see hotloop report)."""
    modules: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """A region for every torch module, not only the outermost (costs more)."""
    torch_profile: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Add torch's own profiler for two seconds of training; its trace lies in the capture."""
    detailed: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Add cProfile: the top 50 functions with callers and callees, in detailed.txt (slows the run)."""
    timeline: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Keep the last events of each thread, for hotloop report -o trace.json."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print all findings and how the script ended as one JSON object; the script's stdout goes to stderr."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


_WITH_VALUE = ("--capture", "--output", "-o")


def command_starts(words: list[str]) -> int | None:
    """Where the script's own words begin: at the first that is no option of ours, or after `--`."""
    at = 0
    while at < len(words):
        if words[at] == "--":
            return None  # the general rule
        if words[at] == "-m" or not words[at].startswith("-"):
            return at
        at += 2 if words[at] in _WITH_VALUE else 1
    return None


def run(arguments: Arguments) -> int:
    """Run, then explain; the exit code says how the script ended."""
    if arguments.output is not None:
        check_target(arguments.output, force=False)
    options = {
        name: True
        for name in ("modules", "torch_profile", "detailed", "timeline")
        if getattr(arguments, name)
    }
    ran = run_recorded(arguments.command, arguments.capture, options | {"on": True}, quiet=arguments.json)
    result = report_on(str(ran.folder))
    files = {name: ran.folder / file for name, (file, _) in EXTRAS.items() if getattr(arguments, name)}
    if arguments.json:
        script = {"exit_code": ran.exit_code, "ending": ran.ending, "command": list(ran.command)}
        there = {name: str(file) if file.exists() else None for name, file in files.items()}
        more = {"script": script, "capture": str(ran.folder), "files": there}
        print(json.dumps(findings_json(result.findings) | more))
    if not result.capture.processes:
        note(
            f"hotloop: nothing was recorded: no Python that this command started reached {ran.folder}; "
            f"try: hotloop run {shlex.join(ran.command[1:])}"
        )
        return SCRIPT_FAILED if ran.exit_code else NOTHING_RECORDED
    in_vain = bool(ran.exit_code) and not ran.interrupted and did_nothing(result.capture)
    if not arguments.json and not in_vain:
        sys.stdout.flush()
        print()
        print_text(dataclasses.replace(result, name=shlex.quote(str(ran.folder))))
    if arguments.output is not None:
        note(f"wrote {arguments.output} ({size(write_report(result, arguments.output))})")
    tell_files(files)
    if in_vain:
        note(
            f"hotloop: the script {ran.told_ending} before it did anything hotloop knows; "
            f"what there is: hotloop report {shlex.quote(str(ran.folder))}"
        )
    elif ran.exit_code:
        note(f"hotloop: the script {ran.told_ending}; what it did until then is in {ran.folder}")
    return exit_code(ran)


def tell_files(files: dict[str, Path]) -> None:
    """Where the files are that were asked for beside the recording, by option; or that they are missing."""
    for name, file in files.items():
        if file.exists():
            note(f"{EXTRAS[name][1]}: {file}")
        else:
            option = "--" + name.replace("_", "-")
            note(
                f"hotloop: {option} left no {file.name}: the script was killed, or ended before any training"
            )


def exit_code(ran: Ran) -> int:
    """0, or 5 when the script failed, or 130 when it was interrupted."""
    if ran.interrupted:
        return INTERRUPTED
    return SCRIPT_FAILED if ran.exit_code else 0
