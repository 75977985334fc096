"""`hotloop lab run PLAN.toml` and `hotloop lab new CAPTURE`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hotloop._util.errors import HotloopError
from hotloop.cli.options import Flag, Number, OnCluster, on_words, option
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.series_text import investigation_json, investigation_text
from hotloop.report.to_json import strict_json
from hotloop.workflows.experiments import INTERRUPTED, Progress, exit_code_of
from hotloop.workflows.lab import investigate, new_plan


@dataclass(frozen=True)
class Arguments:
    """Run a plan of suspects, sweeps and sizes and rank them, or write a plan for a recorded script.

    Examples:

        hotloop lab new CAPTURE -o PLAN.toml
        hotloop lab run PLAN.toml
    """

    action: tyro.conf.Positional[Literal["run", "new"]]
    """Run a plan, or write a new one."""
    file: Annotated[str | None, tyro.conf.Positional, option("[PLAN|CAPTURE]")] = None
    """run: a plan file, or the name of a plan that comes with hotloop, such as snake-investigation.
    new: the capture of the script; the latest in hotloop-runs/ if none is named."""
    output: Annotated[Path | None, option("PLAN.toml", "plan.toml", aliases=("-o",))] = None
    """new: file to write."""
    force: Flag = False
    """new: replace an existing file."""
    series: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-<plan>")] = None
    """run: folder for the runs."""
    resume: Flag = False
    """run: continue the series in --series."""
    jobs: Number = 1
    """run: number of blocks to run at the same time, each on its own cores."""
    on: OnCluster = None
    """run: make the runs on the nodes of a Ray cluster, each block on one node."""
    json: Flag = False
    """run: print the result as one JSON object."""


def run(arguments: Arguments) -> int:
    if arguments.action == "new":
        file = arguments.output or Path("plan.toml")
        suspects = new_plan(arguments.file, file, arguments.force)
        note(f"wrote {file} with {suspects} {'suspect' if suspects == 1 else 'suspects'}")
        note(f"next: hotloop lab run {shlex.quote(str(file))}")
        return 0
    if arguments.file is None:
        raise HotloopError("lab run needs a plan; write one with: hotloop lab new -o plan.toml")
    plan = Path(arguments.file)
    found = investigate(plan, arguments.series, arguments.resume, Progress(), arguments.jobs, arguments.on)
    result = found.result
    if arguments.json:
        print(strict_json(investigation_json(result.series, result.comparison, found.table, found.scaling)))
    else:
        pen = pen_for_stdout()
        print(investigation_text(result.series, result.comparison, found.table, found.scaling, pen))
    note(result.outcome.summary)
    folder = shlex.quote(str(result.series.path))
    again = (
        f"hotloop lab run {shlex.quote(arguments.file)} --series {folder} --resume{on_words(arguments.on)}"
    )
    if result.interrupted:
        note(f"next: {again}")
        return INTERRUPTED
    if result.outcome.ended == "budget":
        note(f"more blocks: raise the budget in {arguments.file}, then {again}")
    note(f"next: hotloop report {folder}")
    return exit_code_of(result.outcome)
