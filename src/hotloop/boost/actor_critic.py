"""A policy's actor and critic in kernels: their layers and the optimizer's state as arrays.

The arrays are copies of the library's tensors (see `networks.py`), read at every entry and written back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from hotloop.boost import eligible
from hotloop.boost import on_policy_kernels as kernels
from hotloop.boost.networks import Places
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused.flat import aligned_zeros, lay_out


def chains(policy: Any) -> list[Any]:
    """Actor and critic of a policy as (sizes, activation), or the reason why not."""
    return [
        eligible.mlp([*policy.mlp_extractor.policy_net, policy.action_net], "the actor"),
        eligible.mlp([*policy.mlp_extractor.value_net, policy.value_net], "the critic"),
    ]


def layer_parameters(policy: Any) -> list[Any]:
    """Weight and bias of each layer: the actor's, the critic's, then the log standard deviations if any."""
    found = []
    for body, head in (
        (policy.mlp_extractor.policy_net, policy.action_net),
        (policy.mlp_extractor.value_net, policy.value_net),
    ):
        for part in (*body, head):
            found += list(part.parameters())
    log_std = getattr(policy, "log_std", None)
    return found if log_std is None else [*found, log_std]


def make_state(*networks: tuple[tuple[int, ...], str], heads: list[int]) -> tuple[kernels.State, Places]:
    """Arrays for an actor and a critic, given as (sizes, activation), and where their tensors lie in them.

    Without categorical heads, log standard deviations follow the networks.
    """
    (actor, critic), work = lay_out(*networks)
    places = Places()
    places.add_network(actor)
    places.add_network(critic)
    deviations = 0 if heads else actor.sizes[-1]
    if deviations:
        places.add_vector(critic.last, deviations)
    total = critic.last + deviations
    state = kernels.State(
        parameters=aligned_zeros(total),
        first=aligned_zeros(total),
        second=aligned_zeros(total),
        grads=aligned_zeros(total),
        steps=np.zeros(1, dtype=np.int64),
        actor=actor.table,
        critic=critic.table,
        heads=np.array(heads, dtype=np.int64),
        packed=work.packed,
        packed_transposed=work.packed_transposed,
        packed_grads=work.packed_grads,
        hidden=work.hidden,
        deltas=work.deltas,
        inputs=np.zeros(layers.CHUNK * actor.sizes[0], dtype=np.float32),
        decayed=aligned_zeros(total),
        std_grads=np.zeros(deviations, dtype=np.float32),
    )
    return state, places


class Networks:
    """A policy's networks and optimizer state as arrays for kernels."""

    def __init__(self, policy: Any, action_space: Any):
        (actor_sizes, activation), (critic_sizes, critic_activation) = chains(policy)
        if isinstance(action_space, spaces.Box):
            heads: list[int] = []
        else:
            heads = [action_space.n] if isinstance(action_space, spaces.Discrete) else list(action_space.nvec)
        self.parameters = layer_parameters(policy)
        self.optimizer = policy.optimizer
        networks = (actor_sizes, activation), (critic_sizes, critic_activation)
        self.state, self.places = make_state(*networks, heads=heads)
        self._steps_before = 0
        self._has_trained = True  # since acting has read the weights: then `_seen` is not what kernels hold
        # The weights that acting has used last, as bits.
        self._seen = np.zeros(self.state.parameters.size, dtype=np.uint32)
        self.width = actor_sizes[0]
        self.outputs = actor_sizes[-1]
        self.moment_names = ("square_avg",) if is_rmsprop(policy.optimizer) else ("exp_avg", "exp_avg_sq")
        names = {id(parameter): name for name, parameter in policy.named_parameters()}
        self.names = [names[id(parameter)] for parameter in self.parameters]
        widths = ["-".join(map(str, sizes)) for sizes in (actor_sizes, critic_sizes)]
        self.description = f"actor {widths[0]}, critic {widths[1]}, {activation}"

    def read_weights(self) -> None:
        """Take over the weights."""
        self.places.read(self.parameters, self.state.parameters)
        kernels.pack(self.state)

    def follow_weights(self) -> None:
        """Take over the weights if anything has changed them."""
        is_current = self.places.is_current(self.parameters, self._seen)
        if self._has_trained or not is_current:
            self._has_trained = False
            self.read_weights()

    def moments(self) -> list[tuple[str, Any, list[Any]]]:
        """Name, our array, and torch's tensors of each kind of optimizer state."""
        state = self.optimizer.state
        arrays = {
            "exp_avg": self.state.first,
            "exp_avg_sq": self.state.second,
            "square_avg": self.state.second,
        }
        return [
            (name, arrays[name], [state[parameter][name] for parameter in self.parameters])
            for name in self.moment_names
        ]

    def read(self) -> None:
        """Take over weights and optimizer state, which anything may have changed since the last time."""
        self._has_trained = True
        for parameter in self.optimizer.param_groups[0]["params"]:
            if not self.optimizer.state[parameter]:  # as torch makes it at the first step
                self.optimizer.state[parameter]["step"] = torch.tensor(0.0, dtype=torch.float32)
                for name in self.moment_names:
                    self.optimizer.state[parameter][name] = torch.zeros_like(
                        parameter, memory_format=torch.preserve_format
                    )
        for _, ours, theirs in self.moments():
            self.places.read(theirs, ours)
        self.state.steps[0] = self._steps_before = int(self.optimizer.state[self.parameters[0]]["step"])
        self.read_weights()

    def write(self) -> None:
        """Give weights and optimizer state back, in place."""
        self.places.write(self.parameters, self.state.parameters)
        for _, ours, theirs in self.moments():
            self.places.write(theirs, ours)
        steps = float(self.state.steps[0])
        for parameter in self.parameters:
            self.optimizer.state[parameter]["step"].fill_(steps)

    def write_grads(self) -> None:
        """Leave the last gradients in `.grad`, as backward and clipping do."""
        if self.state.steps[0] == self._steps_before:
            return
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.places.write([parameter.grad for parameter in self.parameters], self.state.grads)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and moments, one for each tensor, in the kernels' order of numbers."""
        flats = {
            "weights": self.state.parameters,
            "exp_avg": self.state.first,
            "exp_avg_sq": self.state.second,
        }
        if self.moment_names == ("square_avg",):
            flats = {"weights": self.state.parameters, "square_avg": self.state.second}
        return {
            f"{kind}.{name}": flat[part].copy()
            for kind, flat in flats.items()
            for name, part in zip(self.names, self.places.slices(), strict=True)
        }

    def keep(self) -> tuple[Any, ...]:
        """Copies of everything a gradient step changes, for `restore`."""
        return tuple(array.copy() for array in self._changing())

    def restore(self, kept: tuple[Any, ...]) -> None:
        for array, value in zip(self._changing(), kept, strict=True):
            array[:] = value
        kernels.pack(self.state)

    def _changing(self) -> list[NDArray[Any]]:
        own = self.state
        return [own.parameters, own.first, own.second, own.grads, own.steps]


def is_rmsprop(optimizer: Any) -> bool:
    return type(optimizer).__name__ == "RMSprop"
