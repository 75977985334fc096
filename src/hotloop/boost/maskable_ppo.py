"""MaskablePPO of sb3-contrib with compiled acting and gradient steps: PPO with masks on the logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.boost import on_policy, ppo
from hotloop.boost import on_policy_kernels as kernels
from hotloop.boost.known_sources import hash_of

MASKABLE = "sb3_contrib.common.maskable"
TRAIN = "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO.train"
TRAIN_OF_2_7 = "eb3bf418baedd592"  # its hash
SOURCES = (
    TRAIN,
    "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO.collect_rollouts",
    *(f"{MASKABLE}.buffers.MaskableRolloutBuffer.{name}" for name in ("reset", "add", "get", "_get_samples")),
    *(
        f"{MASKABLE}.policies.MaskableActorCriticPolicy.{name}"
        for name in ("forward", "extract_features", "_get_action_dist_from_latent", "evaluate_actions")
    ),
    *(
        f"{MASKABLE}.policies.MaskableActorCriticPolicy.{name}"
        for name in ("get_distribution", "predict_values", "_predict", "predict")
    ),
    *(f"{MASKABLE}.distributions.MaskableCategorical.{name}" for name in ("apply_masking", "entropy")),
    *(
        f"{MASKABLE}.distributions.{cls}.{name}"
        for cls in ("MaskableCategoricalDistribution", "MaskableMultiCategoricalDistribution")
        for name in ("proba_distribution", "log_prob", "entropy", "sample", "mode", "apply_masking")
    ),
    *on_policy.SOURCES,
)


def why_not(model: Any) -> str | None:
    """None if this MaskablePPO can be boosted, else the reason."""
    return on_policy.why_not(model, "MaskableActorCriticPolicy", "MaskableRolloutBuffer", ("Adam",))


class Learner(ppo.Learner):
    """The compiled `MaskablePPO.train` and `collect_rollouts`."""

    normalize = kernels.ALWAYS
    more_arrays = ("action_masks",)

    def __init__(self, model: Any):
        super().__init__(model)
        self.counts_all_epochs = hash_of(TRAIN) == TRAIN_OF_2_7

    def masks(self, buffer: Any) -> NDArray[np.bool_]:
        """The masks that the buffer keeps."""
        samples = buffer.buffer_size * buffer.n_envs
        return np.ascontiguousarray(buffer.action_masks.reshape(samples, -1), dtype=np.bool_)
