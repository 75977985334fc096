"""The learner of asynchronous DQN: batches of stacked frames in, updates of one network out.

A batch's gradient is added to those before it; every `accumulate` batches make one update, equal to the
update of one batch as large as all of them. Batch normalisation takes its statistics over one batch of
`batch_size`, so the large batch that it equals is one normalised in groups of that size; without
normalisation it is any large batch. (The choice of the next action reads running statistics, which move with
every batch, so there a choice may differ.)

Gradients flow through the batch's statistics where values are learnt. Everywhere else (the target, the choice
of the next action, acting) the running statistics hold, so that what acts is what is valued.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.train.async_dqn_config import AsyncDQNConfig, Precision
from hotloop.rl.train.dqn import dqn_loss, td_targets
from hotloop.rl.train.networks.frames import (
    Folded,
    FrameQNetwork,
    folded,
    learning_values,
    state_tensors,
    values_of,
)
from hotloop.rl.train.networks.prepare import is_preparable, prepared

_sample = profile("replay_sample")
_transfer = profile("transfer")
_forward = profile("learner_forward")
_backward = profile("backward")
_optimizer = profile("optimizer_step")
_sync = profile("weights_sync")

NAMES = ("loss", "td_error", "value", "gradient_norm")
_FIELDS = ("observations", "next_observations", "actions", "rewards", "discounts")
Fields = Mapping[str, Tensor]


def choose_device(wanted: str) -> torch.device:
    """The device to learn on; raises HotloopError for one that is not there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(wanted)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise HotloopError(f"device={wanted!r} is not known; use auto, cpu or cuda.")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise HotloopError(f"device={wanted!r} needs a GPU that torch can use, and there is none; use cpu.")
    return found


def choose_precision(wanted: Precision, device: torch.device) -> str:
    """What products are computed in: see `AsyncDQNConfig.precision`."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "float16"
    return "bfloat16" if cpu_has_bfloat16() else "float32"


def cpu_has_bfloat16(description: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor multiplies bfloat16 by itself; without that it is slower than float32."""
    try:
        flags = description.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(word in flags for word in ("avx512_bf16", "amx_bf16", " bf16"))


class FrameLearner:
    """Owns the target network, Adam's moments and the gradients under way; `network` stays the caller's."""

    def __init__(self, network: FrameQNetwork, config: AsyncDQNConfig):
        self._config, self.device = config, choose_device(config.device)
        self.precision = choose_precision(config.precision, self.device)
        self._fast = config.layout == "fast" and is_preparable(network.shape) and not config.data_parallel
        form = torch.channels_last if self._fast else torch.contiguous_format
        self.network = network.to(self.device, memory_format=form)  # type: ignore[call-overload]
        for layer in network.norms:
            cast(nn.BatchNorm2d, layer).momentum = config.norm_momentum
        self.target = copy.deepcopy(network).requires_grad_(False)
        self._folded = Folded(self.target) if self._fast else None
        self._ready = self._memory_for_pixels() if self._fast and not config.compile else None
        self._parallel = nn.DataParallel(network) if config.data_parallel else network
        self._adam = torch.optim.Adam(
            network.parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        for weight in network.parameters():
            weight.grad = torch.zeros_like(weight)
            self._adam.state[weight] = {
                "step": torch.zeros((), device=self.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        self._loss_of = torch.compile(self._plain_loss_of) if config.compile else self._plain_loss_of
        self._sums = torch.zeros(len(NAMES), dtype=torch.float64, device=self.device)
        self._summed = [0, 0]  # batches and updates in the sums
        self._batch: tuple[ReplayBatch, dict[str, Tensor], dict[str, Tensor]] | None = None
        self.batches = self.updates = 0

    def _memory_for_pixels(self) -> Tensor | None:
        """Where a batch's pixels are prepared, made once; a GPU manages its own memory."""
        stack, height, width = self.network.shape
        shape = (self._config.batch_size, height // 4, width // 4, 16 * stack)
        return torch.zeros(shape) if self.device.type == "cpu" else None

    # ---- learning

    def make_batch(self, buffer: ReplayBuffer) -> ReplayBatch:
        """Memory for samples, made once; on a GPU's machine it is pinned."""
        if self.device.type == "cuda":
            return buffer.make_batch(self._config.batch_size, shared=False, pinned=True)
        return buffer.make_batch(self._config.batch_size)

    def learn(self, buffer: ReplayBuffer, batch: ReplayBatch) -> None:
        """Sample a batch and add its gradient; every `accumulate`-th call makes the update."""
        with _sample:
            buffer.sample(batch)
        self.add(self._fields(batch))
        if self.batches % self._config.accumulate == 0:
            self.update()

    def add(self, fields: Fields) -> None:
        """Add the gradient of one batch's mean loss, divided by `accumulate`."""
        with _forward:
            loss, numbers = self._loss_of(*(fields[name] for name in _FIELDS))
        with _backward:
            self._scaler.scale(loss / self._config.accumulate).backward()  # type: ignore[no-untyped-call]
        self._sums[:3] += numbers
        self._summed[0] += 1
        self.batches += 1

    def update(self) -> None:
        """Clip the gradient collected, make Adam's step with it, begin the next from zero."""
        config = self._config
        with _optimizer:
            self._scaler.unscale_(self._adam)
            largest = config.max_grad_norm if config.max_grad_norm is not None else float("inf")
            norm = nn.utils.clip_grad_norm_(self.network.parameters(), largest, foreach=True)
            self._scaler.step(self._adam)
            self._scaler.update()
            self._adam.zero_grad(set_to_none=False)
        if self.precision != "float16" or bool(norm.isfinite()):  # the scaler skips steps that overflow
            self._sums[3] += norm
            self._summed[1] += 1
        self.updates += 1
        if self.updates % config.target_every == 0:
            self.follow()

    def set_rate(self, learning_rate: float) -> None:
        """Adam's step size from the next update on."""
        for group in self._adam.param_groups:
            group["lr"] = learning_rate

    def _plain_loss_of(
        self, observations: Tensor, later: Tensor, actions: Tensor, rewards: Tensor, discounts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch, and (loss, |error|, value) without gradient."""
        config, network = self._config, self.network
        with self._autocast():
            with torch.no_grad():
                online_next: Tensor
                if self._folded is not None:
                    both = (
                        (self._folded.weights, folded(network)) if config.double else (self._folded.weights,)
                    )
                    later_values = values_of(both, later)
                    target_next, online_next = later_values[0], later_values[-1]
                else:
                    target_next = online_next = self.target(later)
                    if config.double:
                        online_next = network(later)
                targets = td_targets(
                    online_next.float(),
                    target_next.float(),
                    rewards * config.reward_scale,
                    discounts,
                    double=config.double,
                )
            if self._folded is not None:
                values = learning_values(network, prepared(observations, self._ready))
            else:
                values = self._parallel(observations, batch_statistics=True)
        errors = values.float().gather(1, actions[:, None]).squeeze(1) - targets
        loss = dqn_loss(errors, torch.ones_like(errors), huber=True)
        with torch.no_grad():
            numbers = torch.stack(
                [loss.detach(), errors.detach().abs().mean(), values.detach().float().mean()]
            )
        return loss, numbers.double()

    def _autocast(self) -> AbstractContextManager[Any]:
        wanted = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(self.precision)
        return torch.autocast(self.device.type, dtype=wanted, enabled=wanted is not None)

    def _fields(self, batch: ReplayBatch) -> Fields:
        """The batch as tensors on the learner's device, in memory made once."""
        if self._batch is None or self._batch[0] is not batch:
            here = {name: tensor for name, tensor in batch.tensors().items() if name in _FIELDS}
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

    def follow(self) -> None:
        """Move the target, running statistics included, towards the network by `target_rate`."""
        with _sync, torch.no_grad():
            for mine, theirs in zip(state_tensors(self.target), state_tensors(self.network), strict=True):
                mine.lerp_(theirs, self._config.target_rate)
            if self._folded is not None:
                self._folded.load(self.target)

    def statistics(self) -> dict[str, float]:
        """Means since they were last asked for, by `NAMES`; empty when nothing was learnt."""
        sums, (batches, updates) = self._sums.tolist(), self._summed
        self._sums.zero_()
        self._summed = [0, 0]
        if not batches:
            return {}
        found = {name: total / batches for name, total in zip(NAMES[:3], sums, strict=False)}
        return found | ({NAMES[3]: sums[3] / updates} if updates else {})

    # ---- keeping

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights, target, moments and the gradient under way; copies."""
        found: dict[str, NDArray[Any]] = {}

        def put(name: str, tensor: Tensor) -> None:
            found[name] = tensor.detach().cpu().contiguous().numpy().copy()

        for kind, network in (("weights", self.network), ("target", self.target)):
            for name, tensor in network.state_dict().items():
                put(f"{kind}.{name}", tensor)
        for name, weight in self.network.named_parameters():
            moments = self._adam.state[weight]
            put(f"first.{name}", moments["exp_avg"])
            put(f"second.{name}", moments["exp_avg_sq"])
            put(f"step.{name}", moments["step"])
            assert weight.grad is not None
            put(f"gradient.{name}", weight.grad)
        scale = self._scaler.get_scale() if self.precision == "float16" else 1.0
        found["counts"] = np.array([self.batches, self.updates], dtype=np.int64)
        found["scale"] = np.array([scale])
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` of a learner with the same network gave."""

        def get(tensor: Tensor, name: str) -> None:
            given = torch.from_numpy(np.array(state[name]))
            tensor.copy_(given.reshape(tensor.shape))

        with torch.no_grad():
            for kind, network in (("weights", self.network), ("target", self.target)):
                for name, tensor in network.state_dict().items():
                    get(tensor, f"{kind}.{name}")
            for name, weight in self.network.named_parameters():
                moments = self._adam.state[weight]
                get(moments["exp_avg"], f"first.{name}")
                get(moments["exp_avg_sq"], f"second.{name}")
                get(moments["step"], f"step.{name}")
                assert weight.grad is not None
                get(weight.grad, f"gradient.{name}")
            if self._folded is not None:
                self._folded.load(self.target)
        self.batches, self.updates = (int(count) for count in state["counts"])
        if self.precision == "float16":
            self._scaler = torch.amp.GradScaler(self.device.type, init_scale=float(state["scale"][0]))
