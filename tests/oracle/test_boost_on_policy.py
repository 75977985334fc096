"""Boosted PPO, A2C and MaskablePPO against Stable-Baselines3 itself: same numbers, same random numbers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import set_random_seed
from torch import nn

from hotloop.boost import a2c, maskable_ppo, ppo
from hotloop.boost.install import install, remove
from hotloop.boost.rollouts import Actor, compute_returns_and_advantage
from tests.boost_models import ACTIONS, BOX, NoAudits, assert_same, learn, make_model

SMALL = {"n_steps": 32, "batch_size": 16, "n_epochs": 2}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo-discrete": (PPO, SMALL | {"ent_coef": 0.01}),
    "ppo-multi-discrete": (PPO, SMALL | {"actions": "multi-discrete", "ent_coef": 0.01}),
    "ppo-box": (PPO, SMALL | {"actions": "box", "ent_coef": 0.01}),
    "ppo-clipped-values": (PPO, SMALL | {"clip_range_vf": 0.1, "clip_range": 0.05}),
    "ppo-target-kl": (PPO, SMALL | {"target_kl": 1e-4, "learning_rate": 0.01}),
    "ppo-not-normalised": (PPO, SMALL | {"normalize_advantage": False, "max_grad_norm": 0.1}),
    "ppo-last-batch-smaller": (PPO, SMALL | {"batch_size": 24}),
    "ppo-batch-of-one-left": (PPO, SMALL | {"n_steps": 32, "batch_size": 21}),
    "ppo-schedules": (
        PPO,
        SMALL | {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.1 + 0.1 * left},
    ),
    # Schedules of the progress end below zero when the last rollout is longer than what was left.
    "ppo-schedules-below-zero": (
        PPO,
        SMALL
        | {
            "n_steps": 44,
            "learning_rate": lambda left: 3e-3 * left,
            "clip_range": lambda left: 0.2 * left,
            "clip_range_vf": lambda left: 0.2 * left,
        },
    ),
    "ppo-box-schedules-below-zero": (
        PPO,
        SMALL
        | {
            "n_steps": 44,
            "actions": "box",
            "learning_rate": lambda left: 3e-3 * left,
            "clip_range": lambda left: 0.2 * left,
        },
    ),
    "ppo-rate-of-almost-zero": (PPO, SMALL | {"learning_rate": 1e-10}),
    "a2c-schedule-below-zero": (A2C, {"n_steps": 7, "learning_rate": lambda left: 1e-3 * left}),
    "ppo-weight-decay": (
        PPO,
        SMALL | {"policy_kwargs": {"net_arch": [16], "optimizer_kwargs": {"weight_decay": 0.1, "eps": 1e-5}}},
    ),
    "ppo-two-nets": (
        PPO,
        SMALL
        | {
            "policy_kwargs": {"net_arch": {"pi": [16], "vf": [24, 24]}, "activation_fn": nn.ReLU},
            "actions": "box",
        },
    ),
    "ppo-elu": (PPO, SMALL | {"policy_kwargs": {"net_arch": [20, 16], "activation_fn": nn.ELU}}),
    "a2c-silu": (A2C, {"policy_kwargs": {"net_arch": [20, 16], "activation_fn": nn.SiLU}}),
    "ppo-own-extractors": (
        PPO,
        SMALL | {"policy_kwargs": {"net_arch": [16], "share_features_extractor": False}},
    ),
    "ppo-box-of-two-dimensions": (PPO, SMALL | {"actions": "box-2d"}),
    "ppo-no-hidden-layers": (PPO, SMALL | {"policy_kwargs": {"net_arch": []}}),
    "ppo-discrete-observations": (PPO, SMALL | {"observations": spaces.Discrete(6)}),
    "ppo-float64-observations": (PPO, SMALL | {"observations": spaces.Box(-1.0, 1.0, (2, 3), np.float64)}),
    "a2c": (A2C, {"ent_coef": 0.01}),
    "a2c-box-normalised": (A2C, {"actions": "box", "normalize_advantage": True}),
    "a2c-adam": (A2C, {"actions": "multi-discrete", "use_rms_prop": False}),
    "maskable": (MaskablePPO, SMALL | {"ent_coef": 0.01}),
    "maskable-multi-discrete": (MaskablePPO, SMALL | {"actions": "multi-discrete", "ent_coef": 0.01}),
}


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("case", CASES)
def test_learning_gives_the_librarys_numbers(case: str) -> None:
    cls, words = CASES[case]
    steps = 128 if cls is not A2C else 60
    results = [learn(lambda: make_model(cls, **words), steps, is_boosted) for is_boosted in (True, False)]
    assert_same(results)


def fill(buffer: Any, random: np.random.Generator, actions: Any) -> None:
    """A rollout of random numbers, as large and small as they get in practice."""
    buffer.reset()
    shape = (buffer.buffer_size, buffer.n_envs)
    buffer.observations = random.normal(size=buffer.observations.shape).astype(np.float32)
    if isinstance(actions, spaces.Box):
        buffer.actions = random.normal(size=buffer.actions.shape).astype(np.float32)
    else:
        sizes = [actions.n] if isinstance(actions, spaces.Discrete) else list(actions.nvec)
        buffer.actions = np.stack([random.integers(0, size, shape) for size in sizes], axis=-1)
        if hasattr(buffer, "action_masks"):  # the actions that were taken are allowed
            masks = random.random((*shape, sum(sizes))) < 0.7
            for head, start in enumerate(np.cumsum([0, *sizes[:-1]])):
                np.put_along_axis(masks, buffer.actions[..., head : head + 1] + start, True, axis=-1)
            buffer.action_masks = masks.astype(np.float32)
    for name in ("values", "log_probs", "advantages", "returns"):
        scale = float(10.0 ** random.uniform(-1, 1)) if name != "log_probs" else 0.3
        offset = -1.5 if name == "log_probs" else 0.0
        setattr(buffer, name, (random.normal(size=shape) * scale + offset).astype(np.float32))
    buffer.full, buffer.generator_ready = True, False


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**31 - 1),
    actions=st.sampled_from(sorted(ACTIONS)),
    hidden=st.lists(st.integers(1, 40), max_size=3),
    batch_size=st.integers(2, 70),
    steps_before=st.sampled_from([0, 3]),
    cls=st.sampled_from([PPO, A2C, MaskablePPO]),
    activation=st.sampled_from([nn.Tanh, nn.ReLU, nn.ELU, nn.SiLU]),
    clip_range_vf=st.sampled_from([None, 0.1]),
)
def test_any_update_from_any_state(
    seed: int,
    actions: str,
    hidden: list[int],
    batch_size: int,
    steps_before: int,
    cls: Any,
    activation: Any,
    clip_range_vf: float | None,
) -> None:
    random = np.random.default_rng(seed)
    words: dict[str, Any] = {
        "n_steps": 32,
        "policy_kwargs": {"net_arch": hidden, "activation_fn": activation},
    }
    if cls is not A2C:
        words |= {"batch_size": batch_size, "n_epochs": 1, "clip_range_vf": clip_range_vf}
    if cls is MaskablePPO and "box" in actions:
        actions = "multi-discrete"
    if cls is MaskablePPO and 64 % batch_size == 1:
        words["batch_size"] = batch_size + 1  # the library's advantages of a batch of one are NaN
    model = make_model(cls, actions, **words)
    model._setup_learn(1)
    for parameter in model.policy.parameters():
        parameter.data += torch.as_tensor(
            random.normal(size=tuple(parameter.shape)) * 0.1, dtype=torch.float32
        )
    for _ in range(steps_before):
        fill(model.rollout_buffer, random, model.action_space)
        model.train()
    fill(model.rollout_buffer, random, model.action_space)
    other = copy.deepcopy(model.policy.state_dict()), copy.deepcopy(model.policy.optimizer.state_dict())
    rollout = copy.deepcopy(model.rollout_buffer)
    set_random_seed(seed)
    model.train()
    theirs = {name: value.clone().numpy() for name, value in model.policy.state_dict().items()}
    model.policy.load_state_dict(other[0])
    model.policy.optimizer.load_state_dict(other[1])
    model.rollout_buffer = rollout
    set_random_seed(seed)
    learner = {PPO: ppo, A2C: a2c, MaskablePPO: maskable_ppo}[cls].Learner(model)
    learner.audits = NoAudits()
    learner.train(model, type(model).train)
    rate = model.policy.optimizer.param_groups[0]["lr"]
    differences = [
        np.abs(value.numpy() - theirs[name]).ravel() / rate
        for name, value in model.policy.state_dict().items()
    ]
    assert np.mean(np.concatenate(differences)) < 0.01 * max(1, 64 // batch_size)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1), steps=st.integers(1, 9), envs=st.integers(1, 4))
def test_advantages_are_equal_bit_for_bit(seed: int, steps: int, envs: int) -> None:
    random = np.random.default_rng(seed)
    buffers = [
        RolloutBuffer(steps, BOX, ACTIONS["discrete"], "cpu", random.uniform(0.8, 1.0), 0.99, envs)
        for _ in (0, 1)
    ]
    buffers[1].gae_lambda = buffers[0].gae_lambda
    for name in ("rewards", "values"):
        values = (random.normal(size=(steps, envs)) * 10).astype(np.float32)
        for buffer in buffers:
            setattr(buffer, name, values.copy())
    starts = (random.random((steps, envs)) < 0.3).astype(np.float32)
    last, dones = random.normal(size=(envs, 1)).astype(np.float32), random.random(envs) < 0.5
    for buffer in buffers:
        buffer.episode_starts = starts
    buffers[0].compute_returns_and_advantage(torch.as_tensor(last), dones)
    compute_returns_and_advantage(buffers[1], last, dones)
    np.testing.assert_array_equal(buffers[0].advantages, buffers[1].advantages)
    np.testing.assert_array_equal(buffers[0].returns, buffers[1].returns)


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_actions_are_sampled_as_torch_does(actions: str, rows: int) -> None:
    model = make_model(PPO, actions)
    learner = ppo.Learner(model)
    actor = Actor(learner.networks, learner.observations, model.action_space, rows)
    learner.networks.follow_weights()
    observations = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)
    for _ in range(5):
        before = torch.get_rng_state()
        ours = actor.act(observations)
        torch.set_rng_state(before)
        with torch.no_grad():
            theirs = model.policy(torch.as_tensor(observations))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.shape == tuple(other.shape)
            assert mine.dtype == other.numpy().dtype
            np.testing.assert_allclose(mine, other.numpy(), rtol=1e-4, atol=1e-5)


def test_removing_puts_the_library_back() -> None:
    before = PPO.train, PPO.collect_rollouts, A2C.train, PPO._setup_learn
    install()
    assert PPO.train is not before[0]
    remove()
    assert before == (PPO.train, PPO.collect_rollouts, A2C.train, PPO._setup_learn)
