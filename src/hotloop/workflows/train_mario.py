"""`hotloop train mario --benchmark`: both variants in turn, with the same updates per transition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

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
from hotloop.report.to_json import strict_json
from hotloop.rl.train.learner_limit import LearnerLimit, measure_learner
from hotloop.rl.workloads.mario import N_ACTIONS, VARIANTS, Mario, VariantName, async_dqn_config, check
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    continue_series,
    create_series,
    interruptible,
    run_experiment,
)
from hotloop.workflows.train import lab_command

ORIGINAL: VariantName = "original"
FAST: VariantName = "fast"
EPOCHS = 3  # the first is warm-up
EPOCH_STEPS = 4096
LEARNING_STARTS = 512
EPSILON = 0.1  # constant, so that the collectors of both variants use the network
MIN_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Request:
    """What to find out about the pipeline, besides training."""

    # flag -> the flag without which it does nothing
    NEEDS: ClassVar = dict.fromkeys(
        ("budget", "pairs", "series", "benchmark_json", "benchmark_png"), "benchmark"
    )

    benchmark: bool = False
    """Compare both variants at the same work, in fresh processes that take turns; writes a JSON and a PNG
    file."""
    budget: str = "15m"
    """With --benchmark: time for all runs together."""
    pairs: int = 8
    """With --benchmark: maximum number of pairs of runs; an interval needs at least 5."""
    series: Path | None = None
    """With --benchmark: folder for the runs; by default hotloop-runs/<time>-mario-benchmark."""
    benchmark_json: Path = Path("mario_benchmark.json")
    """With --benchmark: file for the figures of all runs."""
    benchmark_png: Path = Path("mario_benchmark.png")
    """With --benchmark: file for the chart."""

    @property
    def wanted(self) -> bool:
        """Whether anything besides training was asked for."""
        return self.benchmark

    @property
    def keeps_capture(self) -> bool:
        """Whether there is one recording, which `--capture` names."""
        return False


@dataclass(frozen=True)
class Benchmark:
    """Both variants side by side."""

    done: ExperimentResult
    original: Mario
    fast: Mario
    figures: tuple[tuple[PipelineFigures, PipelineFigures], ...]  # of each pair
    rows: tuple[PipelineRow, ...]
    same_work: str  # in words
    learner_limits: dict[str, LearnerLimit]  # by variant, measured after the runs

    @property
    def learner_limit_text(self) -> str:
        """How far each learner is from its convolutions and products alone."""
        if not self.learner_limits:
            return ""
        parts = [
            f"{name} {1e3 * limit.learner_s:.3g} ms, {limit.over_products:.2f} times its convolutions and "
            f"matrix products alone ({1e3 * limit.products_s:.3g} ms, {limit.precision})"
            for name, limit in self.learner_limits.items()
        ]
        return (
            f"CPU time of the learner per transition, measured by itself after the runs: {'; '.join(parts)}."
        )


def equal_work(config: Mario, variant: VariantName) -> Mario:
    """The config of a variant that does the same work as the other one.

    Each variant keeps its batch size, and accumulates as many batches as make an update as large as the fast
    variant's, so that the number of updates per transition is the same, too.
    """
    fast = replace(config, variant=FAST).settings
    transitions_per_update = fast.batch_size * fast.accumulate_grad_batches
    batch_size = config.batch_size or VARIANTS[variant].batch_size
    epoch_steps = config.epoch_steps or EPOCH_STEPS
    epochs = config.stop_at_epochs or EPOCHS
    if config.total_timesteps is not None:
        epochs = -(-config.total_timesteps // epoch_steps)
    return replace(
        config,
        variant=variant,
        batch_size=batch_size,
        accumulate_grad_batches=transitions_per_update // batch_size,
        total_timesteps=None,
        stop_at_epochs=max(epochs, 2),
        epoch_steps=epoch_steps,
        learning_starts=min(config.learning_starts, LEARNING_STARTS),
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
    )


def benchmark(config: Mario, request: Request, progress: Progress) -> Benchmark:
    """Run both variants in fresh processes that take turns; figures leave out the first epoch."""
    if config.checkpoint is not None or config.tensorboard_log is not None:
        raise HotloopError("--benchmark starts every run anew; leave out checkpoint and tensorboard_log.")
    resume = config.resume  # the series, not an agent
    if resume and request.series is None:
        raise HotloopError("--benchmark --resume continues a series; name its folder with --series DIR.")
    config = replace(config, resume=False)
    if request.pairs < 1:
        raise HotloopError(f"pairs={request.pairs} must be at least 1.")
    for file in (request.benchmark_json, request.benchmark_png):
        if not file.absolute().parent.is_dir():
            raise HotloopError(f"{file}: there is no folder {file.absolute().parent}; create it.")
    sides = {variant: equal_work(config, variant) for variant in (ORIGINAL, FAST)}
    for side in sides.values():
        check(side)
    budget_s = parse_seconds(request.budget, "--budget")
    plan = Plan(
        variants=tuple(Variant(name, lab_command("mario", side)) for name, side in sides.items()),
        name="mario: fast against original",
        seeds=tuple(range(config.seed, config.seed + LOOKS[-1])),
        budget_s=budget_s,
        looks=(request.pairs,),
        timeout_s=max(budget_s, MIN_TIMEOUT_S),
    )
    if resume:
        series = continue_series(plan, request.series)
    else:
        series = create_series(plan, request.series, "mario-benchmark")
    done = run_experiment(series, progress, read_figures=lambda folder: _measured(folder, sides[FAST]))
    pairs = tuple(_figures_of_pairs(done.series, sides))
    limits: dict[str, LearnerLimit] = {}
    if not done.interrupted:
        try:
            with interruptible():
                limits = {name: learner_limit(side) for name, side in sides.items()}
        except KeyboardInterrupt:
            summary = "Interrupted while the learners were measured by themselves; all runs are kept."
            done = replace(done, outcome=replace(done.outcome, ended="interrupted", summary=summary))
    found = Benchmark(
        done,
        sides[ORIGINAL],
        sides[FAST],
        pairs,
        compare_pipelines(pairs),
        _same_work(done.series, sides),
        limits,
    )
    _save(found, request)
    return found


def learner_limit(config: Mario) -> LearnerLimit:
    """The variant's learner beside its convolutions and products alone, in this process."""
    settings = replace(async_dqn_config(config), accumulate_grad_batches=1)
    return measure_learner(settings, (config.stack, config.size, config.size), N_ACTIONS)


def _measured(folder: Path, config: Mario) -> Figures:
    """The work of a run, and its time per env step in the measured epochs."""
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
    return pipeline_figures(load(folder), config.epoch_steps, config.settings.batch_size)


def _figures_of_pairs(series: Series, sides: dict[VariantName, Mario]) -> Any:
    def of(run: Run) -> PipelineFigures | None:
        folder = series.capture_folder(run)
        return None if folder is None else _figures(folder, sides[run.variant])  # type: ignore[index]

    for a, b in pairs_of(series, FAST):
        before, after = of(a), of(b)
        if before is not None and after is not None:
            yield before, after


def _same_work(series: Series, sides: dict[VariantName, Mario]) -> str:
    """The work of an epoch, from the settings, and the updates that were counted."""
    fast, original = sides[FAST], sides[ORIGINAL]
    learned = fast.epoch_steps * fast.replay_ratio
    shapes = [(s.batch_size, s.accumulate_grad_batches) for s in (original.settings, fast.settings)]
    (original_size, original_batches), (fast_size, fast_batches) = shapes
    made = {name: sorted({run.figures.updates or 0 for run in series.of(name)}) for name in (ORIGINAL, FAST)}
    return (
        f"Per epoch both collect {fast.epoch_steps:,} transitions and learn from {learned:,.0f} "
        f"(replay ratio {fast.replay_ratio:g}), {fast_size * fast_batches:,} per update: "
        f"{original_batches} batches of {original_size} and {fast_batches} of {fast_size}. Updates counted "
        f"per run: original {_listed(made[ORIGINAL])}, fast {_listed(made[FAST])}."
    )


def _listed(counts: list[int]) -> str:
    return " to ".join(map(str, counts[:: max(len(counts) - 1, 1)])) if counts else "-"


def _save(found: Benchmark, request: Request) -> None:
    data = benchmark_json(found.rows, found.figures, found.same_work, found.done.series, found.learner_limits)
    picture = benchmark_png(found.rows, found.figures, found.same_work)
    for file, content in (
        (request.benchmark_json, strict_json(data, indent=1) + "\n"),
        (request.benchmark_png, picture),
    ):
        try:
            write_atomically(file, content)
        except OSError as error:
            raise HotloopError(
                f"{file} cannot be written ({error.strerror}); choose another file."
            ) from error
