"""`hotloop scale -- COMMAND {n}`."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_seconds
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.scaling import scaling_json, scaling_text
from hotloop.report.series_text import failures
from hotloop.workflows.experiments import INTERRUPTED, Progress, exit_code_of
from hotloop.workflows.scale import scale, scale_again, scale_plan

TAKES_COMMAND = True

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True)
class Arguments:
    """Run a command at several sizes and fit how its time grows: time = a n^b, whole and by region.

    Write {n} where the size goes: hotloop scale --sizes 1000,2000,4000 -- python train.py --episodes {n}
    """

    sizes: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "1000,2000,4000"
    """Sizes of the work."""
    repeats: int = 3
    """Runs of each size; the sizes take turns in random order."""
    jobs: int = 1
    """Rounds of all sizes to run at the same time, each on cores of its own."""
    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = ""
    """Time for all runs together, such as 2m; no limit when not given."""
    series: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the runs are kept; hotloop-runs/<time>-scale when not given."""
    resume: Flag = False
    """Go on with the series in --series."""
    json: Flag = False
    """Print the result as one JSON object."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    """Run the sizes and print the law."""
    budget_s = parse_seconds(arguments.budget, "--budget") if arguments.budget else None
    if arguments.resume:
        found = scale_again(arguments.series, Progress(), budget_s, arguments.jobs)
    else:
        plan = scale_plan(arguments.command, sizes_of(arguments.sizes), arguments.repeats, budget_s)
        found = scale(plan, arguments.series, Progress(), arguments.jobs)
    series, pen = found.done.series, pen_for_stdout()
    if found.scaling is None:
        print("Fewer than two sizes have a finished run: nothing can be fitted.")
    elif arguments.json:
        print(json.dumps(scaling_json(found.scaling)))
    else:
        print(scaling_text(found.scaling, pen))
    for sentence in failures(series):
        note(pen.wrap(sentence))
    note(found.done.conducted.says)
    place = shlex.quote(str(series.path))
    if found.done.interrupted:
        note(f"next: hotloop scale --series {place} --resume")
        return INTERRUPTED
    note(f"next: hotloop report {place}")
    return exit_code_of(found.done.conducted)


def sizes_of(typed: str) -> tuple[int, ...]:
    """`1000,2000` as numbers."""
    try:
        return tuple(int(word.replace("_", "")) for word in typed.split(",") if word.strip())
    except ValueError:
        raise HotloopError(f"--sizes is {typed!r}; write whole numbers such as 1000,2000,4000.") from None
