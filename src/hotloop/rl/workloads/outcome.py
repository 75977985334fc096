"""What every workload returns, and the note it may show on its progress line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.rl.train.async_dqn import AsyncDQNResult
    from hotloop.rl.train.runs import RunResult

Note = Callable[[], str]
NO_AGENT = "no agent (trainer={!r} writes no checkpoints)"
RECENT = 100  # episodes whose mean return a trainer reports


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a workload's training."""

    env_steps: int
    """Total env steps."""
    updates: int
    """Updates: gradient steps of every network that the algorithm trains."""
    episodes: int
    """Finished episodes."""
    mean_return: float | None
    """Of the last episodes; None when none finished."""
    seconds: float
    """Wall time of the training itself, without start-up."""
    stopped_by: str | None = None
    """The signal that ended it early, if one did."""
    checkpoint: Path | None = None
    """Where the agent was saved, if it was."""
    remarks: tuple[str, ...] = ()
    """Printed below the figures."""
    figures: dict[str, float | None] = field(default_factory=dict)
    """Further measurements by name, saved in the capture; None for what was not measured."""
    evaluations: tuple[tuple[int, float], ...] = ()
    """A learning curve: env steps, and the result of an evaluation after them."""
    unsaved: str | None = None
    """Why the last checkpoint could not be written; None if it was, or if none was wanted."""
    work: str | None = None
    """What was done in how much time, where it was not env steps."""
    kept: str | None = None
    """What a run that was stopped leaves besides a checkpoint."""
    can_resume: bool | None = None
    """Whether `--resume` continues it; None if it does with a checkpoint only."""
    returns_of: str = ""
    """Which episodes `mean_return` is of, in words."""
    resume_with: tuple[str, ...] = ()
    """Flags for settings that the run has chosen; a resumed run needs them instead of its preset."""
    resumed_at: int = 0
    """Env steps of the checkpoint that the run continued from; they are part of `env_steps`."""

    @classmethod
    def of_run(
        cls, result: RunResult | AsyncDQNResult, checkpoint: Path | None, remarks: tuple[str, ...] = ()
    ) -> Outcome:
        """The outcome of one of our trainers."""
        names = (
            *("env_steps", "updates", "episodes", "mean_return", "seconds", "stopped_by", "unsaved"),
            "resumed_at",
        )
        values = {name: getattr(result, name) for name in names}
        returns_of = f" in the last {RECENT:,} episodes" if result.episodes > RECENT else ""
        return cls(**values, checkpoint=checkpoint, remarks=remarks, returns_of=returns_of)

    @property
    def steps_per_s(self) -> float:
        """Env steps per second of this run's training."""
        return (self.env_steps - self.resumed_at) / self.seconds if self.seconds else 0.0
