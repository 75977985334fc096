"""Boosted DQN, SAC, TD3 and DDPG against Stable-Baselines3 itself: same numbers, same random numbers."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.sac.policies import Actor
from torch import nn

from hotloop.boost import active, dqn, dqn_kernels, install, sac, td3, team
from hotloop.boost.install import remove
from tests.boost_models import (
    STATE_CHANGES,
    NoAudits,
    Result,
    assert_same,
    boosting,
    learn,
    make_model,
)

MODULES: dict[Any, Any] = {DQN: dqn, SAC: sac, TD3: td3, DDPG: td3}
SMALL: dict[str, Any] = {"batch_size": 16, "buffer_size": 200, "learning_starts": 20}
NOISE = NormalActionNoise(np.zeros(3), np.full(3, 0.1))
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "dqn": (DQN, {"target_update_interval": 20}),
    "dqn-soft-targets": (DQN, {"train_freq": 1, "tau": 0.1, "target_update_interval": 4, "n_envs": 1}),
    "dqn-episodes": (DQN, {"train_freq": (1, "episode"), "gradient_steps": -1, "n_envs": 1}),
    "dqn-clipped": (DQN, {"max_grad_norm": 0.01, "policy_kwargs": {"net_arch": []}}),
    "dqn-float64-observations": (DQN, {"observations": spaces.Box(-1.0, 1.0, (2, 3), np.float64)}),
    "dqn-whole-numbers": (DQN, {"observations": spaces.Box(-9, 9, (3,), np.int64)}),
    "dqn-discrete-observations": (DQN, {"observations": spaces.Discrete(6)}),
    "dqn-one-observation": (DQN, {"observations": spaces.Discrete(1), "n_envs": 1}),
    "sac": (SAC, {"actions": "box"}),
    "sac-fixed-ent-coef": (SAC, {"actions": "box", "ent_coef": 0.1, "n_envs": 1, "action_noise": NOISE}),
    "sac-schedule": (
        SAC,
        {"actions": "box", "learning_rate": lambda left: 1e-3 * left, "ent_coef": "auto_0.5"},
    ),
    "sac-many-steps": (
        SAC,
        {"actions": "box", "train_freq": 8, "gradient_steps": -1, "target_update_interval": 3},
    ),
    "sac-n-steps": (
        SAC,
        {"actions": "box", "n_steps": 3, "batch_size": 33, "observations": spaces.Discrete(6)},
    ),
    "td3": (TD3, {"actions": "box", "action_noise": NOISE}),
    "td3-saving-memory": (
        TD3,
        {
            "actions": "box",
            "optimize_memory_usage": True,
            "replay_buffer_kwargs": {"handle_timeout_termination": False},
            "policy_delay": 3,
        },
    ),
    "ddpg": (DDPG, {"actions": "box", "policy_kwargs": {"net_arch": [20, 16], "activation_fn": nn.Tanh}}),
}


# TD3's kernels take ten seconds to compile; they share most of their code with SAC's.
LONG = pytest.mark.long


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=LONG if name[:3] in ("td3", "ddp") else ()) for name in CASES]
)
def test_learning_gives_the_librarys_numbers(case: str) -> None:
    cls, words = CASES[case]
    results = [
        learn(lambda: make_model(cls, **(SMALL | words)), 90, is_boosted) for is_boosted in (True, False)
    ]
    assert_same(results)


def test_vec_normalize_gives_the_librarys_numbers() -> None:
    def make() -> Any:
        model = make_model(SAC, "box", **SMALL)
        model.set_env(VecNormalize(model.get_env()))
        return model

    assert_same([learn(make, 60, True), learn(make, 60, False)])


NETWORKS = st.lists(st.integers(1, 40) | st.sampled_from([16, 32, 48]), max_size=3)


@pytest.mark.parametrize("classes", [(DQN, SAC), pytest.param((TD3, DDPG), marks=LONG)])
@example(0, False, [], [], nn.ReLU, 1, 1, 0.1, 0)  # weight decay and a gradient that is clipped
@example(2584, True, [], [], nn.ReLU, 7, 2, 0.0, 0)  # actions close to their bounds
@example(1, True, [48, 24], [32, 68], nn.ReLU, 70, 2, 0.0, 3)  # sums that the signs of units select
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31 - 1),
    is_second=st.booleans(),
    hidden=NETWORKS,
    of_critics=NETWORKS,
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.ELU, nn.SiLU]),
    batch_size=st.integers(1, 70),
    n_critics=st.integers(1, 3),
    weight_decay=st.sampled_from([0.0, 0.1]),
    steps_before=st.sampled_from([0, 3]),
)
def test_any_update_from_any_state(
    classes: tuple[Any, Any],
    seed: int,
    is_second: bool,
    hidden: list[int],
    of_critics: list[int],
    activation: Any,
    batch_size: int,
    n_critics: int,
    weight_decay: float,
    steps_before: int,
) -> None:
    cls, random = classes[is_second], np.random.default_rng(seed)
    policy: dict[str, Any] = {"net_arch": hidden, "activation_fn": activation}
    policy["optimizer_kwargs"] = {"weight_decay": weight_decay}
    if cls is not DQN:
        policy |= {"net_arch": {"pi": hidden, "qf": of_critics}, "n_critics": n_critics}
    words: dict[str, Any] = {"policy_delay": 1} if cls is TD3 else {}
    model = make_model(
        cls, "discrete" if cls is DQN else "box", policy_kwargs=policy, buffer_size=200, **words
    )
    model._setup_learn(1)
    fill(model, random)
    model.train(gradient_steps=steps_before, batch_size=32) if steps_before else None
    before = {name: kept(value) for name, value in tensors(model).items()}
    set_random_seed(seed)
    model.train(gradient_steps=1, batch_size=batch_size)
    theirs, logged = (
        {name: kept(value) for name, value in tensors(model).items()},
        dict(model.logger.name_to_value),
    )
    for name, value in tensors(model).items():
        value.data.copy_(torch.from_numpy(before.get(name, np.zeros_like(theirs[name]))))
    model._n_updates -= 1
    set_random_seed(seed)
    learner = MODULES[cls].Learner(model)
    learner.audits = NoAudits()
    learner.train(model, cls.train, gradient_steps=1, batch_size=batch_size)
    rate = model.lr_schedule(1.0)
    ours = {name: kept(value) for name, value in tensors(model).items()}
    assert ours.keys() == theirs.keys()
    weights = [name for name in theirs if "optimizer" not in name]
    apart = np.concatenate([np.abs(ours[name] - theirs[name]).ravel() / rate for name in weights])
    # Adam's first step is the gradient's sign: where the gradient is rounding, that is what differs.
    assert np.mean(apart) < 0.01
    for key, value in logged.items():
        np.testing.assert_allclose(model.logger.name_to_value[key], value, rtol=1e-3, atol=1e-4, err_msg=key)
    exact: dict[str, Any] = {}
    for name in theirs.keys() - set(weights):
        size = np.linalg.norm(theirs[name])
        # The relative error of a square is twice that of the gradient.
        allowed = (2e-3 if name.endswith("exp_avg_sq") else 1e-3) * size + 1e-7
        if cls is SAC and np.linalg.norm(ours[name] - theirs[name]) > allowed:
            # Close to the bounds of actions the library's 1 - tanh(u) ** 2 has few digits left.
            exact = exact or updated_in_float64(model, before, seed, batch_size)
            allowed += np.linalg.norm(theirs[name] - exact[name])
            assert np.linalg.norm(ours[name] - exact[name]) <= allowed, name
        else:
            assert np.linalg.norm(ours[name] - theirs[name]) <= allowed, name


def updated_in_float64(model: Any, before: dict[str, Any], seed: int, batch_size: int) -> dict[str, Any]:
    """What one update by the library would give without rounding; the model is of no use afterwards."""
    for name, value in tensors(model).items():
        value.data = torch.from_numpy(before.get(name, np.zeros(value.shape))).double()
    model.replay_buffer.to_torch = lambda array, copy=True: torch.from_numpy(array.astype(np.float64))
    drawn: Any = getattr(torch.distributions.normal, "_standard_normal")  # noqa: B009
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "torch.distributions.normal._standard_normal",
            lambda shape, dtype, device: drawn(shape, torch.float32, device).to(dtype),
        )
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # the library casts observations
        set_random_seed(seed)
        model.train(gradient_steps=1, batch_size=batch_size)
    return {name: kept(value) for name, value in tensors(model).items()}


def test_small_deviations_beside_large_means_give_the_librarys_gradients() -> None:
    """Where terms of the log probability's gradient cancel out, what is left of them is rounding."""
    model = make_model(SAC, "box", buffer_size=200)
    model._setup_learn(1)
    fill(model, np.random.default_rng(0))
    with torch.no_grad():
        model.actor.mu.bias.fill_(4.0)
        model.actor.log_std.bias.fill_(-11.0)
    before = {name: kept(value) for name, value in tensors(model).items()}
    found = []
    for is_boosted in (False, True):
        for name, value in tensors(model).items():
            value.data.copy_(torch.from_numpy(before.get(name, np.zeros(value.shape, np.float32))))
        set_random_seed(0)
        if is_boosted:
            learner = MODULES[SAC].Learner(model)
            learner.audits = NoAudits()
            learner.train(model, SAC.train, gradient_steps=1, batch_size=32)
        else:
            model.train(gradient_steps=1, batch_size=32)
        found.append({name: kept(value) for name, value in tensors(model).items() if ".exp_avg" in name})
    for name, theirs in found[0].items():
        assert np.linalg.norm(found[1][name] - theirs) <= 3e-4 * np.linalg.norm(theirs), name


def fill(model: Any, random: np.random.Generator) -> None:
    """Random weights and random transitions."""
    for parameter in model.policy.parameters():
        noise = random.normal(size=tuple(parameter.shape)) * 0.1
        parameter.data += torch.as_tensor(noise, dtype=torch.float32)
    buffer = model.replay_buffer
    for name in ("observations", "next_observations", "rewards"):
        array = getattr(buffer, name)
        array[:] = random.normal(size=array.shape) * 10.0 ** random.uniform(-1, 1)
    if isinstance(model.action_space, spaces.Discrete):
        buffer.actions[:] = random.integers(0, model.action_space.n, buffer.actions.shape)
    else:
        buffer.actions[:] = random.uniform(-1, 1, buffer.actions.shape)
    buffer.dones[:] = random.random(buffer.dones.shape) < 0.1
    buffer.timeouts[:] = random.random(buffer.dones.shape) < 0.1
    buffer.full = True


def kept(value: Any) -> Any:
    return value.detach().clone().numpy()


def tensors(model: Any) -> dict[str, Any]:
    """All that `train` changes, by name."""
    found = dict(model.policy.state_dict(keep_vars=True))
    optimizers, others = model._get_torch_save_params()
    found |= {name: operator.attrgetter(name)(model) for name in others}
    for path in optimizers[1:]:
        optimizer = operator.attrgetter(path)(model)
        for index, parameter in enumerate(optimizer.param_groups[0]["params"]):
            found |= {f"{path}.{index}.{key}": value for key, value in optimizer.state[parameter].items()}
    return found


@pytest.mark.parametrize(
    ("cls", "actions", "hidden"),
    [
        (SAC, "box", [40, 24]),
        (SAC, "box", [48, 24]),  # whole vectors: the signs of units select sums
        pytest.param(TD3, "box", [40, 24], marks=LONG),
        pytest.param(TD3, "box-1", [48, 24], marks=LONG),  # in the actor, too
    ],
)
def test_two_threads_give_the_same_numbers_to_the_last_bit(
    cls: Any, actions: str, hidden: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "ENOUGH", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    found = []
    for threads, is_adaptive in ((1, True), (2, False), (2, True)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        model = make_model(cls, actions, buffer_size=200, policy_kwargs={"net_arch": hidden})
        model._setup_learn(1)
        fill(model, np.random.default_rng(0))
        learner = MODULES[cls].Learner(model)
        learner.audits = NoAudits()
        set_random_seed(0)
        learner.train(model, cls.train, gradient_steps=1, batch_size=48)
        learner.team.is_adaptive = is_adaptive
        learner.train(model, cls.train, gradient_steps=19, batch_size=48)
        assert learner.team.parts == threads
        learner.team.close()
        found.append({name: kept(value) for name, value in tensors(model).items()})
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_helpers_go_on_after_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "ENOUGH", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with boosting():
        model = make_model(SAC, "box", **SMALL)
        model.learn(40)
        learner = active.of(model)
        learner.team.is_adaptive = False
        weights = kept(model.actor.mu.bias)
        for _ in range(3):
            with torch.no_grad():
                model.actor.mu.bias.fill_(np.nan)
            with pytest.raises(ValueError, match="loc"):
                model.train(gradient_steps=1, batch_size=learner.samples.size)
            with torch.no_grad():
                model.actor.mu.bias.copy_(torch.from_numpy(weights))
            before = kept(model.actor.mu.bias)
            model.train(gradient_steps=2, batch_size=learner.samples.size)
            assert not np.array_equal(kept(model.actor.mu.bias), before)
        learner.team.close()


class Meddler(BaseCallback):
    """Replaces weights and optimizer state in the middle of training."""

    def _on_step(self) -> bool:
        model: Any = self.model
        if self.n_calls == 20:
            model.set_parameters(model.get_parameters())
        if self.n_calls == 25:
            for parameter in model.policy.parameters():
                parameter.data = parameter.data * 0.9
        if self.n_calls == 30:
            for name in model._get_torch_save_params()[0][1:]:
                optimizer = operator.attrgetter(name)(model)
                optimizer.load_state_dict(optimizer.state_dict())
        return True


@pytest.mark.parametrize("cls", [DQN, SAC, pytest.param(TD3, marks=LONG)])
def test_callbacks_may_replace_tensors(cls: Any) -> None:
    actions = "discrete" if cls is DQN else "box"

    def run(is_boosted: bool) -> Result:
        def more(model: Any) -> None:
            model.learn(80, callback=Meddler(), reset_num_timesteps=False)

        return learn(lambda: make_model(cls, actions, **SMALL), 30, is_boosted, more)

    assert_same([run(True), run(False)])


class Exchange(BaseCallback):
    """Gives the network that acts another layer, some steps before the next call of `train`."""

    def _on_step(self) -> bool:
        if self.n_calls == 2:
            torch.manual_seed(5)
            model: Any = self.model
            if isinstance(model, DQN):
                model.q_net.q_net[0] = nn.Linear(5, 16)
                model.policy.optimizer = torch.optim.Adam(model.q_net.parameters())
            else:
                if isinstance(model, TD3):
                    model.actor.mu[4] = nn.Linear(16, 3)
                else:
                    model.actor.mu = nn.Linear(16, 3)
                model.actor.optimizer = torch.optim.Adam(model.actor.parameters())
        return True


@pytest.mark.parametrize("cls", [DQN, SAC, pytest.param(TD3, marks=LONG)])
def test_layers_exchanged_between_updates_act_at_once(cls: Any) -> None:
    words = SMALL | {"train_freq": 20, "actions": "discrete" if cls is DQN else "box"}

    def run(is_boosted: bool) -> Result:
        def more(model: Any) -> None:
            model.learn(80, callback=Exchange(), reset_num_timesteps=False)

        return learn(lambda: make_model(cls, **words), 80, is_boosted, more)

    assert_same([run(True), run(False)])


@pytest.mark.parametrize("change", STATE_CHANGES)
@pytest.mark.parametrize("cls", [DQN, SAC, pytest.param(TD3, marks=LONG)])
def test_optimizer_state_may_be_changed_in_place(cls: Any, change: str) -> None:
    actions = "discrete" if cls is DQN else "box"

    def more(model: Any) -> None:
        for name in model._get_torch_save_params()[0][1:]:
            STATE_CHANGES[change](operator.attrgetter(name)(model))
        model.learn(50, reset_num_timesteps=False)

    results = [
        learn(lambda: make_model(cls, actions, **SMALL), 50, is_boosted, more) for is_boosted in (True, False)
    ]
    assert_same(results)


@pytest.mark.parametrize("cls", [DQN, SAC])
def test_a_second_thread_acts_with_the_librarys_code(cls: Any) -> None:
    """The kernels' arrays hold one thread's numbers at a time."""
    rows = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    with boosting():
        model = make_model(cls, "discrete" if cls is DQN else "box", **SMALL)
        model.learn(40)
        learner = active.of(model)
        expected = model.predict(rows, deterministic=True)[0]
        assert learner.acting.begin()  # as another thread does
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learner, "act", lambda *_: pytest.fail("kernels act"))
            np.testing.assert_allclose(model.predict(rows, deterministic=True)[0], expected, atol=1e-4)
        learner.acting.end()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learner, "act", lambda *_: expected + 1)
            patch.setattr(learner, "acting_audits", NoAudits())
            np.testing.assert_array_equal(model.predict(rows, deterministic=True)[0], expected + 1)


@pytest.mark.parametrize("cls", [DQN, SAC, pytest.param(TD3, marks=LONG)])
def test_checkpoints_continue_with_and_without_boost(cls: Any, tmp_path: Path) -> None:
    actions = "discrete" if cls is DQN else "box"

    def make() -> Any:
        return make_model(cls, actions, **SMALL)

    def through_a_file(model: Any) -> Any:
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        state = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        loaded = cls.load(tmp_path / "model", env=model.get_env(), device="cpu")
        loaded.load_replay_buffer(tmp_path / "buffer")
        np.random.set_state(state[0])  # noqa: NPY002
        torch.set_rng_state(state[1])
        return loaded

    with boosting():
        model = make()
        model.learn(50)
        model = through_a_file(model)
    model.learn(50, reset_num_timesteps=False)
    boosted_first = Result(model)
    model = make()
    model.learn(50)
    with boosting():
        model = through_a_file(model)
        model.learn(50, reset_num_timesteps=False)
        found = active.boosted(model)
        assert found is not None
        assert found.record.gradient_steps > 0
        assert_same([Result(model), boosted_first])


@pytest.mark.parametrize("cls", [DQN, SAC, pytest.param(TD3, marks=LONG)])
def test_predict_draws_and_returns_what_the_library_does(cls: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    with boosting():
        model = make_model(cls, "discrete" if cls is DQN else "box", **SMALL)
        model.learn(40)
        found = []
        for is_boosted in (True, False):
            if not is_boosted:
                remove()
            torch.manual_seed(3)
            found.append(
                [
                    model.policy.predict(given, deterministic=deterministic)[0]
                    for deterministic in (True, False)
                    for given in (rows, rows[0], rows[:1].astype(np.float64))
                ]
            )
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_numbers_that_are_not_finite_are_the_librarys() -> None:
    with boosting():
        model = make_model(SAC, "box", **SMALL)
        model.learn(40)
        with torch.no_grad():
            model.actor.mu.bias.fill_(np.nan)
        before = kept(model.critic.qf0[0].weight)
        with pytest.raises(ValueError, match="loc"):
            model.train(gradient_steps=1, batch_size=8)
        np.testing.assert_array_equal(kept(model.critic.qf0[0].weight), before)
        with pytest.raises(ValueError, match="loc"):
            model.predict(np.zeros((1, 5), dtype=np.float32))


@pytest.mark.parametrize("cls", [DQN, SAC, pytest.param(TD3, marks=LONG)])
def test_gradients_are_those_the_optimizers_used(cls: Any) -> None:
    words: dict[str, Any] = (
        {"policy_delay": 1} if cls is TD3 else {"max_grad_norm": 0.01} if cls is DQN else {}
    )
    policy = {"net_arch": [16], "optimizer_kwargs": {"weight_decay": 0.1}}
    model = make_model(
        cls, "discrete" if cls is DQN else "box", buffer_size=200, policy_kwargs=policy, **words
    )
    model._setup_learn(1)
    fill(model, np.random.default_rng(0))
    before = [kept(parameter) for parameter in model.policy.parameters()]
    learner = MODULES[cls].Learner(model)
    learner.audits = NoAudits()
    learner.train(model, cls.train, gradient_steps=1, batch_size=16)
    learned = 0
    for parameter, weights in zip(model.policy.parameters(), before, strict=True):
        for optimizer in (group.optimizer for group in learner.groups):
            if parameter in optimizer.state:  # after one step, the first moment is a tenth of the gradient
                expected = 10.0 * kept(optimizer.state[parameter]["exp_avg"]) - 0.1 * weights
                np.testing.assert_allclose(parameter.grad.numpy(), expected, rtol=1e-3, atol=1e-5)
                learned += 1
    assert learned == sum(len(group.weights) for group in learner.groups if "log_ent_coef" not in group.names)


def test_an_observation_outside_its_space_gives_the_librarys_error() -> None:
    with boosting():
        model = make_model(DQN, observations=spaces.Discrete(6), **SMALL)
        model.learn(40)
        model.replay_buffer.observations[:] = 6
        with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
            model.train(gradient_steps=1, batch_size=8)
        with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
            model.predict(np.array([6, 2]))


def test_copied_targets_call_for_an_audit() -> None:
    with boosting():
        model = make_model(DQN, n_envs=1, train_freq=1, target_update_interval=30, **SMALL)
        model.learn(40)
        found = active.boosted(model)
        assert found is not None
        audits = found.record.audits
        seen = []
        for _ in range(40):  # one gradient step each; targets are copied once or twice meanwhile
            audits._next, audits.spent_s, before = 10**9, 0.0, audits.passed
            model.num_timesteps, model._total_timesteps = 0, 1
            model.collect_rollouts(
                model.env, train_freq=model.train_freq, callback=model._init_callback(None),
                learning_starts=0, replay_buffer=model.replay_buffer,
            )  # fmt: skip
            model.train(gradient_steps=1, batch_size=8)
            seen.append(audits.passed - before)
        assert sum(seen) in (1, 2)


# ---- what is left to the library


class MySAC(SAC):
    pass


def with_hook(model: Any) -> None:
    model.actor.mu.register_forward_hook(lambda *_: None)


def with_other_buffer(model: Any) -> None:
    class MyBuffer(type(model.replay_buffer)):  # type: ignore[misc]
        pass

    model.replay_buffer.__class__ = MyBuffer


class MyActor(Actor):
    pass


class MySequence(nn.Sequential):
    pass


def with_other_actor(model: Any) -> None:
    model.actor.__class__ = MyActor


def with_other_sequence(model: Any) -> None:
    for critic in (model.critic, model.critic_target):
        critic.q_networks[0] = critic.qf0 = MySequence(*critic.qf0)


def with_other_layers(model: Any) -> None:
    model.actor.latent_pi = MySequence(*model.actor.latent_pi)


def with_instance_method(model: Any) -> None:
    model.actor.action_log_prob = model.actor.action_log_prob


def with_frozen_layer(model: Any) -> None:
    next(model.critic.parameters()).requires_grad = False


@pytest.mark.parametrize(
    ("words", "change", "reason"),
    [
        ({}, with_hook, "policy.actor.mu has hooks"),
        ({}, with_other_buffer, "replay_buffer is MyBuffer: not ReplayBuffer or NStepReplayBuffer"),
        ({}, with_other_actor, "actor is MyActor: not Actor"),
        ({}, with_other_sequence, "critic.qf0 is MySequence: not nn.Sequential"),
        ({}, with_other_layers, "actor.latent_pi is MySequence: not nn.Sequential"),
        ({}, with_instance_method, "policy.actor.action_log_prob is replaced on the instance"),
        ({}, with_frozen_layer, "policy.critic.qf0.0.weight is frozen"),
        ({"use_sde": True}, None, "use_sde=True"),
        ({"policy_kwargs": {"activation_fn": nn.Softplus}}, None, "actor has the activation Softplus"),
        ({"policy_kwargs": {"optimizer_class": torch.optim.AdamW}}, None, "the optimizer is"),
        ({"policy_kwargs": {"optimizer_kwargs": {"amsgrad": True}}}, None, "the optimizer has amsgrad=True"),
        ({"policy_kwargs": {"optimizer_kwargs": {"eps": 1e-15}}}, None, "the optimizer's eps is 1e-15"),
        ({"observations": spaces.MultiBinary(4)}, None, "observations are a MultiBinary space"),
        ({"observations": spaces.Discrete(4, start=1)}, None, "observations start at 1, not at 0"),
        ({"cls": MySAC}, None, "it is a subclass of SAC, and its methods may differ"),
    ],
)
def test_what_is_left_to_the_library_and_why(words: dict[str, Any], change: Any, reason: str) -> None:
    with boosting():
        model = make_model(words.pop("cls", SAC), "box", **(SMALL | words))
        if change is not None:
            change(model)
        found = install.prepare(model)
        assert found.learner is None
        assert str(found.record.reason).startswith(reason)


def test_a_hook_added_later_runs() -> None:
    with boosting():
        model = make_model(SAC, "box", **SMALL)
        model.learn(40)
        calls: list[int] = []
        model.actor.mu.register_forward_hook(lambda *_: calls.append(1))
        model.predict(np.zeros((2, 5), dtype=np.float32))
        assert calls
        model.train(gradient_steps=1, batch_size=8)
        found = active.boosted(model)
        assert found is not None
        assert found.record.reason == "policy.actor.mu has hooks"


def test_wrong_kernels_are_found_and_the_librarys_result_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dqn_kernels.update

    def wrong(networks: Any, memory: Any, batch: Any, *more: Any) -> None:
        batch.rewards[:] += 0.1
        right(networks, memory, batch, *more)

    expected = learn(lambda: make_model(DQN, **SMALL), 60, False)
    with boosting():
        monkeypatch.setattr(dqn_kernels, "update", wrong)
        model = make_model(DQN, **SMALL)
        model.learn(60)
        found = active.boosted(model)
        assert found is not None
        assert found.learner is None
        assert "an audit failed" in str(found.record.reason)
        assert_same([Result(model), expected])
