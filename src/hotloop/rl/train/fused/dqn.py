"""The fused DQN learner: a small dense `QNetwork` trained by compiled kernels (see `protocol.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.train.fused import dqn_kernels as kernels
from hotloop.rl.train.fused import dqn_loop
from hotloop.rl.train.fused.flat import bind, lay_out, make_flat, views
from hotloop.rl.train.make_envs import EpisodeLog
from hotloop.rl.train.networks.q import QNetwork
from hotloop.rl.train.runs import ADAM_BETAS

if TYPE_CHECKING:
    from hotloop.rl.train.dqn import DQNConfig

_replay_sample = profile("replay_sample")
_fused_update = profile("fused_update", "model")
_weights_sync = profile("weights_sync")


class FusedDQN:
    """Owns one flat parameter array; the parameters of `network` become views of it."""

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
        self._settings = np.zeros(kernels.SETTINGS)
        self._settings[:] = (
            config.learning_rate, *ADAM_BETAS, config.adam_eps, config.max_grad_norm or 0.0, config.gamma,
            config.loss == "huber", config.double, network.dueling, config.tau,
            config.exploration_initial_eps, config.exploration_final_eps,
            max(config.exploration_fraction * config.total_timesteps, 1.0),
        )  # fmt: skip
        self._views: tuple[ReplayBatch, kernels.Batch] | None = None
        self.weights_changed()

    def weights_changed(self) -> None:
        """Repack the weights; call it after torch code or a checkpoint wrote to the parameters."""
        kernels.pack_both(self.kernel_state)

    def act(
        self,
        observations: NDArray[Any],
        epsilon: float,
        uniforms: NDArray[np.float64],
        actions: NDArray[np.int64],
    ) -> None:
        """See `TorchLearner.act`."""
        kernels.act(self.kernel_state, self._settings, _rows(observations), epsilon, uniforms, actions)

    def greedy_actions(
        self, observations: NDArray[Any], masks: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """See `TorchLearner.greedy_actions`."""
        with torch.inference_mode():
            values = self.network(torch.from_numpy(_rows(observations))).numpy()
        allowed = np.where(masks, values, -np.inf) if masks is not None else values
        found: NDArray[np.int64] = allowed.argmax(axis=1)
        return found

    def update(self, buffer: ReplayBuffer, batch: ReplayBatch, gradient_steps: int) -> None:
        """See `TorchLearner.update`. Sampling and learning are one kernel call where they can be."""
        samples = self._batch_views(batch)
        same_memory = np.shares_memory(samples.observations, batch.observations)
        if same_memory and not self._config.prioritized:
            with _fused_update:
                kernels.update(
                    self.kernel_state,
                    buffer.kernel_arrays(batch),
                    samples,
                    self._settings,
                    self.statistics,
                    gradient_steps,
                )
            return
        for _ in range(gradient_steps):
            with _replay_sample:
                buffer.sample(batch, beta=self._config.priority_beta)
                if not same_memory:
                    shape = samples.observations.shape
                    samples.observations[...] = batch.observations.reshape(shape)
                    samples.next_observations[...] = batch.next_observations.reshape(shape)
            with _fused_update:
                kernels.gradient_step(self.kernel_state, samples, self._settings, self.statistics)
            if self._config.prioritized:
                buffer.update_priorities(batch.rows, samples.errors)

    def _batch_views(self, batch: ReplayBatch) -> kernels.Batch:
        """The batch as the kernels take it; observations other than float32 get a float32 copy."""
        if self._views is None or self._views[0] is not batch:
            self._views = (
                batch,
                kernels.Batch(
                    _rows(batch.observations),
                    batch.actions,
                    batch.rewards,
                    batch.discounts,
                    _rows(batch.next_observations),
                    batch.weights,
                    np.zeros(len(batch.actions), dtype=np.float32),
                ),
            )
        return self._views[1]

    def update_target(self) -> None:
        """See `TorchLearner.update_target`."""
        with _weights_sync:
            kernels.update_target(self.kernel_state, self._config.tau)

    def compiled_loop(
        self,
        envs: Any,
        buffer: ReplayBuffer,
        batch: ReplayBatch,
        episodes: EpisodeLog,
        rng: np.random.Generator,
    ) -> Callable[[int, int, int], tuple[int, int, int]] | None:
        """A function that trains for `count` vector steps in one kernel call (see `dqn.make_compiled_loop`).

        None for envs without their own kernel here.
        """
        training = dqn_loop.Training(
            self.kernel_state, self._batch_views(batch), episodes, self._settings, self.statistics
        )
        return dqn_loop.compiled_loop(self._config, training, envs, buffer, batch, rng)

    def state(self) -> dict[str, NDArray[Any]]:
        """See `TorchLearner.state`."""
        found: dict[str, NDArray[Any]] = {"steps": self.kernel_state.steps.copy()}
        for kind, flat in self._flats():
            for name, view in views(self._layout, self.network.layers, flat).items():
                found[f"{kind}.layers.{name}"] = view.numpy().copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `TorchLearner.load`."""
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
    """Observations as contiguous float32 [rows, width], without a copy if they already are."""
    return np.ascontiguousarray(observations.reshape(observations.shape[0], -1), dtype=np.float32)
