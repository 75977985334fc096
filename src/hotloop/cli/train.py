"""`hotloop train WORKLOAD`: trains a reference workload under the profiler and prints the report."""

from __future__ import annotations

import dataclasses
import importlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import count, counted, duration, percent, size
from hotloop.cli import help_text
from hotloop.cli.options import Flag
from hotloop.cli.output import note, pen_for_stderr, pen_for_stdout
from hotloop.cli.parsing import parse
from hotloop.cli.renamed_flags import check_flags
from hotloop.cli.report import print_text
from hotloop.report.pen import Pen, table
from hotloop.report.safe_text import columns
from hotloop.report.to_json import findings_json, json_object, strict_json
from hotloop.workflows.report import report_on
from hotloop.workflows.train import (
    WORKLOADS,
    Outcome,
    Recording,
    Trained,
    check_capture_folder,
    check_config,
    check_export,
    config_class,
    save_export,
    train,
)
from hotloop.workflows.train_predictions import ChildrenMemory, Prediction, predict, prediction_table
from hotloop.workflows.train_settings import (
    NOTHING_CHOSEN,
    Chosen,
    choice_flags,
    choose,
    messages_before_training,
)

OUR_FAILURE = 1
STOPPED = {"SIGINT": 130, "SIGTERM": 143}  # exit codes, as shells have them
# workload -> module with `Request` and `run`: what it can do besides training. Imported by name, because they
# need the extra `rl`, and its absence should be one clear sentence.
REQUESTS = {"petri": "hotloop.cli.train_petri", "mario": "hotloop.cli.train_mario"}
DEFAULT_REPORT = Path("profiling_report.json")


@dataclass(frozen=True)
class Profiling:
    """How to record and report the training run."""

    capture: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for the recording; by default hotloop-runs/<time>-train-<workload>."""
    no_profiling: Flag = False
    """Do not record the run."""
    enable_profiling: Flag = False
    """Print summaries during training, and write the report file at the end."""
    profiling_report: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File for a JSON export that all reading verbs accept; profiling_report.json with --enable-profiling."""
    profiling_summary_freq: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Print a summary every N env steps; by default ten summaries per run with --enable-profiling."""
    preset: Annotated[
        Literal["small-ram", "many-cores", "gpu", "quick", "full", "pictures", "auto"] | None,
        tyro.conf.arg(metavar="NAME"),
    ] = None
    """Use a named set of settings: small-ram, many-cores, gpu or quick; auto (imitate) chooses them for this
    machine; full (mario) is for a long run; pictures (ricochet) learns to solve boards from pictures. Other
    flags override it."""
    tuned: Flag = False
    """Use the settings that `hotloop tune` found on this machine and that change only the speed."""
    tuned_semantic: Flag = False
    """Use these and also the tuned settings that may change learning."""
    json: Flag = False
    """Print the outcome and all findings as one JSON object."""


@dataclass(frozen=True)
class Arguments:
    """A workload, its settings, and how to record it."""

    workload: str
    config: Any
    profiling: Profiling
    request: Any = None  # flags of the module in REQUESTS
    chosen: Chosen = NOTHING_CHOSEN  # settings from a preset or from tuning
    words: tuple[str, ...] = ()  # as they were given, without the workload


def read(words: list[str]) -> Arguments:
    """Parse the words after `hotloop train`; help is printed here and ends the program."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        raise SystemExit(0 if words else 2)  # as `hotloop` alone
    name = words[0]
    kind = config_class(name)
    check_flags(f"train {name}", words[1:])
    chosen = choose(name, kind(), **choice_flags(words))  # new defaults, so that flags override them
    fields: list[Any] = [
        (
            "config",
            Annotated[kind, tyro.conf.arg(name="")],
            dataclasses.field(default=kind(**chosen.settings)),
        ),
        ("profiling", Annotated[Profiling, tyro.conf.arg(name="")], dataclasses.field(default=Profiling())),
    ]
    if name in REQUESTS:
        request: Any = importlib.import_module(REQUESTS[name]).Request
        flags: Any = Annotated[request, tyro.conf.arg(name=""), tyro.conf.FlagCreatePairsOff]
        fields.append(("request", flags, dataclasses.field(default=request())))
    both = dataclasses.make_dataclass("Both", fields, frozen=True)
    given: Any = parse(both, words[1:], f"hotloop train {name}", kind.__doc__)
    request = getattr(given, "request", None)
    return Arguments(name, given.config, given.profiling, request, chosen, tuple(words[1:]))


def usage() -> str:
    """What `hotloop train --help` prints."""
    rows = []
    for name in WORKLOADS:
        try:
            rows.append((name, (config_class(name).__doc__ or "").splitlines()[0]))
        except HotloopError as missing:
            rows.append((name, str(missing)))
    width = help_text.help_width()
    about = "Trains a reference workload under the profiler and explains the run."
    return (
        f"usage: hotloop train WORKLOAD [options]\n\n{help_text.paragraphs(about, width)}\n\n"
        f"workloads:\n{help_text.table(rows, width)}\n\n"
        "hotloop train WORKLOAD --help lists its settings."
    )


def run(arguments: Arguments) -> int:
    """Train, then print the report; Ctrl-C stops the training, keeps its checkpoint and still prints it."""
    profiling = arguments.profiling
    if profiling.profiling_summary_freq < 0:
        raise HotloopError(
            f"--profiling-summary-freq {profiling.profiling_summary_freq} is not allowed; "
            "use at least 1 env step, or 0 for no summaries."
        )
    if arguments.request is not None:
        check_request(arguments.request)
    if arguments.request is not None and arguments.request.wanted:
        check_recording(arguments.request, profiling)
        module = importlib.import_module(REQUESTS[arguments.workload])

        goes_on = partial(command_of_series, arguments)
        code: int = module.run(arguments.config, arguments.request, profiling, goes_on)
        return code
    report = profiling.profiling_report or (DEFAULT_REPORT if profiling.enable_profiling else None)
    if report is not None and profiling.no_profiling:
        raise HotloopError(
            "--no-profiling records nothing, so there is no report to write; give one of the two."
        )
    if report is not None:
        check_export(report)
    check_config(arguments.workload, arguments.config)
    check_capture_folder(profiling.capture)
    summary = profiling.profiling_summary_freq
    if profiling.enable_profiling and not summary:
        summary = max(_expected_timesteps(arguments.config) // 10, 1)
    for message in messages_before_training(arguments.workload, arguments.chosen, arguments.config):
        note(f"hotloop: {message}")
    expected = predict(arguments.workload, arguments.config, rate_per_s=arguments.chosen.rate_per_s)
    if expected is not None and not profiling.json:
        print(predictions_text(prediction_table(expected), pen_for_stderr(), ended=False), file=sys.stderr)
    recording = Recording(profiling.capture, not profiling.no_profiling, summary)
    try:
        with ChildrenMemory() as children:
            trained = train(arguments.workload, arguments.config, recording, quiet=profiling.json)
    except KeyboardInterrupt:
        kept = "" if profiling.no_profiling else " and the recording"
        note(f"hotloop: interrupted at once; only checkpoints written before{kept} are kept")
        raise
    again = "" if trained.outcome.stopped_by is None else command_that_goes_on(arguments, trained.outcome)
    predictions = prediction_table(expected, trained, children) if expected is not None else ()
    if trained.folder is None:
        _print_outcome(trained, profiling.json, None, predictions, again)
    else:
        result = report_on(str(trained.folder))
        if report is not None:
            save_export(result.capture, report)
        _print_outcome(trained, profiling.json, findings_json(result.findings), predictions, again)
        if not profiling.json:
            played = result.capture.progress.env_steps - trained.outcome.env_steps
            if arguments.workload == "mario" and played > 0:
                print(f"The report counts {count(played)} more env steps, which were still in the queues.\n")
            # The outcome has said what the returns are of; those of all recorded episodes are other figures.
            findings = dataclasses.replace(result.findings, mean_return=None)
            name = shlex.quote(str(trained.folder))
            print_text(dataclasses.replace(result, findings=findings, name=name))
        if report is not None:
            note(f"wrote {report}; read it with: hotloop report {shlex.quote(str(report))}")
    if trained.outcome.unsaved is not None:
        note(f"hotloop: {trained.outcome.unsaved}; the last weights are lost")
        return OUR_FAILURE
    return STOPPED.get(trained.outcome.stopped_by or "", 0)


def check_request(request: Any) -> None:
    """Raise HotloopError for a flag that does nothing without another one."""
    for field in dataclasses.fields(request):
        needed = request.NEEDS.get(field.name)
        if needed and not getattr(request, needed) and getattr(request, field.name) != field.default:
            flag = f"--{field.name.replace('_', '-')}"
            raise HotloopError(f"{flag} is for --{needed}; leave it out, or add --{needed}.")


def check_recording(request: Any, profiling: Profiling) -> None:
    """Raise HotloopError for a flag about the recording that what was asked for does not use."""
    unused = {"enable_profiling", "profiling_report", "profiling_summary_freq"}
    if not request.keeps_capture:
        unused |= {"capture"}
    for field in dataclasses.fields(profiling):
        if field.name in unused and getattr(profiling, field.name) != field.default:
            instead = ", or name the folder of all runs with --series" if field.name == "capture" else ""
            raise HotloopError(
                f"--{field.name.replace('_', '-')} is for a training run alone and does nothing here; leave "
                f"it out{instead}."
            )


def command_that_goes_on(arguments: Arguments, done: Outcome) -> str:
    """The command line that continues a run that was stopped; "" if nothing does."""
    resumable = done.checkpoint is not None if done.can_resume is None else done.can_resume
    if not resumable or done.unsaved is not None or done.stopped_by not in STOPPED:
        return ""
    words = without_flags(arguments.words, ("--resume", "--no-resume", "--speedup"))
    chosen = [word for word in done.resume_with if word.startswith("--")]
    once = ("--preset", "--fastest", *chosen) if chosen else ()
    words = without_flags(words, ("--capture", *once), with_value=True)
    return shlex.join(["hotloop", "train", arguments.workload, *words, *done.resume_with, "--resume"])


def command_of_series(arguments: Arguments, series: Path | None) -> str:
    """The command line that continues the runs of a comparison that was stopped."""
    words = without_flags(arguments.words, ("--resume", "--no-resume"))
    words = without_flags(words, ("--series",), with_value=True)
    return shlex.join(["hotloop", "train", arguments.workload, *words, "--series", str(series), "--resume"])


def without_flags(words: Sequence[str], flags: Sequence[str], with_value: bool = False) -> list[str]:
    """The words without these flags and, with `with_value`, without the words up to the next flag."""
    found, skip = [], False
    for word in words:
        if word.startswith("--"):
            named = word.partition("=")[0].replace("_", "-") in flags
            skip = named and with_value
            if not named:
                found.append(word)
        elif not skip:
            found.append(word)
    return found


def _expected_timesteps(config: Any) -> int:
    names = ("expected_timesteps", "total_timesteps", "timesteps")
    return next((int(getattr(config, name)) for name in names if hasattr(config, name)), 0)


def _print_outcome(
    trained: Trained,
    as_json: bool,
    findings: dict[str, Any] | None,
    predictions: tuple[Prediction, ...] = (),
    again: str = "",
) -> None:
    """Print the result; `again` is the command that continues a run that was stopped."""
    done = trained.outcome
    if as_json:
        outcome = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(done).items()}
        place: dict[str, Any] = {"capture": str(trained.folder)} if trained.folder else {}
        place["predictions"] = [dataclasses.asdict(line) for line in predictions]
        print(strict_json((findings or json_object("training", {})) | {"outcome": outcome} | place))
        return
    pen = pen_for_stdout()
    # Piped text keeps its lines, so that other programs can search it.
    fitted = partial(_fitted, pen) if sys.stdout.isatty() else str
    for line in (*_work_lines(done), *(f"  {remark}" for remark in done.remarks)):
        print(fitted(line))
    saved = done.checkpoint is not None and done.unsaved is None
    if done.stopped_by is not None:
        kept = f"the agent in {done.checkpoint}" if saved else "no agent (--checkpoint FILE keeps one)"
        print(fitted(f"  stopped by {done.stopped_by}; kept: {done.kept or kept}"))
        if again:
            at = "  continue with: "
            print(pen.command(again, at, " " * 4) if sys.stdout.isatty() else f"{at}{again}")
    elif saved:
        print(fitted(f"  the agent is saved in {done.checkpoint}"))
    if predictions:
        print(predictions_text(predictions, pen, ended=True))
    print()
    sys.stdout.flush()


def _fitted(pen: Pen, line: str) -> str:
    """A sentence wrapped at the pen's width; rows of tables, which have gaps, as they are."""
    text = line.lstrip(" ")
    if columns(line) <= pen.width or "  " in text:
        return line
    indent = " " * (len(line) - len(text))
    return pen.wrap(text, indent, f"{indent}  ")


def _work_lines(done: Outcome) -> list[str]:
    """What was done, how fast, and how well."""
    mean = "" if done.mean_return is None else f"mean return {done.mean_return:.2f}{done.returns_of}"
    if done.work is not None:
        said = [counted(done.updates, "update") if done.updates else "", mean]
        return [f"{done.work}:", f"  {', '.join(filter(None, said))}"] if any(said) else [done.work]
    if not done.env_steps and not done.updates:
        return ["trained nothing: no env step was made"]
    episodes = counted(done.episodes, "episode") if done.episodes else "no episode finished"
    here = done.env_steps - done.resumed_at
    if not here:
        return [f"trained nothing: the checkpoint has its {count(done.env_steps)} env steps already"]
    in_all = f", {count(done.env_steps)} with those of the checkpoint" if done.resumed_at else ""
    return [
        f"trained {counted(here, 'env step')} in {duration(done.seconds * 1e9)} "
        f"({count(done.steps_per_s)} steps/s){in_all}:",
        f"  {', '.join(filter(None, (counted(done.updates, 'update'), episodes, mean)))}",
    ]


def predictions_text(predictions: Sequence[Prediction], pen: Pen, ended: bool) -> str:
    """The table of predictions; after a run (`ended`), with measured values and errors."""
    head = ("memory and speed", "predicted", *(("measured", "error") if ended else ()))
    drawn = table(pen, [head, *(_prediction_row(line, ended) for line in predictions)])
    return "\n".join([pen.paint(drawn[0], "dim"), *drawn[1:]])


def _prediction_row(line: Prediction, ended: bool) -> tuple[str, ...]:
    if not ended:
        return (line.what, _amount(line.predicted, line.unit))
    error = percent(line.predicted / line.measured - 1) if line.predicted and line.measured else ""
    measured = _amount(line.measured, line.unit) if line.measured is not None else ""
    return (line.what, _amount(line.predicted, line.unit), measured, error)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return size(value) if unit == "bytes" else f"{count(value)}{unit}"
