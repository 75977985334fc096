"""A2C of Stable-Baselines3 with compiled gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hotloop.boost import on_policy
from hotloop.boost import on_policy_kernels as kernels
from hotloop.boost.on_policy import OnPolicyLearner

SOURCES = ("stable_baselines3.a2c.a2c.A2C.train", *on_policy.SOURCES, *on_policy.PLAIN_POLICY_SOURCES)


def why_not(model: Any) -> str | None:
    """None if this A2C can be boosted, else the reason."""
    return on_policy.why_not(model, "ActorCriticPolicy", "RolloutBuffer", ("RMSprop", "Adam"))


class Learner(OnPolicyLearner):
    """The compiled `A2C.train`."""

    normalize = kernels.ALWAYS
    surrogate = kernels.PLAIN
    has_epochs = False
    logged_columns = {  # noqa: RUF012
        "train/policy_loss": kernels.POLICY_LOSS,
        "train/value_loss": kernels.VALUE_LOSS,
        "train/entropy_loss": kernels.ENTROPY_LOSS,
    }

    def train(self, model: Any, original: Callable[[Any], None]) -> None:
        """What `A2C.train` does; `original` is the library's, for audits."""
        from stable_baselines3.common.utils import explained_variance

        policy, buffer = model.policy, model.rollout_buffer
        self.set_training_mode(True)
        model._update_learning_rate(policy.optimizer)
        assert buffer.full, ""
        self.set_up(model, 0.0, None)
        self.read_networks()
        self.flatten(buffer)
        batch = self.batch(buffer)
        with self.undone_by_failure(model, 1):
            found, _ = self.one_pass(model, original, batch, batch.returns.size)
        self.networks.write()
        self.networks.write_grads()
        explained = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        model._n_updates += 1
        last = found[0].astype(np.float32)
        record = model.logger.record
        record("train/n_updates", model._n_updates, exclude="tensorboard")
        record("train/explained_variance", explained)
        record("train/entropy_loss", float(last[kernels.ENTROPY_LOSS]))
        record("train/policy_loss", float(last[kernels.POLICY_LOSS]))
        record("train/value_loss", float(last[kernels.VALUE_LOSS]))
        if hasattr(policy, "log_std"):
            record("train/std", torch.exp(policy.log_std).mean().item())
