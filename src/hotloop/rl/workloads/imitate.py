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
from hotloop.rl.workloads.imitate_config import BUFFER_SIZE, STAGES, Imitate, StageResult, check
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
        from hotloop.rl.workloads import imitate_bc, imitate_demos, imitate_rl, imitate_speedup, track_laps

        if config.stages != ("demos",):
            track_laps.compile_track()
    stages = {"demos": imitate_demos.demonstrate, "bc": imitate_bc.clone, "rl": imitate_rl.reinforce}
    lines: list[str] = []
    sequential: dict[str, float] = {}
    if config.speedup:
        lines, sequential = imitate_speedup.measure(config, quiet)
    done: list[StageResult] = []
    for stage in config.stages:
        with _regions[stage]:
            done.append(stages[stage](config, note, quiet))
        lines += report_lines(done[-1].report)
        if done[-1].stopped_by is not None:
            break
    if len(done) > 1:
        shares = ", ".join(f"{one.report.stage} {duration(1e9 * one.report.seconds)}" for one in done)
        lines.append(f"all stages: {shares}")
    if sequential:
        lines += imitate_speedup.against_sequential([one.report for one in done], sequential)
    return ImitateOutcome(
        env_steps=sum(one.env_steps for one in done),
        updates=sum(one.updates for one in done),
        episodes=sum(one.episodes for one in done),
        mean_return=done[-1].mean_return,
        seconds=sum(one.report.seconds for one in done),
        stopped_by=done[-1].stopped_by,
        checkpoint=done[-1].checkpoint,
        remarks=tuple(lines),
        figures={name: value for one in done for name, value in one.figures.items()},
        stages=tuple(one.report for one in done),
        unsaved=next((one.unsaved for one in done if one.unsaved), None),
    )


# ---- memory estimates, from the settings alone

# Measured with Python 3.11, numba 0.68 and torch 2.13 on Linux: pages private to one more process.
WORKER_BYTES = 75 << 20  # drives a car: numpy, numba, Gymnasium; 120 when it has to compile its kernels
SB3_WORKER_BYTES = 210 << 20  # the same below SubprocVecEnv, which imports torch as well
LOADER_BYTES = 30 << 20  # forked from the training process
KERNELS_BYTES = 60 << 20
TORCH_BYTES = 80 << 20  # more, once torch has trained in this process
LAP_STEPS = 1_950
STEP_BYTES = 2 * (8 + 2) * 4 + 8 + 2  # of a demonstration: as read and as samples
SAMPLE_BYTES = 4_096  # of a batch: activations and gradients


def memory_needs(config: Imitate) -> tuple[MemoryEstimate, ...]:
    """Memory of the stage that needs most; stages run one after the other."""
    workers = config.demonstration_workers
    if config.speedup:  # which tries as many as there are cores
        workers = max(workers, int(cores_granted()))
    loaders = config.dataloader_workers or 0
    every = {
        "demos": (_processes(f"{workers:,} x worker", workers, "workers", WORKER_BYTES),),
        "bc": (
            MemoryEstimate(
                f"{config.n_episodes:,} episodes",
                config.n_episodes * LAP_STEPS * STEP_BYTES,
                "n_episodes",
                config.n_episodes,
            ),
            _processes(f"{loaders:,} x loading worker", loaders, "loading_workers", LOADER_BYTES),
            _batches(config),
        ),
        "rl": (_replay(config), _batches(config), _cars(config)),
    }
    found = max((every[stage] for stage in config.stages), key=lambda parts: sum(one.bytes for one in parts))
    known = (
        *(one for one in found if one.bytes),
        MemoryEstimate("compiled kernels and networks", KERNELS_BYTES),
    )
    measures_torch = "bc" in config.stages and config.speedup
    return (
        (*known, MemoryEstimate("torch's learner, for --speedup", TORCH_BYTES)) if measures_torch else known
    )


def _processes(what: str, count: int, setting: str, each: int) -> MemoryEstimate:
    return MemoryEstimate(what, count * each, setting, count, in_children=True)


def _batches(config: Imitate) -> MemoryEstimate:
    size = config.batch_size
    return MemoryEstimate(f"batches of {size:,}", size * SAMPLE_BYTES, "batch_size", size)


def _replay(config: Imitate) -> MemoryEstimate:
    ring, pairs = 8 * 4 + 2 * 4 + 8, 2 * 8 * 4 + 2 * 4 + 3 * 4  # SB3 stores next observations separately
    each = ring if config.trainer == "hotloop" else pairs
    return MemoryEstimate(f"replay of {BUFFER_SIZE:,} transitions", BUFFER_SIZE * each)


def _cars(config: Imitate) -> MemoryEstimate:
    if config.trainer == "sb3":
        return _processes(f"{config.n_envs:,} x car", config.n_envs, "n_envs", SB3_WORKER_BYTES)
    return MemoryEstimate(f"{config.n_envs:,} cars", config.n_envs * 4_096, "n_envs", config.n_envs)
