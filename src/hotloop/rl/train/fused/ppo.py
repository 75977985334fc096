"""The fused PPO learner: a small dense `ActorCritic` trained by compiled kernels (see `protocol.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.train.fused import layers
from hotloop.rl.train.fused import ppo_kernels as kernels
from hotloop.rl.train.fused.flat import bind, lay_out, make_flat, views
from hotloop.rl.train.fused.tiles import Floats
from hotloop.rl.train.make_envs import EpisodeLog
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.runs import ADAM_BETAS

if TYPE_CHECKING:
    from hotloop.rl.train.ppo import PPOConfig

_update = profile("fused_update", "model")

# In the order of the kernels' indices; the names are those of `ppo.STATISTICS`.
STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")

# Vector env class -> its rollout kernel, and the arguments that it takes after the uniform numbers.
ROLLOUTS: dict[str, tuple[Callable[..., int], Callable[[Any], tuple[Any, ...]]]] = {
    "CartPoleVectorEnv": (kernels.cartpole_rollout, lambda envs: (envs._table,)),
}


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
            parameters=flat,
            first=np.zeros_like(flat),
            second=np.zeros_like(flat),
            steps=np.zeros(1, dtype=np.int64),
            actor=actor.table,
            critic=critic.table,
            packed=work.packed,
            packed_transposed=work.packed_transposed,
            packed_grads=work.packed_grads,
            hidden=work.hidden,
            deltas=work.deltas,
            grads=work.grads,
            inputs=np.zeros(layers.CHUNK * network.sizes[0], dtype=np.float32),
        )
        self._layouts = {"actor": (actor, network.actor), "critic": (critic, network.critic)}
        settings = np.zeros(kernels.SETTINGS)
        settings[kernels.CLIP_RANGE] = config.clip_range
        settings[kernels.CLIP_RANGE_VF] = config.clip_range_vf or 0.0
        settings[kernels.VF_COEF] = config.vf_coef
        self._ent_coef = config.ent_coef
        settings[kernels.MAX_GRAD_NORM] = config.max_grad_norm or 0.0
        settings[kernels.TARGET_KL] = config.target_kl or 0.0
        settings[kernels.BETA1], settings[kernels.BETA2] = ADAM_BETAS
        settings[kernels.ADAM_EPS] = config.adam_eps
        settings[kernels.NORMALIZE_ADVANTAGE] = float(config.normalize_advantage)
        self._settings = settings
        self._statistics = np.zeros(kernels.STATISTICS)
        self._no_masks = np.zeros((0, network.actions), dtype=np.bool_)
        self.weights_changed()

    def weights_changed(self) -> None:
        """Repack the weights; call it after torch code or a checkpoint wrote to the network's parameters."""
        kernels.pack_both(self.kernel_state)

    def act(
        self,
        observations: NDArray[Any],
        masks: NDArray[np.bool_] | None,
        uniforms: Floats,
        actions: NDArray[np.int64],
        log_probabilities: Floats,
    ) -> None:
        """Sample an action for each row with its uniform number in [0, 1), into the caller's arrays."""
        rows, allowed = _rows(observations), self._no_masks if masks is None else masks
        kernels.act(self.kernel_state, rows, uniforms, allowed, actions, log_probabilities)

    def greedy_actions(
        self, observations: NDArray[Any], masks: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """The most likely action for each row, a new array."""
        rows, allowed = _rows(observations), self._no_masks if masks is None else masks
        actions = np.zeros(rows.shape[0], dtype=np.int64)
        kernels.greedy_actions(self.kernel_state, rows, allowed, actions)
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
        """A function that fills `buffer` in one kernel call, or None where these envs have no such kernel.

        It continues from the buffer's last observations and takes uniform numbers [steps, envs], one for
        each action. The envs, the buffer and the episode log stay the caller's.
        """
        if (
            not isinstance(envs, BatchedEnv)
            or type(envs).__name__ not in ROLLOUTS
            or not type(envs).__module__.startswith("hotloop.rl.envs.")
            or envs.mode != SAME_STEP
            or envs.num_threads != 1
            or buffer.masked
        ):
            return None
        kernel, arguments_of = ROLLOUTS[type(envs).__name__]
        width = envs.observations[0].size
        arrays = kernels.Envs(
            envs.actions,
            envs.observations.reshape(buffer.n_envs, width),
            envs.final_observations.reshape(buffer.n_envs, width),
            envs.rewards,
            envs.terminated,
            envs.truncated,
        )
        rollout = kernels.Rollout(
            buffer.observations.reshape(buffer.n_steps + 1, buffer.n_envs, width),
            buffer.actions,
            buffer.log_probabilities,
            buffer.rewards,
            buffer.terminated,
            buffer.truncated,
            buffer.values,
            buffer.final_values,
            buffer.masks,
        )
        arguments = arguments_of(envs)

        def run(uniforms: Floats) -> None:
            rollout.observations[0] = rollout.observations[-1]
            episodes.count[0] = 0
            refused = kernel(self.kernel_state, arrays, rollout, episodes, uniforms, *arguments)
            if refused >= 0:
                raise HotloopError(f"The environment in row {refused} refused the policy's action.")

        return run

    def update(
        self,
        buffer: RolloutBuffer,
        order: NDArray[np.int64],
        edges: NDArray[np.int64],
        learning_rate: float,
        ent_coef: float | None = None,
    ) -> dict[str, float]:
        """All epochs over a rollout, as `TorchLearner.update` makes them."""
        samples = buffer.n_steps * buffer.n_envs
        batch = kernels.Batch(
            _rows(buffer.observations[:-1].reshape(samples, -1)),
            buffer.actions.reshape(-1),
            buffer.log_probabilities.reshape(-1),
            buffer.advantages.reshape(-1),
            buffer.returns.reshape(-1),
            buffer.values[:-1].reshape(-1),
            buffer.masks.reshape(-1, buffer.n_actions),
        )
        self._settings[kernels.LEARNING_RATE] = learning_rate
        self._settings[kernels.ENT_COEF] = self._ent_coef if ent_coef is None else ent_coef
        with _update:
            kernels.update(self.kernel_state, batch, order, edges, self._settings, self._statistics)
        gradient_steps = max(self._statistics[kernels.GRADIENT_STEPS], 1.0)
        found = {name: float(self._statistics[at] / gradient_steps) for at, name in enumerate(STATISTICS)}
        return {**found, "n_epochs": float(self._statistics[kernels.EPOCHS])}

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and Adam's moments, under the names that `TorchLearner` uses."""
        found: dict[str, NDArray[Any]] = {"steps": self.kernel_state.steps.copy()}
        return found | {name: view.numpy().copy() for name, view in self._views().items()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of any learner with the same network."""
        self.kernel_state.steps[:] = state["steps"]
        for name, view in self._views().items():
            view.copy_(torch.from_numpy(state[name]))
        self.weights_changed()

    def _views(self) -> dict[str, torch.Tensor]:
        """Weights and moments of each parameter by name."""
        own = self.kernel_state
        flats = {"weights": own.parameters, "first": own.first, "second": own.second}
        return {
            f"{kind}.{part}.{name}": view
            for kind, flat in flats.items()
            for part, (layout, module) in self._layouts.items()
            for name, view in views(layout, module, flat).items()
        }


def _rows(observations: NDArray[Any]) -> Floats:
    """Observations as contiguous float32 [rows, width]; no copy when they are."""
    return np.ascontiguousarray(observations.reshape(observations.shape[0], -1), dtype=np.float32)
