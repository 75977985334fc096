"""A `Series`: every run of a plan in its order, on disk so that no later failure loses an earlier run.

    FOLDER/series.json            plan, machine, format version; written once
    FOLDER/runs/0000/run.json     one run: what was run, how long, what it did, how busy the machine was
    FOLDER/runs/0000/capture/     its capture, when the program recorded one

A run belongs to the series from the moment its run.json is there, which is written in one step: a
series can be read at any time, and after any kind of death.
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
from hotloop.capture.plan_file import as_data, from_data

# Version history (bump on any change a reader of the old files would misread):
#   1  first layout
VERSION = 1
FORMAT = "hotloop-series"
FILE, RUNS, RUN_FILE, CAPTURE = "series.json", "runs", "run.json", "capture"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run did and how fast, taken from its capture; None for what it did not record."""

    env_steps: int | None = None
    updates: int | None = None
    episodes: int | None = None
    mean_length: float | None = None
    mean_return: float | None = None
    calls: int | None = None  # completed calls of all regions
    bytes_moved: float | None = None
    s_per_env_step: float | None = None  # in steady state, warm-up cut off
    s_per_update: float | None = None
    warmup_s: float | None = None  # what was cut off
    components_s: dict[str, float] = field(default_factory=dict)  # category -> seconds per env step
    # Of the thread that drives training:
    startup_s: float | None = None  # before any work was done
    regions_s: dict[str, float] = field(default_factory=dict)  # own seconds after that; "": no region
    region_calls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one variant."""

    number: int  # place in the series, from 0
    variant: str
    block: int  # runs of one block (or pair) belong together and share a seed
    position: int  # place inside the block
    seed: int
    command: tuple[str, ...]  # as started
    size: int | None = None  # what {n} was
    scale: bool = False  # part of the scale check, not of the comparison
    started_s: float = 0.0  # seconds since 1970
    wall_s: float = 0.0  # of the whole process
    cpu_s: float | None = None  # of the process and the children it waited for
    exit_code: int | None = None  # None: it never started, or was ended by us
    failure: str = ""  # one sentence when it failed
    stderr_tail: str = ""
    before: dict[str, float] = field(default_factory=dict)  # load, see machine/load_snapshot.py
    after: dict[str, float] = field(default_factory=dict)
    figures: Figures = Figures()
    has_capture: bool = False
    note: str = ""  # what is odd about a run that did not fail
    cores: tuple[int, ...] = ()  # the only ones it could use; (): those of the lab
    at_once: int = 1  # runs that were made at the same time
    group: int = 0  # runs of one group are compared with its own run of the baseline

    @property
    def ok(self) -> bool:
        """Whether it ended as it should."""
        return not self.failure


@dataclass(frozen=True)
class Series:
    """Many runs made on purpose, in a known order."""

    path: Path | None
    plan: Plan
    facts: dict[str, Any]  # machine, versions, command line, time of the start
    runs: tuple[Run, ...] = ()
    warnings: tuple[str, ...] = ()

    def of(self, variant: str, scale: bool = False) -> tuple[Run, ...]:
        """Runs of a variant that ended as they should, in order."""
        return tuple(r for r in self.runs if r.variant == variant and r.scale == scale and r.ok)

    @property
    def failures(self) -> tuple[Run, ...]:
        """Runs that failed, in order."""
        return tuple(r for r in self.runs if not r.ok)

    @property
    def spent_s(self) -> float:
        """Time all runs took; of runs at the same time, each counts for its part."""
        return sum(r.wall_s / r.at_once for r in self.runs)

    def capture_folder(self, run: Run) -> Path | None:
        """Where the run's capture lies; None when it has none."""
        if self.path is None or not run.has_capture:
            return None
        return run_folder(self.path, run.number) / CAPTURE


def is_series(place: Path) -> bool:
    """Whether a folder holds a series."""
    return (place / FILE).is_file()


def run_folder(folder: Path, number: int) -> Path:
    """The folder of one run."""
    return folder / RUNS / f"{number:04d}"


def create(folder: Path, plan: Plan, facts: dict[str, Any]) -> Series:
    """Begin a series in a folder that does not exist yet or is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        more = "continue it with --resume" if is_series(folder) else "choose another place for the series"
        raise CaptureError(f"{folder} is not empty; {more}.")
    try:
        (folder / RUNS).mkdir(parents=True)
        head = {"format": FORMAT, "format_version": VERSION, "plan": as_data(plan), "facts": facts}
        write_atomically(folder / FILE, json.dumps(head, indent=1) + "\n")
    except OSError as error:
        raise CaptureError(f"{folder} cannot be written ({error.strerror}); choose another place.") from error
    return Series(folder, plan, facts)


def read(folder: Path) -> Series:
    """The series in a folder, with every run that was finished so far."""
    file = folder / FILE
    try:
        head = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CaptureError(f"There is no series at {folder}: it has no {FILE}.") from None
    except OSError as error:
        raise CaptureError(f"{file} cannot be read ({error.strerror}); check its permissions.") from None
    except ValueError as error:
        raise CaptureError(f"{file} is not valid JSON ({error}); the series cannot be read.") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CaptureError(f"{file} was not written by hotloop; name the folder of a series.")
    if head.get("format_version") != VERSION:
        writer = (head.get("facts") or {}).get("hotloop_version", "of another version")
        raise CaptureError(
            f"{folder} has series format {head.get('format_version')}, this hotloop reads {VERSION}; "
            f"read it with hotloop {writer}, which wrote it."
        )
    runs, warnings = [], []
    for place in sorted((folder / RUNS).glob("*/" + RUN_FILE)):
        try:
            runs.append(_run(json.loads(place.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError, KeyError) as error:
            warnings.append(f"{place} cannot be read ({error}) and is left out")
    runs.sort(key=lambda run: run.number)
    return Series(folder, from_data(head["plan"]), head.get("facts", {}), tuple(runs), tuple(warnings))


def begin_run(series: Series, least: int = 0) -> tuple[int, Path]:
    """A number, not below `least`, and a fresh folder for the next run.

    What an interrupted run left there is removed.
    """
    assert series.path is not None
    number = max(series.runs[-1].number + 1 if series.runs else 0, least)
    folder = run_folder(series.path, number)
    while (folder / RUN_FILE).exists():  # one that could not be read: stays, is not written over
        number += 1
        folder = run_folder(series.path, number)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return number, folder


def append(series: Series, run: Run) -> Series:
    """Put a finished run on disk and return the series with it; raises OSError when it cannot be written."""
    assert series.path is not None
    file = run_folder(series.path, run.number) / RUN_FILE
    data = {f.name: getattr(run, f.name) for f in fields(run)}
    data["figures"] = {f.name: getattr(run.figures, f.name) for f in fields(Figures)}
    write_atomically(file, json.dumps(data, indent=1) + "\n")
    return with_run(series, run)


def with_run(series: Series, run: Run) -> Series:
    """The series with one more run, in memory only; runs stand in the order in which they were begun."""
    return replace(series, runs=tuple(sorted((*series.runs, run), key=lambda one: one.number)))


def _run(data: dict[str, Any]) -> Run:
    known = {f.name for f in fields(Run)}
    kept = {key: value for key, value in data.items() if key in known}
    kept["command"] = tuple(kept["command"])
    kept["cores"] = tuple(kept.get("cores", ()))
    names = {f.name for f in fields(Figures)}
    kept["figures"] = Figures(**{k: v for k, v in kept.get("figures", {}).items() if k in names})
    return Run(**kept)
