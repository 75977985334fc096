"""Who clones: kernels for small dense actors, and torch with both ways of loading, which is their twin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hotloop import profile
from hotloop.machine.process_memory import ProcessMemory, largest_memory
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.train.fused import bc as kernels
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.flat import bind, lay_out, make_flat, views
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import Stopwatch

if TYPE_CHECKING:
    from hotloop.rl.train.bc import BCConfig

_load = profile("data_load")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer = profile("optimizer_step")
_fused = profile("fused_update", "model")
_compile = profile("compile_kernels", "other")

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class FusedLearner:
    """The actor in kernels; its parameters become views of the flat ones."""

    name = "fused"

    def __init__(
        self, actor: SquashedActor, config: BCConfig, learn: Samples, held_out: Samples, watch: Stopwatch
    ):
        (layout,), work = lay_out((actor.sizes, actor.activation))
        flat = make_flat([layout])
        bind(layout, actor.layers, flat)
        self.actor, self._layout, self._config = actor, layout, config
        self._learn, self._held_out = learn, held_out
        self._held_out_rows = np.arange(len(held_out))
        self._state = kernels.Actor(
            flat, np.zeros_like(flat), np.zeros_like(flat), np.zeros(1, dtype=np.int64), layout.table,
            work.packed, work.packed_transposed, work.packed_grads, work.hidden, work.deltas, work.grads,
            np.zeros(layers.CHUNK * actor.sizes[0], dtype=np.float32),
        )  # fmt: skip
        self._learning = watch.part("forward/backward", _fused)
        with _compile:
            kernels.pack(self._state)
            self._epoch(np.zeros(0, dtype=np.int64))
            self.held_out_loss()

    def epoch(self, order: NDArray[np.int64]) -> float:
        """Learn from all samples in this order; returns the mean loss on the way."""
        with self._learning:
            return self._epoch(order)

    def _epoch(self, order: NDArray[np.int64]) -> float:
        return kernels.epoch(
            self._state,
            self._learn.observations,
            self._learn.actions,
            order,
            self._config.batch_size,
            self._config.learning_rate,
            BETA1,
            BETA2,
            EPSILON,
        )

    def held_out_loss(self) -> float:
        """The loss on the samples held out."""
        return kernels.mean_error(
            self._state, self._held_out.observations, self._held_out.actions, self._held_out_rows
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and Adam's moments under the names of the actor's parameters; copies."""
        found: dict[str, NDArray[Any]] = {"steps": self._state.steps.copy()}
        for kind, flat in self._flats():
            for name, view in views(self._layout, self.actor.layers, flat).items():
                found[f"{kind}.layers.{name}"] = view.numpy().copy()
        return found

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Take up what `state` gave."""
        self._state.steps[:] = state["steps"]
        for kind, flat in self._flats():
            for name, view in views(self._layout, self.actor.layers, flat).items():
                view.copy_(torch.from_numpy(state[f"{kind}.layers.{name}"]))
        kernels.pack(self._state)

    def _flats(self) -> list[tuple[str, NDArray[np.float32]]]:
        own = self._state
        return [("weights", own.parameters), ("first", own.first), ("second", own.second)]


class Items(Dataset[tuple[Tensor, Tensor]]):
    """Samples one by one, as a DataLoader asks for them."""

    def __init__(self, samples: Samples):
        self._observations = torch.from_numpy(samples.observations)
        self._actions = torch.from_numpy(samples.actions)

    def __len__(self) -> int:
        return len(self._actions)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self._observations[place], self._actions[place]


class Order:
    """A DataLoader's sampler that gives the order it was told last."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class TorchLearner:
    """The plain twin, with both ways of loading."""

    name = "torch"

    def __init__(
        self, actor: SquashedActor, config: BCConfig, learn: Samples, held_out: Samples, watch: Stopwatch
    ):
        self.actor, self._config, self._samples = actor, config, len(learn)
        self._observations = torch.from_numpy(learn.observations)
        self._actions = torch.from_numpy(learn.actions)
        self._held_out = (torch.from_numpy(held_out.observations), torch.from_numpy(held_out.actions))
        self._adam = torch.optim.Adam(
            actor.parameters(), lr=config.learning_rate, betas=(BETA1, BETA2), eps=EPSILON, fused=True
        )
        for weight in actor.parameters():
            self._adam.state[weight] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        self.worker_memory: ProcessMemory | None = None
        self._order = Order()
        self._loader: DataLoader[Any] | None = None
        if config.loading == "loader":
            self._loader = DataLoader(
                Items(learn),
                batch_size=config.batch_size,
                sampler=self._order,
                num_workers=config.loading_workers,
                persistent_workers=config.loading_workers > 0,
                pin_memory=torch.cuda.is_available(),
            )
        self._loading = watch.part("loading", _load)
        self._parts = [
            watch.part("forward/backward", region) for region in (_forward, _loss, _backward, _optimizer)
        ]

    def __enter__(self) -> TorchLearner:
        return self

    def __exit__(self, *_: object) -> None:
        """End the loading processes."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
        self._loader = None

    def epoch(self, order: NDArray[np.int64]) -> float:
        """Learn from all samples in this order; returns the mean loss on the way."""
        total, batches = 0.0, self._batches(order)
        forward, loss_part, backward, optimizer = self._parts
        while True:
            with self._loading:
                batch = next(batches, None)
            if batch is None:
                break
            observations, actions = batch
            with forward:
                squashed = self.actor.best(observations)
            with loss_part:
                loss = (squashed - actions).square().mean()
            with backward:
                self._adam.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
            with optimizer:
                self._adam.step()
                total += float(loss.detach()) * len(actions)
        return total / len(order)

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
        """The loss on the samples held out."""
        observations, actions = self._held_out
        with torch.inference_mode():
            return float((self.actor.best(observations) - actions).square().mean())

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and Adam's moments under the names of the actor's parameters; copies."""
        found: dict[str, NDArray[Any]] = {}
        for name, weight in self.actor.named_parameters():
            moments = self._adam.state[weight]
            found["steps"] = np.array([int(moments["step"])], dtype=np.int64)
            found[f"weights.{name}"] = weight.detach().numpy().copy()
            found[f"first.{name}"] = moments["exp_avg"].numpy().copy()
            found[f"second.{name}"] = moments["exp_avg_sq"].numpy().copy()
        return found

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Take up what `state` gave."""
        with torch.no_grad():
            for name, weight in self.actor.named_parameters():
                moments = self._adam.state[weight]
                weight.copy_(torch.from_numpy(state[f"weights.{name}"]))
                moments["exp_avg"].copy_(torch.from_numpy(state[f"first.{name}"]))
                moments["exp_avg_sq"].copy_(torch.from_numpy(state[f"second.{name}"]))
                moments["step"].fill_(float(state["steps"][0]))
