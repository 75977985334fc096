"""`hotloop train imitate`: demonstrations, behaviour cloning, reinforcement learning, on all cores.

    from hotloop.rl.workloads.imitate import Imitate, run
    outcome = run(Imitate(n_episodes=20, total_timesteps=20_000))

Each stage leaves its result in the folder, for the next stage or to resume from: `demonstrations/` (one npz
file per episode), `clone` and `agent` (checkpoints). Each reports where its time went, without a capture.
The stages are in `imitate_demos.py`, `imitate_bc.py` and `imitate_rl.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotloop import profile
from hotloop._util.memory_estimate import MemoryEstimate
from hotloop._util.units import duration
from hotloop.machine.facts import cores_granted
from hotloop.rl.buffers.demonstrations import DemonstrationStore
from hotloop.rl.workloads.imitate_check import check
from hotloop.rl.workloads.imitate_config import BUFFER_SIZE, STAGES, Imitate, StageResult
from hotloop.rl.workloads.outcome import Note, Outcome
from hotloop.rl.workloads.stage_report import StageReport, report_lines

__all__ = ["Imitate", "check", "memory_needs", "run"]

_start_up = profile("start_up", "other")
_regions = {stage: profile(f"stage_{stage}", "other") for stage in STAGES}


@dataclass(frozen=True, slots=True)
class ImitateOutcome(Outcome):
    """The outcome of the whole run, with a report for each stage."""

    stages: tuple[StageReport, ...] = ()
    """In the order they ran."""


def run(config: Imitate, note: Note | None = None, quiet: bool = False) -> Outcome:
    """Run the stages, one after the other; a stage that is stopped ends the run."""
    check(config)
    with _start_up:
        # Imported on demand: they load torch and numba, which `hotloop train --help` does not need.
        from hotloop.rl.train import runs
        from hotloop.rl.workloads import imitate_bc, imitate_demos, imitate_rl, imitate_speedup, track_laps

        if config.stages != ("demos",):
            track_laps.compile_track()
    stages = {"demos": imitate_demos.demonstrate, "bc": imitate_bc.clone, "rl": imitate_rl.reinforce}
    lines: list[str] = []
    speedups: imitate_speedup.Speedups | None = None
    done: list[StageResult] = []
    with runs.StopRequests() as stop:
        if config.speedup:
            try:
                speedups = imitate_speedup.measure(config, quiet)
            except imitate_speedup.StoppedMeasuring:
                return stopped_measuring(stop.by)
            config, lines = speedups.config, [*speedups.lines]
        for stage in config.stages:
            with _regions[stage]:
                done.append(stages[stage](config, note, quiet))
            lines += report_lines(done[-1].report)
            if stop.by is not None:
                break
    unfinished = len(done) < len(config.stages) or done[-1].stopped_by is not None
    stopped_by = stop.by if unfinished else None
    if len(done) > 1:
        shares = ", ".join(f"{one.report.stage} {duration(1e9 * one.report.seconds)}" for one in done)
        lines.append(f"all stages: {shares}")
    if speedups is not None:
        reports = [one.report for one in done]
        lines += imitate_speedup.against_sequential(
            reports, speedups.sequential, speedups.predicted, speedups.seconds
        )
    return ImitateOutcome(
        env_steps=sum(one.env_steps for one in done),
        updates=sum(one.updates for one in done),
        episodes=sum(one.episodes for one in done),
        mean_return=done[-1].mean_return,
        seconds=sum(one.report.seconds for one in done),
        stopped_by=stopped_by,
        checkpoint=done[-1].checkpoint,
        remarks=tuple(lines),
        figures={name: value for one in done for name, value in one.figures.items()},
        stages=tuple(one.report for one in done),
        unsaved=next((one.unsaved for one in done if one.unsaved), None),
        work=work_words([one.report for one in done]),
        kept=None if stopped_by is None else kept_words(config, done[-1].report.stage),
        can_resume=config.trainer == "hotloop" or "rl" not in config.stages,
        returns_of=" of the expert" if done[-1].report.stage == "demos" else " in the laps after training",
        resumed_at=done[-1].env_steps - round(done[-1].report.work) if done[-1].report.stage == "rl" else 0,
        resume_with=chosen_flags(config) if config.fastest else (),
    )


def stopped_measuring(stopped_by: str | None) -> Outcome:
    """The outcome of a run that was stopped before its first stage began."""
    kept = "nothing, since no stage had begun; the same command starts again"
    return ImitateOutcome(
        0, 0, 0, None, 0.0, stopped_by, work="stopped while measuring the speed-up", kept=kept
    )


def work_words(reports: list[StageReport]) -> str | None:
    """What a run did in how much time; None if it was reinforcement learning alone."""
    report = reports[-1]
    if len(reports) > 1:
        if not any(one.work for one in reports):
            return report.summary
        *first, last = [one.stage for one in reports]
        return f"ran {', '.join(first)} and {last} in {duration(1e9 * sum(one.seconds for one in reports))}"
    if report.stage == "rl":
        return None
    if not report.work:
        return report.summary
    return f"{'collected' if report.stage == 'demos' else 'cloned from'} {report.summary}"


def chosen_flags(config: Imitate) -> tuple[str, ...]:
    """The settings that `--fastest` chooses, as flags."""
    loading = "index" if config.dataloader_workers is None else "loader"
    found = ["--workers", config.demonstration_workers, "--loading", loading, "--n-envs", config.n_envs]
    if config.dataloader_workers is not None:
        found += ["--loading-workers", config.dataloader_workers]
    return tuple(map(str, found))


def kept_words(config: Imitate, stage: str) -> str:
    """What a run that was stopped in this stage has left in its folder."""
    found = []
    episodes = len(DemonstrationStore(config.demonstrations).numbers())
    if episodes:
        wanted = f" of {config.n_episodes:,}" if stage == "demos" else ""
        found.append(f"{episodes:,}{wanted} episodes in {config.demonstrations}")
    if stage != "demos" and config.clone.is_file():
        found.append(f"the clone in {config.clone}")
    if stage == "rl" and config.trainer == "hotloop" and config.agent.is_file():
        found.append(f"the agent in {config.agent}")
    if stage == "rl" and config.trainer == "sb3":
        found.append("not the agent of Stable-Baselines3, which is not saved")
    return ", ".join(found) or "nothing"


# ---- memory estimates, from the settings alone

# Measured with Python 3.11, numba 0.68 and torch 2.13 on Linux: pages private to one more process.
WORKER_BYTES = 75 << 20  # drives a car: numpy, numba, Gymnasium; 120 when it has to compile its kernels
SB3_WORKER_BYTES = 210 << 20  # the same below SubprocVecEnv, which imports torch as well
LOADER_BYTES = 30 << 20  # forked from the training process
KERNELS_BYTES = 60 << 20
TORCH_BYTES = 80 << 20  # more, once torch has trained in this process
SB3_BYTES = 98 << 20  # imported and trained with, in this process
LAP_STEPS = 1_950
STEP_BYTES = 2 * (8 + 2) * 4 + 8 + 2  # of a demonstration: as read and as samples
SAMPLE_BYTES = 4_096  # of a batch: activations and gradients


def memory_needs(config: Imitate) -> tuple[MemoryEstimate, ...]:
    """Memory of the stage that needs most; stages run one after the other."""
    # Imported here, as by `run`, so that what they take counts as memory of the process.
    from hotloop.rl.workloads import imitate_rl  # noqa: F401

    workers = config.demonstration_workers
    if config.speedup:  # which tries as many as there are cores
        workers = max(workers, int(cores_granted()))
    loaders = config.dataloader_workers or 0
    episodes = config.n_episodes
    if "demos" not in config.stages:  # cloning takes what is there
        episodes = len(DemonstrationStore(config.demonstrations).numbers())
    every = {
        "demos": (_processes(f"{workers:,} x worker", workers, "workers", WORKER_BYTES),),
        "bc": (
            MemoryEstimate(
                f"{episodes:,} episodes", episodes * LAP_STEPS * STEP_BYTES, "n_episodes", episodes
            ),
            _processes(f"{loaders:,} x loading worker", loaders, "loading_workers", LOADER_BYTES),
            _batches(config, episodes * LAP_STEPS),
        ),
        "rl": (_replay(config), _batches(config), _cars(config)),
    }
    found = max((every[stage] for stage in config.stages), key=lambda parts: sum(one.bytes for one in parts))
    known = (
        *(one for one in found if one.bytes),
        MemoryEstimate("compiled kernels and networks", KERNELS_BYTES),
    )
    if "bc" in config.stages and config.speedup:
        known = (*known, MemoryEstimate("torch's learner, for --speedup", TORCH_BYTES))
    if "rl" in config.stages and config.trainer == "sb3":
        known = (*known, MemoryEstimate("Stable-Baselines3", SB3_BYTES))
    return known


def _processes(what: str, count: int, setting: str, each: int) -> MemoryEstimate:
    return MemoryEstimate(what, count * each, setting, count, in_children=True)


def _batches(config: Imitate, samples: int | None = None) -> MemoryEstimate:
    """Of cloning `samples`: a batch has no more than there are. Of the replay it has as many as asked for."""
    size = config.batch_size if samples is None else min(config.batch_size, samples)
    return MemoryEstimate(f"batches of {size:,}", size * SAMPLE_BYTES, "batch_size", size)


def _replay(config: Imitate) -> MemoryEstimate:
    ring, pairs = 8 * 4 + 2 * 4 + 8, 2 * 8 * 4 + 2 * 4 + 3 * 4  # SB3 stores next observations separately
    each = ring if config.trainer == "hotloop" else pairs
    return MemoryEstimate(f"replay of {BUFFER_SIZE:,} transitions", BUFFER_SIZE * each)


def _cars(config: Imitate) -> MemoryEstimate:
    if config.trainer == "sb3":
        return _processes(f"{config.n_envs:,} x car", config.n_envs, "n_envs", SB3_WORKER_BYTES)
    return MemoryEstimate(f"{config.n_envs:,} cars", config.n_envs * 4_096, "n_envs", config.n_envs)
