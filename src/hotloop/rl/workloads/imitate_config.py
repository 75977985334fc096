"""The settings of `hotloop train imitate`, and the results of its stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hotloop.machine.facts import cores_granted
from hotloop.rl.workloads.stage_report import StageReport

if TYPE_CHECKING:
    from hotloop.machine.process_memory import ProcessMemory
    from hotloop.rl.train.sac import Policy

Stage = Literal["demos", "bc", "rl"]
STAGES: tuple[Stage, ...] = ("demos", "bc", "rl")

BUFFER_SIZE = 200_000


@dataclass(frozen=True)
class Imitate:
    """Learn to drive a track: expert demonstrations, behaviour cloning, then SAC from the clone."""

    stage: Literal["all", "demos", "bc", "rl"] = "all"
    """All three stages, or one of them with what the others left in the folder."""
    folder: Path = Path("imitate")
    """Folder for demonstrations, clone and agent."""
    data: Path | None = None
    """Folder of the run whose demonstrations to clone, if it is another one."""
    n_episodes: int = 50
    """Number of laps that the expert demonstrates."""
    workers: int | None = None
    """Processes that drive the expert; the number of cores minus one by default. With --stage bc: worker
    processes of torch's DataLoader."""
    n_epochs: int = 20
    """Passes of behaviour cloning over the demonstrations."""
    loading: Literal["index", "loader"] | None = None
    """How cloning loads its batches: rows of arrays in memory (index), or torch's DataLoader, item by item;
    index unless loading workers are given."""
    loading_workers: int | None = None
    """Worker processes of the DataLoader; 0 loads in the training process."""
    total_timesteps: int = 50_000
    """Env steps of reinforcement learning."""
    n_envs: int = 4
    """Number of parallel environments (cars) in reinforcement learning."""
    train_freq: int = 1
    """Vector steps (one step of every environment) between two rounds of updates."""
    gradient_steps: int = -1
    """Updates per round; -1 for one per env step, whatever the number of environments."""
    batch_size: int = 256
    """Samples of a gradient step, in cloning and in reinforcement learning."""
    trainer: Literal["hotloop", "sb3"] = "hotloop"
    """Our SAC, or Stable-Baselines3's with SubprocVecEnv; same networks, same updates."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Learner implementation of our trainers: compiled kernels, or eager torch; equal up to rounding."""
    start: Literal["clone", "scratch"] = "clone"
    """Start reinforcement learning from the clone, or from a new actor."""
    net_arch: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critics."""
    speedup: bool = False
    """First measure each stage at small size with one and more workers, envs and ways of loading."""
    fastest: tuple[Literal["demos", "bc", "rl"], ...] = ()
    """With --speedup: stages that use the fastest number of workers or envs, or way of loading, measured."""
    seed: int = 0
    """Random seed. Results do not depend on the number of workers."""
    resume: bool = False
    """Continue each stage from what it left in the folder, to the same numbers as an uninterrupted run."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard; our trainers only."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages to run."""
        return STAGES if self.stage == "all" else (self.stage,)

    @property
    def demonstration_workers(self) -> int:
        """Processes that drive the expert."""
        return max(int(cores_granted()) - 1, 1) if self.workers is None else self.workers

    @property
    def dataloader_workers(self) -> int | None:
        """Worker processes of the DataLoader; None for index loading."""
        asked = self.loading_workers
        if asked is None and self.stage == "bc":
            asked = self.workers
        if self.loading == "index" or (self.loading is None and asked is None):
            return None
        return asked or 0

    @property
    def demonstrations(self) -> Path:
        """Folder of the demonstrated episodes."""
        return (self.data or self.folder) / "demonstrations"

    @property
    def clone(self) -> Path:
        """Checkpoint of behaviour cloning."""
        return self.folder / "clone"

    @property
    def agent(self) -> Path:
        """Checkpoint of reinforcement learning."""
        return self.folder / "agent"


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of one stage."""

    report: StageReport
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    mean_return: float | None = None
    stopped_by: str | None = None
    checkpoint: Path | None = None
    unsaved: str | None = None
    figures: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RLResult:
    """Result of reinforcement learning, by either trainer."""

    policy: Policy
    how: str
    """Trainer and envs, in words."""
    env_steps: int
    steps_here: int
    """Env steps of this run only."""
    updates: int
    episodes: int
    seconds: float
    parts_s: dict[str, float]
    evaluations: tuple[tuple[int, float], ...]
    """(env steps, mean return) of each evaluation."""
    best_at_step: int | None
    """Env steps after which the policy was kept as the best; None when it is the last one."""
    stopped_by: str | None = None
    worker_memory: ProcessMemory | None = None
    unsaved: str | None = None
    """Why the last checkpoint could not be written."""
