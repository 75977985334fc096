"""`hotloop train WORKLOAD`: a reference pipeline under the profiler, then the report."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import count, duration
from hotloop.cli import train_mario, train_petri
from hotloop.cli.options import Flag
from hotloop.cli.output import note, pen_for_stderr, pen_for_stdout
from hotloop.cli.renamed_flags import check_flags
from hotloop.cli.report import print_text
from hotloop.cli.train_plan import plan_text
from hotloop.report.to_json import findings_json
from hotloop.workflows.choices import NOTHING_CHOSEN, Chosen, choose, says_of, wishes_in
from hotloop.workflows.memory import ChildrenWatch, Line, checked_plan, lines_of
from hotloop.workflows.report import report_on
from hotloop.workflows.train import (
    WORKLOADS,
    Recording,
    Trained,
    check_config,
    check_export,
    config_class,
    save_export,
    train,
)

INTERRUPTED = 130
# workload -> module with `Request` and `run`: what else it can do besides training
REQUESTS: dict[str, Any] = {"petri": train_petri, "mario": train_mario}
DEFAULT_REPORT = Path("profiling_report.json")


@dataclass(frozen=True)
class Profiling:
    """How the training is recorded and shown."""

    capture: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the recording goes; hotloop-runs/<time>-train-<workload> when not given."""
    no_profiling: Flag = False
    """Record nothing."""
    enable_profiling: Flag = False
    """Print summaries while training, and write the report file at the end."""
    profiling_report: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """One-file export that every reading verb takes; profiling_report.json with --enable-profiling."""
    profiling_summary_freq: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Print a summary every N env steps; with --enable-profiling ten times in a run when not given."""
    preset: Annotated[
        Literal["small-ram", "many-cores", "gpu", "quick"] | None, tyro.conf.arg(metavar="NAME")
    ] = None
    """Settings by name: small-ram, many-cores, gpu or quick; flags given beside it win."""
    tuned: Flag = False
    """The settings that `hotloop tune` found here, those that change nothing but the speed."""
    tuned_semantic: Flag = False
    """The same, and those that may change learning, with what they keep."""
    json: Flag = False
    """Print the outcome and all findings as one JSON object."""


@dataclass(frozen=True)
class Arguments:
    """What was asked for: a workload, its settings, how it is recorded."""

    workload: str
    config: Any
    profiling: Profiling
    request: Any = None  # what else a workload can find out, where it offers that
    chosen: Chosen = NOTHING_CHOSEN  # by a preset or by tuning


def read(words: list[str]) -> Arguments | None:
    """The words after `hotloop train`; None when only help was asked for and given."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return None
    name = words[0]
    kind = config_class(name)
    check_flags(f"train {name}", words[1:])
    chosen = choose(name, kind(), **wishes_in(words))  # stand in for the defaults, so that flags win
    fields: list[Any] = [
        (
            "config",
            Annotated[kind, tyro.conf.arg(name="")],
            dataclasses.field(default=kind(**chosen.settings)),
        ),
        ("profiling", Annotated[Profiling, tyro.conf.arg(name="")], dataclasses.field(default=Profiling())),
    ]
    if name in REQUESTS:
        request: Any = REQUESTS[name].Request
        flags: Any = Annotated[request, tyro.conf.arg(name=""), tyro.conf.FlagCreatePairsOff]
        fields.append(("request", flags, dataclasses.field(default=request())))
    both = dataclasses.make_dataclass("Both", fields, frozen=True)
    given: Any = tyro.cli(both, args=words[1:], prog=f"hotloop train {name}", description=kind.__doc__)
    return Arguments(name, given.config, given.profiling, getattr(given, "request", None), chosen)


def usage() -> str:
    """What `hotloop train --help` prints."""
    lines = []
    for name in WORKLOADS:
        try:
            lines.append(f"  {name:<10} {(config_class(name).__doc__ or '').splitlines()[0]}")
        except HotloopError as missing:
            lines.append(f"  {name:<10} {missing}")
    return (
        "usage: hotloop train WORKLOAD [arguments]\n\n"
        "Trains a reference pipeline under the profiler and explains the run.\n\n"
        "workloads:\n" + "\n".join(lines) + "\n\nhotloop train WORKLOAD --help lists its settings."
    )


def run(arguments: Arguments) -> int:
    """Train, then explain; Ctrl-C ends the training, keeps its checkpoint and still explains."""
    wish = arguments.profiling
    if arguments.request is not None and arguments.request.wanted:
        code: int = REQUESTS[arguments.workload].run(arguments.config, arguments.request, wish)
        return code
    report = wish.profiling_report or (DEFAULT_REPORT if wish.enable_profiling else None)
    if report is not None and wish.no_profiling:
        raise HotloopError(
            "--no-profiling records nothing, so there is no report to write; give one of the two."
        )
    if report is not None:
        check_export(report)
    check_config(arguments.workload, arguments.config)
    summary = wish.profiling_summary_freq
    if wish.enable_profiling and not summary:
        summary = max(_expected_timesteps(arguments.config) // 10, 1)
    for sentence in says_of(arguments.workload, arguments.chosen, arguments.config):
        note(f"hotloop: {sentence}")
    plan = checked_plan(arguments.workload, arguments.config, rate_per_s=arguments.chosen.rate_per_s)
    if plan is not None and not wish.json:
        note(plan_text(lines_of(plan), pen_for_stderr(), ended=False))
    recording = Recording(wish.capture, not wish.no_profiling, summary)
    with ChildrenWatch() as children:
        trained = train(arguments.workload, arguments.config, recording, quiet=wish.json)
    held = lines_of(plan, trained, children) if plan is not None else ()
    if trained.folder is None:
        _say(trained, wish.json, None, held)
    else:
        result = report_on(str(trained.folder))
        if report is not None:
            save_export(result.capture, report)
        _say(trained, wish.json, findings_json(result.findings), held)
        if not wish.json:
            print_text(dataclasses.replace(result, name=shlex.quote(str(trained.folder))))
        if report is not None:
            note(f"wrote {report}; read it with: hotloop report {shlex.quote(str(report))}")
    return INTERRUPTED if trained.outcome.stopped_by == "SIGINT" else 0


def _expected_timesteps(config: Any) -> int:
    names = ("expected_timesteps", "total_timesteps", "timesteps")
    return next((int(getattr(config, name)) for name in names if hasattr(config, name)), 0)


def _say(
    trained: Trained, as_json: bool, findings: dict[str, Any] | None, held: tuple[Line, ...] = ()
) -> None:
    done = trained.outcome
    if as_json:
        outcome = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(done).items()}
        place: dict[str, Any] = {"capture": str(trained.folder)} if trained.folder else {}
        place["predictions"] = [dataclasses.asdict(line) for line in held]
        print(json.dumps((findings or {"schema_version": 1}) | {"outcome": outcome} | place))
        return
    mean = "no episode ended" if done.mean_return is None else f"mean return {done.mean_return:.2f}"
    print(
        f"trained {count(done.env_steps)} env steps in {duration(done.seconds * 1e9)} "
        f"({count(done.steps_per_s)} steps/s):\n"
        f"  {count(done.updates)} updates, {count(done.episodes)} episodes, {mean}"
    )
    for remark in done.remarks:
        print(f"  {remark}")
    if done.stopped_by is not None:
        kept = f"; the agent is kept in {done.checkpoint}" if done.checkpoint else ""
        print(f"  stopped by {done.stopped_by}{kept}")
    if done.checkpoint is not None and done.stopped_by is None:
        print(f"  the agent is in {done.checkpoint}")
    if held:
        print(plan_text(held, pen_for_stdout(), ended=True))
    print()
    sys.stdout.flush()
