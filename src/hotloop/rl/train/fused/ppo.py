"""The fused PPO learner: a small dense `ActorCritic` trained by compiled kernels (see `protocol.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.train.fused import layers, ppo_rollout
from hotloop.rl.train.fused import ppo_kernels as kernels
from hotloop.rl.train.fused.flat import bind, lay_out, make_flat, views
from hotloop.rl.train.fused.tiles import Floats
from hotloop.rl.train.make_envs import EpisodeLog
from hotloop.rl.train.networks.mlp import ActorCritic

if TYPE_CHECKING:
    from hotloop.rl.train.ppo import PPOConfig

_update = profile("fused_update", "model")
STATISTICS = ("policy_loss", "value_loss", "entropy", "kl", "clipped_fraction", "gradient_norm")


class FusedPPO:
    """Owns one flat parameter array; the parameters of `network` become views of it."""

    name = "fused"

    def __init__(self, network: ActorCritic, config: PPOConfig):
        (actor, critic), work = lay_out(
            ((*network.sizes, network.actions), network.activation),
            ((*network.sizes, 1), network.activation),
        )
        flat = make_flat([actor, critic])
        bind(actor, network.actor, flat)
        bind(critic, network.critic, flat)
        self.network = network
        self.kernel_state = kernels.Learner(
            flat,
            np.zeros_like(flat),
            np.zeros_like(flat),
            np.zeros(1, dtype=np.int64),
            actor.table,
            critic.table,
            work.packed,
            work.packed_transposed,
            work.packed_grads,
            work.hidden,
            work.deltas,
            work.grads,
            np.zeros(layers.CHUNK * network.sizes[0], dtype=np.float32),
        )
        self._layouts = {"actor": (actor, network.actor), "critic": (critic, network.critic)}
        self._settings = np.zeros(kernels.SETTINGS)
        self._settings[kernels.CLIP_RANGE] = config.clip
        self._settings[kernels.CLIP_RANGE_VF] = config.value_clip or 0.0
        self._settings[kernels.VF_COEF] = config.value_weight
        self._settings[kernels.ENT_COEF] = config.entropy_weight
        self._settings[kernels.MAX_GRAD_NORM] = config.max_grad_norm or 0.0
        self._settings[kernels.TARGET_KL] = config.target_kl or 0.0
        self._settings[kernels.BETA1], self._settings[kernels.BETA2] = 0.9, 0.999
        self._settings[kernels.ADAM_EPS] = config.adam_epsilon
        self._settings[kernels.NORMALIZE_ADVANTAGE] = float(config.normalise_advantages)
        self._statistics = np.zeros(kernels.STATISTICS)
        self._no_masks = np.zeros((0, network.actions), dtype=np.bool_)
        self.weights_changed()

    def weights_changed(self) -> None:
        """To be called when something else wrote to the parameters (an optimizer of torch, a checkpoint)."""
        kernels.pack_both(self.kernel_state)

    def act(
        self,
        observations: NDArray[Any],
        masks: NDArray[np.bool_] | None,
        uniforms: Floats,
        actions: NDArray[np.int64],
        log_probabilities: Floats,
    ) -> None:
        """Draw an action for each row by its number in [0, 1), into the caller's arrays [rows]."""
        rows = _rows(observations)
        kernels.act(
            self.kernel_state,
            rows,
            uniforms,
            self._no_masks if masks is None else masks,
            actions,
            log_probabilities,
        )

    def best(self, observations: NDArray[Any], masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """The likeliest action for each row, a new array."""
        rows = _rows(observations)
        actions = np.zeros(rows.shape[0], dtype=np.int64)
        kernels.greedy_actions(self.kernel_state, rows, self._no_masks if masks is None else masks, actions)
        return actions

    def values(self, observations: NDArray[Any]) -> Floats:
        """The critic's value for each row, a new array."""
        rows = _rows(observations)
        found = np.zeros(rows.shape[0], dtype=np.float32)
        kernels.values(self.kernel_state, rows, found)
        return found

    def compiled_rollout(
        self, envs: Any, buffer: RolloutBuffer, episodes: EpisodeLog
    ) -> Callable[[Floats], None] | None:
        """A function that collects a whole rollout in one kernel call; None where the envs cannot."""
        return ppo_rollout.compiled_rollout(self.kernel_state, envs, buffer, episodes)

    def update(
        self,
        buffer: RolloutBuffer,
        order: NDArray[np.int64],
        edges: NDArray[np.int64],
        learning_rate: float,
    ) -> dict[str, float]:
        """All epochs over a rollout; means over the minibatches done."""
        samples = buffer.steps * buffer.envs
        batch = kernels.Batch(
            _rows(buffer.observations[:-1].reshape(samples, -1)),
            buffer.actions.reshape(-1),
            buffer.log_probabilities.reshape(-1),
            buffer.advantages.reshape(-1),
            buffer.returns.reshape(-1),
            buffer.values[:-1].reshape(-1),
            buffer.masks.reshape(-1, buffer.actions_allowed),
        )
        self._settings[kernels.LEARNING_RATE] = learning_rate
        with _update:
            kernels.update(self.kernel_state, batch, order, edges, self._settings, self._statistics)
        done = max(self._statistics[kernels.GRADIENT_STEPS], 1.0)
        found = {name: float(self._statistics[at] / done) for at, name in enumerate(STATISTICS)}
        return {**found, "epochs": float(self._statistics[kernels.EPOCHS])}

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and Adam's moments under the names of the network's parameters; copies."""
        found: dict[str, NDArray[Any]] = {"steps": self.kernel_state.steps.copy()}
        for kind, flat in self._flats():
            for part, (layout, module) in self._layouts.items():
                for name, view in views(layout, module, flat).items():
                    found[f"{kind}.{part}.{name}"] = view.numpy().copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` of a learner with the same network gave."""
        import torch

        self.kernel_state.steps[:] = state["steps"]
        for kind, flat in self._flats():
            for part, (layout, module) in self._layouts.items():
                for name, view in views(layout, module, flat).items():
                    view.copy_(torch.from_numpy(state[f"{kind}.{part}.{name}"]))
        self.weights_changed()

    def _flats(self) -> list[tuple[str, Floats]]:
        return [
            ("weights", self.kernel_state.parameters),
            ("first", self.kernel_state.first),
            ("second", self.kernel_state.second),
        ]


def _rows(observations: NDArray[Any]) -> Floats:
    """Observations as contiguous float32 [rows, width]; no copy when they are."""
    return np.ascontiguousarray(observations.reshape(observations.shape[0], -1), dtype=np.float32)
