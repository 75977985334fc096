"""Compares runs that exist already: captures, folders of captures, series."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.analysis.categories import Resolver
from hotloop.analysis.comparison import Comparison, compare_series, value_s
from hotloop.analysis.steady_state import run_figures
from hotloop.analysis.verdict import judge_unpaired
from hotloop.analysis.work_counters import counters_of
from hotloop.capture import series as store
from hotloop.capture.model import Capture
from hotloop.capture.open_capture import open_capture
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, Series
from hotloop.workflows.project_settings import load_settings


@dataclass(frozen=True)
class CaptureComparison:
    """The verdict on existing runs, with warnings about the comparison."""

    series: Series
    found: Comparison
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class RecordedRuns:
    """The runs of one side, in order, with their work counters."""

    runs: tuple[Run, ...]
    counters: tuple[dict[str, float], ...]
    command: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # about what could not be read


def gather_runs(place: str, name: str) -> RecordedRuns:
    """All runs at `place`: a capture, a one-file export, a folder of captures, or a series.

    Of a series, only the runs of the baseline.
    """
    folder = Path(place)
    if store.is_series(folder):
        series = store.read(folder)
        kept = series.of(series.plan.baseline.name)
        captures = [open_capture(str(f)) for run in kept if (f := series.capture_folder(run)) is not None]
        runs = tuple(replace(run, variant=name) for run in kept)
        command = series.plan.baseline.command
        warnings = [*series.warnings]
    else:
        captures = [open_capture(str(file)) for file in _captures_in(folder)]
        resolver = Resolver(load_settings().category_patterns)
        runs = tuple(_as_run(capture, name, resolver) for capture in captures)
        command = tuple(captures[0].command) if captures else ()
        warnings = []
    if not runs:
        raise HotloopError(f"{place} has no finished run; name a capture, a folder of captures or a series.")
    order = sorted(range(len(runs)), key=lambda i: runs[i].started_s)
    counters = tuple(counters_of(capture) for capture in captures)
    warnings += [f"{capture.path}: {text}" for capture in captures for text in capture.all_warnings]
    return RecordedRuns(tuple(runs[i] for i in order), counters, command, tuple(warnings))


def compare_captures(a: str, b: str, tolerance: float) -> CaptureComparison:
    """Compare existing runs; warns if they were not interleaved."""
    return judge_runs(gather_runs(a, "A"), gather_runs(b, "B"), tolerance)


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str], tolerance: float = 0.03) -> Comparison:
    """Compare existing runs; `a` and `b` are each a capture, a folder of captures or a series.

    Differences below `tolerance`, a fraction, do not matter. Warns if the runs were not interleaved.
    """
    result = compare_captures(os.fspath(a), os.fspath(b), tolerance)
    for warning in result.warnings:
        warnings.warn(warning, stacklevel=2)
    return result.found


def judge_runs(a: RecordedRuns, b: RecordedRuns, tolerance: float) -> CaptureComparison:
    """Pair the runs in the order they were made; if they were not interleaved, do not pair them."""
    plan = Plan(
        variants=(Variant("A", a.command or ("?",)), Variant("B", b.command or ("?",))),
        tolerance=tolerance,
        looks=(max(min(len(a.runs), len(b.runs)), 1),),
    )
    runs = [replace(run, block=i, group=0) for side in (a, b) for i, run in enumerate(side.runs)]
    runs = [replace(run, number=i) for i, run in enumerate(sorted(runs, key=lambda r: r.started_s))]
    series = Series(None, plan, {}, tuple(runs))
    found = compare_series(series)
    warnings = list(dict.fromkeys([*a.warnings, *b.warnings]))
    if not _interleaved(runs):
        warnings.append(
            "A and B were not run in turn, so a change in the load of the machine looks like a difference; "
            "for a reliable verdict: hotloop compare --a 'COMMAND' --b 'COMMAND'"
        )
        values = [[value_s(r, found.metric) for r in runs if r.variant == side] for side in "AB"]
        verdict = judge_unpaired(*values, tolerance=tolerance)
        found = replace(found, compared=(replace(found.compared[0], verdict=verdict),))
    return CaptureComparison(series, found, tuple(warnings))


def _interleaved(runs: list[Run]) -> bool:
    """Whether the two runs of every pair directly followed each other."""
    place = {(run.variant, run.block): i for i, run in enumerate(runs)}
    shared = [block for side, block in place if side == "A" and ("B", block) in place]
    return len(shared) > 1 and all(abs(place["A", b] - place["B", b]) == 1 for b in shared)


def _captures_in(folder: Path) -> list[Path]:
    """The capture itself, or the captures or exports inside a folder."""
    if not folder.is_dir() or (folder / "capture.json").is_file():
        return [folder]
    inside = sorted(file.parent for file in folder.glob("*/capture.json"))
    return inside or sorted(folder.glob("*.json"))


def _as_run(capture: Capture, name: str, resolver: Resolver) -> Run:
    started_ns = min((p.start_real_ns for p in capture.processes), default=0)
    return Run(
        number=0,
        variant=name,
        block=0,
        position=0,
        seed=0,
        command=tuple(capture.command),
        started_s=started_ns / 1e9,
        wall_s=max(capture.wall_ns, 1) / 1e9,
        exit_code=0,
        figures=run_figures(capture, resolver),
    )
