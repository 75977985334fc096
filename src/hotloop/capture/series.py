"""A `Series`: all runs of a plan in order, saved one by one so that a later failure loses nothing.

    FOLDER/series.json            plan, machine, format version; written once
    FOLDER/runs/0000/run.json     one run: command, times, work done, load of the machine
    FOLDER/runs/0000/capture/     its capture, if the program recorded one

A run belongs to the series once its run.json exists. That file is written atomically, so a series can be
read at any time and after any crash.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hotloop._util.errors import CaptureError
from hotloop._util.files import write_atomically
from hotloop.capture.plan import Plan
from hotloop.capture.plan_file import plan_from_data, plan_to_data

# Version history (bump on any change a reader of the old files would misread):
#   1  first layout
VERSION = 1
FORMAT = "hotloop-series"
FILE, RUNS, RUN_FILE, CAPTURE = "series.json", "runs", "run.json", "capture"


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
    warmup_s: float | None = None  # length of the warm-up that was cut off
    components_s: dict[str, float] = field(default_factory=dict)  # category -> seconds per env step
    # Of the thread that drives training:
    startup_s: float | None = None  # before the first work
    regions_s: dict[str, float] = field(
        default_factory=dict
    )  # exclusive seconds after start-up; "": in no region
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
        head = {"format": FORMAT, "format_version": VERSION, "plan": plan_to_data(plan), "facts": facts}
        write_atomically(folder / FILE, json.dumps(head, indent=1) + "\n")
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be written ({error.strerror}); choose another folder."
        ) from error
    return Series(folder, plan, facts)


def read(folder: Path) -> Series:
    """Read a series with all runs finished so far; unreadable runs become warnings."""
    file = folder / FILE
    try:
        head = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CaptureError(f"{folder} is not a series: it has no {FILE}.") from None
    except OSError as error:
        raise CaptureError(f"{file} cannot be read ({error.strerror}); check its permissions.") from None
    except ValueError as error:
        raise CaptureError(f"{file} is not valid JSON ({error}); the series cannot be read.") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CaptureError(f"{file} was not written by hotloop; name the folder of a series.")
    if head.get("format_version") != VERSION:
        writer = (head.get("facts") or {}).get("hotloop_version", "of another version")
        raise CaptureError(
            f"{folder} has series format {head.get('format_version')} and this hotloop reads {VERSION}; "
            f"read it with hotloop {writer}, which wrote it."
        )
    runs, warnings = [], []
    for place in sorted((folder / RUNS).glob("*/" + RUN_FILE)):
        try:
            runs.append(_run(json.loads(place.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError) as error:
            warnings.append(f"{place} cannot be read ({error}) and is left out")
    runs.sort(key=lambda run: run.number)
    return Series(folder, plan_from_data(head["plan"]), head.get("facts", {}), tuple(runs), tuple(warnings))


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
    data = {f.name: getattr(run, f.name) for f in fields(run)}
    data["figures"] = {f.name: getattr(run.figures, f.name) for f in fields(Figures)}
    write_atomically(file, json.dumps(data, indent=1) + "\n")
    return with_run(series, run)


def with_run(series: Series, run: Run) -> Series:
    """The series with one more run, in memory only; runs stay in the order in which they were started."""
    return replace(series, runs=tuple(sorted((*series.runs, run), key=lambda one: one.number)))


def _run(data: dict[str, Any]) -> Run:
    known = {f.name for f in fields(Run)}
    kept = {key: value for key, value in data.items() if key in known}
    kept["command"] = tuple(kept["command"])
    kept["cores"] = tuple(kept.get("cores", ()))
    names = {f.name for f in fields(Figures)}
    kept["figures"] = Figures(**{k: v for k, v in kept.get("figures", {}).items() if k in names})
    return Run(**kept)
