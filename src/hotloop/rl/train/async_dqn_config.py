"""The settings of DQN with collectors in processes, which of them are allowed, and what a run gives back."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from hotloop._util.errors import HotloopError

Precision = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class AsyncDQNConfig:
    """Settings of a run. Everything that makes the learner fast is a switch of its own."""

    # -- how long
    epochs: int = 10
    """Epochs to train for."""
    episodes_per_epoch: int = 16
    """An epoch ends when so many episodes have ended in it."""
    epoch_steps: int = 0
    """An epoch ends after so many env steps instead; 0: by its episodes."""
    seed: int = 0
    """Decides weights, samples, and the seeds of the collectors."""

    # -- collecting
    transport: Literal["rings", "locked", "serial"] = "rings"
    """A ring for each collector, one queue with a lock for all, or no processes at all."""
    collectors: int = 4
    """Processes that play."""
    envs: int = 8
    """Environments in each of them, stepped and asked about together."""
    weights_every: int = 5
    """Epochs between two hand-overs of the weights to the collectors."""
    experience_batch_size: int = 1000
    """Most transitions the learner takes from the collectors at once."""
    ring: int = 1024
    """Transitions that wait between a collector and the learner; a full ring holds the collector up."""
    drop: bool = False
    """Throw transitions away, counted, when there is no room for them, instead of waiting."""
    start_method: Literal["spawn", "fork", "forkserver"] = "spawn"
    """How collectors are started."""
    hang_s: float = 60.0
    """Start a collector anew when nothing was heard of it for so long."""

    # -- learning
    capacity: int = 50_000
    """Transitions the replay keeps."""
    batch_size: int = 512
    """Transitions of a batch."""
    accumulate: int = 4
    """Batches whose gradients make one update."""
    learn_per_step: float = 1.0
    """Transitions learnt from for each transition collected."""
    learning_starts: int = 2_000
    """Transitions collected before the first batch."""
    learning_rate: float = 2.5e-4
    """Adam's step size."""
    learning_rate_end: float | None = None
    """Its step size in the last epoch, reached in a straight line over the epochs; None: it stays."""
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float | None = 10.0
    """The gradient of an update is scaled down to this norm; None for no clipping."""
    discount: float = 0.99
    """What a reward one step later is worth (gamma)."""
    n_step: int = 1
    """Rewards summed before the value of an observation is asked for."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this when learnt from."""
    target_every: int = 10
    """Updates between two moves of the target network."""
    target_rate: float = 1.0
    """How far the target then moves: 1 all the way."""
    double: bool = True
    """Choose the next action by the network, value it by the target."""
    epsilon_start: float = 1.0
    """Chance of a random action at the beginning."""
    epsilon_end: float = 0.05
    """The same once it has fallen."""
    epsilon_steps: int = 50_000
    """Env steps over which it falls, in a straight line."""

    # -- the network and how it is computed
    channels: tuple[int, ...] = (32, 64, 64)
    """Channels of the three convolutions."""
    hidden: int = 512
    """Width of the dense layer."""
    norm: bool = True
    """Batch normalisation, with statistics over a batch (not over the batches of an update together)."""
    norm_momentum: float = 0.1
    """How far the running statistics move towards those of each batch: with few transitions to a batch a
    small number, or chance in the last batches decides what is acted on."""
    layout: Literal["fast", "plain"] = "fast"
    """fast: channels last, the first convolution rearranged, normalisation folded where no gradient is
    needed; plain: the network as it is written. Same numbers up to rounding."""
    compile: bool = False
    """Let torch.compile make one function of targets, loss and gradient."""
    precision: Precision = "auto"
    """Of the network's products: auto is bfloat16 on processors that have it, float16 with a loss scaler
    on GPUs, float32 elsewhere."""
    data_parallel: bool = False
    """Spread each batch over all GPUs."""
    device: str = "auto"
    """cpu, cuda, or auto: the GPU where there is one."""
    threads: int = 1
    """Threads of the learner's arithmetic; each collector has one."""

    # -- around it
    checkpoint: Path | None = None
    """File to save to, at the end, when asked to stop, and now and then."""
    checkpoint_every: int = 10
    """Epochs between two saves."""
    resume: bool = False
    """Go on from `checkpoint`."""
    metrics: Path | None = None
    """Folder for TensorBoard."""
    quiet: bool = False
    """No monitoring lines."""

    @property
    def total_envs(self) -> int:
        """Environments of all collectors together."""
        return self.collectors * self.envs


# What may differ between a run and the checkpoint it goes on from: none of it changes what is learnt.
MAY_DIFFER = frozenset(
    name
    for line in (
        "epochs transport weights_every experience_batch_size ring drop start_method hang_s layout compile",
        "precision data_parallel device threads checkpoint checkpoint_every resume metrics quiet",
    )
    for name in line.split()
)


@dataclass(frozen=True)
class AsyncDQNResult:
    """What a run did; rates are over the loop, from the first transition taken to the last."""

    network: nn.Module
    """The trained network: stacks of frames -> values of the actions."""
    epochs: int
    """Epochs done, those of the resumed run included."""
    env_steps: int
    """Transitions taken from the collectors."""
    batches: int
    """Batches learnt from."""
    updates: int
    """Optimizer steps."""
    episodes: int
    """Episodes that ended."""
    mean_return: float | None
    """Of the last 100 episodes; None when none ended."""
    mean_length: float | None
    """Their mean length in steps."""
    mean_distance: float | None
    """How far they came; None where the environment does not say."""
    seconds: float
    """Wall time of the loop, this run only; start-up and compilation apart."""
    steps_here: int
    """Env steps of this run only."""
    batches_here: int
    """Batches of this run only."""
    epoch_s: tuple[float, ...]
    """Wall time of each epoch of this run."""
    learner_busy_fraction: float
    """Share of the loop's time in which the learner learnt."""
    lock_wait_s: float
    """Time all processes together waited for a lock."""
    drops: int
    """Transitions thrown away because there was no room."""
    staleness: float | None
    """Versions of the weights the transitions were behind, in the mean."""
    collector_busy_fraction: float | None
    """Share of their time in which the collectors played; None where it is not known."""
    restarts: int
    """Collectors that had to be started anew."""
    stopped_by: str | None
    """SIGTERM or SIGINT; None when all epochs were done."""
    precision: str
    """What the network's products were computed in."""

    @property
    def steps_per_s(self) -> float:
        """Transitions per second of the loop."""
        return self.steps_here / self.seconds if self.seconds > 0 else math.nan

    @property
    def batches_per_s(self) -> float:
        """Batches per second of the loop."""
        return self.batches_here / self.seconds if self.seconds > 0 else math.nan


def as_json(config: AsyncDQNConfig) -> dict[str, Any]:
    """The settings as JSON holds them."""
    found = dataclasses.asdict(config)
    return {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in found.items()
    }


def check(config: AsyncDQNConfig) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    least_one = "epochs episodes_per_epoch collectors envs weights_every experience_batch_size ring capacity"
    least_one += " batch_size accumulate n_step target_every hidden threads checkpoint_every epsilon_steps"
    for name in least_one.split():
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    for name in ("epoch_steps", "learning_starts", "learn_per_step"):
        if not getattr(config, name) >= 0:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 0.")
    for name in ("discount", "epsilon_start", "epsilon_end", "target_rate", "norm_momentum"):
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise HotloopError(f"{name}={getattr(config, name)} must lie in 0 .. 1.")
    positive = (
        "learning_rate",
        "learning_rate_end",
        "adam_epsilon",
        "max_grad_norm",
        "reward_scale",
        "hang_s",
    )
    for name in positive:
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise HotloopError(f"{name}={value} must be above 0.")
    if len(config.channels) != 3 or min(config.channels) < 1:
        raise HotloopError(f"channels={config.channels} must be three widths, such as (32, 64, 64).")
    if config.capacity < 2 * config.total_envs:
        raise HotloopError(
            f"capacity={config.capacity} has no room for two steps of {config.total_envs} environments; "
            "make the replay larger, or use fewer collectors or envs."
        )
    if config.resume and config.checkpoint is None:
        raise HotloopError("resume needs to know from what; give checkpoint as well.")
