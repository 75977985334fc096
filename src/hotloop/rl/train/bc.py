"""Behaviour cloning: an actor that does what an expert did, from top to bottom.

    from hotloop.rl.train.bc import BCConfig, train
    result = train(BCConfig(epochs=20), learn, held_out)     # two `Samples`

The loss is the mean squared error between the squashed means tanh(mean) and the expert's actions, so the
cloned actor is one that soft actor-critic can go on with. There are two ways to load a batch: `index` takes
rows of arrays that are in memory already; `loader` is torch's DataLoader, item by item, with worker
processes or without. With `index` two learners do the same steps up to rounding: `fused` (kernels) and
`torch`. All ways see the same samples in the same order.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.machine.process_memory import ProcessMemory
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.train.bc_learners import FusedLearner, TorchLearner
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import (
    CheckpointError,
    StopRequests,
    Stopwatch,
    TensorboardLog,
    check_finite,
    check_same_settings,
    load_checkpoint,
    save_checkpoint,
)

_evaluate = profile("evaluate")
_log = profile("log")
_checkpoint = profile("checkpoint")


@dataclass(frozen=True)
class BCConfig:
    """Settings of a run."""

    seed: int = 0
    """Decides weights and the order of samples."""
    epochs: int = 20
    """Passes over the samples."""
    batch_size: int = 256
    """Samples of a gradient step."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """After each hidden layer."""
    first_log_std: float = 0.0
    """Logarithm of the noise with which the actor begins reinforcement learning; cloning keeps it."""
    loading: Literal["index", "loader"] = "index"
    """Rows of arrays in memory, or torch's DataLoader, item by item."""
    loading_workers: int = 0
    """Processes of the DataLoader; 0 loads in the training process."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Who learns; auto is fused with index loading, torch with the loader."""
    threads: int = 1
    """Threads of torch's own operations."""
    checkpoint: Path | None = None
    """File to save to, now and then, at the end and when asked to stop."""
    checkpoint_every_s: float = 2.0
    """Least time between two saves."""
    resume: bool = False
    """Go on from `checkpoint`."""
    metrics: Path | None = None
    """Folder for TensorBoard."""

    @property
    def who_learns(self) -> str:
        """The learner that `auto` stands for."""
        if self.learner == "auto":
            return "fused" if self.loading == "index" else "torch"
        return self.learner


# What may differ between a run and the checkpoint it goes on from: none of it changes what is learnt.
MAY_DIFFER = frozenset(
    {"epochs", "loading", "loading_workers", "learner", "threads", "metrics"}
    | {"checkpoint", "checkpoint_every_s", "resume"}
)


@dataclass(frozen=True)
class BCResult:
    """What a run did."""

    actor: SquashedActor
    """The clone."""
    learner: str
    """Who learnt: fused or torch."""
    epochs: int
    """Epochs done, those of the resumed run included."""
    updates: int
    """Gradient steps, those of the resumed run included."""
    samples: int
    """Samples learnt from in this run, each epoch anew."""
    seconds: float
    """Wall time of this run's epochs."""
    loss: float | None
    """Mean squared error over the last epoch; None when there was none."""
    held_out_loss: float
    """Mean squared error on the episodes held out."""
    stopped_by: str | None
    """SIGTERM or SIGINT; None when all epochs were done."""
    worker_memory: ProcessMemory | None
    """Of a loading process; None without one."""


class Learner(Protocol):
    """What the loop needs of a learner."""

    name: str
    actor: SquashedActor

    def epoch(self, order: NDArray[np.int64]) -> float:
        """Learn from all samples in this order; returns the mean loss on the way."""

    def held_out_loss(self) -> float:
        """The loss on the samples held out."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and Adam's moments under the names of the actor's parameters; copies."""

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Take up what `state` gave."""


def train(
    config: BCConfig,
    learn: Samples,
    held_out: Samples,
    *,
    watch: Stopwatch | None = None,
    after_epoch: Callable[[int, float, float], None] | None = None,
    report: Callable[..., Any] = progress,
) -> BCResult:
    """Clone; see `BCConfig`.

    `watch` is told the seconds of loading, forward/backward, evaluation and logging. `after_epoch(epochs
    done, loss, held-out loss)` is called after each epoch.
    """
    check(config, learn)
    watch = watch or Stopwatch()
    with ExitStack() as leave:
        leave.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.threads)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            actor = SquashedActor(
                learn.observations.shape[1],
                learn.actions.shape[1],
                config.hidden,
                config.activation,
                first_log_std=config.first_log_std,
            )
        learner: Learner
        if config.who_learns == "fused":
            learner = FusedLearner(actor, config, learn, held_out, watch)
        else:
            learner = leave.enter_context(TorchLearner(actor, config, learn, held_out, watch))
        rng, done, updates = np.random.default_rng(config.seed), 0, 0
        if config.resume and config.checkpoint is not None and config.checkpoint.is_file():
            saved = load_checkpoint(config.checkpoint)
            check_same_settings(config.checkpoint, saved.config, _settings(config, learn), MAY_DIFFER)
            learner.load(saved.arrays)
            rng.bit_generator.state = saved.state["rng"]
            done, updates = saved.state["epochs"], saved.state["updates"]
        metrics = TensorboardLog(config.metrics)
        leave.callback(metrics.close)
        stop = leave.enter_context(StopRequests())
        evaluating, logging = watch.part("evaluation", _evaluate), watch.part("logging", _log)
        keeping = watch.part("logging", _checkpoint)

        def save() -> None:
            if config.checkpoint is not None:
                with keeping:
                    state = {"rng": rng.bit_generator.state, "epochs": done, "updates": updates}
                    save_checkpoint(config.checkpoint, learner.state(), state, _settings(config, learn))

        def held_out_loss() -> float:
            with evaluating:
                return learner.held_out_loss()

        began, first = time.perf_counter(), done
        saved_at, loss, seen = began, None, None
        while done < config.epochs and stop.by is None:
            loss = learner.epoch(rng.permutation(len(learn)))
            seen = held_out_loss()
            done += 1
            steps = -(-len(learn) // config.batch_size)
            updates += steps
            with logging:
                check_finite({"loss": loss, "held_out_loss": seen}, done, config.checkpoint)
                metrics.write(done, {"bc/loss": loss, "bc/held_out_loss": seen})
                report(updates=steps, loss=loss)
                if after_epoch is not None:
                    after_epoch(done, loss, seen)
            if time.perf_counter() - saved_at >= config.checkpoint_every_s:
                save()
                saved_at = time.perf_counter()
        save()
        seconds = time.perf_counter() - began
        return BCResult(
            learner.actor,
            learner.name,
            done,
            updates,
            (done - first) * len(learn),
            seconds,
            loss,
            held_out_loss() if seen is None else seen,
            stop.by,
            learner.worker_memory if isinstance(learner, TorchLearner) else None,
        )


def check(config: BCConfig, learn: Samples) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name in ("epochs", "batch_size", "threads"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    if config.loading_workers < 0:
        raise HotloopError(f"loading_workers={config.loading_workers} must be at least 0.")
    if config.loading == "index" and config.loading_workers:
        raise HotloopError(
            f"loading_workers={config.loading_workers} have nothing to do with loading='index', which copies "
            "rows of arrays in memory; use loading='loader', or 0."
        )
    if config.loading == "loader" and config.learner == "fused":
        raise HotloopError(
            "learner='fused' gathers its batches itself; use loading='index', or learner='torch'."
        )
    if not (config.learning_rate > 0 and math.isfinite(config.learning_rate)):
        raise HotloopError(f"learning_rate={config.learning_rate} must be above 0.")
    if not config.hidden or min(config.hidden) < 1:
        raise HotloopError(f"hidden={config.hidden} must be widths of at least 1, such as (64, 64).")
    if len(learn) == 0:
        raise HotloopError("there is no sample to learn from; collect demonstrations first.")
    if config.resume and config.checkpoint is None:
        raise HotloopError("resume needs to know from what; give checkpoint as well.")


def _settings(config: BCConfig, learn: Samples) -> dict[str, Any]:
    """The settings as JSON holds them, and how much there was to learn from."""
    found = dataclasses.asdict(config) | {"samples": len(learn)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}


# ---- the clone as somebody's start


def read_clone(file: Path) -> SquashedActor:
    """The actor that a run of `train` kept in this checkpoint."""
    saved = load_checkpoint(file)
    weights = _weights(file, saved.arrays)
    last = weights[f"layers.{2 * len(saved.config['hidden'])}.bias"]
    actor = SquashedActor(
        weights["layers.0.weight"].shape[1],
        last.shape[0] // 2,
        tuple(saved.config["hidden"]),
        saved.config["activation"],
    )
    take_clone(file, actor)
    return actor


def take_clone(file: Path, actor: SquashedActor) -> None:
    """Make `actor` the clone of this checkpoint; raises CheckpointError when their networks differ."""
    saved = load_checkpoint(file)
    weights = _weights(file, saved.arrays)
    own = {name: tuple(weight.shape) for name, weight in actor.named_parameters()}
    found = {name: weight.shape for name, weight in weights.items()}
    if own != found or saved.config["activation"] != actor.activation:
        names = [name for name in sorted(own | found) if own.get(name) != found.get(name)]
        what = (
            f"{names[0]} is {found.get(names[0])} in the file and {own.get(names[0])} here"
            if names
            else f"its activation is {saved.config['activation']}, not {actor.activation}"
        )
        raise CheckpointError(
            f"the clone in {file} does not fit this actor: {what}; clone again with the same network."
        )
    with torch.no_grad():
        for name, weight in actor.named_parameters():
            weight.copy_(torch.from_numpy(weights[name]))


def _weights(file: Path, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    found = {n.removeprefix("weights."): a for n, a in arrays.items() if n.startswith("weights.layers.")}
    if not found:
        raise CheckpointError(f"{file} holds no clone; make one with hotloop train imitate --stage bc.")
    return found
