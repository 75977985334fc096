"""`hotloop train WORKLOAD`: a reference pipeline under the profiler, then the report."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import count, duration
from hotloop.cli import train_petri
from hotloop.cli.lines import note
from hotloop.cli.report import print_text
from hotloop.report.as_json import findings_json
from hotloop.workflows.report import explained
from hotloop.workflows.train import (
    WORKLOADS,
    Recording,
    Trained,
    check_export,
    config_class,
    request_class,
    save_export,
    train,
)

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
INTERRUPTED = 130
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
    json: Flag = False
    """Print the outcome and all findings as one JSON object."""


@dataclass(frozen=True)
class Arguments:
    """What was asked for: a workload, its settings, how it is recorded."""

    workload: str
    config: Any
    profiling: Profiling
    request: Any = None  # what else a workload can find out, where it offers that


def read(words: list[str]) -> Arguments | None:
    """The words after `hotloop train`; None when only help was asked for and given."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return None
    name = words[0]
    kind = config_class(name)
    fields: list[Any] = [
        ("config", Annotated[kind, tyro.conf.arg(name="")]),
        ("profiling", Annotated[Profiling, tyro.conf.arg(name="")], dataclasses.field(default=Profiling())),
    ]
    request = request_class(name)
    if request is not None:
        beside: Any = Annotated[request, tyro.conf.arg(name="")]
        fields.append(("request", beside, dataclasses.field(default=request())))
    both = dataclasses.make_dataclass("Both", fields, frozen=True)
    given: Any = tyro.cli(both, args=words[1:], prog=f"hotloop train {name}", description=kind.__doc__)
    return Arguments(name, given.config, given.profiling, getattr(given, "request", None))


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
        return train_petri.run(arguments.config, arguments.request, wish)
    report = wish.profiling_report or (DEFAULT_REPORT if wish.enable_profiling else None)
    if report is not None and wish.no_profiling:
        raise HotloopError(
            "--no-profiling records nothing, so there is no report to write; give one of the two."
        )
    if report is not None:
        check_export(report)
    summary = wish.profiling_summary_freq
    if wish.enable_profiling and not summary:
        summary = max(getattr(arguments.config, "timesteps", 0) // 10, 1)
    recording = Recording(wish.capture, not wish.no_profiling, summary)
    trained = train(arguments.workload, arguments.config, recording, quiet=wish.json)
    if trained.folder is None:
        _say(trained, wish.json, None)
    else:
        result = explained(str(trained.folder))
        if report is not None:
            save_export(result.capture, report)
        _say(trained, wish.json, findings_json(result.findings))
        if not wish.json:
            print_text(dataclasses.replace(result, name=shlex.quote(str(trained.folder))))
        if report is not None:
            note(f"wrote {report}; read it with: hotloop report {shlex.quote(str(report))}")
    return INTERRUPTED if trained.outcome.stopped_by == "SIGINT" else 0


def _say(trained: Trained, as_json: bool, findings: dict[str, Any] | None) -> None:
    done = trained.outcome
    if as_json:
        outcome = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(done).items()}
        place = {"capture": str(trained.folder)} if trained.folder else {}
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
    print()
    sys.stdout.flush()
