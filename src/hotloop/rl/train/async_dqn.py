"""Deep Q-learning on frames, with experience from collectors in separate processes.

    from hotloop.rl.train.async_dqn import AsyncDQNConfig, train
    result = train(AsyncDQNConfig(total_timesteps=50_000), make_env)

Read it from top to bottom: settings, the learner, the loop. The loop takes rows
from the collectors, copies them to the replay buffer, and learns from `replay_ratio` transitions for each one
collected, whichever side is faster: a learner that is ahead waits for experience, collectors that are ahead
wait for room in their queues. Nothing is dropped unless `drop_when_full` is set, and drops are counted.

An epoch is a number of episodes or env steps. It is the interval of the reports and of sending weights to the
collectors, and each epoch after the first is one call of the region `training_epoch`. Exploration and the
learning rate follow the env steps.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop._util.ray_cluster import address_of
from hotloop.machine.facts import cores_granted
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.collect.protocol import CollectorState, Rows, Task
from hotloop.rl.train import runs
from hotloop.rl.train.async_dqn_monitor import Epoch, Monitor, Pipeline, mean_busy_fraction
from hotloop.rl.train.async_dqn_parts import make_collector, make_replay, probe_spaces, warm_up
from hotloop.rl.train.devices import Precision, choose_device, choose_precision
from hotloop.rl.train.dqn import dqn_loss, td_targets
from hotloop.rl.train.frame_actor import make_actor, make_network
from hotloop.rl.train.networks.frame_q import (
    ROWS_AT_ONCE,
    FoldedNetwork,
    FoldedWeights,
    FrameQNetwork,
    flat_size,
    flatten_into,
    fold_batch_norm,
    folded_values,
    state_tensors,
    training_values,
)
from hotloop.rl.train.networks.space_to_depth import has_whole_blocks, space_to_depth
from hotloop.rl.train.runs import RecentEpisodes
from hotloop.rl.train.second_thread import SecondThread

_start_up = profile("start_up", "other")
_shut_down = profile("shut_down", "other")
_training_epoch = profile("training_epoch", "other")
_replay_push = profile("replay_push")
_replay_sample = profile("replay_sample")
_transfer = profile("transfer")
_learner_forward = profile("learner_forward")
_backward = profile("backward")
_optimizer_step = profile("optimizer_step")
_weights_sync = profile("weights_sync")
_rows_dropped = profile("rows_dropped", "ipc")
_log = profile("log")
_checkpoint = profile("checkpoint")

WAIT_S = 0.5  # the longest wait for rows before the loop checks for stop requests
STATISTICS = ("loss", "td_error", "value", "gradient_norm")
FIELDS = ("observations", "next_observations", "actions", "rewards", "discounts")  # of a batch

MAY_DIFFER = runs.MAY_DIFFER | {
    "stop_at_epochs", "on", "transport", "weights_every_epochs", "weights_every_steps", "queue_size",
    "experience_batch_size", "drop_when_full", "start_method", "hang_timeout_s", "layout", "compile",
    "precision", "data_parallel", "device", "target_thread",
}  # fmt: skip


@dataclass(frozen=True)
class AsyncDQNConfig:
    """Settings of a run, named as in Stable-Baselines3 where it has them."""

    # -- length
    total_timesteps: int = 50_000
    """Env steps to train for, rounded up to whole epochs."""
    stop_at_epochs: int | None = None
    """Stop after this many epochs, even before total_timesteps."""
    episodes_per_epoch: int = 16
    """Episodes in an epoch."""
    epoch_steps: int = 0
    """Env steps in an epoch, instead of a number of episodes; 0 to count episodes."""
    seed: int = 0
    """Seed of weights, samples and collectors."""

    # -- collecting
    transport: Literal["rings", "locked", "serial"] = "rings"
    """One ring per collector, one queue with a lock for all, or no processes at all."""
    on: str = ""
    """Ray cluster whose nodes run the collectors: `ray`, or `ray://HOST:PORT`; empty: this computer."""
    n_collectors: int = 4
    """Number of collector processes."""
    envs_per_collector: int = 8
    """Parallel environments in each collector, which share one call of the network."""
    weights_every_epochs: int = 5
    """Epochs between two times that the collectors get new weights."""
    weights_every_steps: int = 0
    """Env steps between two times, instead of a number of epochs; 0 to count epochs."""
    experience_batch_size: int = 1000
    """Most transitions that the learner takes from the collectors at once."""
    queue_size: int = 1024
    """Transitions that can wait between a collector and the learner; a full queue blocks the collector."""
    drop_when_full: bool = False
    """Drop and count transitions when the queue is full, instead of blocking the collector."""
    start_method: Literal["spawn", "fork", "forkserver"] = "spawn"
    """How collector processes are started."""
    hang_timeout_s: float = 60.0
    """Restart a collector that makes no progress for this many seconds."""

    # -- learning
    buffer_size: int = 50_000
    """Transitions in the replay buffer."""
    batch_size: int = 512
    """Transitions of a batch."""
    accumulate_grad_batches: int = 4
    """Batches whose gradients are accumulated for one update (one step of the optimizer)."""
    replay_ratio: float = 1.0
    """Transitions to learn from for each transition collected; 0 to collect without learning."""
    learning_starts: int = 2_000
    """Transitions collected before the first batch."""
    learning_rate: float = 2.5e-4
    """Adam's learning rate."""
    final_learning_rate: float | None = None
    """Learning rate at total_timesteps, reached linearly; None for a constant one."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float | None = 10.0
    """Maximum norm of an update's gradient; None for no clipping."""
    gamma: float = 0.99
    """Discount factor."""
    n_steps: int = 1
    """Rewards summed before bootstrapping (n-step returns)."""
    reward_scale: float = 1.0
    """Factor for rewards in the loss; reports show them unscaled."""
    target_every_updates: int = 10
    """Updates between two updates of the target network."""
    tau: float = 1.0
    """How far each of these moves the target network; 1 copies the weights."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network evaluates it."""
    exploration_initial_eps: float = 1.0
    """Probability of a random action at the beginning."""
    exploration_final_eps: float = 0.05
    """Probability of a random action after exploration_steps."""
    exploration_steps: int = 50_000
    """Env steps over which this probability falls linearly."""

    allow_nonfinite: bool = False
    """Train on rewards and observations that are NaN or infinite, instead of stopping."""

    # -- network
    channels: tuple[int, ...] = (32, 64, 64)
    """Channels of the three convolutions."""
    features_dim: int = 512
    """Width of the dense layer after them."""
    batch_norm: bool = True
    """Batch normalisation, with the statistics of a batch (not of all batches of an update together)."""
    batch_norm_momentum: float = 0.1
    """How far the running statistics move towards those of each batch. Use less for small batches, or the
    last few of them decide how the agent acts."""
    target_statistics: Literal["running", "batch"] = "running"
    """Statistics that normalise the next observations for the targets. running: those the agent acts on;
    batch: those of the batch, as for the values that are learned, so that a difference between the two does
    not add up over the targets."""
    layout: Literal["fast", "plain"] = "fast"
    """fast: channels last, first convolution on blocks of pixels, normalisation folded where no gradient is
    needed and in one step with ReLU where it is, freed memory kept in the process; plain: the network as
    written. Same numbers up to rounding."""
    compile: bool = False
    """Compile targets, loss and gradient with torch.compile."""
    precision: Precision = "auto"
    """Of matrix products; auto: bfloat16 on CPUs that have it, float16 with loss scaling on GPUs, else
    float32."""
    data_parallel: bool = False
    """Spread each batch over all GPUs."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    threads: int = 1
    """Torch's intra-op threads in the learner; each collector has one."""
    target_thread: bool = True
    """Share the passes over next observations with a second thread; see `FrameLearner.share_with`. Same
    numbers."""

    # -- files and output
    checkpoint: Path | None = None
    """File to save to during training, at its end, and on SIGTERM or Ctrl-C."""
    checkpoint_every_steps: int = 25_000
    """Env steps between two saves, rounded up to whole epochs."""
    resume: bool = False
    """Continue from `checkpoint`. The replay buffer is not part of it and is filled again."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard."""
    quiet: bool = False
    """Print no monitoring lines."""

    @property
    def n_envs(self) -> int:
        """Environments of all collectors together."""
        return self.n_collectors * self.envs_per_collector


@dataclass(frozen=True)
class AsyncDQNResult:
    """Result of a training run; rates are over the loop, from the first transition taken to the last."""

    network: nn.Module
    """The trained network: stacks of frames -> action values."""
    epochs: int
    """Epochs so far, those before a resume included."""
    env_steps: int
    """Transitions taken from the collectors so far."""
    batches: int
    """Batches learned from so far."""
    updates: int
    """Steps of the optimizer so far."""
    episodes: int
    """Episodes finished so far."""
    mean_return: float | None
    """Mean return of the last 100 episodes; None before the first has finished."""
    mean_length: float | None
    """Mean length of the last 100 episodes."""
    mean_distance: float | None
    """How far they came; None if the environment does not report it."""
    seconds: float
    """Wall time of this run's loop, without start-up and compilation."""
    resumed_at: int
    """Env steps of the checkpoint that the run continued from; 0 without one."""
    loop_env_steps: int
    """Env steps of this run's loop; the first rows, for which it waits, came before."""
    loop_batches: int
    """Batches of this run's loop."""
    epoch_s: tuple[float, ...]
    """Wall time of each epoch of this run."""
    learner_busy_fraction: float
    """Fraction of the loop in which the learner sampled or learned."""
    collector_busy_fraction: float | None
    """Fraction of their time in which collectors did not wait; None if unknown."""
    lock_wait_s: float
    """Time that all processes together waited for a lock."""
    dropped: int
    """Transitions dropped because a queue was full."""
    versions_behind: float | None
    """Mean age of the weights behind the last transitions, in versions."""
    restarts: int
    """Collectors that were restarted."""
    stopped_by: str | None
    """SIGTERM or SIGINT; None when all steps or epochs were done."""
    precision: str
    """Precision of matrix products."""
    unsaved: str | None = None
    """Why the last checkpoint could not be written; None if it was, or if none was wanted."""
    nonfinite: int = 0
    """Rewards and observations that were NaN or infinite, with allow_nonfinite."""

    @property
    def steps_per_s(self) -> float:
        """Env steps per second of the loop."""
        return self.loop_env_steps / self.seconds if self.seconds > 0 else math.nan

    @property
    def batches_per_s(self) -> float:
        """Batches per second of the loop."""
        return self.loop_batches / self.seconds if self.seconds > 0 else math.nan


def check_config(config: AsyncDQNConfig) -> None:
    """Raise HotloopError for the first invalid setting."""
    runs.check_at_least(config, 1, "total_timesteps", "stop_at_epochs", "episodes_per_epoch", "n_collectors")
    runs.check_at_least(config, 1, "envs_per_collector", "weights_every_epochs", "experience_batch_size")
    runs.check_at_least(config, 1, "queue_size", "buffer_size", "batch_size", "accumulate_grad_batches")
    runs.check_at_least(config, 1, "n_steps", "target_every_updates", "features_dim", "threads")
    runs.check_at_least(config, 1, "checkpoint_every_steps", "exploration_steps")
    runs.check_at_least(config, 0, "epoch_steps", "learning_starts", "replay_ratio", "weights_every_steps")
    runs.check_seed(config)
    runs.check_fraction(config, "gamma", "exploration_initial_eps", "exploration_final_eps", "tau")
    runs.check_fraction(config, "batch_norm_momentum")
    runs.check_positive(config, "learning_rate", "final_learning_rate", "adam_eps", "max_grad_norm")
    runs.check_positive(config, "reward_scale", "hang_timeout_s")
    runs.check_checkpoint(config)
    choose_device(config.device)  # before any kernel is compiled
    if config.on:
        address_of(config.on)
        if config.transport == "serial":
            raise HotloopError("transport='serial' has no collectors to run on a cluster; leave out on.")
    if len(config.channels) != 3 or min(config.channels) < 1:
        raise HotloopError(f"channels={config.channels} must be three widths, such as (32, 64, 64).")
    if config.buffer_size < 2 * config.n_envs:
        raise HotloopError(
            f"buffer_size={config.buffer_size} has no room for two steps of {config.n_envs} environments; "
            "make it larger, or use fewer collectors or envs."
        )


def saved_run(config: AsyncDQNConfig) -> runs.Checkpoint | None:
    """The checkpoint to resume from, or None; CheckpointError if it does not fit the settings."""
    return runs.load_run(config, MAY_DIFFER, upgrade_settings)


# ---- the learner


class FrameLearner:
    """Accumulates gradients of batches, and makes an update of them.

    `accumulate_grad_batches` batches give the update of one batch as large as all of them. Batch
    normalisation uses the statistics of each batch, so the equivalent large batch is normalised in groups of
    `batch_size`. (The choice of the next action reads running statistics, which change with every batch, so
    it may differ.)

    Gradients flow through the statistics of the batch. Everywhere else (target, choice of the next action,
    acting) the running statistics are used, so that the values learned are those the agent acts on.
    """

    def __init__(self, network: FrameQNetwork, config: AsyncDQNConfig):
        self._config, self.device = config, choose_device(config.device)
        self.precision = choose_precision(config.precision, self.device)
        self._fast = config.layout == "fast" and has_whole_blocks(network.shape) and not config.data_parallel
        form = torch.channels_last if self._fast else torch.contiguous_format
        self.network = network.to(self.device, memory_format=form)  # type: ignore[call-overload]
        for layer in network.norms:
            cast(nn.BatchNorm2d, layer).momentum = config.batch_norm_momentum
        self.target = copy.deepcopy(network).requires_grad_(False)
        # On the CPU, pixels and folded weights are made in the precision of the products; elsewhere autocast
        # converts them.
        on_cpu_in_bfloat16 = self.precision == "bfloat16" and self.device.type == "cpu"
        self._dtype = torch.bfloat16 if on_cpu_in_bfloat16 else torch.float32
        self._folded_target = FoldedNetwork(self.target, self._dtype) if self._fast else None
        self._pixels = self._memory_for_pixels() if self._fast and not config.compile else None
        self._parallel = nn.DataParallel(network) if config.data_parallel else network
        self._adam = runs.make_adam(network, config.learning_rate, config.adam_eps)
        for weight in network.parameters():
            weight.grad = torch.zeros_like(weight)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        self._loss_of = torch.compile(self._plain_loss_of) if config.compile else self._plain_loss_of
        self._sums = torch.zeros(len(STATISTICS), dtype=torch.float64, device=self.device)
        self._summed = [0, 0]  # batches and updates in the sums
        self._batch: tuple[ReplayBatch, dict[str, Tensor], dict[str, Tensor]] | None = None
        self._second: SecondThread | None = None
        self.batches = self.updates = 0

    def share_with(self, second: SecondThread) -> None:
        """Let a second thread compute values of next observations; the numbers stay the same.

        Has an effect on the CPU with the fast layout, `threads` 1, targets by running statistics, and without
        `compile`.
        """
        config = self._config
        on_cpu = self._fast and self.device.type == "cpu" and not config.compile
        if on_cpu and config.threads == 1 and config.target_statistics == "running":
            self._second = second

    def _memory_for_pixels(self) -> Tensor | None:
        """Memory for the converted pixels of a batch; a GPU manages its own."""
        stack, height, width = self.network.shape
        shape = (self._config.batch_size, height // 4, width // 4, 16 * stack)
        return torch.zeros(shape, dtype=self._dtype) if self.device.type == "cpu" else None

    def compile_kernels(self, observations: Tensor) -> None:
        """Compile or load the kernels that batches need; changes nothing in the learner."""
        if self._fast and self.device.type == "cpu":
            twin = copy.deepcopy(self.network)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16):
                values = training_values(twin, space_to_depth(observations, dtype=self._dtype))
            values.sum().backward()  # type: ignore[no-untyped-call]

    def make_batch(self, buffer: ReplayBuffer) -> ReplayBatch:
        """Memory for samples, pinned if the learner runs on a GPU."""
        if self.device.type == "cuda":
            return buffer.make_batch(self._config.batch_size, shared=False, pinned=True)
        return buffer.make_batch(self._config.batch_size)

    def learn(self, buffer: ReplayBuffer, batch: ReplayBatch) -> None:
        """Add the gradient of a fresh sample; every `accumulate_grad_batches` calls make an update."""
        with _replay_sample:
            buffer.sample(batch)
        self.add_gradient(self._to_device(batch))
        if self.batches % self._config.accumulate_grad_batches == 0:
            self.update()

    def add_gradient(self, fields: Mapping[str, Tensor]) -> None:
        """Add the gradient of one batch's mean loss, divided by `accumulate_grad_batches`."""
        with _learner_forward:
            loss, means = self._loss_of(*(fields[name] for name in FIELDS))
        with _backward:
            self._scaler.scale(loss / self._config.accumulate_grad_batches).backward()  # type: ignore[no-untyped-call]
            self._sums[:3] += means
            self._summed[0] += 1
            self.batches += 1
            del loss, means  # frees the graph here and not between regions

    def update(self) -> None:
        """Clip the accumulated gradient, make a step of Adam with it, and reset it to zero."""
        config = self._config
        with _optimizer_step:
            self._scaler.unscale_(self._adam)
            largest = config.max_grad_norm if config.max_grad_norm is not None else math.inf
            norm = nn.utils.clip_grad_norm_(self.network.parameters(), largest, foreach=True)
            self._scaler.step(self._adam)
            self._scaler.update()
            self._adam.zero_grad(set_to_none=False)
            if self.precision != "float16" or bool(norm.isfinite()):  # the scaler skips steps that overflow
                self._sums[3] += norm
                self._summed[1] += 1
        self.updates += 1
        if self.updates % config.target_every_updates == 0:
            self.update_target()

    def update_target(self) -> None:
        """Move the target network, running statistics included, towards the online network by `tau`."""
        with _weights_sync, torch.no_grad():
            for target, online in zip(state_tensors(self.target), state_tensors(self.network), strict=True):
                target.lerp_(online, self._config.tau)
            if self._folded_target is not None:
                self._folded_target.load(self.target)

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self._adam.param_groups:
            group["lr"] = learning_rate

    def _plain_loss_of(
        self,
        observations: Tensor,
        next_observations: Tensor,
        actions: Tensor,
        rewards: Tensor,
        discounts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch, and [loss, |TD error|, value] without gradient."""
        config = self._config
        wanted = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(self.precision)
        with torch.autocast(self.device.type, dtype=wanted, enabled=wanted is not None):
            with torch.no_grad():
                next_values = self._start_next_values(next_observations)
            if self._folded_target is not None:
                pixels = space_to_depth(observations, self._pixels, self._dtype)
                values = training_values(self.network, pixels)
            else:
                values = self._parallel(observations, batch_statistics=True)
            with torch.no_grad():
                target_next, online_next = next_values()
                targets = td_targets(
                    online_next.float(),
                    target_next.float(),
                    rewards * config.reward_scale,
                    discounts,
                    double=config.double,
                )
        errors = values.float().gather(1, actions[:, None]).squeeze(1) - targets
        loss = dqn_loss(errors, torch.ones_like(errors), huber=True)
        with torch.no_grad():
            means = torch.stack([loss.detach(), errors.detach().abs().mean(), values.detach().float().mean()])
        return loss, means.double()

    def _start_next_values(self, next_observations: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """A function that returns `_next_values`, whose work has begun in the second thread or is done.

        Weights and running statistics are those of now: the pass that learns moves the statistics.
        """
        if self._second is None:
            found = self._next_values(next_observations)
            return lambda: found
        networks, rows = self._folded_networks(), len(next_observations)
        values: dict[int, list[Tensor]] = {}

        def compute(begin: int) -> None:
            values[begin] = folded_values(networks, next_observations[begin : begin + ROWS_AT_ONCE])

        parts = self._second.start([partial(compute, begin) for begin in range(0, rows, ROWS_AT_ONCE)])

        def finish() -> tuple[Tensor, Tensor]:
            parts.finish()
            found = [torch.cat(part) for part in zip(*(values[b] for b in sorted(values)), strict=True)]
            return found[0], found[-1]

        return finish

    def _folded_networks(self) -> list[FoldedWeights]:
        """The target and, for double Q-learning, the online network, ready for `folded_values`."""
        assert self._folded_target is not None
        folded = [self._folded_target.weights]
        if self._config.double:
            folded.append(fold_batch_norm(self.network, self._dtype))
        return folded

    def _next_values(self, next_observations: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the next observations by the target and, for double Q-learning, the online network."""
        if self._config.target_statistics == "batch":
            networks = [self.target, self.network] if self._config.double else [self.target]
            if self._folded_target is not None:
                x = space_to_depth(next_observations, self._pixels, self._dtype)
                by_batch = [training_values(network, x, update_running=False) for network in networks]
            else:
                by_batch = [network(next_observations, True, update_running=False) for network in networks]
            return by_batch[0], by_batch[-1]
        if self._folded_target is not None:
            found = folded_values(self._folded_networks(), next_observations, self._pixels)
            return found[0], found[-1]
        target_next = self.target(next_observations)
        return target_next, self.network(next_observations) if self._config.double else target_next

    def _to_device(self, batch: ReplayBatch) -> Mapping[str, Tensor]:
        """The batch as tensors on the learner's device, in memory allocated once."""
        if self._batch is None or self._batch[0] is not batch:
            here = {name: tensor for name, tensor in batch.tensors().items() if name in FIELDS}
            there = here
            if self.device.type != "cpu":
                there = {name: torch.empty_like(t, device=self.device) for name, t in here.items()}
            self._batch = batch, here, there
        _, here, there = self._batch
        if there is not here:
            with _transfer:
                for name, tensor in here.items():
                    there[name].copy_(tensor, non_blocking=True)
        return there

    def statistics(self) -> dict[str, float]:
        """Means of STATISTICS since the last call; empty if nothing was learned."""
        sums, (batches, updates) = self._sums.tolist(), self._summed
        self._sums.zero_()
        self._summed = [0, 0]
        if not batches:
            return {}
        found = {name: total / batches for name, total in zip(STATISTICS[:3], sums, strict=False)}
        return found | ({STATISTICS[3]: sums[3] / updates} if updates else {})

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of weights, target, moments and the accumulated gradient, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for kind, network in (("weights", self.network), ("target", self.target)):
            tensors |= {f"{kind}.{name}": tensor for name, tensor in network.state_dict().items()}
        for name, weight in self.network.named_parameters():
            moments = self._adam.state[weight]
            assert weight.grad is not None
            tensors |= {f"first.{name}": moments["exp_avg"], f"second.{name}": moments["exp_avg_sq"]}
            tensors |= {f"step.{name}": moments["step"], f"gradient.{name}": weight.grad}
        found: dict[str, NDArray[Any]] = {
            name: tensor.detach().cpu().contiguous().numpy().copy() for name, tensor in tensors.items()
        }
        scale = self._scaler.get_scale() if self.precision == "float16" else 1.0
        found["counts"] = np.array([self.batches, self.updates], dtype=np.int64)
        found["scale"] = np.array([scale])
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a learner with the same network."""

        def restore(tensor: Tensor, name: str) -> None:
            tensor.copy_(torch.from_numpy(np.array(state[name])).reshape(tensor.shape))

        with torch.no_grad():
            for kind, network in (("weights", self.network), ("target", self.target)):
                for name, tensor in network.state_dict().items():
                    restore(tensor, f"{kind}.{name}")
            for name, weight in self.network.named_parameters():
                moments = self._adam.state[weight]
                assert weight.grad is not None
                restore(moments["exp_avg"], f"first.{name}")
                restore(moments["exp_avg_sq"], f"second.{name}")
                restore(moments["step"], f"step.{name}")
                restore(weight.grad, f"gradient.{name}")
            if self._folded_target is not None:
                self._folded_target.load(self.target)
        self.batches, self.updates = (int(count) for count in state["counts"])
        if self.precision == "float16":
            self._scaler = torch.amp.GradScaler(self.device.type, init_scale=float(state["scale"][0]))


# ---- training


def train(
    config: AsyncDQNConfig,
    make_env: Callable[[int], Any],
    *,
    distance: str | None = None,
    report: Callable[..., Any] = progress,
    note: Callable[[], str] | None = None,
    after_epoch: Callable[[int, FrameQNetwork], None] | None = None,
) -> AsyncDQNResult:
    """Train a Q-network on stacks of frames; see `AsyncDQNConfig`.

    `make_env(seed)` returns a Gymnasium env or vector env with uint8 observations [stack, height, width] and
    discrete actions; single envs are made `config.envs_per_collector` times in each collector. `distance`
    names the info that tells how far an episode came. `report` gets updates and losses in the terms of
    `hotloop.progress` (collectors report steps and episodes); `note()` returns words for the monitoring line.
    `after_epoch(epochs done, network)` is called after each; its time does not count as training.
    """
    check_config(config)
    with ExitStack() as stack:
        stack.enter_context(runs.torch_threads(config.threads))
        if config.layout == "fast":
            stack.enter_context(runs.freed_memory_kept())
        monitor = Monitor(quiet=config.quiet, note=note)
        stack.callback(monitor.close)
        stop = stack.enter_context(runs.StopRequests())
        tensorboard = runs.TensorboardLog(config.tensorboard_log)
        stack.callback(tensorboard.close)
        with _start_up:
            run = _Run(config, make_env, distance, report, monitor)
            stack.callback(run.collector.close)
            if config.target_thread and cores_granted() >= 2:
                run.learner.share_with(stack.enter_context(SecondThread()))
            run.start()
        stopped_by: str | None = None
        while not run.finished() and stopped_by is None:
            region: AbstractContextManager[Any] = _training_epoch if run.epoch_s else nullcontext()
            with region:
                stopped_by = run.train_epoch(stop)
            if stopped_by is None:
                tensorboard.write(run.env_steps, run.end_epoch())
                if after_epoch is not None:
                    run.pause(lambda: after_epoch(run.epochs, run.network))
        seconds = time.perf_counter() - run.began_s
        state = run.collector.state()
        with _shut_down:
            run.collector.close()
        unsaved = None if config.checkpoint is None else run.save(config.checkpoint)
        return run.result(seconds, state, stopped_by, unsaved)


class _Run:
    """A run under way: collectors, replay buffer, learner, and counters."""

    def __init__(
        self,
        config: AsyncDQNConfig,
        make_env: Callable[[int], Any],
        distance: str | None,
        report: Callable[..., Any],
        monitor: Monitor,
    ):
        self.config, self._report, self._monitor = config, report, monitor
        self._distance = f"info_{distance}" if distance is not None else None
        shape: dict[str, Any] = {
            "channels": tuple(config.channels),
            "features_dim": config.features_dim,
            "batch_norm": config.batch_norm,
        }
        actor = partial(make_actor, **shape, fast=config.layout == "fast", precision=config.precision)
        spaces = probe_spaces(Task(make_env, actor, n_envs=config.envs_per_collector, seed=config.seed))
        torch.manual_seed(config.seed)
        self.network = make_network(spaces, **shape)
        self.learner = FrameLearner(self.network, config)
        self._weights = np.zeros(flat_size(self.network), dtype=np.float32)
        task = Task(
            make_env,
            actor,
            n_weights=self._weights.size,
            control=config.exploration_initial_eps,
            n_envs=config.envs_per_collector,
            frame_stack=int(spaces.observation.shape[0]),
            infos=() if distance is None else (distance,),
            seed=config.seed,
        )
        self.collector = make_collector(task, config, monitor.line)
        self.buffer = make_replay(config, spaces, config.buffer_size)
        self._batch = self.learner.make_batch(self.buffer)
        warm_up(self.learner, config, spaces, self.collector.dtype)
        self.recent, self._distances = RecentEpisodes(), RecentEpisodes()
        self.epochs = self.env_steps = self._takes = self._reported_drops = 0
        self.epoch_s: list[float] = []
        self._epoch_returns: list[float] = []
        self._epoch_distances: list[float] = []
        saved = saved_run(config)
        if saved is not None:
            with runs.restoring(config.checkpoint):
                self.learner.load(saved.part("learner"))
                self.epochs, self.env_steps = saved.state["epochs"], saved.state["env_steps"]
                self.recent.load(saved.state)
                distances = saved.state["distances"]
                self._distances.add(distances, [0] * len(distances))
        self._resumed_at = self._saved_at = self.env_steps
        # A resumed run fills an empty replay buffer, so it waits for learning_starts again.
        self._learn_from = self.env_steps + config.learning_starts
        self._first_due_batch = self.learner.batches

    def start(self) -> None:
        """Start the collectors and wait for their first rows, so that start-up is not part of the loop."""
        self.collector.start()
        self._send_weights()
        self._first_step = self.env_steps
        while not self._take_rows() and not runs.stop_requested():
            pass
        self.began_s = self._epoch_began_s = time.perf_counter()
        self._learning_s = 0.0
        self._first_step, self._first_batch = self.env_steps, self.learner.batches

    def finished(self) -> bool:
        epochs = math.inf if self.config.stop_at_epochs is None else self.config.stop_at_epochs
        return self.env_steps >= self.config.total_timesteps or self.epochs >= epochs

    def train_epoch(self, stop: runs.StopRequests) -> str | None:
        """Collect and learn until the epoch is over; returns the name of a signal that arrived earlier."""
        while not self._epoch_over():
            if stop.by is not None:
                return stop.by
            self._learn()
            self._take_rows()
            every = self.config.weights_every_steps
            if every and self.env_steps - self._weights_at >= every:
                self._send_weights()
            if self._monitor.due:
                with _log:
                    self._monitor.show(self._pipeline())
        self._learn()
        return None

    def _epoch_over(self) -> bool:
        if self.config.epoch_steps:
            return self._steps_to_epoch_end() <= 0
        return len(self._epoch_returns) >= self.config.episodes_per_epoch

    def _steps_to_epoch_end(self) -> int:
        """Env steps left in this epoch of `epoch_steps`; epochs are counted from the run's first step."""
        done = self.env_steps - self._first_step
        return self.config.epoch_steps * (len(self.epoch_s) + 1) - done

    def _take_rows(self) -> int:
        """Copy what the collectors have to the replay buffer; returns the number of rows."""
        config, most, timeout_s = self.config, self.config.experience_batch_size, WAIT_S
        if config.transport == "serial":
            # Rows are collected while we wait, one step of every environment: more would only use older
            # weights. No clock ends it, so that the same seed gives the same agent on any machine.
            most, timeout_s = min(most, config.n_envs), math.inf
        elif config.epoch_steps:  # the next epoch takes its own
            most = max(min(most, self._steps_to_epoch_end()), 1)
        blocks = self.collector.take(most, timeout_s, min(self._rows_to_wait_for(), most))
        taken = 0
        with _replay_push as region:
            for rows in blocks:
                self.buffer.push_rows(rows)
                self._count(rows)
                taken += len(rows)
            self.collector.release()
            region.add(bytes=taken * self.collector.dtype.itemsize)
        if taken:
            self._takes += 1
            with _weights_sync:
                self.collector.publish(control=self.epsilon())
        return taken

    def _rows_to_wait_for(self) -> int:
        """What is missing for the next batch, but no more than there is room for."""
        config = self.config
        if not config.replay_ratio:
            return 1
        missing = (
            self._learn_from + (self._learned() + config.batch_size) / config.replay_ratio - self.env_steps
        )
        room = config.queue_size if config.transport != "serial" else config.experience_batch_size
        return int(max(1, min(missing, config.experience_batch_size, room // 2)))

    def _count(self, rows: Rows) -> None:
        """Count the steps and episodes of rows that were taken."""
        self.env_steps += int(np.count_nonzero(~rows["first"]))
        ended = rows["episode_length"] > 0
        if ended.any():
            returns = rows["episode_return"][ended].tolist()
            self.recent.add(returns, rows["episode_length"][ended].tolist())
            self._epoch_returns += returns
            if self._distance is not None:
                distances = rows[self._distance][ended]
                distances = distances[np.isfinite(distances)].tolist()
                self._distances.add(distances, [0] * len(distances))
                self._epoch_distances += distances

    def _learned(self) -> int:
        """Transitions learned from since learning was first due."""
        return (self.learner.batches - self._first_due_batch) * self.config.batch_size

    def _learn(self) -> None:
        """Learn from the batches that are due."""
        config, learner = self.config, self.learner
        began_s, batches, updates = time.perf_counter(), learner.batches, learner.updates
        learner.set_learning_rate(self.learning_rate())
        while len(self.buffer) and (
            self._learned() + config.batch_size <= (self.env_steps - self._learn_from) * config.replay_ratio
        ):
            learner.learn(self.buffer, self._batch)
        if learner.batches > batches:
            self._learning_s += time.perf_counter() - began_s
            self._report(updates=learner.updates - updates)

    def epsilon(self) -> float:
        """Probability of a random action now."""
        done = min(self.env_steps / self.config.exploration_steps, 1.0)
        initial, final = self.config.exploration_initial_eps, self.config.exploration_final_eps
        return initial + done * (final - initial)

    def learning_rate(self) -> float:
        initial, final = self.config.learning_rate, self.config.final_learning_rate
        if final is None:
            return initial
        return initial + min(self.env_steps / self.config.total_timesteps, 1.0) * (final - initial)

    def pause(self, call: Callable[[], None]) -> None:
        """Call a function without counting its time; the collectors wait once their queues are full."""
        began_s = time.perf_counter()
        call()
        passed_s = time.perf_counter() - began_s
        self.began_s += passed_s
        self._epoch_began_s += passed_s

    def _send_weights(self) -> None:
        self._weights_at = self.env_steps
        with _weights_sync:
            self.collector.publish(flatten_into(self.network, self._weights), control=self.epsilon())

    def end_epoch(self) -> dict[str, float | None]:
        """Report the epoch, send weights and save when that is due; returns metrics for TensorBoard."""
        config = self.config
        with _log:
            self.epochs += 1
            now_s = time.perf_counter()
            self.epoch_s.append(now_s - self._epoch_began_s)
            self._epoch_began_s = now_s
            means = self.learner.statistics()
            runs.check_finite(means, self.env_steps, config.checkpoint)
            if means:
                self._report(loss=means["loss"])
            now = self._pipeline()
            self._record_drops(now.collectors)
            epoch = Epoch(
                self.epochs,
                self.epoch_s[-1],
                means.get("loss"),
                means.get("td_error"),
                _mean(self._epoch_returns),
                _mean(self._epoch_distances),
                self.epsilon(),
                len(self.buffer),
            )
            self._monitor.epoch(epoch, now)
        if not config.weights_every_steps and self.epochs % config.weights_every_epochs == 0:
            self._send_weights()
        if config.checkpoint is not None and self.env_steps - self._saved_at >= config.checkpoint_every_steps:
            self.save(config.checkpoint)
        self._epoch_returns, self._epoch_distances = [], []
        return {
            **means,
            "reward": epoch.mean_return,
            "distance": epoch.distance,
            "epsilon": epoch.epsilon,
            "learning_rate": self.learning_rate(),
            "replay": float(epoch.buffer),
            "epoch_s": epoch.seconds,
            "learner_busy_fraction": now.busy,
            "lock_wait_s": now.collectors.lock_wait_s,
            "drops": float(now.collectors.dropped),
            "versions_behind": now.collectors.versions_behind,
        }

    def _pipeline(self) -> Pipeline:
        return Pipeline(
            self.env_steps,
            self._takes,
            len(self.buffer),
            time.perf_counter() - self.began_s,
            self.env_steps - self._first_step,
            self.learner.batches - self._first_batch,
            self._learning_s,
            self.collector.state(),
        )

    def _record_drops(self, state: CollectorState) -> None:
        """Put dropped rows into the capture: one call of a region, with their bytes."""
        if state.dropped > self._reported_drops:
            with _rows_dropped as region:
                region.add(bytes=(state.dropped - self._reported_drops) * self.collector.dtype.itemsize)
            self._reported_drops = state.dropped

    def save(self, path: Path) -> str | None:
        """Write a checkpoint without the replay buffer; returns why it could not be written."""
        state = {"epochs": self.epochs, "env_steps": self.env_steps, **self.recent.state()}
        state["distances"] = list(self._distances.returns)
        with _checkpoint:
            unsaved = runs.save_run(
                path, self.config, env_steps=self.env_steps, learner=self.learner.state(), state=state
            )
        self._saved_at = self.env_steps
        return unsaved

    def result(
        self, seconds: float, state: CollectorState, stopped_by: str | None, unsaved: str | None
    ) -> AsyncDQNResult:
        return AsyncDQNResult(
            network=self.network,
            epochs=self.epochs,
            env_steps=self.env_steps,
            batches=self.learner.batches,
            updates=self.learner.updates,
            episodes=self.recent.finished,
            mean_return=self.recent.mean_return,
            mean_length=self.recent.mean_length,
            mean_distance=self._distances.mean_return,
            seconds=seconds,
            resumed_at=self._resumed_at,
            loop_env_steps=self.env_steps - self._first_step,
            loop_batches=self.learner.batches - self._first_batch,
            epoch_s=tuple(self.epoch_s),
            learner_busy_fraction=self._learning_s / seconds if seconds > 0 else 0.0,
            collector_busy_fraction=mean_busy_fraction(state),
            lock_wait_s=state.lock_wait_s,
            dropped=state.dropped,
            versions_behind=state.versions_behind,
            restarts=state.restarts,
            stopped_by=stopped_by,
            unsaved=unsaved,
            nonfinite=state.nonfinite,
            precision=self.learner.precision,
        )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def upgrade_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Settings of a checkpoint by hotloop 0.1, which counted the length of a run in epochs."""
    renamed = {
        "accumulate": "accumulate_grad_batches",
        "collectors": "n_collectors",
        "drop": "drop_when_full",
        "envs": "envs_per_collector",
        "epsilon_steps": "exploration_steps",
        "hang_s": "hang_timeout_s",
        "learn_per_step": "replay_ratio",
        "learning_rate_end": "final_learning_rate",
        "net_arch": "features_dim",
        "norm": "batch_norm",
        "norm_momentum": "batch_norm_momentum",
        "ring": "queue_size",
        "target_update_interval": "target_every_updates",
        "weights_every": "weights_every_epochs",
    }
    kept = {renamed.get(name, name): value for name, value in saved.items() if name != "n_epochs"}
    return {"target_statistics": "running"} | kept
