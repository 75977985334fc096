"""The settings of a DQN run, which of them are allowed, and what a run gives back."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from torch import nn

from hotloop._util.errors import HotloopError


@dataclass(frozen=True)
class DQNConfig:
    """Settings of a run; the defaults solve CartPole."""

    env: str = "CartPole"
    """One of our environments (CartPole, Snake, ...) or a Gymnasium id such as CartPole-v1."""
    seed: int = 0
    """Decides weights, actions, samples and the envs' streams."""
    total_steps: int = 60_000
    """Env steps to train for, rounded up to whole vector steps."""
    num_envs: int = 1
    """Environments stepped together."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    capacity: int = 50_000
    """Transitions the replay keeps."""
    learning_starts: int = 1_000
    """Env steps before the first update."""
    batch_size: int = 64
    """Transitions of an update."""
    updates: str = "1/2"
    """Updates after each vector step: a number, a fraction (1/4: one after every fourth), or with n for the
    number of envs (n/4, n/16, n)."""
    learn: bool = True
    """Whether to update at all; without, the run acts and stores only."""
    discount: float = 0.99
    """What a reward one step later is worth (gamma)."""
    n_step: int = 1
    """Rewards summed before the value of an observation is asked for."""
    target_every: int = 500
    """Env steps between two moves of the target network, rounded to whole vector steps."""
    target_rate: float = 1.0
    """How far the target then moves: 1 all the way."""
    double: bool = True
    """Choose the next action by the network, value it by the target."""
    dueling: bool = False
    """Value and advantages apart in the last layer."""
    loss: Literal["huber", "mse"] = "huber"
    """Of the difference between value and target."""
    max_grad_norm: float | None = 10.0
    """The whole gradient is scaled down to this norm; None for no clipping."""
    prioritised: bool = False
    """Draw transitions with large errors more often."""
    priority_alpha: float = 0.6
    """How much more often."""
    priority_beta: float = 0.4
    """How far importance weights make up for it."""
    epsilon_start: float = 1.0
    """Chance of a random action at the beginning."""
    epsilon_end: float = 0.05
    """The same once it has fallen."""
    epsilon_fraction: float = 0.1
    """Share of total_steps over which it falls, in a straight line."""
    frame_stack: int = 1
    """Observations are stacks of so many frames, of which the replay stores each once."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """After each hidden layer."""
    push: Literal["batch", "items"] = "batch"
    """Whether a vector step goes to the replay in one call or env by env."""
    transfers: Literal["batch", "items"] = "batch"
    """Whether rows become tensors together or one by one (torch learner only)."""
    learner: Literal["auto", "fused", "torch", "compiled"] = "auto"
    """Who learns; auto measures and says what it took."""
    loop: Literal["auto", "kernel", "python"] = "auto"
    """Where the loop runs; auto is a kernel where there is one."""
    log_every: int = 0
    """Vector steps between two records of all metrics; 0 for a record once in a while."""
    threads: int = 1
    """Threads of torch's own operations."""
    stop_at_return: float | None = None
    """Stop once the last 100 episodes reach this mean return."""
    stop_at_episodes: int | None = None
    """Stop once so many episodes have ended, seen after each vector step, or piece of the kernel's loop."""
    evaluation_episodes: int = 0
    """Episodes played with the best actions after training."""
    checkpoint: Path | None = None
    """File to save to, now and then, at the end and when asked to stop."""
    checkpoint_every: int = 100_000
    """Env steps between two saves."""
    resume: bool = False
    """Go on from `checkpoint`."""
    metrics: Path | None = None
    """Folder for TensorBoard."""
    quiet: bool = False
    """No progress line."""

    @property
    def updates_per_step(self) -> Fraction:
        """Updates for each vector step, exactly."""
        words = str(self.updates).replace(" ", "").partition("/")
        try:
            top = Fraction(self.num_envs) if words[0] == "n" else Fraction(words[0])
            rate = top / Fraction(words[2] or 1)
        except (ValueError, ZeroDivisionError):
            rate = Fraction(0)
        if rate <= 0:
            raise HotloopError(
                f"updates={self.updates!r} is no amount of updates for each vector step; "
                "give a number such as 4, a fraction such as 1/4, or n, n/4, n/16."
            )
        return rate


# What may differ between a run and the checkpoint it goes on from: none of it changes the numbers.
MAY_DIFFER = frozenset(
    name
    for line in (
        "total_steps learner loop push transfers log_every threads stop_at_return stop_at_episodes",
        "evaluation_episodes checkpoint checkpoint_every resume metrics quiet",
    )
    for name in line.split()
)


@dataclass(frozen=True)
class DQNResult:
    """What a run did."""

    network: nn.Module
    """The trained network: observations -> values of the actions."""
    learner: str
    """Who learnt: fused, torch or compiled."""
    fused_loop: bool
    """Whether the loop ran in a kernel."""
    env_steps: int
    """Steps taken, those of the resumed run included; resets are not steps."""
    updates: int
    """Gradient steps."""
    episodes: int
    """Episodes that ended."""
    seconds: float
    """Wall time of the loop, this run only; start-up and compilation apart."""
    steps_here: int
    """Env steps of this run only."""
    mean_return: float | None
    """Mean return of the last 100 episodes; None when none ended."""
    mean_length: float | None
    """Their mean length in steps."""
    evaluation_return: float | None
    """Mean return of the evaluation; None without one."""
    stopped_by: str | None
    """SIGTERM, SIGINT or stop_at_return; None when all steps or episodes were done."""
    statistics: dict[str, float]
    """Means of the loss and the like since the last record."""

    @property
    def steps_per_s(self) -> float:
        """Env steps per second of the loop."""
        return self.steps_here / self.seconds if self.seconds > 0 else math.nan


def as_json(config: DQNConfig) -> dict[str, Any]:
    """The settings as JSON holds them."""
    found = dataclasses.asdict(config)
    return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}


def check(config: DQNConfig) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name in ("total_steps", "num_envs", "batch_size", "capacity", "target_every", "threads", "n_step"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    for name in ("learning_starts", "log_every"):
        if getattr(config, name) < 0:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 0.")
    for name in ("discount", "epsilon_start", "epsilon_end", "epsilon_fraction", "target_rate"):
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise HotloopError(f"{name}={getattr(config, name)} must lie in 0 .. 1.")
    for name in ("learning_rate", "adam_epsilon", "max_grad_norm"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise HotloopError(f"{name}={value} must be above 0.")
    if not config.hidden or min(config.hidden) < 1:
        raise HotloopError(f"hidden={config.hidden} must be widths of at least 1, such as (64, 64).")
    if config.transfers == "items" and config.learner not in ("auto", "torch"):
        raise HotloopError(
            f"transfers='items' is about tensors; use learner='torch', not {config.learner!r}."
        )
    if config.stop_at_episodes is not None and config.stop_at_episodes < 1:
        raise HotloopError(f"stop_at_episodes={config.stop_at_episodes} must be at least 1.")
    if config.resume and config.checkpoint is None:
        raise HotloopError("resume needs to know from what; give checkpoint as well.")
    _ = config.updates_per_step
