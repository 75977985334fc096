"""`hotloop train petri --breakdown | --compare | --detailed`: a batch by its parts, turbo on against off."""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.units import parse_seconds
from hotloop.analysis.batch_breakdown import (
    HOTLOOP,
    BatchBreakdown,
    Explanation,
    Impact,
    batch_breakdown,
    batch_nodes,
    explain_gain,
    impacts,
    total_verdicts,
)
from hotloop.analysis.comparison import pairs_of
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.profiled_functions import function_changes, function_times
from hotloop.analysis.steady_state import run_figures
from hotloop.analysis.verdict import ComponentVerdict
from hotloop.capture.model import Node
from hotloop.capture.plan import LOOKS, Plan, Variant
from hotloop.capture.reader import load
from hotloop.capture.series import Figures, Series
from hotloop.capture.stats import by_name
from hotloop.report.pen import Pen
from hotloop.report.side_by_side import function_changes_text
from hotloop.rl.workloads.petri import Petri, check, run
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    continue_series,
    create_series,
    run_experiment,
)
from hotloop.workflows.report import report_on
from hotloop.workflows.train import lab_command

BATCHES = 5
OFF, ON = "turbo off", "turbo on"
REPORTS = {True: Path("profile_training_turbo_on.txt"), False: Path("profile_training_turbo_off.txt")}
TOP = 50
# Fewer than 8 pairs cannot decide ten parts at once.
PAIRS = tuple(look for look in LOOKS if look >= 8)
MIN_TIMEOUT_S = 600.0  # the first pair always runs to its end, however small the budget
_TITLE = "hotloop: functions of training batches"


@dataclass(frozen=True)
class Request:
    """What to do besides training."""

    # flag -> the flag without which it does nothing
    NEEDS: ClassVar = dict.fromkeys(("budget", "series"), "compare")

    breakdown: bool = False
    """Show the parts of a training batch: collection, advantage, loss and so on."""
    compare: bool = False
    """Train with turbo on and off in turn, in fresh processes, and show the speed-up."""
    detailed: bool = False
    """Write the top 50 functions of cProfile to profile_training_turbo_on.txt or _off.txt, both with
    --compare."""
    budget: str = "10m"
    """With --compare: time for all runs together."""
    series: Path | None = None
    """With --compare: folder for the runs. Default: hotloop-runs/<time>-petri-turbo."""

    @property
    def wanted(self) -> bool:
        return self.breakdown or self.compare or self.detailed

    @property
    def keeps_capture(self) -> bool:
        """Whether there is one recording, which `--capture` names."""
        return self.breakdown and not self.compare


@dataclass(frozen=True)
class TurboComparison:
    """Turbo on against off: the verdict and where the gain comes from."""

    result: ExperimentResult
    off: BatchBreakdown | None  # of the median run
    on: BatchBreakdown | None
    totals: tuple[ComponentVerdict, ...]  # data collection, neural network total
    explanation: Explanation
    impacts: tuple[Impact, ...]  # with turbo on
    recommendations: tuple[Recommendation, ...]  # about regions of a batch


def with_batches(config: Petri) -> Petri:
    """The config with a limited number of batches."""
    chosen = config if config.batches is not None else replace(config, batches=BATCHES)
    check(chosen)
    return chosen


def breakdown_of(folder: Path) -> BatchBreakdown:
    """The breakdown of a recorded training run; raises HotloopError if it is too short."""
    found = batch_breakdown(load(folder))
    if found is None:
        raise HotloopError(
            f"{folder} has no complete training batch after the first; train for more batches."
        )
    return found


# ---- turbo on against off


def compare_turbo(config: Petri, request: Request, progress: Progress) -> TurboComparison:
    """Compare turbo on and off in fresh processes; compares the time of a batch after warm-up."""
    if config.checkpoint is not None:
        raise HotloopError("--compare trains from scratch in every run; remove --checkpoint.")
    resume = config.resume  # the series, not an agent
    if resume and request.series is None:
        raise HotloopError("--compare --resume continues a series; name its folder with --series DIR.")
    config = with_batches(replace(config, resume=False))
    if config.learner == "auto":  # auto could choose differently from run to run
        config = replace(config, learner="fused")
    budget_s = parse_seconds(request.budget, "--budget")
    plan = Plan(
        variants=(_variant(config, turbo=False), _variant(config, turbo=True)),
        name="petri: turbo on against off",
        seeds=tuple(range(config.seed, config.seed + LOOKS[-1])),
        budget_s=budget_s,
        looks=PAIRS,
        timeout_s=max(budget_s, MIN_TIMEOUT_S),
    )
    if resume:
        series = continue_series(plan, request.series)
    else:
        series = create_series(plan, request.series, "petri-turbo")
    result = run_experiment(series, progress, read_figures=lambda folder: measured_batches(folder, config))
    runs = result.series.of(ON)
    row = result.comparison.compared[0]
    return TurboComparison(
        result,
        _typical(result.series, OFF),
        _typical(result.series, ON),
        total_verdicts(_components(result.series), plan.tolerance),
        explain_gain(row.components, row.verdict, "turbo"),
        impacts([run.figures.components_s for run in runs if run.figures.components_s]),
        _batch_recommendations(result.series),
    )


def _components(series: Series) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Seconds by part of each pair of runs, turbo off first."""
    pairs = [(a.figures.components_s, b.figures.components_s) for a, b in pairs_of(series, ON)]
    return [(a, b) for a, b in pairs if a and b]


def _variant(config: Petri, turbo: bool) -> Variant:
    return Variant(ON if turbo else OFF, command_of(config, turbo))


def command_of(config: Petri, turbo: bool) -> tuple[str, ...]:
    """The command line of a variant; {seed} stands for the seed of the pair."""
    return lab_command("petri", replace(config, turbo=turbo))


def measured_batches(folder: Path, config: Petri) -> Figures:
    """Figures of a run with times taken from its training batches: seconds per env step, by part."""
    capture = load(folder)
    found, known = batch_breakdown(capture), run_figures(capture)
    if found is None:
        return known
    steps = found.batches * config.samples
    updates = found.batches * config.updates_per_batch
    return replace(
        known,
        s_per_env_step=found.wall_ns / 1e9 / steps,
        s_per_update=found.wall_ns / 1e9 / updates,
        components_s={name: ns / 1e9 / steps for name, ns in found.flat().items() if name != HOTLOOP},
    )


def _typical(series: Series, variant: str) -> BatchBreakdown | None:
    """The breakdown of the median run of a variant."""
    runs = [run for run in series.of(variant) if run.figures.s_per_env_step]
    if not runs:
        return None
    runs.sort(key=lambda run: run.figures.s_per_env_step or 0.0)
    folder = series.capture_folder(runs[len(runs) // 2])
    return None if folder is None else batch_breakdown(load(folder))


def _batch_recommendations(series: Series) -> tuple[Recommendation, ...]:
    """Recommendations for the last run with turbo that are about the batches.

    Regions that spend most of their time elsewhere, such as a reset that compiles, are left out.
    """
    runs = series.of(ON)
    folder = series.capture_folder(runs[-1]) if runs else None
    if folder is None:
        return ()
    found = report_on(str(folder))
    everywhere, inside = by_name(found.capture.tree), Node("batches")
    for batch in batch_nodes(found.capture.tree):
        inside.merge(batch)
    of_batches = by_name(inside)

    def applies(advice: Recommendation) -> bool:
        within, all_ = of_batches.get(advice.region), everywhere.get(advice.region)
        return within is not None and all_ is not None and 2 * within.total_ns > all_.total_ns

    return tuple(one for one in found.findings.recommendations if applies(one))


# ---- functions


def write_functions(config: Petri, both: bool, say: Callable[[str], None]) -> str:
    """Train under cProfile, without the warm-up batch, and write the reports; returns the difference."""
    modes = (True, False) if both else (config.turbo,)
    for turbo in modes:
        _check_ours(REPORTS[turbo])
    tables = {}
    for turbo in modes:
        stats = _profiled(replace(with_batches(config), turbo=turbo, checkpoint=None, resume=False))
        _write(REPORTS[turbo], functions_report(stats, config, turbo))
        say(f"wrote {REPORTS[turbo]}")
        tables[turbo] = function_times(stats.stats)  # type: ignore[attr-defined]
    if not both:
        return ""
    changes = function_changes(tables[False], tables[True])
    return function_changes_text(OFF, ON, changes, Pen(width=110, unicode=False), most=12)


def _profiled(config: Petri) -> pstats.Stats:
    profiler = cProfile.Profile()
    run(config, None, True, lambda: profiler)
    return pstats.Stats(profiler)


def functions_report(stats: pstats.Stats, config: Petri, turbo: bool) -> str:
    """Top 50 by cumulative time with calls and time per call, then callers and callees of each."""
    text = io.StringIO()
    text.write(f"{_TITLE}, {ON if turbo else OFF}, trainer {config.trainer}\n")
    text.write("cProfile slows down calls: compare times within this file only.\n")
    stats.stream = text  # type: ignore[attr-defined]
    stats.sort_stats("cumulative")
    stats.print_stats(TOP)
    stats.print_callers(TOP)
    stats.print_callees(TOP)
    return text.getvalue()


def _check_ours(file: Path) -> None:
    """Raise HotloopError rather than replace a file that hotloop did not write."""
    if file.exists() and not (file.is_file() and _first_words(file).startswith(_TITLE)):
        raise HotloopError(
            f"{file} exists and was not written by hotloop; move it, or run in another folder."
        )


def _first_words(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(len(_TITLE))


def _write(file: Path, text: str) -> None:
    try:
        write_atomically(file, text)
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); run in another folder.") from error
