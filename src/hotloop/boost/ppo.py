"""PPO of Stable-Baselines3 with compiled gradient steps, and MaskablePPO of sb3-contrib."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.boost import on_policy
from hotloop.boost import on_policy_kernels as kernels
from hotloop.boost.on_policy import OnPolicyLearner

SOURCES = ("stable_baselines3.ppo.ppo.PPO.train", *on_policy.SOURCES, *on_policy.PLAIN_POLICY_SOURCES)


def why_not(model: Any) -> str | None:
    """None if this PPO can be boosted, else the reason."""
    return on_policy.why_not(model, "ActorCriticPolicy", "RolloutBuffer", ("Adam",))


class Learner(OnPolicyLearner):
    """The compiled `PPO.train`."""

    normalize = kernels.MORE_THAN_ONE
    counts_all_epochs = False  # as updates, also those that `target_kl` left out: MaskablePPO of 2.7
    logged_columns = {  # noqa: RUF012
        "train/policy_gradient_loss": kernels.POLICY_LOSS,
        "train/value_loss": kernels.VALUE_LOSS,
        "train/entropy_loss": kernels.ENTROPY_LOSS,
        "train/clip_fraction": kernels.CLIP_FRACTION,
        "train/approx_kl": kernels.APPROX_KL,
    }

    def train(self, model: Any, original: Callable[[Any], None]) -> None:
        """What `PPO.train` does; `original` is the library's, for audits."""
        from stable_baselines3.common.utils import explained_variance

        policy, buffer = model.policy, model.rollout_buffer
        self.set_training_mode(True)
        model._update_learning_rate(policy.optimizer)
        clip_range = model.clip_range(model._current_progress_remaining)
        clip_range_vf = None
        if model.clip_range_vf is not None:
            clip_range_vf = model.clip_range_vf(model._current_progress_remaining)
        self.set_up(model, clip_range, clip_range_vf)
        self.read_networks()
        samples = buffer.buffer_size * buffer.n_envs
        batch_size = samples if model.batch_size is None else model.batch_size  # None: of MaskablePPO
        with self.undone_by_failure(model, model.n_epochs * -(-samples // batch_size)):
            found, last = self._epochs(model, original, buffer, batch_size)
        self.networks.write()
        self.networks.write_grads()
        explained = explained_variance(buffer.values.flatten(), buffer.returns.flatten())

        # float32, as the library's tensors, then Python's floats as from `.item()`.
        found, last = found.astype(np.float32), last.astype(np.float32)
        record = model.logger.record
        record("train/entropy_loss", np.mean(found[:, kernels.ENTROPY_LOSS].tolist()))
        record("train/policy_gradient_loss", np.mean(found[:, kernels.POLICY_LOSS].tolist()))
        record("train/value_loss", np.mean(found[:, kernels.VALUE_LOSS].tolist()))
        record("train/approx_kl", np.mean(last[:, kernels.APPROX_KL]))
        record("train/clip_fraction", np.mean(found[:, kernels.CLIP_FRACTION].tolist()))
        record("train/loss", float(found[-1, kernels.LOSS]))
        record("train/explained_variance", explained)
        if hasattr(policy, "log_std"):
            record("train/std", torch.exp(policy.log_std).mean().item())
        record("train/n_updates", model._n_updates, exclude="tensorboard")
        record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            record("train/clip_range_vf", clip_range_vf)

    def _epochs(
        self, model: Any, original: Callable[[Any], None], buffer: Any, batch_size: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """All epochs; returns the statistics of all minibatches and those of the last epoch."""
        assert buffer.full, ""
        found: list[NDArray[np.float64]] = []
        batch = None
        n_updates = model._n_updates
        for epoch in range(model.n_epochs):
            if batch is None:
                # The library draws the first order before it flattens; nothing is drawn in between.
                self.flatten(buffer)
                batch = self.batch(buffer)
            statistics, stopped = self.one_pass(model, original, batch, batch_size)
            found.append(statistics.copy())
            if stopped and model.verbose >= 1:
                kl = np.float32(statistics[-1, kernels.APPROX_KL])
                print(f"Early stopping at step {epoch} due to reaching max kl: {kl:.2f}")
            model._n_updates += 1
            if stopped:
                break
        if self.counts_all_epochs:
            model._n_updates = n_updates + model.n_epochs
        return np.concatenate(found), found[-1]
