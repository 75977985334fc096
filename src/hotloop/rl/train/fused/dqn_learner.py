"""DQN's learner for small dense networks in kernels, with the interface of the torch learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.envs.streams import Streams
from hotloop.rl.train.fused import dqn as kernels
from hotloop.rl.train.fused.flat import bind, lay_out, make_flat, views
from hotloop.rl.train.networks.q import QNetwork

if TYPE_CHECKING:
    from hotloop.rl.train.dqn_config import DQNConfig

_sample = profile("replay_sample")
_update = profile("fused_update", "model")
_sync = profile("weights_sync")

BETA1, BETA2 = 0.9, 0.999


class FusedLearner:
    """A small dense `QNetwork` in kernels; `network`'s parameters become views of the flat ones."""

    name = "fused"

    def __init__(self, network: QNetwork, config: DQNConfig):
        (layout,), work = lay_out((network.sizes, network.activation))
        flat = make_flat([layout])
        bind(layout, network.layers, flat)
        self.network, self._layout, self._config = network, layout, config
        self.statistics = np.zeros(kernels.STATISTICS)
        self.kernel_state = kernels.Learner(
            flat, flat.copy(), np.zeros_like(flat), np.zeros_like(flat), np.zeros(1, dtype=np.int64),
            layout.table, work.packed, work.packed_transposed,
            np.zeros_like(work.packed), np.zeros_like(work.packed_transposed),
            work.packed_grads, work.hidden, work.deltas, work.grads,
            np.zeros(config.batch_size, dtype=np.float32),
        )  # fmt: skip
        self.settings = np.zeros(kernels.SETTINGS)
        self.settings[: kernels.SETTINGS] = (
            config.learning_rate, BETA1, BETA2, config.adam_epsilon, config.max_grad_norm or 0.0,
            config.discount, config.loss == "huber", config.double, network.dueling, config.target_rate,
            config.epsilon_start, config.epsilon_end, max(config.epsilon_fraction * config.total_steps, 1.0),
        )  # fmt: skip
        self._views: tuple[ReplayBatch, kernels.Batch] | None = None
        self.weights_changed()

    def weights_changed(self) -> None:
        """To be called when something else wrote to the parameters (an optimizer of torch, a checkpoint)."""
        kernels.pack_both(self.kernel_state)

    def act(
        self, observations: NDArray[Any], epsilon: float, streams: Streams, actions: NDArray[np.int64]
    ) -> None:
        """The best action of each row, or with chance `epsilon` any, into `actions` [rows]."""
        kernels.act(self.kernel_state, self.settings, _rows(observations), epsilon, streams, actions)

    def best(self, observations: NDArray[Any], masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """The action of the largest value for each row, among those allowed; a new array."""
        with torch.inference_mode():
            values = self.network(torch.from_numpy(_rows(observations))).numpy()
        found: NDArray[np.int64] = (np.where(masks, values, -np.inf) if masks is not None else values).argmax(
            axis=1
        )
        return found

    def batch_views(self, batch: ReplayBatch) -> kernels.Batch:
        """The replay's batch as the kernels take it; observations that are not float32 get a copy that is."""
        if self._views is None or self._views[0] is not batch:
            size = len(batch.actions)
            self._views = (
                batch,
                kernels.Batch(
                    _rows(batch.observations),
                    batch.actions,
                    batch.rewards,
                    batch.discounts,
                    _rows(batch.next_observations),
                    batch.weights,
                    np.zeros(size, dtype=np.float32),
                ),
            )
        return self._views[1]

    def learn(self, buffer: ReplayBuffer, batch: ReplayBatch, count: int) -> None:
        """`count` updates, each on a fresh sample."""
        found = self.batch_views(batch)
        state = self.kernel_state
        direct = np.shares_memory(found.observations, batch.observations)
        if direct and not self._config.prioritised:
            with _update:
                kernels.learn(
                    state,
                    buffer.kernel_arrays(batch),
                    found,
                    self.settings,
                    self.statistics,
                    count,
                )
            return
        for _ in range(count):
            with _sample:
                buffer.sample(batch, beta=self._config.priority_beta)
                if not direct:
                    found.observations[...] = batch.observations.reshape(found.observations.shape)
                    found.next_observations[...] = batch.next_observations.reshape(found.observations.shape)
            with _update:
                kernels.update(state, found, self.settings, self.statistics)
            if self._config.prioritised:
                buffer.update_priorities(batch.rows, found.errors)

    def follow(self) -> None:
        """Move the target towards the network by `target_rate`."""
        with _sync:
            kernels.follow(self.kernel_state, self._config.target_rate)

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights, target and Adam's moments under the names of the network's parameters; copies."""
        found: dict[str, NDArray[Any]] = {"steps": self.kernel_state.steps.copy()}
        for kind, flat in self._flats():
            for name, view in views(self._layout, self.network.layers, flat).items():
                found[f"{kind}.layers.{name}"] = view.numpy().copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` of a learner with the same network gave."""
        self.kernel_state.steps[:] = state["steps"]
        for kind, flat in self._flats():
            for name, view in views(self._layout, self.network.layers, flat).items():
                view.copy_(torch.from_numpy(state[f"{kind}.layers.{name}"]))
        self.weights_changed()

    def _flats(self) -> list[tuple[str, NDArray[np.float32]]]:
        own = self.kernel_state
        return [
            ("weights", own.parameters),
            ("target", own.target),
            ("first", own.first),
            ("second", own.second),
        ]


def _rows(observations: NDArray[Any]) -> NDArray[np.float32]:
    """Observations as contiguous float32 [rows, width]; no copy when they are."""
    return np.ascontiguousarray(observations.reshape(observations.shape[0], -1), dtype=np.float32)
