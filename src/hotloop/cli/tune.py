"""`hotloop tune`: the fastest settings for this machine, found by measuring."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.options import Flag
from hotloop.cli.output import note, pen_for_stdout
from hotloop.cli.tune_text import remembered_text, tuning_json, tuning_text
from hotloop.workflows.experiments import Progress
from hotloop.workflows.tune import Target, TuneTerms, tune
from hotloop.workflows.tuned import recalled, script_target, workload_target

Words = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
INTERRUPTED, SCRIPT_FAILED = 130, 5
SCRIPT_BUDGET = "10m"


@dataclass(frozen=True)
class Options:
    """How to tune."""

    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = ""
    """Time for all: half for the search, half for the comparison; 2m for a workload, 10m for mario and for a
    script."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Differences below this do not matter."""
    probes: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the probes are kept; hotloop-runs/<time>-tune-<name> when not given."""
    order_seed: int = 0
    """Seed of the order of probes and of the coin flips."""
    show: Flag = False
    """Measure nothing: show what was found before on this machine with these versions."""
    json: Flag = False
    """Print the result as one JSON object."""


@dataclass(frozen=True)
class WorkloadOptions(Options):
    """How to tune a workload."""

    also: Words = ()
    """A setting to search beside the usual ones, such as minibatch; may be repeated."""


@dataclass(frozen=True)
class ScriptOptions(Options):
    """Find the fastest settings for a script: names in braces in its command.

    hotloop tune -- python train.py --n-envs {n_envs=8} --n-steps {n_steps=256}
    """

    values: Words = ()
    """Values to try, as n_envs=1,2,4,8; may be repeated."""
    safe: Words = ()
    """A name whose values do not change what is learnt; may be repeated."""
    no_threads: Flag = False
    """Do not try OMP_NUM_THREADS."""


@dataclass(frozen=True)
class Arguments:
    """What to tune, and how."""

    options: Any
    workload: str = ""
    config: Any = None
    command: tuple[str, ...] = ()


def read(words: list[str]) -> Arguments | None:
    """The words after `hotloop tune`; None when only help was asked for and given."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return None
    if "--" in words:
        at = words.index("--")
        options = tyro.cli(ScriptOptions, args=words[:at], prog="hotloop tune")
        if not words[at + 1 :]:
            raise HotloopError("there is no command after --; write: hotloop tune -- python train.py ...")
        return Arguments(options, command=tuple(words[at + 1 :]))
    if words[0].startswith("-"):
        raise HotloopError(
            f"{words[0]} comes before what to tune; write: hotloop tune WORKLOAD {words[0]}, "
            "or a command after --"
        )
    from hotloop.workflows.train import config_class

    kind = config_class(words[0])
    fields: list[Any] = [
        ("config", Annotated[kind, tyro.conf.arg(name="")]),
        (
            "options",
            Annotated[WorkloadOptions, tyro.conf.arg(name="")],
            dataclasses.field(default=WorkloadOptions()),
        ),
    ]
    both = dataclasses.make_dataclass("Both", fields, frozen=True)
    given: Any = tyro.cli(
        both, args=words[1:], prog=f"hotloop tune {words[0]}", description="Find the fastest settings."
    )
    return Arguments(given.options, words[0], given.config)


def usage() -> str:
    """What `hotloop tune --help` prints."""
    return (
        "usage: hotloop tune WORKLOAD [settings]\n"
        "       hotloop tune [options] -- python train.py --n-envs {n_envs=8} ...\n\n"
        "Finds the fastest settings for this machine by measuring, and compares them with yours.\n\n"
        "hotloop tune WORKLOAD --help and hotloop tune --help -- python train.py list the options."
    )


def run(arguments: Arguments) -> int:
    """Tune, print, and return the exit code."""
    wish = arguments.options
    target: Target
    budget = SCRIPT_BUDGET
    if arguments.workload:
        target = made = workload_target(arguments.workload, arguments.config, wish.also)
        budget = made.tunable.budget
    else:
        target = script_target(arguments.command, wish.values, wish.safe, not wish.no_threads)
    if wish.show:
        found = recalled(target.name)
        print(
            json.dumps({"schema_version": 1, "tuned": dataclasses.asdict(found)})
            if wish.json
            else remembered_text(found)
        )
        return 0
    budget_s = parse_seconds(wish.budget or budget, "--budget")
    terms = TuneTerms(budget_s, parse_fraction(wish.tolerance, "--tolerance"), wish.order_seed)
    tuning = tune(target, terms, wish.probes, Progress())
    if tuning.failed:
        note(f"hotloop: the current settings could not be measured: {tuning.failed}")
        if wish.json:
            print(json.dumps(tuning_json(tuning)))
        return SCRIPT_FAILED
    print(json.dumps(tuning_json(tuning)) if wish.json else tuning_text(tuning, pen_for_stdout()))
    if tuning.interrupted:
        note(f"Interrupted; what was measured is in {shlex.quote(str(tuning.folder))}.")
        return INTERRUPTED
    return 0
