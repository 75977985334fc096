"""`hotloop scale -- COMMAND {n}`: how the time of a command grows with its size."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_seconds
from hotloop.cli.options import Flag, Number, OnCluster, Resources, on_words, option, parse_resources
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.scaling import scaling_json, scaling_text
from hotloop.report.series_text import failures
from hotloop.report.to_json import strict_json
from hotloop.workflows.experiments import INTERRUPTED, Progress, exit_code_of
from hotloop.workflows.scale import resume_scale, scale, scale_plan

TAKES_COMMAND = True


@dataclass(frozen=True)
class Arguments:
    """Run a command at several sizes and fit time = a n^b, for the whole run and for each region.

    Write {n} where the size goes:

        hotloop scale --sizes 1000,2000,4000 -- python train.py --steps {n}
    """

    sizes: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "1000,2000,4000"
    """Values of {n}."""
    repeats: Number = 3
    """Number of runs of each size; sizes take turns in random order."""
    jobs: Number = 1
    """Number of rounds of all sizes to run at the same time, each on its own cores."""
    on: OnCluster = None
    """Make the runs on the nodes of a Ray cluster, each round of all sizes on one node."""
    resources: Resources = ()
    """Resource of a node that a run needs, as CPU=4."""
    budget: Annotated[str, option("TIME", "unlimited")] = ""
    """Time for all runs together, such as 2m."""
    series: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-scale")] = None
    """Folder for the runs."""
    resume: Flag = False
    """Continue the series in --series."""
    json: Flag = False
    """Print the result as one JSON object."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    budget_s = parse_seconds(arguments.budget, "--budget") if arguments.budget else None
    if arguments.resume:
        found = resume_scale(arguments.series, Progress(), budget_s, arguments.jobs, arguments.on)
    else:
        sizes, resources = parse_sizes(arguments.sizes), parse_resources(arguments.resources)
        plan = scale_plan(arguments.command, sizes, arguments.repeats, budget_s, resources)
        found = scale(plan, arguments.series, Progress(), arguments.jobs, arguments.on)
    result, pen = found.result, pen_for_stdout()
    if found.scaling is None:
        print("Nothing to fit: fewer than two sizes have a successful run.")
    elif arguments.json:
        print(strict_json(scaling_json(found.scaling)))
    else:
        print(scaling_text(found.scaling, pen))
    for sentence in failures(result.series):
        note(pen.wrap(sentence))
    note(result.outcome.summary)
    folder = shlex.quote(str(result.series.path))
    if result.interrupted:
        note(f"next: hotloop scale --series {folder} --resume{on_words(arguments.on)}")
        return INTERRUPTED
    note(f"next: hotloop report {folder}")
    return exit_code_of(result.outcome)


def parse_sizes(typed: str) -> tuple[int, ...]:
    try:
        return tuple(int(word.replace("_", "")) for word in typed.split(",") if word.strip())
    except ValueError:
        raise HotloopError(f"--sizes is {typed!r}; write whole numbers such as 1000,2000,4000.") from None
