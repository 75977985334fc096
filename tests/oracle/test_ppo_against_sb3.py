"""PPO's loss and updates against Stable-Baselines3: same weights and same rollout, same numbers after it.

`PPO.train` of Stable-Baselines3 runs on a made-up rollout, and so do our learners: losses, Adam's first
moments (the clipped gradients) and weights agree within float32 rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.train.fused.ppo import FusedPPO
from hotloop.rl.train.networks.conv import ConvEncoder
from hotloop.rl.train.networks.convlstm import RecurrentActorCritic
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.ppo import PPOConfig, TorchLearner, loss_settings, normalize, ppo_loss
from hotloop.rl.train.ppo import _flattened as flattened
from hotloop.rl.train.recurrent_ppo import RecurrentLearner, RecurrentPPOConfig, SequenceBuffer
from hotloop.rl.train.runs import torch_threads
from hotloop.rl.workloads.ricochet_sb3 import extractor_settings

N_STEPS, N_ENVS, N_ACTIONS, SEED = 12, 4, 3, 5
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "clipped values": {"clip_range_vf": 0.3},
    "entropy": {"ent_coef": 0.05, "vf_coef": 0.25},
    "advantages as they are": {"normalize_advantage": False},
    "gradient not clipped": {"max_grad_norm": None},
    "everything": {"clip_range": 0.1, "clip_range_vf": 0.5, "ent_coef": 0.02, "max_grad_norm": 0.1},
}
ALL = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


class Nothing(gymnasium.Env[Any, Any]):
    """Has spaces only: rollouts are made up."""

    action_space = Discrete(N_ACTIONS)

    def __init__(self, space: Box):
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


def sb3_model(space: Box, settings: dict[str, Any], **more: Any) -> PPO:
    values = {"max_grad_norm": 0.5, **settings}
    if values["max_grad_norm"] is None:
        values["max_grad_norm"] = float("inf")
    model = PPO(
        env=DummyVecEnv([lambda: Nothing(space)] * N_ENVS), n_steps=N_STEPS, learning_rate=1e-3, seed=0,
        device="cpu", **values, **more,
    )  # fmt: skip
    model.set_logger(configure(None, []))
    return model


def fill(buffer: RolloutBuffer, seed: int = 0) -> None:
    """A made-up rollout, with ratios and values on both sides of every clip range."""
    rng = np.random.default_rng(seed)
    shape = (buffer.n_steps, buffer.n_envs)
    if buffer.observations.dtype == np.uint8:
        buffer.observations[:] = rng.integers(0, 256, buffer.observations.shape)
    else:
        buffer.observations[:] = rng.standard_normal(buffer.observations.shape)
    buffer.actions[:] = rng.integers(0, N_ACTIONS, shape)
    buffer.log_probabilities[:] = np.log(rng.uniform(0.2, 0.6, shape))
    buffer.advantages[:] = rng.standard_normal(shape)
    buffer.returns[:] = rng.standard_normal(shape)
    buffer.values[:] = rng.standard_normal(buffer.values.shape)


def train_sb3(model: PPO, buffer: RolloutBuffer) -> dict[str, float]:
    """The update of Stable-Baselines3 on this rollout; returns its losses under our names."""
    theirs: Any = model.rollout_buffer
    theirs.observations[:] = buffer.observations[:-1]
    theirs.actions[:] = buffer.actions[:, :, None]
    theirs.log_probs[:], theirs.values[:] = buffer.log_probabilities, buffer.values[:-1]
    theirs.advantages[:], theirs.returns[:] = buffer.advantages, buffer.returns
    theirs.full, theirs.generator_ready = True, False
    np.random.seed(SEED)  # noqa: NPY002
    model.train()
    logged = model.logger.name_to_value
    names = {"policy_gradient_loss": "policy_loss", "value_loss": "value_loss", "approx_kl": "approx_kl"}
    found = {ours: logged[f"train/{name}"] for name, ours in names.items()}
    return found | {
        "entropy": -logged["train/entropy_loss"],
        "clip_fraction": logged["train/clip_fraction"],
        "total": logged["train/loss"],  # of the last gradient step
    }


def batches(n_epochs: int, batch_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The batches that Stable-Baselines3 draws after `np.random.seed(SEED)`, as indices of ours."""
    random, samples = np.random.RandomState(SEED), N_STEPS * N_ENVS
    theirs = np.stack([random.permutation(samples) for _ in range(n_epochs)])
    ours = theirs % N_STEPS * N_ENVS + theirs // N_STEPS  # they flatten by env first, we by step first
    return ours, np.arange(0, samples + 1, batch_size)


def moments(model: PPO, names: dict[str, str]) -> dict[str, NDArray[Any]]:
    """Their weights and Adam's moments under our names."""
    found, state = {}, model.policy.optimizer.state
    for theirs, ours in names.items():
        weight = model.policy.get_parameter(theirs)
        found[f"weights.{ours}"] = weight.detach().numpy()
        found[f"first.{ours}"] = state[weight]["exp_avg"].numpy()
    return found


def check_close(found: dict[str, Any], wanted: dict[str, Any], atol: float = 2e-6) -> None:
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=atol, err_msg=name)


# ---- dense networks

NAMES = {
    f"mlp_extractor.{part}_net.{layer}.{kind}": f"{ours}.{layer}.{kind}"
    for part, ours in (("policy", "actor"), ("value", "critic"))
    for layer in (0, 2)
    for kind in ("weight", "bias")
} | {
    f"{theirs}.{kind}": f"{ours}.4.{kind}"
    for theirs, ours in (("action_net", "actor"), ("value_net", "critic"))
    for kind in ("weight", "bias")
}


def dense_pair(settings: dict[str, Any], n_epochs: int, batch_size: int) -> tuple[PPO, ActorCritic]:
    arch = {"pi": [16, 16], "vf": [16, 16]}
    model = sb3_model(
        Box(-np.inf, np.inf, (6,), np.float32), settings, policy="MlpPolicy", n_epochs=n_epochs,
        batch_size=batch_size, policy_kwargs={"net_arch": arch},
    )  # fmt: skip
    torch.nn.init.normal_(model.policy.get_parameter("action_net.weight"), std=0.5)
    network = ActorCritic(6, N_ACTIONS, (16, 16))
    with torch.no_grad():
        for theirs, ours in NAMES.items():
            network.get_parameter(ours).copy_(model.policy.get_parameter(theirs))
    return model, network


def made_up_rollout() -> RolloutBuffer:
    buffer = RolloutBuffer(N_STEPS, N_ENVS, (6,), N_ACTIONS)
    fill(buffer)
    return buffer


@ALL
def test_the_loss_equals_stable_baselines3s(settings: dict[str, Any]) -> None:
    model, network = dense_pair(settings, 1, N_STEPS * N_ENVS)
    buffer, config = made_up_rollout(), PPOConfig(**settings)
    batch = flattened(buffer)
    if config.normalize_advantage:
        batch = batch._replace(advantages=normalize(batch.advantages))
    with torch.no_grad():
        logits, values = network(batch.observations)
    loss = ppo_loss(logits, values, batch, **loss_settings(config))
    wanted = train_sb3(model, buffer)
    assert 0.0 < wanted["clip_fraction"] < 1.0
    assert float(loss.total) == pytest.approx(wanted["total"], rel=1e-5)
    assert float(loss.policy) == pytest.approx(wanted["policy_loss"], rel=1e-5)
    assert float(loss.value) == pytest.approx(wanted["value_loss"], rel=1e-5)
    assert float(loss.entropy) == pytest.approx(wanted["entropy"], rel=1e-5)
    assert float(loss.approx_kl) == pytest.approx(wanted["approx_kl"], rel=1e-5)
    assert float(loss.clip_fraction) == pytest.approx(wanted["clip_fraction"], rel=1e-5)


@ALL
@pytest.mark.parametrize("kind", [TorchLearner, FusedPPO])
@pytest.mark.parametrize(("n_epochs", "batch_size"), [(1, N_STEPS * N_ENVS), (2, 12)])
def test_updates_equal_those_of_stable_baselines3(
    kind: type[TorchLearner] | type[FusedPPO], settings: dict[str, Any], n_epochs: int, batch_size: int
) -> None:
    model, network = dense_pair(settings, n_epochs, batch_size)
    learner = kind(copy.deepcopy(network), PPOConfig(**settings))
    buffer = made_up_rollout()
    wanted = train_sb3(model, buffer)
    found = learner.update(buffer, *batches(n_epochs, batch_size), 1e-3)
    if n_epochs > 1:
        del wanted["approx_kl"]  # theirs is that of the last epoch
    check_close(found, {name: value for name, value in wanted.items() if name in found}, atol=1e-5)
    check_close(learner.state(), moments(model, NAMES))


# ---- pictures


@ALL
def test_recurrent_updates_equal_those_of_stable_baselines3(settings: dict[str, Any]) -> None:
    # Plain convolutions: without memory a sequence is a batch of samples, as Stable-Baselines3 has them.
    space = Box(0, 255, (1, 16, 16), np.uint8)
    model = sb3_model(
        space, settings, policy="CnnPolicy", n_epochs=1, batch_size=N_STEPS * N_ENVS,
        policy_kwargs={"net_arch": [], **extractor_settings("conv", 4)},
    )  # fmt: skip
    torch.nn.init.normal_(model.policy.get_parameter("action_net.weight"), std=0.5)
    network = RecurrentActorCritic(ConvEncoder(space.shape, 4, 128), N_ACTIONS)
    names = {"action_net.weight": "actor.weight", "action_net.bias": "actor.bias"}
    names |= {"value_net.weight": "critic.weight", "value_net.bias": "critic.bias"}
    names |= {
        f"features_extractor.{name}": name for name, _ in network.named_parameters() if "encoder" in name
    }
    with torch.no_grad():
        for theirs, ours in names.items():
            network.get_parameter(ours).copy_(model.policy.get_parameter(theirs))
    envs = gymnasium.vector.SyncVectorEnv([lambda: Nothing(space)] * N_ENVS)
    buffer = SequenceBuffer(N_STEPS, envs, network.initial_state(N_ENVS))
    fill(buffer)
    config = RecurrentPPOConfig(
        n_steps=N_STEPS, n_epochs=1, num_minibatches=1, learning_rate=1e-3, **{"ent_coef": 0.0, **settings}
    )
    learner = RecurrentLearner(network, config)
    found = learner.update(buffer, np.random.default_rng(0))
    wanted = train_sb3(model, buffer)
    check_close(found, {name: value for name, value in wanted.items() if name in found}, atol=1e-5)
    check_close(learner.state(), moments(model, names))
