"""A `Series`: all runs of a plan in order, saved one by one so that a later failure loses nothing.

    FOLDER/series.json            plan, machine, format version; written once
    FOLDER/runs/0000/run.json     one run: command, times, work done, load of the machine
    FOLDER/runs/0000/capture/     its capture, if the program recorded one

A run belongs to the series once its run.json exists. That file is written atomically, so a series can be
read at any time and after any crash.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import CaptureError, FileError, HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import Reader, files_in, json_text
from hotloop._util.redact import hide, redact, redact_variables
from hotloop._util.visible import visible
from hotloop.capture.facts import Machine
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.plan_file import plan_from_data, plan_to_data

# Version history (bump on any change a reader of the old files would misread):
#   1  first layout
VERSION = 1
FORMAT = "hotloop-series"
FILE, RUNS, RUN_FILE, CAPTURE = "series.json", "runs", "run.json", "capture"

_HEAD = Reader(64 << 20, CaptureError, "restore it, or run the series again", follow=False)
_RUN = Reader(16 << 20, CaptureError, follow=False)
_LEAST, _MOST = 1e-12, 1e18  # of any figure of a run that is not 0
_RUN_FIGURES = ("started_s", "wall_s", "cpu_s", "block", "position", "seed", "group", "at_once")
_FIGURES = (
    *(
        "s_per_env_step",
        "s_per_update",
        "cpu_s_per_env_step",
        "waiting_fraction",
        "warmup_s",
        "startup_s",
        "mean_length",
    ),
    *("env_steps", "updates", "episodes", "calls", "bytes_moved"),
)


class _Facts(TypedDict, total=False):
    hotloop_version: str
    started_s: float
    working_folder: str
    machine: Machine
    versions: dict[str, str]
    nodes: dict[str, Machine]  # of a cluster, by name; absent: all runs were made on `machine`


class _Head(TypedDict):
    """series.json; the plan has its own checks."""

    plan: dict[str, Any]
    facts: NotRequired[_Facts]


@dataclass(frozen=True, slots=True)
class Figures:
    """Work and speed of one run, taken from its capture; None for what was not recorded."""

    env_steps: int | None = None
    updates: int | None = None
    episodes: int | None = None
    mean_length: float | None = None
    mean_return: float | None = None
    calls: int | None = None  # completed calls of all regions
    bytes_moved: float | None = None
    s_per_env_step: float | None = None  # in steady state, warm-up cut off
    s_per_update: float | None = None
    cpu_s_per_env_step: float | None = None  # CPU time of the thread that drives training
    waiting_fraction: float | None = None  # of its training: neither on a core nor ready to run
    warmup_s: float | None = None  # length of the warm-up that was cut off
    components_s: dict[str, float] = field(default_factory=dict)  # category -> seconds per env step
    # Of the thread that drives training:
    startup_s: float | None = None  # before the first work
    # Exclusive seconds after start-up; "": in no region.
    regions_s: dict[str, float] = field(default_factory=dict)
    region_calls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one variant."""

    number: int  # position in the series, from 0
    variant: str
    block: int  # runs of one block (or pair) belong together and share a seed
    position: int  # in the block
    seed: int
    command: tuple[str, ...]  # as started
    size: int | None = None  # value of {n}
    scale: bool = False  # part of the scale check, not of the comparison
    started_s: float = 0.0  # seconds since 1970
    wall_s: float = 0.0  # of the whole process
    cpu_s: float | None = None  # of the process and the children it waited for
    exit_code: int | None = None  # None: it did not start, or the lab ended it
    failure: str = ""  # one sentence when it failed
    stderr_tail: str = ""
    before: dict[str, float] = field(default_factory=dict)  # load, see machine/load_snapshot.py
    after: dict[str, float] = field(default_factory=dict)
    figures: Figures = Figures()
    has_capture: bool = False
    note: str = ""  # a problem with a run that did not fail
    cores: tuple[int, ...] = ()  # the only cores it could use; (): all that the lab may use
    at_once: int = 1  # number of runs made at the same time
    group: int = 0  # a variant is compared with the baseline run of its group
    node: str = ""  # of a cluster; "": the machine of the lab

    @property
    def ok(self) -> bool:
        return not self.failure


@dataclass(frozen=True)
class Series:
    """The runs of a plan, in the order they were started."""

    path: Path | None
    plan: Plan
    facts: dict[str, Any]  # machine, versions, command line, time of the start
    runs: tuple[Run, ...] = ()
    warnings: tuple[str, ...] = ()

    def of(self, variant: str, scale: bool = False) -> tuple[Run, ...]:
        """Successful runs of a variant, in order."""
        return tuple(r for r in self.runs if r.variant == variant and r.scale == scale and r.ok)

    @property
    def failures(self) -> tuple[Run, ...]:
        return tuple(r for r in self.runs if not r.ok)

    @property
    def spent_s(self) -> float:
        """Wall time of all runs; simultaneous runs share it."""
        return sum(r.wall_s / r.at_once for r in self.runs)

    def capture_folder(self, run: Run) -> Path | None:
        """The folder of the run's capture; None if it has none."""
        if self.path is None or not run.has_capture:
            return None
        return run_folder(self.path, run.number) / CAPTURE


def is_series(place: Path) -> bool:
    return (place / FILE).is_file()


def run_folder(folder: Path, number: int) -> Path:
    return folder / RUNS / f"{number:04d}"


def create(folder: Path, plan: Plan, facts: dict[str, Any]) -> Series:
    """Create a series in a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        more = "continue it with --resume" if is_series(folder) else "choose another folder for the series"
        raise CaptureError(f"{folder} is not empty; {more}.")
    try:
        (folder / RUNS).mkdir(parents=True)
        stored = plan_to_data(plan_without_secrets(plan))
        head = {"format": FORMAT, "format_version": VERSION, "plan": stored, "facts": facts}
        write_atomically(folder / FILE, json_text(head))
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be written ({error.strerror}); choose another folder."
        ) from error
    return Series(folder, plan, facts)


def read(folder: Path) -> Series:
    """Read a series with all runs finished so far; unreadable runs become warnings."""
    file = folder / FILE
    if not file.is_symlink() and not file.exists():
        raise CaptureError(f"{folder} is not a series: it has no {FILE}.")
    head = _HEAD.read_object(file, lambda data: _check_version(data, folder, file))
    try:
        about = conform(head, _Head, FILE)
        plan = plan_without_secrets(plan_from_data(about["plan"]))
    except (Misfit, HotloopError) as problem:
        raise _HEAD.fail(file, f"is damaged ({str(problem).rstrip('.')})") from None
    runs, warnings = [], []
    for place in _run_folders(folder):
        if not (place / RUN_FILE).is_symlink() and not (place / RUN_FILE).exists():
            continue  # interrupted
        try:
            runs.append(_read_run(place / RUN_FILE, plan))
        except (FileError, Misfit) as problem:
            reason = str(problem).removeprefix(f"{place / RUN_FILE} ").rstrip(".")
            warnings.append(visible(f"{place / RUN_FILE} is left out: {reason}"))
    runs.sort(key=lambda run: run.number)
    return Series(folder, plan, about.get("facts", {}), tuple(runs), tuple(warnings))


def _check_version(head: Any, folder: Path, file: Path) -> None:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CaptureError(f"{file} was not written by hotloop; name the folder of a series.")
    if type(head.get("format_version")) is not int or head["format_version"] != VERSION:
        facts = head.get("facts")
        writer = facts.get("hotloop_version", "") if isinstance(facts, dict) else ""
        raise CaptureError(
            f"{folder} has series format {head.get('format_version')!r} and this hotloop reads {VERSION}; "
            f"read it with hotloop {visible(str(writer)) or 'of another version'}, which wrote it."
        )


def _run_folders(folder: Path) -> list[Path]:
    return [place for place in files_in(folder / RUNS, "", CaptureError) if place.name.isdecimal()]


def _read_run(file: Path, plan: Plan) -> Run:
    run: Run = conform(_RUN.read_json(file), Run, "the run")
    if run.number != int(file.parent.name):
        raise Misfit(f"it is run {run.number}, in the place of another one")
    if run.variant not in {variant.name for variant in plan.variants}:
        raise Misfit(f"the plan has no variant {run.variant!r}")
    problem = implausible_run(run)
    if problem is not None:
        raise Misfit(problem)
    return run


def implausible_run(run: Run) -> str | None:
    """Why the figures of a run cannot be true; None if they can."""
    figures = run.figures
    given: list[tuple[str, float | None]] = [(name, getattr(run, name)) for name in _RUN_FIGURES]
    given += [(name, getattr(figures, name)) for name in _FIGURES]
    for named in (figures.components_s, figures.regions_s, figures.region_calls, run.before, run.after):
        given += named.items()
    for name, value in given:
        if value is not None and value != 0 and not _LEAST <= value < _MOST:
            return f"its {name} is {value}"
    return None if run.at_once >= 1 else f"its at_once is {run.at_once}"


def begin_run(series: Series, least: int = 0) -> tuple[int, Path]:
    """The number (at least `least`) and the empty folder of the next run.

    Leftovers of an interrupted run are removed.
    """
    assert series.path is not None
    number = max(series.runs[-1].number + 1 if series.runs else 0, least)
    folder = run_folder(series.path, number)
    while (folder / RUN_FILE).exists():  # an unreadable run: keep it
        number += 1
        folder = run_folder(series.path, number)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return number, folder


def append(series: Series, run: Run) -> Series:
    """Write a finished run to disk and return the series with it; raises OSError."""
    assert series.path is not None
    file = run_folder(series.path, run.number) / RUN_FILE
    stored = run_without_secrets(run)
    data = {f.name: getattr(stored, f.name) for f in fields(run)}
    data["figures"] = {f.name: getattr(run.figures, f.name) for f in fields(Figures)}
    write_atomically(file, json_text(data))
    return with_run(series, run)


def variant_without_secrets(variant: Variant) -> Variant:
    """The variant as it is stored and shown."""
    return replace(
        variant,
        command=redact(variant.command).words,
        overrides=redact(variant.overrides).words,
        environment=tuple(redact_variables(dict(variant.environment)).items()),
    )


def plan_without_secrets(plan: Plan) -> Plan:
    """The plan as it is stored and shown."""
    return replace(plan, variants=tuple(map(variant_without_secrets, plan.variants)))


def run_without_secrets(run: Run) -> Run:
    """The run as it is stored: neither its command nor what it printed holds a secret of the command."""
    command = redact(run.command)
    return replace(run, command=command.words, stderr_tail=hide(run.stderr_tail, command.values))


def series_without_secrets(series: Series) -> Series:
    """The series as it is shown."""
    runs = tuple(map(run_without_secrets, series.runs))
    return replace(series, plan=plan_without_secrets(series.plan), runs=runs)


def with_run(series: Series, run: Run) -> Series:
    """The series with one more run, in memory only; runs stay in the order in which they were started."""
    return replace(series, runs=tuple(sorted((*series.runs, run), key=lambda one: one.number)))
