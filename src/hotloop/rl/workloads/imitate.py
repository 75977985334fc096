"""`hotloop train imitate`: demonstrations, behaviour cloning, reinforcement learning, on all cores.

    from hotloop.rl.workloads.imitate import Imitate, run
    outcome = run(Imitate(episodes=20, timesteps=20_000))

Each stage leaves its result in the folder, where the next one, or the same one interrupted, takes it up:
`demonstrations/` (one npz file for each episode), `clone` and `agent` (checkpoints). Every stage says where
its time went, by itself and without a capture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop._util.memory_estimate import MemoryEstimate
from hotloop._util.units import duration
from hotloop.machine.facts import cores_granted
from hotloop.rl.workloads.outcome import Note, Outcome
from hotloop.rl.workloads.stages import StageReport, report_lines

Stage = Literal["demos", "bc", "rl"]
STAGES: tuple[Stage, ...] = ("demos", "bc", "rl")

# Hyper-parameters, the same for both trainers. The noise is that whose entropy the temperature aims at
# (-1 for each action), so the clone begins where the temperature would bring it.
FIRST_LOG_STD = -2.4
FIRST_TEMPERATURE = 0.02
DISCOUNT = 0.98
LEARNING_RATE, ACTOR_LEARNING_RATE = 1e-3, 3e-4
# Without an anchor the actor follows the critics' first errors off the track (seen with every learning rate
# and discount tried); with 10 to 30 it gets better, with 100 hardly.
ANCHOR_WEIGHT = 20.0
HELD_OUT_FRACTION = 0.1
EVALUATION_CARS = 8
CAPACITY = 200_000
_start_up = profile("start_up", "other")
_regions = {stage: profile(f"stage_{stage}", "other") for stage in STAGES}


@dataclass(frozen=True)
class Imitate:
    """Learn to drive a track: expert demonstrations, behaviour cloning, then SAC from the clone."""

    stage: Literal["all", "demos", "bc", "rl"] = "all"
    """All three stages, or one of them, with what the others left in the folder."""
    folder: Path = Path("imitate")
    """Where demonstrations, clone and agent are kept."""
    episodes: int = 50
    """Laps that the expert demonstrates."""
    workers: int | None = None
    """Processes that drive the expert; one less than there are cores when not given. With --stage bc:
    loading processes of torch's DataLoader."""
    epochs: int = 20
    """Passes of the cloning over the demonstrations."""
    loading: Literal["index", "loader"] | None = None
    """How cloning gets its batches: rows of arrays in memory (index), or torch's DataLoader, item by item;
    index unless loading workers are asked for."""
    loading_workers: int | None = None
    """Processes of the DataLoader; 0 loads in the training process."""
    timesteps: int = 50_000
    """Env steps of the reinforcement learning."""
    envs: int = 4
    """Cars that are driven together in it. Updates for each env step stay the same."""
    updates: str = "1"
    """Updates for each env step of all cars together: a number or a fraction such as 1/2."""
    batch_size: int = 256
    """Samples of a gradient step, of cloning and of reinforcement learning."""
    trainer: Literal["hotloop", "sb3"] = "hotloop"
    """Who does the reinforcement learning: our SAC, or Stable-Baselines3's with SubprocVecEnv; same networks,
    same updates for each env step."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Of our trainers: kernels, or eager torch with the same numbers up to rounding."""
    start: Literal["clone", "scratch"] = "clone"
    """Where reinforcement learning begins: with the cloned actor, or with a new one."""
    n_hidden: int = 64
    """Units of a hidden layer of actor and critics."""
    n_layer: int = 2
    """Hidden layers."""
    speedup: bool = False
    """First measure each stage at small size with one and more workers (or envs, or ways of loading)."""
    seed: int = 0
    """Same seed, same settings: same demonstrations, clone and agent, whatever the number of workers."""
    resume: bool = False
    """Each stage goes on from what it left in the folder, to the same numbers; without it, it begins anew."""
    metrics: Path | None = None
    """Folder for TensorBoard, with our trainers."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages to run."""
        return STAGES if self.stage == "all" else (self.stage,)

    @property
    def demonstration_workers(self) -> int:
        """Processes that drive the expert."""
        return max(int(cores_granted()) - 1, 1) if self.workers is None else self.workers

    @property
    def loaders(self) -> int | None:
        """Processes of the DataLoader; None for index loading."""
        asked = self.loading_workers
        if asked is None and self.stage == "bc":
            asked = self.workers
        if self.loading == "index" or (self.loading is None and asked is None):
            return None
        return asked or 0

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return (self.n_hidden,) * self.n_layer

    @property
    def demonstrations(self) -> Path:
        """The folder of the episodes."""
        return self.folder / "demonstrations"

    @property
    def clone(self) -> Path:
        """The checkpoint of the cloning."""
        return self.folder / "clone"

    @property
    def agent(self) -> Path:
        """The checkpoint of the reinforcement learning."""
        return self.folder / "agent"


@dataclass(frozen=True, slots=True)
class Done:
    """A stage that has ended."""

    report: StageReport
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    mean_return: float | None = None
    stopped_by: str | None = None
    checkpoint: Path | None = None
    figures: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImitateOutcome(Outcome):
    """The outcome of the whole, with a report for each stage."""

    stages: tuple[StageReport, ...] = ()
    """In the order they ran."""


def run(config: Imitate, note: Note | None = None, quiet: bool = False) -> Outcome:
    """Run the stages wanted, one after the other; a stage that is stopped ends the run."""
    check(config)
    with _start_up:
        from hotloop.rl.workloads import imitate_stages as work

        work.prepare(config)
    lines: list[str] = []
    sequential: dict[str, float] = {}
    if config.speedup:
        from hotloop.rl.workloads.imitate_speedup import measure

        lines, sequential = measure(config, quiet)
    stages: dict[Stage, Any] = {"demos": work.demonstrate, "bc": work.clone, "rl": work.reinforce}
    done: list[Done] = []
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
        from hotloop.rl.workloads.imitate_speedup import against_sequential

        lines += against_sequential([one.report for one in done], sequential)
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
    )


def check(config: Imitate) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name in ("episodes", "epochs", "timesteps", "envs", "batch_size", "n_hidden", "n_layer"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    if "bc" in config.stages and "demos" in config.stages and config.episodes < 2:
        raise HotloopError(
            f"episodes={config.episodes} leaves none to hold out from cloning; give at least 2."
        )
    least = 0 if config.stage == "bc" else 1
    if config.workers is not None and config.workers < least:
        raise HotloopError(f"workers={config.workers} must be at least {least}.")
    if config.loading_workers is not None and config.loading_workers < 0:
        raise HotloopError(f"loading_workers={config.loading_workers} must be at least 0.")
    if config.loading == "index" and config.loading_workers:
        raise HotloopError(
            f"loading_workers={config.loading_workers} have nothing to do with --loading index, which takes "
            "rows of arrays in memory; use --loading loader, or leave them out."
        )
    if config.loaders is not None and config.learner == "fused":
        raise HotloopError(
            "--learner fused gathers its batches itself and cannot use a DataLoader; leave the loader or "
            "--learner fused out."
        )
    try:
        rate = Fraction(config.updates.replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if rate <= 0:
        raise HotloopError(
            f"updates={config.updates!r} is no amount of updates for each env step; give a number such as 1, "
            "or a fraction such as 1/4."
        )
    if "bc" in config.stages and "demos" not in config.stages:
        from hotloop.rl.buffers.demonstrations import DemonstrationStore

        DemonstrationStore(config.demonstrations).schema()  # says where none are, before anything is compiled
    if config.trainer == "sb3" and config.speedup and "rl" in config.stages:
        raise HotloopError("--speedup measures our own trainers; leave it out with trainer sb3.")
    if config.trainer == "sb3" and config.resume and "rl" in config.stages:
        raise HotloopError(
            "trainer='sb3' keeps no checkpoint to go on from; leave --resume out, or use trainer hotloop."
        )


# ---- memory, before anything is made

# Seen with Python 3.11, numba 0.68 and torch 2.13 on Linux: pages that one more process has for itself.
WORKER_BYTES = 75 << 20  # drives a car: numpy, numba, Gymnasium; 120 when it has to compile its kernels
SB3_WORKER_BYTES = 210 << 20  # the same below SubprocVecEnv, which imports torch as well
LOADER_BYTES = 30 << 20  # forked from the training process
KERNELS_BYTES = 60 << 20
TORCH_BYTES = 80 << 20  # more, once torch has learnt in this process
LAP_STEPS = 1_950
STEP_BYTES = 2 * (8 + 2) * 4 + 8 + 2  # of a demonstration: as read and as samples
SAMPLE_BYTES = 4_096  # of a batch: activations and gradients


def memory_needs(config: Imitate) -> tuple[MemoryEstimate, ...]:
    """What the stage that needs most will hold; stages run one after the other."""
    workers = config.demonstration_workers
    if config.speedup:  # which tries as many as there are cores
        workers = max(workers, int(cores_granted()))
    every = {
        "demos": (_processes(workers, "workers", WORKER_BYTES),),
        "bc": (
            MemoryEstimate(
                f"{config.episodes:,} episodes",
                config.episodes * LAP_STEPS * STEP_BYTES,
                "episodes",
                config.episodes,
            ),
            _processes(config.loaders or 0, "loading_workers", LOADER_BYTES),
            _batches(config),
        ),
        "rl": (_replay(config), _batches(config), _cars(config)),
    }
    found = max((every[stage] for stage in config.stages), key=lambda needs: sum(one.bytes for one in needs))
    known = (
        *(one for one in found if one.bytes),
        MemoryEstimate("compiled kernels and networks", KERNELS_BYTES),
    )
    tries = "bc" in config.stages and config.speedup
    return (*known, MemoryEstimate("torch's learner, for the speed-up", TORCH_BYTES)) if tries else known


def _processes(count: int, setting: str, each: int) -> MemoryEstimate:
    what = setting.replace("_", " ").removesuffix("s" if count == 1 else " ")
    return MemoryEstimate(f"{count:,} {what}", count * each, setting, count, in_children=True)


def _batches(config: Imitate) -> MemoryEstimate:
    size = config.batch_size
    return MemoryEstimate(f"batches of {size:,}", size * SAMPLE_BYTES, "batch_size", size)


def _replay(config: Imitate) -> MemoryEstimate:
    ring, pairs = 8 * 4 + 2 * 4 + 8, 2 * 8 * 4 + 2 * 4 + 3 * 4  # with next observations of their own
    each = ring if config.trainer == "hotloop" else pairs
    return MemoryEstimate(f"replay of {CAPACITY:,} transitions", CAPACITY * each)


def _cars(config: Imitate) -> MemoryEstimate:
    if config.trainer == "hotloop":
        return MemoryEstimate(f"{config.envs:,} cars", config.envs * 4_096, "envs", config.envs)
    return _processes(config.envs, "envs", SB3_WORKER_BYTES)
