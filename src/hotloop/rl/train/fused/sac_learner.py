"""Soft actor-critic's learner for small dense networks in kernels, with the interface of the torch one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotloop import profile
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused import sac as kernels
from hotloop.rl.train.fused.flat import MlpLayout, Work, bind, lay_out, make_flat, views
from hotloop.rl.train.fused.layers import CHUNK
from hotloop.rl.train.networks.squashed import SquashedActor, TwinCritics
from hotloop.rl.train.runs import Stopwatch
from hotloop.rl.train.sac_torch import BETA1, BETA2, EPSILON, STATISTICS, Temperature

if TYPE_CHECKING:
    from hotloop.rl.train.sac_config import SACConfig

_update = profile("fused_update", "model")

Flat = NDArray[np.float32]


class FusedLearner:
    """Actor and critics in kernels; their parameters become views of the flat ones.

    Sampling is part of the kernel, so the split of the time has it under learning.
    """

    name = "fused"

    def __init__(
        self, actor: SquashedActor, critics: TwinCritics, config: SACConfig, watch: Stopwatch | None = None
    ):
        (of_actor,), work = lay_out((actor.sizes, actor.activation))
        of_critics, critic_work = lay_out(*[(critics.sizes, critics.activation)] * 2)
        self.actor, self.critics, self.targets = actor, critics, copy.deepcopy(critics)
        self.targets.requires_grad_(False)
        self.anchor = copy.deepcopy(actor).requires_grad_(False)
        self._layouts = {"actor": (of_actor,), "critics": tuple(of_critics)}
        self._layouts |= {"anchor": (of_actor,), "targets": tuple(of_critics)}
        self._flats = {name: make_flat(layouts) for name, layouts in self._layouts.items()}
        for name in self._layouts:
            for layout, module in self._networks(name):
                bind(layout, module, self._flats[name])
        self._tables = kernels.Tables(of_actor.table, *(layout.table for layout in of_critics))
        self._actor = _network(self._flats["actor"], work)
        self._critics = _network(self._flats["critics"], critic_work)
        self._targets = kernels.Targets(
            self._flats["targets"],
            np.zeros_like(critic_work.packed),
            np.zeros_like(critic_work.packed_transposed),
        )
        wide, count = critics.sizes[0], actor.actions
        self._room = kernels.Room(
            joined=np.zeros(CHUNK * wide, dtype=np.float32),
            actions=np.zeros(CHUNK * count, dtype=np.float32),
            slopes=np.zeros(CHUNK * count, dtype=np.float32),
            anchors=np.zeros(CHUNK * count, dtype=np.float32),
            logs=np.zeros(CHUNK, dtype=np.float32),
            wanted=np.zeros(config.batch_size, dtype=np.float32),
        )
        self.temperature = Temperature(
            config.first_temperature, config.learning_rate, config.learn_temperature
        )
        self.statistics = np.zeros(STATISTICS)
        self._settings = np.array(
            [
                config.learning_rate, BETA1, BETA2, EPSILON, config.discount, config.target_rate,
                config.target_entropy_for(count), config.learn_temperature,
                config.actor_rate, config.anchor_weight,
            ]
        )  # fmt: skip
        self._views: tuple[ReplayBatch, kernels.Batch] | None = None
        self._anchor = np.zeros_like(work.packed)
        self._anchor_transposed = np.zeros_like(work.packed_transposed)
        self._learning = (watch or Stopwatch()).part("learning", _update)
        self.weights_changed()

    def weights_changed(self) -> None:
        """To be called when something else wrote to the parameters (a clone, a checkpoint)."""
        kernels.pack_all(self._tables, self._actor, self._critics, self._targets)
        layers.pack(self._tables.actor, self._flats["anchor"], self._anchor, self._anchor_transposed)

    def warm_up(self, buffer: ReplayBuffer, batch: ReplayBatch) -> None:
        """Compile, or load, what the loop calls, so that its time is not counted as training."""
        width, count = self.actor.sizes[0], self.actor.actions
        zeros = np.zeros((1, count), dtype=np.float32)
        self.act(np.zeros((1, width), dtype=np.float32), zeros, zeros.copy())
        with_none = np.zeros((0, 2, len(batch.actions), count), dtype=np.float32)
        self._learn(buffer, batch, with_none, False)

    def act(
        self, observations: NDArray[np.float32], noise: NDArray[np.float32], actions: NDArray[np.float32]
    ) -> None:
        """Actions for standard normal `noise` [rows, actions], into `actions`."""
        kernels.act(self._tables.actor, self._actor, observations, noise, actions)

    def best(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Actions without noise [rows, actions], a new array."""
        rows = np.ascontiguousarray(observations.reshape(len(observations), -1), dtype=np.float32)
        actions = np.zeros((len(rows), self.actor.actions), dtype=np.float32)
        self.act(rows, np.zeros_like(actions), actions)
        return actions

    def learn(
        self, buffer: ReplayBuffer, batch: ReplayBatch, noise: NDArray[np.float32], learn_actor: bool
    ) -> None:
        """An update for each of `noise` [updates, 2, batch, actions], each on a fresh sample."""
        with self._learning:
            self._learn(buffer, batch, noise, learn_actor)

    def _learn(
        self, buffer: ReplayBuffer, batch: ReplayBatch, noise: NDArray[np.float32], learn_actor: bool
    ) -> None:
        if self._views is None or self._views[0] is not batch:
            names = kernels.Batch._fields
            self._views = batch, kernels.Batch(*(getattr(batch, name) for name in names))
            self._settings[kernels.GAMMA] = buffer.layout.gamma
        kernels.learn(
            self._tables,
            self._actor,
            self._critics,
            self._targets,
            self._anchor,
            self._room,
            buffer.kernel_arrays(batch),
            self._views[1],
            noise,
            self.temperature.state,
            learn_actor,
            self._settings,
            self.statistics,
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything learnt, under the names of the parameters; copies."""
        found: dict[str, NDArray[Any]] = {"temperature": self.temperature.state.copy()}
        for part, kind, flat in self._arrays():
            for layout, module in self._networks(part):
                for name, view in views(layout, module, flat).items():
                    found[f"{part}.{kind}.{self._name_of(module)}.{name}"] = view.numpy().copy()
        found["actor.steps"], found["critics.steps"] = self._actor.steps.copy(), self._critics.steps.copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` of a learner with the same networks gave."""
        self.temperature.state[:] = state["temperature"]
        for part, kind, flat in self._arrays():
            for layout, module in self._networks(part):
                for name, view in views(layout, module, flat).items():
                    view.copy_(torch.from_numpy(state[f"{part}.{kind}.{self._name_of(module)}.{name}"]))
        self._actor.steps[:], self._critics.steps[:] = state["actor.steps"], state["critics.steps"]
        self.weights_changed()

    def _networks(self, part: str) -> list[tuple[MlpLayout, nn.Module]]:
        """Each dense network of a part with its place in the part's flat array."""
        if part in ("actor", "anchor"):
            modules: list[nn.Module] = [(self.actor if part == "actor" else self.anchor).layers]
        else:
            critics = self.critics if part == "critics" else self.targets
            modules = [critics.first, critics.second]
        return list(zip(self._layouts[part], modules, strict=True))

    def _name_of(self, module: nn.Module) -> str:
        if module in (self.actor.layers, self.anchor.layers):
            return "layers"
        return "first" if module in (self.critics.first, self.targets.first) else "second"

    def _arrays(self) -> list[tuple[str, str, Flat]]:
        """Part, kind and flat array of everything that is saved."""
        found = [(part, "weights", self._flats[part]) for part in ("targets", "anchor")]
        for part, network in (("actor", self._actor), ("critics", self._critics)):
            found += [
                (part, "weights", network.parameters),
                (part, "first", network.first),
                (part, "second", network.second),
            ]
        return found


def _network(flat: Flat, work: Work) -> kernels.Network:
    return kernels.Network(
        flat, np.zeros_like(flat), np.zeros_like(flat), np.zeros(1, dtype=np.int64),
        work.packed, work.packed_transposed, work.packed_grads, work.hidden, work.deltas, work.grads,
    )  # fmt: skip
