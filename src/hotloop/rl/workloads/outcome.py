"""What every workload hands back, and the words it may put on its progress line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.rl.train.runs import RunResult

Note = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training ended."""

    env_steps: int
    """Env steps taken in all."""
    updates: int
    """Gradient updates."""
    episodes: int
    """Episodes that ended."""
    mean_return: float | None
    """Of the last episodes; None before the first ended."""
    seconds: float
    """Wall time of the training itself."""
    stopped_by: str | None = None
    """The signal that ended it early, if one did."""
    checkpoint: Path | None = None
    """Where the agent was kept, if it was."""
    remarks: tuple[str, ...] = ()
    """What a reader must know to read the figures right."""
    figures: dict[str, float | None] = field(default_factory=dict)
    """What else was measured, by name; None for what was not. Goes into the recording."""

    @classmethod
    def of_run(cls, result: RunResult, checkpoint: Path | None, remarks: tuple[str, ...]) -> Outcome:
        """The outcome of one of our trainers."""
        names = ("env_steps", "updates", "episodes", "mean_return", "seconds", "stopped_by")
        values = {name: getattr(result, name) for name in names}
        return cls(**values, checkpoint=checkpoint, remarks=remarks)

    @property
    def steps_per_s(self) -> float:
        """Env steps per second of training."""
        return self.env_steps / self.seconds if self.seconds else 0.0
