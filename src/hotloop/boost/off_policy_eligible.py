"""Which DQN, SAC, TD3 and DDPG models the kernels can stand in for, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn

from hotloop.boost import dense_kernels as dense
from hotloop.boost import eligible
from hotloop.boost.observations import unsupported_observations

KINDS = {"tanh": dense.TANH, "relu": dense.RELU, "elu": dense.ELU, "silu": dense.SILU}
BUFFERS = "stable_baselines3.common.buffers"
POLICIES = "stable_baselines3.common.policies"
OFF_POLICY = "stable_baselines3.common.off_policy_algorithm.OffPolicyAlgorithm"
SOURCES = (
    f"{BUFFERS}.BaseBuffer.sample",
    *(f"{BUFFERS}.ReplayBuffer.{name}" for name in ("__init__", "add", "sample", "_get_samples")),
    *(f"{BUFFERS}.BaseBuffer.{name}" for name in ("to_torch", "_normalize_obs", "_normalize_reward")),
    f"{OFF_POLICY}._sample_action",
    *(f"{POLICIES}.BaseModel.{name}" for name in ("extract_features", "obs_to_tensor", "set_training_mode")),
    *(f"{POLICIES}.BasePolicy.{name}" for name in ("predict", "scale_action", "unscale_action")),
    "stable_baselines3.common.preprocessing.preprocess_obs",
    "stable_baselines3.common.torch_layers.FlattenExtractor.forward",
    "stable_baselines3.common.utils.polyak_update",
    "stable_baselines3.common.base_class.BaseAlgorithm._update_learning_rate",
)
CRITIC_SOURCES = tuple(
    f"{POLICIES}.ContinuousCritic.{name}" for name in ("__init__", "forward", "q1_forward")
)


def why_not(model: Any, policy_class: str, networks: Mapping[str, str]) -> str | None:
    """None if kernels can stand in for the model's policy, spaces and buffer; else the reason.

    `networks` are the names of the policy's networks, and their classes.
    """
    policy, buffer = model.policy, model.replay_buffer
    reason = eligible.other_class(policy, policy_class, "policy")
    if reason is not None:
        return reason
    if (
        type(buffer).__name__ not in ("ReplayBuffer", "NStepReplayBuffer")
        or type(buffer).__module__ != BUFFERS
    ):
        return f"replay_buffer is {type(buffer).__name__}: not ReplayBuffer or NStepReplayBuffer"
    if getattr(model, "use_sde", False):
        return "use_sde=True: state dependent exploration is not compiled"
    own = eligible.overridden(model) or eligible.overridden(buffer)
    if own is not None:
        return f"{own} is replaced on the instance"
    for name, network_class in networks.items():
        network = getattr(policy, name)
        if getattr(model, name) is not network:
            return f"{name} is not the policy's"
        reason = eligible.other_class(network, network_class, name) or eligible.own_extractor(
            network.features_extractor
        )
        if reason is not None:
            return reason
    for name in ("gamma", "tau"):
        if not isinstance(getattr(model, name), (int, float)):
            return f"{name} is a {type(getattr(model, name)).__name__}, not a number"
    return unsupported_spaces(model) or eligible.plain_module(policy, "policy")


def unsupported_spaces(model: Any) -> str | None:
    """Observations in a Box that are no images, or numbered from 0; actions likewise."""
    reason, actions = unsupported_observations(model.observation_space, model.policy), model.action_space
    if reason is not None:
        return reason
    if isinstance(actions, spaces.Discrete):
        return None if actions.start == 0 else f"actions start at {actions.start}, not at 0"
    if actions.dtype not in (np.float32, np.float64):
        return f"actions are {actions.dtype}: not float32 or float64"
    return None


def linear_chain(parts: Iterable[Any], name: str) -> tuple[list[nn.Linear], int] | str:
    """The Linear layers of a chain that ends with one, and its activation; or the reason why not."""
    reason = None if isinstance(parts, list) else eligible.other_sequence(parts, name)
    if reason is not None:
        return reason
    parts = list(parts)
    found = eligible.mlp(parts, name)
    if isinstance(found, str):
        return found
    return [part for part in parts if type(part) is nn.Linear], KINDS[found[1]]
