"""`hotloop train mario --benchmark`: both machineries in turn, at equal updates for each transition."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.units import parse_seconds
from hotloop.analysis.comparison import pairs_of
from hotloop.analysis.pipeline import (
    PipelineFigures,
    PipelineRow,
    compare_pipelines,
    pipeline_figures,
)
from hotloop.capture.plan import LOOKS, Plan, Variant
from hotloop.capture.reader import load
from hotloop.capture.series import Figures, Run, Series
from hotloop.report.pipeline import benchmark_json, benchmark_png
from hotloop.rl.workloads.mario import VARIANTS, Mario, VariantName, check
from hotloop.workflows.experiments import ExperimentResult, Progress, create_series, run_experiment

ORIGINAL: VariantName = "original"
FAST: VariantName = "fast"
EPOCHS = 3  # the first is warm-up
EPOCH_STEPS = 4096
LEARNING_STARTS = 512
EPSILON = 0.1  # the same throughout, so that the collectors ask the network in both
LEAST_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Request:
    """What to find out about the pipeline."""

    benchmark: bool = False
    """Train with both variants in turn, in fresh processes, at equal updates for each transition, and
    compare them; writes a JSON and a PNG file."""
    budget: str = "15m"
    """With --benchmark: time for all runs together."""
    pairs: int = 8
    """With --benchmark: most pairs of runs; 5 at least for an interval."""
    series: Path | None = None
    """With --benchmark: where the runs are kept; hotloop-runs/<time>-mario-benchmark when not given."""
    benchmark_json: Path = Path("mario_benchmark.json")
    """With --benchmark: the figures of all runs."""
    benchmark_png: Path = Path("mario_benchmark.png")
    """With --benchmark: the picture."""

    @property
    def wanted(self) -> bool:
        """Whether anything beside training was asked for."""
        return self.benchmark


@dataclass(frozen=True)
class Benchmark:
    """Both machineries side by side, with all that is said about it."""

    done: ExperimentResult
    original: Mario
    fast: Mario
    figures: tuple[tuple[PipelineFigures, PipelineFigures], ...]  # of each pair
    rows: tuple[PipelineRow, ...]
    same_work: str  # in words


def equal_work(config: Mario, variant: VariantName) -> Mario:
    """The config of a side: its own machinery, and the same work as the other side's.

    Each keeps its batch size. An update is made of as many batches as it takes to be as large as the fast
    side's, so that updates for each transition are equal, too.
    """
    fast = replace(config, variant=FAST).machinery
    effective = fast.batch_size * fast.accumulate
    batch = config.batch_size or VARIANTS[variant].batch_size
    return replace(
        config,
        variant=variant,
        batch_size=batch,
        accumulate=effective // batch,
        epochs=max(config.epochs, 2) if config.epochs != Mario.epochs else EPOCHS,
        epoch_steps=config.epoch_steps or EPOCH_STEPS,
        learning_starts=min(config.learning_starts, LEARNING_STARTS),
        epsilon_start=EPSILON,
        epsilon_end=EPSILON,
    )


def benchmark(config: Mario, request: Request, progress: Progress) -> Benchmark:
    """Fresh processes in turn, by the lab; what is compared comes from the epochs after the first."""
    if config.checkpoint is not None or config.resume or config.metrics is not None:
        raise HotloopError(
            "--benchmark trains afresh in every run; leave out checkpoint, resume and metrics."
        )
    if request.pairs < 1:
        raise HotloopError(f"pairs={request.pairs} must be at least 1.")
    for file in (request.benchmark_json, request.benchmark_png):
        if not file.absolute().parent.is_dir():
            raise HotloopError(f"there is no folder {file.absolute().parent} for {file.name}; make it.")
    sides = {variant: equal_work(config, variant) for variant in (ORIGINAL, FAST)}
    for side in sides.values():
        check(side)
    budget_s = parse_seconds(request.budget, "--budget")
    plan = Plan(
        variants=tuple(Variant(name, command_of(side)) for name, side in sides.items()),
        name="mario: fast against original",
        seeds=tuple(range(config.seed, config.seed + LOOKS[-1])),
        budget_s=budget_s,
        looks=(request.pairs,),
        timeout_s=max(budget_s, LEAST_TIMEOUT_S),
    )
    series = create_series(plan, request.series, "mario-benchmark")
    done = run_experiment(series, progress, read_figures=lambda folder: _measured(folder, sides[FAST]))
    pairs = tuple(_figures_of_pairs(done.series, sides))
    found = Benchmark(
        done,
        sides[ORIGINAL],
        sides[FAST],
        pairs,
        compare_pipelines(pairs),
        _same_work(done.series, sides),
    )
    _save(found, request)
    return found


def command_of(config: Mario) -> tuple[str, ...]:
    """The command line that trains so; the seed is the pair's."""
    words = [sys.executable, "-m", "hotloop", "train", "mario", "--no-profiling", "--seed", "{seed}"]
    for field in dataclasses.fields(Mario):
        value: Any = getattr(config, field.name)
        flag = field.name.replace("_", "-")
        if field.name in ("seed", "checkpoint", "resume", "metrics") or value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return tuple(words)


def _measured(folder: Path, config: Mario) -> Figures:
    """What a run did and its time for each env step, from its measured epochs."""
    capture = load(folder)
    found, done = _figures(folder, config), capture.progress
    return Figures(
        env_steps=done.env_steps or None,
        updates=done.updates or None,
        episodes=done.episodes or None,
        mean_length=done.mean_length,
        mean_return=done.mean_return,
        s_per_env_step=1 / found.env_steps_per_s if found else None,
    )


def _figures(folder: Path, config: Mario) -> PipelineFigures | None:
    return pipeline_figures(load(folder), config.epoch_steps, config.machinery.batch_size)


def _figures_of_pairs(series: Series, sides: dict[VariantName, Mario]) -> Any:
    def of(run: Run) -> PipelineFigures | None:
        folder = series.capture_folder(run)
        return None if folder is None else _figures(folder, sides[run.variant])  # type: ignore[index]

    for a, b in pairs_of(series, FAST):
        before, after = of(a), of(b)
        if before is not None and after is not None:
            yield before, after


def _same_work(series: Series, sides: dict[VariantName, Mario]) -> str:
    """What both sides did in an epoch, from the settings, and the updates that were counted."""
    fast, original = sides[FAST], sides[ORIGINAL]
    each = fast.epoch_steps * fast.learn_per_step
    update = fast.machinery.batch_size * fast.machinery.accumulate
    made = {name: sorted({run.figures.updates or 0 for run in series.of(name)}) for name in (ORIGINAL, FAST)}
    return (
        f"In an epoch both collect {fast.epoch_steps:,} transitions and learn from {each:,.0f} "
        f"({fast.learn_per_step:g} for each), {update:,} to an "
        f"update: batches of {original.machinery.batch_size} x {original.machinery.accumulate} and "
        f"{fast.machinery.batch_size} x {fast.machinery.accumulate}. Updates counted in a run: original "
        f"{_listed(made[ORIGINAL])}, fast {_listed(made[FAST])}."
    )


def _listed(counts: list[int]) -> str:
    return " to ".join(map(str, counts[:: max(len(counts) - 1, 1)])) if counts else "-"


def _save(found: Benchmark, request: Request) -> None:
    data = benchmark_json(found.rows, found.figures, found.same_work, found.done.series)
    try:
        write_atomically(request.benchmark_json, json.dumps(data, indent=1) + "\n")
        request.benchmark_png.write_bytes(benchmark_png(found.rows, found.figures, found.same_work))
    except OSError as error:
        raise HotloopError(
            f"{error.filename} cannot be written ({error.strerror}); choose another."
        ) from error
