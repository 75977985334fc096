"""The fused learner of `sac.py`: sampling and whole updates in compiled kernels, for small dense networks."""

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
from hotloop.rl.train.fused import sac_kernels as kernels
from hotloop.rl.train.fused.flat import MlpLayout, NetworkArrays, bind, lay_out, make_flat, views
from hotloop.rl.train.fused.layers import CHUNK
from hotloop.rl.train.networks.squashed import SquashedActor, TwinCritics
from hotloop.rl.train.runs import ADAM_BETAS, ADAM_EPS, Arrays, Stopwatch

if TYPE_CHECKING:
    from hotloop.rl.train.sac import EntropyCoefficient, SACConfig

_update = profile("fused_update", "model")

Flat = NDArray[np.float32]


class FusedSAC:
    """A drop-in replacement of `sac.TorchLearner`; the networks' parameters become views of flat arrays.

    Sampling is part of the kernel, so the stopwatch counts it as learning.
    """

    name = "fused"

    def __init__(
        self,
        actor: SquashedActor,
        critics: TwinCritics,
        ent_coef: EntropyCoefficient,
        config: SACConfig,
        stopwatch: Stopwatch | None = None,
    ):
        (of_actor,), work = lay_out((actor.sizes, actor.activation))
        of_critics, critic_work = lay_out(*[(critics.sizes, critics.activation)] * 2)
        self.actor, self.critics, self.targets = actor, critics, copy.deepcopy(critics)
        self.targets.requires_grad_(False)
        self.anchor = copy.deepcopy(actor).requires_grad_(False)
        self._layouts = {"actor": (of_actor,), "critics": tuple(of_critics)}
        self._layouts |= {"anchor": (of_actor,), "targets": tuple(of_critics)}
        self._flats = {name: make_flat(layouts) for name, layouts in self._layouts.items()}
        for part in self._layouts:
            for _, layout, module in self._networks(part):
                bind(layout, module, self._flats[part])
        self._tables = kernels.Tables(of_actor.table, *(layout.table for layout in of_critics))
        self._actor = _network(self._flats["actor"], work)
        self._critics = _network(self._flats["critics"], critic_work)
        self._targets = kernels.Targets(
            self._flats["targets"],
            np.zeros_like(critic_work.packed),
            np.zeros_like(critic_work.packed_transposed),
        )
        wide, count = critics.sizes[0], actor.n_actions
        self._scratch = kernels.Scratch(
            joined=np.zeros(CHUNK * wide, dtype=np.float32),
            actions=np.zeros(CHUNK * count, dtype=np.float32),
            action_grads=np.zeros(CHUNK * count, dtype=np.float32),
            anchor_actions=np.zeros(CHUNK * count, dtype=np.float32),
            log_probs=np.zeros(CHUNK, dtype=np.float32),
            targets=np.zeros(config.batch_size, dtype=np.float32),
        )
        self.ent_coef = ent_coef
        self.statistics = np.zeros(kernels.STATISTICS)
        self._settings = np.array(
            [
                config.learning_rate, *ADAM_BETAS, ADAM_EPS, config.gamma, config.tau,
                ent_coef.target_entropy, ent_coef.learned, config.actor_rate, config.anchor_weight,
            ]
        )  # fmt: skip
        self._views: tuple[ReplayBatch, kernels.Batch] | None = None
        self._anchor = np.zeros_like(work.packed)
        self._anchor_transposed = np.zeros_like(work.packed_transposed)
        self._learning = (stopwatch or Stopwatch()).part("learning", _update)
        self.weights_changed()

    def weights_changed(self) -> None:
        """Repack the weights; call it after something else wrote to the parameters."""
        kernels.pack_all(self._tables, self._actor, self._critics, self._targets)
        layers.pack(self._tables.actor, self._flats["anchor"], self._anchor, self._anchor_transposed)

    def warm_up(self, buffer: ReplayBuffer, batch: ReplayBatch) -> None:
        """Compile, or load from the cache, what the loop calls."""
        width, count = self.actor.sizes[0], self.actor.n_actions
        zeros = np.zeros((1, count), dtype=np.float32)
        self.act(np.zeros((1, width), dtype=np.float32), zeros, zeros.copy())
        no_updates = np.zeros((0, 2, len(batch.actions), count), dtype=np.float32)
        self._call_update(buffer, batch, no_updates, False)

    def act(
        self, observations: NDArray[np.float32], noise: NDArray[np.float32], actions: NDArray[np.float32]
    ) -> None:
        """Write the actions for standard normal `noise` [rows, actions] into `actions`."""
        kernels.act(self._tables.actor, self._actor, observations, noise, actions)

    def greedy_actions(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Actions without noise [rows, actions], a new array."""
        rows = np.ascontiguousarray(observations.reshape(len(observations), -1), dtype=np.float32)
        actions = np.zeros((len(rows), self.actor.n_actions), dtype=np.float32)
        self.act(rows, np.zeros_like(actions), actions)
        return actions

    def update(
        self, buffer: ReplayBuffer, batch: ReplayBatch, noise: NDArray[np.float32], train_actor: bool
    ) -> None:
        """One update per entry of `noise` [updates, 2, batch, actions], each on a fresh sample."""
        with self._learning:
            self._call_update(buffer, batch, noise, train_actor)

    def _call_update(
        self, buffer: ReplayBuffer, batch: ReplayBatch, noise: NDArray[np.float32], train_actor: bool
    ) -> None:
        if self._views is None or self._views[0] is not batch:
            names = kernels.Batch._fields
            self._views = batch, kernels.Batch(*(getattr(batch, name) for name in names))
            self._settings[kernels.GAMMA] = buffer.layout.gamma
        kernels.update(
            self._tables,
            self._actor,
            self._critics,
            self._targets,
            self._anchor,
            self._scratch,
            buffer.kernel_arrays(batch),
            self._views[1],
            noise,
            self.ent_coef.state,
            train_actor,
            self._settings,
            self.statistics,
        )

    def state(self) -> Arrays:
        """Weights, Adam's moments and the entropy coefficient, as copies under the parameters' names."""
        found: Arrays = {"ent_coef": self.ent_coef.state.copy()}
        for name, view in self._named_views():
            found[name] = view.numpy().copy()
        found["actor.steps"], found["critics.steps"] = self._actor.steps.copy(), self._critics.steps.copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a torch or fused learner with the same networks."""
        self.ent_coef.state[:] = state["ent_coef"]
        for name, view in self._named_views():
            view.copy_(torch.from_numpy(state[name]))
        self._actor.steps[:], self._critics.steps[:] = state["actor.steps"], state["critics.steps"]
        self.weights_changed()

    def _named_views(self) -> list[tuple[str, torch.Tensor]]:
        """Everything that is saved, as torch views under the names of the plain learner's state."""
        flats = [("targets", "weights", self._flats["targets"]), ("anchor", "weights", self._flats["anchor"])]
        for part, network in (("actor", self._actor), ("critics", self._critics)):
            flats += [
                (part, "weights", network.parameters),
                (part, "first", network.first),
                (part, "second", network.second),
            ]
        return [
            (f"{part}.{kind}.{child}.{name}", view)
            for part, kind, flat in flats
            for child, layout, module in self._networks(part)
            for name, view in views(layout, module, flat).items()
        ]

    def _networks(self, part: str) -> list[tuple[str, MlpLayout, nn.Module]]:
        """The dense networks of a part: name of the child module, layout in the part's flat array, module."""
        module = getattr(self, part)
        names = ("layers",) if part in ("actor", "anchor") else ("first", "second")
        return [
            (name, layout, getattr(module, name))
            for name, layout in zip(names, self._layouts[part], strict=True)
        ]


def _network(flat: Flat, work: NetworkArrays) -> kernels.Network:
    return kernels.Network(
        flat, np.zeros_like(flat), np.zeros_like(flat), np.zeros(1, dtype=np.int64),
        work.packed, work.packed_transposed, work.packed_grads, work.hidden, work.deltas, work.grads,
    )  # fmt: skip
