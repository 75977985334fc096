"""The settings of a run of soft actor-critic, which of them are allowed, and what a run gives back."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from hotloop._util.errors import HotloopError
from hotloop.rl.train.networks.squashed import SquashedActor


@dataclass(frozen=True)
class SACConfig:
    """Settings of a run."""

    env: str = "Track"
    """One of our environments with continuous actions (Track), or a Gymnasium id such as Pendulum-v1."""
    seed: int = 0
    """Decides weights, noise, samples and the envs' streams."""
    total_steps: int = 50_000
    """Env steps to train for, rounded up to whole vector steps."""
    num_envs: int = 4
    """Environments stepped together."""
    updates: str = "1"
    """Updates for each env step, whatever the number of envs: a number or a fraction such as 1/2."""
    batch_size: int = 256
    """Transitions of an update."""
    capacity: int = 200_000
    """Transitions the replay keeps."""
    learning_starts: int = 1_000
    """Env steps before the first update."""
    actor_starts: int = 0
    """Env steps before the actor's first update; the critics learn from `learning_starts` on."""
    anchor_weight: float = 0.0
    """Weight of the mean squared distance between what the actor and what the first actor would do without
    noise: holds on to an actor that was learnt elsewhere."""
    random_steps: int = 0
    """Env steps at the beginning whose actions are drawn uniformly, not by the actor."""
    learning_rate: float = 3e-4
    """Adam's step size, of critics and temperature."""
    actor_learning_rate: float | None = None
    """The same of the actor; None for `learning_rate`."""
    discount: float = 0.99
    """What a reward one step later is worth (gamma)."""
    target_rate: float = 0.005
    """How far the target critics move towards the critics after each update."""
    first_temperature: float = 1.0
    """Weight of entropy at the beginning."""
    learn_temperature: bool = True
    """Let the temperature follow the entropy."""
    target_entropy: float | None = None
    """Entropy that the temperature aims at; None for -1 for each action."""
    first_log_std: float = 0.0
    """Logarithm of the noise that a new actor begins with."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critics."""
    activation: Literal["tanh", "relu"] = "relu"
    """After each hidden layer."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Who learns; auto is fused."""
    threads: int = 1
    """Threads of torch's own operations."""
    evaluate_every: int = 0
    """Env steps between two evaluations without noise, one before the first step included; 0 for none."""
    evaluation_episodes: int = 8
    """Episodes of an evaluation."""
    keep_best: bool = True
    """With evaluations: the result is the actor of the best of them, not the last one."""
    checkpoint: Path | None = None
    """File to save to, now and then, at the end and when asked to stop."""
    checkpoint_every: int = 50_000
    """Env steps between two saves."""
    resume: bool = False
    """Go on from `checkpoint`."""
    metrics: Path | None = None
    """Folder for TensorBoard."""
    quiet: bool = False
    """No progress line."""

    @property
    def updates_per_env_step(self) -> Fraction:
        """Updates for each env step, exactly."""
        try:
            rate = Fraction(self.updates.replace(" ", ""))
        except (ValueError, ZeroDivisionError):
            rate = Fraction(0)
        if rate <= 0:
            raise HotloopError(
                f"updates={self.updates!r} is no amount of updates for each env step; give a number such "
                "as 1, or a fraction such as 1/4."
            )
        return rate

    @property
    def actor_rate(self) -> float:
        """Adam's step size of the actor."""
        return self.learning_rate if self.actor_learning_rate is None else self.actor_learning_rate

    def target_entropy_for(self, actions: int) -> float:
        """The entropy aimed at with so many actions."""
        return -float(actions) if self.target_entropy is None else self.target_entropy


# What may differ between a run and the checkpoint it goes on from: none of it changes the numbers.
MAY_DIFFER = frozenset(
    {"total_steps", "learner", "threads", "metrics", "quiet", "checkpoint", "checkpoint_every", "resume"}
)


@dataclass(frozen=True)
class SACResult:
    """What a run did."""

    actor: SquashedActor
    """The trained actor: with evaluations and `keep_best` that of the best, else the last."""
    learner: str
    """Who learnt: fused or torch."""
    env_steps: int
    """Steps taken, those of the resumed run included; resets are not steps."""
    updates: int
    """Updates of the critics."""
    actor_updates: int
    """Updates of the actor."""
    episodes: int
    """Episodes that ended."""
    seconds: float
    """Wall time of the loop, this run only, evaluations and saves included; start-up apart."""
    steps_here: int
    """Env steps of this run only."""
    mean_return: float | None
    """Mean return of the last 100 episodes, noise included; None when none ended."""
    evaluations: tuple[tuple[int, float], ...]
    """Env steps and mean return of every evaluation, the first before the first step."""
    kept_from: int | None
    """Env steps at which `actor` was what it is; None when it is the last one."""
    stopped_by: str | None
    """SIGTERM or SIGINT; None when all steps were taken."""
    statistics: dict[str, float]
    """Means of the losses and the like since the last record."""

    @property
    def steps_per_s(self) -> float:
        """Env steps per second of the loop."""
        return self.steps_here / self.seconds if self.seconds > 0 else math.nan


def as_json(config: SACConfig) -> dict[str, Any]:
    """The settings as JSON holds them."""
    found = dataclasses.asdict(config)
    return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}


def check(config: SACConfig) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name in ("total_steps", "num_envs", "batch_size", "capacity", "threads", "evaluation_episodes"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    for name in ("learning_starts", "actor_starts", "random_steps", "evaluate_every"):
        if getattr(config, name) < 0:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 0.")
    if not (config.anchor_weight >= 0 and math.isfinite(config.anchor_weight)):
        raise HotloopError(f"anchor_weight={config.anchor_weight} must be at least 0.")
    for name in ("discount", "target_rate"):
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise HotloopError(f"{name}={getattr(config, name)} must lie in 0 .. 1.")
    for name in ("learning_rate", "actor_rate", "first_temperature"):
        if not (getattr(config, name) > 0 and math.isfinite(getattr(config, name))):
            raise HotloopError(f"{name}={getattr(config, name)} must be above 0.")
    if not config.hidden or min(config.hidden) < 1:
        raise HotloopError(f"hidden={config.hidden} must be widths of at least 1, such as (64, 64).")
    if config.resume and config.checkpoint is None:
        raise HotloopError("resume needs to know from what; give checkpoint as well.")
    _ = config.updates_per_env_step
