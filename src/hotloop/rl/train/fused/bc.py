"""The fused learner of `bc.py`: whole epochs, gathering included, in one kernel call.

`bc.TorchLearner` is the reference: with the same order of samples, the weights agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.compiled import fast_kernel, not_inlined
from hotloop.rl.train.fused.flat import bind, lay_out, make_flat, views
from hotloop.rl.train.fused.layers import CHUNK, COLUMNS, HIDDEN, Table
from hotloop.rl.train.fused.tiles import Floats
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import ADAM_BETAS, ADAM_EPS, Arrays, Stopwatch

if TYPE_CHECKING:
    from hotloop.rl.train.bc import BCConfig

_update = profile("fused_update", "model")
_compile = profile("compile_kernels", "other")

Words = NDArray[np.int64]


# ---- kernels


class Actor(NamedTuple):
    """The actor and Adam's moments; the caller owns the arrays."""

    parameters: Floats
    first: Floats
    second: Floats
    steps: Words
    table: Table
    packed: Floats
    packed_transposed: Floats
    packed_grads: Floats
    hidden: Floats
    deltas: Floats
    grads: Floats
    inputs: Floats
    """[CHUNK * width]: the observations of a chunk."""


@fast_kernel
def pack(actor: Actor) -> None:
    """Update the packed weights after something else wrote to the parameters."""
    layers.pack(actor.table, actor.parameters, actor.packed, actor.packed_transposed)


@fast_kernel
def gather(rows: Words, observations: Floats, inputs: Floats) -> None:
    """Copy the observations [samples, width] at `rows` into `inputs`, one after the other."""
    width = observations.shape[1]
    for i in range(rows.size):
        source, target = observations[rows[i]], inputs[i * width : (i + 1) * width]
        for j in range(width):
            target[j] = source[j]


@fast_kernel
def errors(
    actor: Actor, observations: Floats, actions: Floats, rows: Words, share: np.float32, learn: bool
) -> float:
    """The sum of squared errors of the squashed means for at most CHUNK samples.

    With `learn` the gradient of `share` times that sum is added to the actor's packed gradients.
    """
    not_inlined()
    table, count = actor.table, actions.shape[1]
    last = table.shape[0] - 1
    out, columns = table[last, HIDDEN], table[last, COLUMNS]
    gather(rows, observations, actor.inputs)
    layers.forward(table, actor.packed, actor.inputs, 0, actor.hidden, rows.size)
    total = 0.0
    two, one = np.float32(2.0), np.float32(1.0)
    for i in range(rows.size):
        at = out + i * columns
        delta = actor.deltas[at : at + columns]
        for j in range(columns):
            delta[j] = np.float32(0.0)  # also of the log standard deviations, which cloning does not train
        for a in range(count):
            squashed = layers.tanh(actor.hidden[at + a])
            error = squashed - actions[rows[i], a]
            total += error * error
            delta[a] = share * two * error * (one - squashed * squashed)
    if learn:
        layers.backward(
            table,
            actor.packed_transposed,
            actor.inputs,
            0,
            actor.hidden,
            actor.deltas,
            rows.size,
            actor.packed_grads,
        )
    return total


@fast_kernel
def epoch(
    actor: Actor,
    observations: Floats,
    actions: Floats,
    order: Words,
    batch: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> float:
    """One Adam step for every `batch` samples of `order`; returns the mean squared error before each step."""
    total = 0.0
    for begin in range(0, order.size, batch):
        end = min(begin + batch, order.size)
        share = np.float32(1.0 / ((end - begin) * actions.shape[1]))
        for start in range(begin, end, CHUNK):
            rows = order[start : min(start + CHUNK, end)]
            total += errors(actor, observations, actions, rows, share, True)
        layers.unpack_grads(actor.table, actor.packed_grads, actor.grads)
        actor.steps[0] += 1
        layers.adam(
            actor.parameters, actor.grads, actor.first, actor.second, actor.steps[0],
            learning_rate, beta1, beta2, epsilon, 1.0,
        )  # fmt: skip
        layers.pack(actor.table, actor.parameters, actor.packed, actor.packed_transposed)
    return float(total / (order.size * actions.shape[1]))


@fast_kernel
def mean_error(actor: Actor, observations: Floats, actions: Floats, order: Words) -> float:
    """The mean squared error over the samples of `order`, without training."""
    total = 0.0
    for start in range(0, order.size, CHUNK):
        rows = order[start : min(start + CHUNK, order.size)]
        total += errors(actor, observations, actions, rows, np.float32(0.0), False)
    return float(total / (order.size * actions.shape[1]))


# ---- learner


class FusedBC:
    """A drop-in replacement of `bc.TorchLearner`; the actor's parameters become views of a flat array."""

    name = "fused"
    worker_memory = None  # batches are gathered in the kernel

    def __init__(
        self, actor: SquashedActor, config: BCConfig, learn: Samples, held_out: Samples, stopwatch: Stopwatch
    ):
        (layout,), work = lay_out((actor.sizes, actor.activation))
        flat = make_flat([layout])
        bind(layout, actor.layers, flat)
        self.actor, self._layout, self._config = actor, layout, config
        self._learn, self._held_out = learn, held_out
        self._held_out_rows = np.arange(len(held_out))
        self._state = Actor(
            flat, np.zeros_like(flat), np.zeros_like(flat), np.zeros(1, dtype=np.int64), layout.table,
            work.packed, work.packed_transposed, work.packed_grads, work.hidden, work.deltas, work.grads,
            np.zeros(layers.CHUNK * actor.sizes[0], dtype=np.float32),
        )  # fmt: skip
        self._learning = stopwatch.part("forward/backward", _update)
        with _compile:
            self.weights_changed()
            self._train_epoch(np.zeros(0, dtype=np.int64))
            self.held_out_loss()

    def close(self) -> None:
        """Nothing to stop."""

    def weights_changed(self) -> None:
        """Repack the weights; call it after something else wrote to the parameters."""
        pack(self._state)

    def train_epoch(self, order: NDArray[np.int64]) -> float:
        """Train on all samples in this order; returns their mean loss before each gradient step."""
        with self._learning:
            return self._train_epoch(order)

    def _train_epoch(self, order: NDArray[np.int64]) -> float:
        config, learn = self._config, self._learn
        return epoch(
            self._state, learn.observations, learn.actions, order, config.batch_size, config.learning_rate,
            *ADAM_BETAS, ADAM_EPS,
        )  # fmt: skip

    def held_out_loss(self) -> float:
        held_out = self._held_out
        return mean_error(self._state, held_out.observations, held_out.actions, self._held_out_rows)

    def state(self) -> Arrays:
        """Weights and Adam's moments under the names of the actor's parameters; copies."""
        found: Arrays = {"steps": self._state.steps.copy()}
        return found | {name: view.numpy().copy() for name, view in self._named_views()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a torch or fused learner with the same network."""
        self._state.steps[:] = state["steps"]
        for name, view in self._named_views():
            view.copy_(torch.from_numpy(state[name]))
        self.weights_changed()

    def _named_views(self) -> list[tuple[str, torch.Tensor]]:
        own = self._state
        return [
            (f"{kind}.layers.{name}", view)
            for kind, flat in (("weights", own.parameters), ("first", own.first), ("second", own.second))
            for name, view in views(self._layout, self.actor.layers, flat).items()
        ]
