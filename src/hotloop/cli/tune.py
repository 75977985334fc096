"""`hotloop tune`: finds the fastest settings for this machine by measuring."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli import help_text
from hotloop.cli.options import Flag, Number, OnCluster, Resources, parse_resources
from hotloop.cli.output import note, pen_for_stdout
from hotloop.cli.parsing import parse
from hotloop.cli.tune_text import tuned_before_text, tuning_json, tuning_text
from hotloop.report.to_json import json_object, strict_json
from hotloop.workflows.experiments import Progress, Runners, runners_for
from hotloop.workflows.train import config_class
from hotloop.workflows.tune import TuneTerms, tune, tuned_before
from hotloop.workflows.tune_script import ScriptTarget, TriedValues
from hotloop.workflows.tune_workload import WorkloadTarget

Words = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
INTERRUPTED, SCRIPT_FAILED = 130, 5
SCRIPT_BUDGET = "10m"


@dataclass(frozen=True)
class Options:
    """Options of every `hotloop tune`."""

    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = ""
    """Total time: half for the search, half for the comparison; by default 2m for a workload, 10m for mario
    and for a script."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Smallest difference that matters to you."""
    probes: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for the probes; by default hotloop-runs/<time>-tune-<name>."""
    on: OnCluster = None
    """Measure on the nodes of a Ray cluster: search on one of them, compare on all."""
    resources: Resources = ()
    """Resource of a node that a run needs, as CPU=4."""
    order_seed: Number = 0
    """Seed for the order of probes and of runs in the comparison."""
    show: Flag = False
    """Show what was found before on this machine with these versions, and measure nothing."""
    json: Flag = False
    """Print the result as one JSON object."""


@dataclass(frozen=True)
class WorkloadOptions(Options):
    """Options for a workload."""

    also: Words = ()
    """Search this setting, too, for example batch_size; may be repeated."""


@dataclass(frozen=True)
class ScriptOptions(Options):
    """Find the fastest settings for a script; mark them with names in braces in its command.

    hotloop tune -- python train.py --n-envs {n_envs=8} --n-steps {n_steps=256}
    """

    values: Words = ()
    """Values to try, such as n_envs=1,2,4,8; may be repeated."""
    safe: Words = ()
    """Name of a setting that does not change learning; may be repeated."""
    no_threads: Flag = False
    """Do not try OMP_NUM_THREADS."""


@dataclass(frozen=True)
class Arguments:
    """A workload or command to tune, and the options."""

    options: Any
    workload: str = ""
    config: Any = None
    command: tuple[str, ...] = ()


def read(words: list[str]) -> Arguments:
    """Parse the words after `hotloop tune`; help is printed here and ends the program."""
    if not words or (words[0] in ("-h", "--help") and "--" not in words):
        print(usage())
        raise SystemExit(0 if words else 2)  # as `hotloop` alone
    if "--" in words:
        at = words.index("--")
        options = parse(ScriptOptions, words[:at], "hotloop tune", tail="-- COMMAND")
        if not words[at + 1 :]:
            raise HotloopError("no command follows --; write: hotloop tune -- python train.py ...")
        return Arguments(options, command=tuple(words[at + 1 :]))
    if words[0].startswith("-"):
        raise HotloopError(
            f"{words[0]} comes before the workload; write: hotloop tune WORKLOAD {words[0]}, "
            "or a command after --"
        )
    kind = config_class(words[0])
    fields: list[Any] = [
        ("config", Annotated[_without_on(kind), tyro.conf.arg(name="")]),
        (
            "options",
            Annotated[WorkloadOptions, tyro.conf.arg(name="")],
            dataclasses.field(default=WorkloadOptions()),
        ),
    ]
    both = dataclasses.make_dataclass("Both", fields, frozen=True)
    about = "Find the fastest settings for this machine."
    given: Any = parse(both, words[1:], f"hotloop tune {words[0]}", about)
    settings = {field.name: getattr(given.config, field.name) for field in dataclasses.fields(kind)}
    return Arguments(given.options, words[0], kind(**settings))


def _without_on(kind: type[Any]) -> type[Any]:
    """The settings of a workload without `on`: --on says where tuning measures, not where a run trains."""
    if "on" not in {field.name for field in dataclasses.fields(kind)}:
        return kind
    hidden: Any = tyro.conf.Suppress[str]
    made = dataclasses.make_dataclass(
        kind.__name__, [("on", hidden, dataclasses.field(default=""))], bases=(kind,), frozen=True
    )
    made.__doc__ = kind.__doc__
    return made


def usage() -> str:
    """What `hotloop tune --help` prints."""
    about = """\
Finds the fastest settings for this machine by measuring, and compares them with yours.

hotloop tune WORKLOAD --help lists the options for a workload, hotloop tune --help -- python train.py those
for a script of yours: {n_envs=8} in its command marks a setting and its value."""
    return (
        "usage: hotloop tune WORKLOAD [options]\n       hotloop tune [options] -- COMMAND with {settings}\n\n"
    ) + help_text.paragraphs(about, help_text.help_width())


def target_of(arguments: Arguments, runners: Runners | None = None) -> WorkloadTarget | ScriptTarget:
    """What to tune, for the nodes of a cluster or for this machine."""
    options = arguments.options
    room = (None, None) if runners is None else runners.room
    if arguments.workload:
        return WorkloadTarget(arguments.workload, arguments.config, options.also, *room)
    tried = TriedValues(options.values, options.safe, not options.no_threads)
    return ScriptTarget(arguments.command, tried, *room)


def run(arguments: Arguments) -> int:
    """Tune, print, and return the exit code."""
    options = arguments.options
    if options.show:
        found = tuned_before(target_of(arguments).name)
        print(
            strict_json(json_object("tuned", {"tuned": found})) if options.json else tuned_before_text(found)
        )
        return 0
    target = target_of(arguments)  # mistakes are found before anything is started
    budget = target.tunable.budget if isinstance(target, WorkloadTarget) else SCRIPT_BUDGET
    budget_s = parse_seconds(options.budget or budget, "--budget")
    terms = TuneTerms(budget_s, parse_fraction(options.tolerance, "--tolerance"), options.order_seed)
    progress = Progress()
    with runners_for(1, options.on, parse_resources(options.resources), progress) as runners:
        if options.on is not None:
            target = target_of(arguments, runners)
        tuning = tune(target, terms, options.probes, progress, runners)
    if tuning.failed:
        note(f"hotloop: the current settings could not be measured: {tuning.failed}")
        if options.json:
            print(strict_json(tuning_json(tuning)))
        return SCRIPT_FAILED
    print(strict_json(tuning_json(tuning)) if options.json else tuning_text(tuning, pen_for_stdout()))
    if tuning.interrupted:
        note(f"Interrupted; what was measured is in {shlex.quote(str(tuning.folder))}.")
        return INTERRUPTED
    return 0
