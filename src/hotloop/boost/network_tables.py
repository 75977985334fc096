"""Where kernels find networks: places in their own arrays, and addresses of torch's tensors.

Addresses are read again before each `train`, because `load`, `set_parameters` or anyone may have replaced the
tensors; then there is nothing that could be out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotloop.boost import dense_kernels as dense
from hotloop.boost import off_policy_kernels as kernels
from hotloop.boost.optimizer_state import KnownState
from hotloop.boost.selected_sums import BITS, TABLES_SIZE
from hotloop.rl.train.fused.flat import aligned_zeros
from hotloop.rl.train.fused.tiles import padded

_data_ptr = torch.Tensor.data_ptr


class Layout:
    """Places in the kernels' arrays for batches of one size."""

    def __init__(self, batch_size: int):
        self.samples = padded(batch_size)
        self.rows = self.grads = 0
        self.widest = 1

    def region(self, rows: int) -> int:
        """A place for activations [rows, samples]."""
        self.rows += rows
        return (self.rows - rows) * self.samples

    def table(
        self,
        linears: Sequence[nn.Linear],
        kind: int,
        input_at: int,
        tensor: int = 0,
        heads: int = 1,
        after: int = 0,
    ) -> NDArray[np.int64]:
        """A network's table with new places; `after` more rows follow the output."""
        found = np.zeros((len(linears), dense.TABLE_WIDTH), dtype=np.int64)
        below, source = -1, input_at
        for layer, linear in enumerate(linears):
            inputs, outputs = linear.in_features, linear.out_features
            is_head = layer >= len(linears) - heads
            out = self.region(outputs)
            activation = dense.NONE if is_head else kind
            found[layer] = (inputs, outputs, tensor + 2 * layer, source, out, activation, self.grads, below)
            self.grads += outputs * (padded(inputs) + 1)
            self.widest = max(self.widest, inputs)
            if not is_head:
                below, source = layer, out
        self.region(after)
        return found

    def memory(self, threads: int = 1) -> kernels.Memory:
        """The arrays, for kernels that run on that many threads."""
        size = self.rows * self.samples
        across = self.samples * padded(self.widest)
        return kernels.Memory(
            work=aligned_zeros(size),
            deltas=aligned_zeros(size),
            slopes=aligned_zeros(size),
            grads=aligned_zeros(self.grads),
            across=aligned_zeros(threads * across).reshape(threads, across),
            sums=aligned_zeros(threads * TABLES_SIZE).reshape(threads, TABLES_SIZE),
            codes=np.zeros((threads, across // BITS), dtype=np.uint8),
        )


def reading(table: NDArray[np.int64], input_at: int) -> NDArray[np.int64]:
    """The same network in the same places, but with another input."""
    found = table.copy()
    found[found[:, dense.BELOW] < 0, dense.INPUT_AT] = input_at
    return found


def tables_of_critics(
    layout: Layout, critics: Sequence[tuple[Sequence[nn.Linear], int]], inputs_at: Sequence[int], after: int
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """The table of each critic, and those of all passes [inputs, critics, layers, columns]."""
    tables, tensor = [], 0
    for linears, kind in critics:
        tables.append(layout.table(linears, kind, 0, tensor, after=after))
        tensor += 2 * len(linears)
    return tables, np.array([[reading(table, at) for table in tables] for at in inputs_at])


class Tensors:
    """The tensors of one optimizer: weights, Adam's state, target weights."""

    def __init__(
        self,
        optimizer: Any,
        names: Sequence[str],
        weights: Sequence[Any],
        targets: Sequence[Any] | None = None,
    ):
        self.optimizer, self.names = optimizer, names
        self.weights, self.targets = list(weights), list(targets or weights)
        self.has_targets = targets is not None
        self.addresses = np.zeros((len(self.weights), dense.ADDRESSES), dtype=np.int64)
        self.settings = np.zeros(dense.OPTIMIZER_SETTINGS)
        self.settings[dense.MAX_GRAD_NORM] = -1.0
        self.state = KnownState(optimizer)
        self._moments: list[list[Any]] = []
        self._all: list[Any] = []
        self._known: list[int] = []
        self._grads: list[Any] = []

    def show_gradients(self, tables: Iterable[NDArray[np.int64]], grads: NDArray[np.float32]) -> None:
        """Let `.grad` be the kernels' own gradients from now on: views, one for each weight and bias."""
        memory = torch.from_numpy(grads)
        self._grads = []
        for inputs, outputs, *_, at, _ in chain(*tables):
            end = int(at + inputs * outputs)
            self._grads.append(memory[int(at) : end].view(int(outputs), int(inputs)))
            self._grads.append(memory[end : end + int(outputs)])

    def show_gradient(self, gradient: NDArray[np.float32]) -> None:
        """The same for a single tensor of one number."""
        self._grads = [torch.from_numpy(gradient)]

    def write_grads(self) -> None:
        """Leave the last gradients in `.grad`, where callbacks look for them.

        The library and users replace them all at once (`zero_grad`, `backward`), so checking one is enough.
        """
        if self.weights[0].grad is not self._grads[0]:
            for weight, gradient in zip(self.weights, self._grads, strict=True):
                weight.grad = gradient

    def refresh(self) -> bool:
        """Find out where the tensors are now and read the optimizer's settings; True if tensors moved."""
        optimizer = self.optimizer
        if not self._moments or self.state.changed():
            self._find_moments()
        now = [*map(_data_ptr, self._all)]
        moved = now != self._known
        if moved:
            self._known = now
            self.addresses[:] = np.array(now, dtype=np.int64).reshape(dense.ADDRESSES, -1).T
        group, settings = optimizer.param_groups[0], self.settings
        settings[:5] = group["lr"], *group["betas"], group["eps"], group["weight_decay"]
        return moved

    def _find_moments(self) -> None:
        state = self.optimizer.state
        for weight in self.weights:
            if not state[weight]:  # as torch makes it at the first step
                state[weight]["step"] = torch.tensor(0.0, dtype=torch.float32)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[weight][name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        self.state.note()
        self._moments = [
            [state[weight][name] for weight in self.weights] for name in ("exp_avg", "exp_avg_sq", "step")
        ]
        self._all = [*self.weights, *chain(*self._moments), *self.targets]

    def forget_unused_moments(self) -> None:
        """Remove Adam's state if it has made no step yet: torch would not have made it."""
        if self._moments and float(self._moments[-1][0]) == 0.0:
            self.optimizer.state.clear()
            self._moments = []
            self.state.note()

    def has_moments(self) -> bool:
        """Whether Adam's state is that of the last `refresh`, tensor by tensor."""
        return not self.state.changed()

    def all(self) -> dict[str, Any]:
        """Every tensor that a gradient step changes, by kind and name."""
        kinds = [
            ("weights", self.weights),
            *zip(("exp_avg", "exp_avg_sq", "step"), self._moments, strict=True),
        ]
        if self.has_targets:
            kinds.append(("targets", self.targets))
        return {
            f"{kind}.{name}": tensor
            for kind, tensors in kinds
            for name, tensor in zip(self.names, tensors, strict=True)
        }


def parameters_of(linears: Iterable[nn.Linear]) -> list[torch.Tensor]:
    """Weight and bias of each layer."""
    return [tensor for linear in linears for tensor in (linear.weight, linear.bias)]


def multiplications(linears: Iterable[nn.Linear]) -> int:
    """For one sample, forward."""
    return sum(linear.in_features * linear.out_features for linear in linears)


def shape_of(linears: Sequence[nn.Linear]) -> str:
    """For messages: 3-64-64-1."""
    return "-".join(map(str, (linears[0].in_features, *(linear.out_features for linear in linears))))
