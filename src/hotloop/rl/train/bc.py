"""Behaviour cloning in one file: an actor trained to imitate an expert's actions.

    from hotloop.rl.train.bc import BCConfig, train
    result = train(BCConfig(n_epochs=20), learn, held_out)     # two `Samples`

The loss is the mean squared error between the actor's greedy actions tanh(mean) and the expert's actions, so
`sac.py` can continue with the clone. Batches are loaded in one of two ways: `index` takes rows of arrays in
memory; `loader` is torch's DataLoader, item by item, with or without worker processes. `TorchLearner` below
does both; `fused/bc.py` trains whole epochs in compiled kernels, with `index` loading only. All of them see
the same samples in the same order and agree up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.machine.process_memory import ProcessMemory, largest_memory
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.nonfinite import NonFiniteData, count_nonfinite, first_nonfinite, is_finite
from hotloop.rl.train import runs
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import Arrays, CheckpointError, Stopwatch

if TYPE_CHECKING:
    from hotloop.rl.train.fused.bc import FusedBC

_load = profile("data_load")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer = profile("optimizer_step")
_evaluate = profile("evaluate")
_log = profile("log")
_checkpoint = profile("checkpoint")


# ---- settings and result


@dataclass(frozen=True)
class BCConfig:
    """Settings of a run."""

    seed: int = 0
    """Determines the weights and the order of samples."""
    n_epochs: int = 20
    """Passes over the samples."""
    batch_size: int = 256
    """Samples of a gradient step."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    net_arch: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each hidden layer."""
    log_std_init: float = 0.0
    """Log standard deviation of the actor's noise; cloning does not change it."""
    loading: Literal["index", "loader"] = "index"
    """Rows of arrays in memory, or torch's DataLoader, item by item."""
    loading_workers: int = 0
    """Worker processes of the DataLoader; 0 loads in the training process."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Learner implementation; auto is fused with index loading, torch with the loader."""
    allow_nonfinite: bool = False
    """Train on observations and actions that are NaN or infinite, instead of stopping."""
    threads: int = 1
    """Intra-op threads of torch."""
    checkpoint: Path | None = None
    """File to save to, regularly, at the end and when asked to stop."""
    checkpoint_every_epochs: int = 5
    """Epochs between two checkpoints."""
    resume: bool = False
    """Continue from `checkpoint`."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard."""


# Both ways of loading and both learners give the same clone.
MAY_DIFFER = runs.MAY_DIFFER | {"n_epochs", "loading", "loading_workers", "checkpoint_every_epochs"}


@dataclass(frozen=True)
class BCResult:
    """Result of a training run."""

    actor: SquashedActor
    """The clone."""
    learner: str
    """fused or torch."""
    epochs: int
    """Epochs done, those before a resume included."""
    updates: int
    """Gradient steps, those before a resume included."""
    samples: int
    """Samples trained on in this run, counted once per epoch."""
    seconds: float
    """Wall time of this run's epochs."""
    loss: float | None
    """Mean squared error over the last epoch; None when this run had none."""
    held_out_loss: float
    """Mean squared error on the held-out episodes."""
    stopped_by: str | None
    """SIGTERM or SIGINT; None when all epochs were done."""
    worker_memory: ProcessMemory | None
    """Of the loading process with most memory; None without one."""
    unsaved: str | None = None
    """Why the last checkpoint could not be written; None if it was, or if none was wanted."""


def check_settings(config: BCConfig) -> None:
    """Raise HotloopError for the first invalid setting."""
    runs.check_seed(config)
    runs.check_at_least(config, 1, "n_epochs", "batch_size", "threads", "checkpoint_every_epochs")
    runs.check_at_least(config, 0, "loading_workers")
    runs.check_positive(config, "learning_rate")
    runs.check_net_arch(config)
    runs.check_checkpoint(config)
    if config.loading == "index" and config.loading_workers:
        raise HotloopError(
            f"loading_workers={config.loading_workers} needs loading='loader'; loading='index' copies rows "
            "of arrays in memory and has no workers."
        )
    if config.loading == "loader" and config.learner == "fused":
        raise HotloopError(
            "learner='fused' gathers its batches inside the kernel; use loading='index', or learner='torch'."
        )


def check(config: BCConfig, learn: Samples) -> None:
    """Raise HotloopError for the first invalid setting, or for samples that cannot be learned from."""
    check_settings(config)
    if len(learn) == 0:
        raise HotloopError("There are no samples to learn from; collect demonstrations first.")
    for what, values in (("observation", learn.observations), ("action", learn.actions)):
        if not (config.allow_nonfinite or is_finite(values)):
            (sample, *_), value = first_nonfinite(values)
            raise NonFiniteData(
                f"The demonstrations have {count_nonfinite(values):,} numbers that are NaN or infinite, the "
                f"first of them ({value}) in the {what} of step {sample:,}; nothing was learned from them. "
                "Collect again, or set allow_nonfinite to train on them."
            )


def saved_run(config: BCConfig) -> runs.Checkpoint | None:
    """The checkpoint to resume from, or None; CheckpointError if it does not fit the settings."""
    return runs.load_run(config, MAY_DIFFER, upgrade_settings)


def upgrade_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Settings of a checkpoint by hotloop 0.1, which kept the number of samples among them."""
    return {name: value for name, value in saved.items() if name not in ("samples", "checkpoint_every_s")}


# ---- the torch learner


def clone_loss(actions: Tensor, expert_actions: Tensor) -> Tensor:
    """Mean squared error over samples and actions."""
    return (actions - expert_actions).square().mean()


class TorchLearner:
    """Cloning in eager torch, with both ways of loading: the reference of the fused learner."""

    name = "torch"

    def __init__(
        self, actor: SquashedActor, config: BCConfig, learn: Samples, held_out: Samples, stopwatch: Stopwatch
    ):
        self.actor, self._config = actor, config
        self._observations = torch.from_numpy(learn.observations)
        self._actions = torch.from_numpy(learn.actions)
        self._held_out = (torch.from_numpy(held_out.observations), torch.from_numpy(held_out.actions))
        self._adam = runs.make_adam(actor, config.learning_rate)
        self.worker_memory: ProcessMemory | None = None
        self._order = _Order()
        self._loader: DataLoader[Any] | None = None
        if config.loading == "loader":
            self._loader = DataLoader(
                _Items(self._observations, self._actions),
                batch_size=config.batch_size,
                sampler=self._order,
                num_workers=config.loading_workers,
                persistent_workers=config.loading_workers > 0,
                pin_memory=torch.cuda.is_available(),
            )
        self._loading = stopwatch.part("loading", _load)
        self._parts = [
            stopwatch.part("forward/backward", region) for region in (_forward, _loss, _backward, _optimizer)
        ]

    def close(self) -> None:
        """Stop the loading processes."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
        self._loader = None

    def train_epoch(self, order: NDArray[np.int64]) -> float:
        """Train on all samples in this order; returns their mean loss before each gradient step."""
        total, batches = 0.0, self._batches(order)
        forward, loss_part, backward, optimizer = self._parts
        while True:
            with self._loading:
                batch = next(batches, None)
            if batch is None:
                return total / len(order)
            observations, expert_actions = batch
            with forward:
                actions = self.actor.greedy_actions(observations)
            with loss_part:
                loss = clone_loss(actions, expert_actions)
            with backward:
                self._adam.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
            with optimizer:
                self._adam.step()
                total += float(loss.detach()) * len(expert_actions)

    def _batches(self, order: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor]]:
        if self._loader is None:
            rows = torch.from_numpy(order)
            for start in range(0, len(order), self._config.batch_size):
                chosen = rows[start : start + self._config.batch_size]
                yield self._observations[chosen], self._actions[chosen]
            return
        self._order.order = order.tolist()
        for observations, actions in self._loader:
            if self.worker_memory is None and self._config.loading_workers:
                workers = getattr(self._loader._iterator, "_workers", [])
                self.worker_memory = largest_memory([worker.pid for worker in workers])
            yield observations, actions

    def held_out_loss(self) -> float:
        observations, expert_actions = self._held_out
        with torch.inference_mode():
            return float(clone_loss(self.actor.greedy_actions(observations), expert_actions))

    def state(self) -> Arrays:
        """Weights and Adam's moments under the names of the actor's parameters; copies."""
        return runs.weights_and_moments(self.actor, self._adam)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a torch or fused learner with the same network."""
        runs.load_weights_and_moments(self.actor, self._adam, state)


class _Items(Dataset[tuple[Tensor, Tensor]]):
    """Samples one by one, as a DataLoader asks for them."""

    def __init__(self, observations: Tensor, actions: Tensor):
        self._observations, self._actions = observations, actions

    def __len__(self) -> int:
        return len(self._actions)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self._observations[place], self._actions[place]


class _Order:
    """A sampler for DataLoader: the order set last."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def make_learner(
    config: BCConfig, actor: SquashedActor, learn: Samples, held_out: Samples, stopwatch: Stopwatch
) -> TorchLearner | FusedBC:
    if config.learner == "torch" or config.loading == "loader":
        return TorchLearner(actor, config, learn, held_out, stopwatch)
    # Imported on demand: the kernels need numba, the torch learner does not.
    from hotloop.rl.train.fused.bc import FusedBC

    return FusedBC(actor, config, learn, held_out, stopwatch)


# ---- the training loop


def train(
    config: BCConfig,
    learn: Samples,
    held_out: Samples,
    *,
    stopwatch: Stopwatch | None = None,
    after_epoch: Callable[[int, float, float], None] | None = None,
    report: Callable[..., Any] = progress,
) -> BCResult:
    """Clone the expert of the samples `learn`; see `BCConfig`.

    `stopwatch` gets the seconds of loading, forward/backward, evaluation and logging. `after_epoch(epochs
    done, loss, held-out loss)` is called after each epoch.
    """
    check(config, learn)
    stopwatch = stopwatch or Stopwatch()
    with ExitStack() as stack:
        starting = stack.enter_context(ExitStack())
        starting.enter_context(runs.start_up)
        stack.enter_context(runs.torch_threads(config.threads))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            actor = SquashedActor(
                learn.observations.shape[1],
                learn.actions.shape[1],
                config.net_arch,
                config.activation,
                log_std_init=config.log_std_init,
            )
        learner = make_learner(config, actor, learn, held_out, stopwatch)
        stack.callback(learner.close)
        rng, epochs, updates = np.random.default_rng(config.seed), 0, 0
        saved = saved_run(config)
        if saved is not None:
            samples = saved.state.get("samples", len(learn))  # not there in checkpoints by hotloop 0.1
            if samples != len(learn):
                raise CheckpointError(
                    f"{config.checkpoint} was trained on {samples:,} samples, this run has {len(learn):,}; "
                    "use the same demonstrations, or another checkpoint path."
                )
            with runs.restoring(config.checkpoint):
                learner.load(saved.part("learner") or saved.arrays)  # hotloop 0.1 saved them without a prefix
                rng.bit_generator.state = saved.state["rng"]
                epochs, updates = saved.state["epochs"], saved.state["updates"]
        tensorboard = runs.TensorboardLog(config.tensorboard_log)
        stack.callback(tensorboard.close)
        stop = stack.enter_context(runs.StopRequests())
        evaluating, logging = stopwatch.part("evaluation", _evaluate), stopwatch.part("logging", _log)
        saving = stopwatch.part("logging", _checkpoint)

        def save() -> str | None:
            if config.checkpoint is None:
                return None
            with saving:
                state = {"rng": rng.bit_generator.state, "epochs": epochs, "updates": updates}
                state["samples"] = len(learn)
                return runs.save_run(
                    config.checkpoint, config, env_steps=0, learner=learner.state(), state=state
                )

        starting.close()
        began, first_epoch = time.perf_counter(), epochs
        loss = held_out_loss = None
        while epochs < config.n_epochs and stop.by is None:
            loss = learner.train_epoch(rng.permutation(len(learn)))
            with evaluating:
                held_out_loss = learner.held_out_loss()
            epochs += 1
            steps = -(-len(learn) // config.batch_size)
            updates += steps
            with logging:
                losses = {"loss": loss, "held_out_loss": held_out_loss}
                runs.check_finite(losses, epochs, config.checkpoint)
                tensorboard.write(epochs, {f"bc/{name}": value for name, value in losses.items()})
                report(updates=steps, loss=loss)
                if after_epoch is not None:
                    after_epoch(epochs, loss, held_out_loss)
            if epochs % config.checkpoint_every_epochs == 0:
                save()
        unsaved = save()
        return BCResult(
            actor=learner.actor,
            learner=learner.name,
            epochs=epochs,
            updates=updates,
            samples=(epochs - first_epoch) * len(learn),
            seconds=time.perf_counter() - began,
            loss=loss,
            held_out_loss=learner.held_out_loss() if held_out_loss is None else held_out_loss,
            stopped_by=stop.by,
            worker_memory=learner.worker_memory,
            unsaved=unsaved,
        )


# ---- the clone as the start of another run


def load_clone(file: Path, actor: SquashedActor) -> None:
    """Copy the clone in this checkpoint into `actor`; raises CheckpointError when their networks differ."""
    saved = runs.load_checkpoint(file, upgrade_settings)
    arrays = saved.part("learner") or saved.arrays  # hotloop 0.1 saved them without a prefix
    weights = {n.removeprefix("weights."): a for n, a in arrays.items() if n.startswith("weights.layers.")}
    if not weights:
        raise CheckpointError(f"{file} is not a clone; make one with: hotloop train imitate --stage bc")
    own = {name: tuple(weight.shape) for name, weight in actor.named_parameters()}
    found = {name: weight.shape for name, weight in weights.items()}
    differing = [name for name in sorted(own | found) if own.get(name) != found.get(name)]
    if differing:
        first = differing[0]
        what = f"{first} is {found.get(first)} in the file and {own.get(first)} here"
    elif saved.config.get("activation") != actor.activation:
        what = f"its activation is {saved.config.get('activation')}, not {actor.activation}"
    else:
        with runs.restoring(file):
            runs.load_weights(actor, weights)
        return
    raise CheckpointError(
        f"The clone in {file} does not fit this actor: {what}; clone again with the same network."
    )
