"""`hotloop lab run PLAN.toml` and `hotloop lab new`."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hotloop._util.errors import HotloopError
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.series_text import investigation_json, investigation_text
from hotloop.workflows.experiments import INTERRUPTED, Progress, exit_code_of
from hotloop.workflows.lab import run_plan
from hotloop.workflows.new_plan import new_plan

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class Arguments:
    """Run a plan of suspects, sweeps and sizes and rank them; or write a plan for a recorded script.

    hotloop lab run PLAN.toml runs it; hotloop lab new CAPTURE -o PLAN.toml writes one to start from.
    """

    action: tyro.conf.Positional[Literal["run", "new"]]
    """What to do."""
    file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN|CAPTURE")] = None
    """run: the plan, a file or the name of one that comes with hotloop, such as snake-investigation.
    new: the capture to look at; the latest in hotloop-runs/ when none is named."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PLAN.toml")] = None
    """new: where the plan goes; plan.toml when not given."""
    force: Flag = False
    """new: replace the plan if it exists."""
    series: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """run: where the runs are kept; hotloop-runs/<time>-<plan> when not given."""
    resume: Flag = False
    """run: go on with the series in --series."""
    jobs: int = 1
    """run: blocks to run at the same time, each on cores of its own."""
    json: Flag = False
    """run: print the result as one JSON object."""


def run(arguments: Arguments) -> int:
    """Do it; returns the exit code."""
    if arguments.action == "new":
        file = arguments.output or Path("plan.toml")
        suspects = new_plan(arguments.file, file, arguments.force)
        note(f"wrote {file} with {suspects} {'suspect' if suspects == 1 else 'suspects'}")
        note(f"next: hotloop lab run {shlex.quote(str(file))}")
        return 0
    if arguments.file is None:
        raise HotloopError("No plan is named; write one with: hotloop lab new -o plan.toml")
    plan = Path(arguments.file)
    found = run_plan(plan, arguments.series, arguments.resume, Progress(), arguments.jobs)
    if arguments.json:
        print(json.dumps(investigation_json(found.series, found.done.found, found.table, found.scaling)))
    else:
        pen = pen_for_stdout()
        print(investigation_text(found.series, found.done.found, found.table, found.scaling, pen))
    note(found.done.conducted.says)
    place = shlex.quote(str(found.series.path))
    if found.done.interrupted:
        note(f"next: hotloop lab run {shlex.quote(arguments.file)} --series {place} --resume")
        return INTERRUPTED
    if found.done.conducted.ended == "budget":
        again = f"hotloop lab run {shlex.quote(arguments.file)} --series {place} --resume"
        note(f"more blocks: raise the budget in {arguments.file}, then {again}")
    note(f"next: hotloop report {place}")
    return exit_code_of(found.done.conducted)
