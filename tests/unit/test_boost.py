"""`hotloop boost`: what is left to the library and why, audits, and the pitfalls of replacing a learner."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import importlib.util
import inspect
import io
import linecache
import textwrap
import weakref
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import CategoricalDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

import hotloop
from hotloop._util.errors import HotloopError
from hotloop.analysis.advice.learner import BOOSTABLE, BOOSTED_CLASSES
from hotloop.analysis.explain import explain
from hotloop.boost import active, background, bootstrap, install, maskable_ppo, on_policy
from hotloop.boost import on_policy_kernels as kernels
from hotloop.boost.audit import EVERY, FIRST, Audits
from hotloop.boost.bootstrap import BoostPatch
from hotloop.boost.infos import fast_deepcopy
from hotloop.boost.known_sources import hash_of_source
from hotloop.boost.on_policy import OnPolicyLearner
from hotloop.boost.rollouts import Actor
from hotloop.boost.torch_patches import STEPS
from hotloop.cli.boost import _about as about
from hotloop.instrument import update_counting
from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.torch import _recorded_step
from hotloop.rl.envs.compiled import NotCompiledError, kernel, only_from_cache
from hotloop.rl.envs.kernel_cache import KernelCache
from hotloop.testing.planted import small_ppo_of_stable_baselines3
from hotloop.workflows.project_settings import load_settings, patches_to_keep, save_patches_to_keep
from tests.boost_models import BOX, STATE_CHANGES, Result, assert_same, boosting, learn, make_model

SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2}


def make_ppo(**words: Any) -> Any:
    return make_model(PPO, **(SMALL | words))


# ---- what is left to the library


class MyPPO(PPO):
    pass


class MyNet(nn.Module):
    pass


def with_hook(model: Any) -> None:
    model.policy.action_net.register_forward_hook(lambda *_: None)


def with_two_groups(model: Any) -> None:
    model.policy.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def with_instance_method(model: Any) -> None:
    model.policy.evaluate_actions = model.policy.evaluate_actions


def with_double_precision(model: Any) -> None:
    model.policy.double()


def with_frozen_layer(model: Any) -> None:
    model.policy.value_net.bias.requires_grad = False


def with_other_layer(model: Any) -> None:
    model.policy.mlp_extractor.policy_net[1] = nn.Dropout(0.5)


def with_two_activations(model: Any) -> None:
    model.policy.mlp_extractor.value_net[1] = nn.ReLU()


def with_steeper_elu(model: Any) -> None:
    model.policy.mlp_extractor.policy_net[1] = nn.ELU(alpha=0.5)


def without_bias(model: Any) -> None:
    model.policy.action_net.bias = None


def with_optimizer_hook(model: Any) -> None:
    model.policy.optimizer.register_step_post_hook(lambda *_: None)


def with_gradient_hook(model: Any) -> None:
    model.policy.action_net.weight.register_hook(lambda gradient: gradient)


def with_tensor_as_rate(model: Any) -> None:
    model.policy.optimizer.param_groups[0]["lr"] = torch.tensor(1e-3)


def with_unequal_steps(model: Any) -> None:
    state = model.policy.optimizer.state
    for parameter in model.policy.parameters():
        state[parameter] = {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(parameter)}
    state[model.policy.action_net.bias]["step"] += 1.0


class Residual(nn.Sequential):
    def forward(self, input: Any) -> Any:
        return input + super().forward(input)


class MyNetworks(nn.Module):
    """Has the parts of the library's MlpExtractor, but does other things with them."""

    def __init__(self, made: Any):
        super().__init__()
        self.policy_net, self.value_net = made.policy_net, made.value_net


class MyDistribution(CategoricalDistribution):
    pass


def with_other_networks(model: Any) -> None:
    model.policy.mlp_extractor = MyNetworks(model.policy.mlp_extractor)


def with_other_sequence(model: Any) -> None:
    model.policy.mlp_extractor.value_net = Residual(*model.policy.mlp_extractor.value_net)


def with_other_distribution(model: Any) -> None:
    model.policy.action_dist = MyDistribution(4)


def with_method_of_distribution(model: Any) -> None:
    model.policy.action_dist.log_prob = model.policy.action_dist.log_prob


def with_other_extractor_of_values(model: Any) -> None:
    model.policy.vf_features_extractor = MyExtractor(model.observation_space)


def with_other_buffer(model: Any) -> None:
    model.rollout_buffer.__class__ = type("MyBuffer", (type(model.rollout_buffer),), {})


def with_replaced_train(model: Any) -> None:
    model.train = model.train


def with_fewer_steps(model: Any) -> None:
    model.n_steps = 16


def with_coefficient_schedule(model: Any) -> None:
    model.ent_coef = lambda left: 0.01 * left


class MyPolicy(ActorCriticPolicy):
    pass


class MyExtractor(FlattenExtractor):
    pass


@pytest.mark.parametrize(
    ("words", "change", "reason"),
    [
        ({"cls": MyPPO}, None, "it is a subclass of PPO"),
        ({}, with_hook, "policy.action_net has hooks"),
        ({}, with_two_groups, "the optimizer has 2 parameter groups"),
        ({}, with_instance_method, "policy.evaluate_actions is replaced on the instance"),
        ({}, with_double_precision, "is torch.float64, not torch.float32"),
        ({}, with_frozen_layer, "policy.value_net.bias is frozen"),
        ({}, with_other_layer, "the actor has the activation Dropout"),
        ({}, with_two_activations, "the critic has two kinds of activations"),
        ({}, with_steeper_elu, "the actor has the activation ELU with alpha=0.5"),
        ({}, without_bias, "the actor has a Linear layer without bias"),
        ({}, with_optimizer_hook, "the optimizer has hooks"),
        ({}, with_gradient_hook, "policy.action_net.weight has hooks"),
        ({}, with_tensor_as_rate, "the optimizer's settings are tensors"),
        ({}, with_unequal_steps, "the optimizer made different numbers of steps"),
        ({}, with_other_buffer, "rollout_buffer is MyBuffer: not RolloutBuffer"),
        ({}, with_replaced_train, "train is replaced on the instance"),
        ({}, with_other_networks, "mlp_extractor is MyNetworks: not MlpExtractor"),
        ({}, with_other_sequence, "mlp_extractor.value_net is Residual: not nn.Sequential"),
        ({}, with_other_distribution, "action_dist is MyDistribution: not CategoricalDistribution"),
        ({}, with_method_of_distribution, "action_dist.log_prob is replaced on the instance"),
        (
            {"policy_kwargs": {"share_features_extractor": False}},
            with_other_extractor_of_values,
            "vf_features_extractor is MyExtractor: not an MLP",
        ),
        ({}, with_fewer_steps, "the rollout buffer does not have the model's n_steps"),
        ({}, with_coefficient_schedule, "ent_coef is a function, not a number"),
        ({"policy": MyPolicy}, None, "policy is MyPolicy: not ActorCriticPolicy"),
        (
            {"policy_kwargs": {"features_extractor_class": MyExtractor}},
            None,
            "features_extractor is MyExtractor: not an MLP",
        ),
        ({"policy_kwargs": {"activation_fn": nn.GELU}}, None, "the actor has the activation GELU"),
        ({"policy_kwargs": {"optimizer_class": torch.optim.SGD}}, None, "not torch.optim.Adam"),
        ({"policy_kwargs": {"optimizer_kwargs": {"amsgrad": True}}}, None, "the optimizer has amsgrad=True"),
        ({"policy_kwargs": {"optimizer_kwargs": {"eps": 1e-15}}}, None, "the optimizer's eps is 1e-15"),
        ({"actions": "box", "use_sde": True}, None, "use_sde=True"),
        ({"observations": spaces.MultiBinary(4)}, None, "observations are a MultiBinary space"),
    ],
)
def test_what_cannot_be_boosted_runs_as_always_and_says_why(
    words: dict[str, Any], change: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cls = words.pop("cls", PPO)
    with boosting():
        model = make_model(cls, **(SMALL | words))
        if change is not None:
            change(model)
        assert reason in install.prepare(model).record.reason
        assert active.of(model) is None
        assert capsys.readouterr().err.count("runs unboosted: ") == 1
        install.prepare(model)
        assert capsys.readouterr().err == ""


def test_a_replaced_library_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate_actions(self: Any, *args: Any) -> Any:
        raise AssertionError

    with boosting(), monkeypatch.context() as patch:
        patch.setattr(
            "stable_baselines3.common.policies.ActorCriticPolicy.evaluate_actions", evaluate_actions
        )
        reason = install.prepare(make_ppo()).record.reason
    assert reason is not None
    assert "ActorCriticPolicy.evaluate_actions of stable_baselines3" in reason


def test_updates_of_maskable_ppo_are_counted_as_its_version_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2.7 counted all epochs, also those that `target_kl` left out."""
    source = inspect.getsource(MaskablePPO.train)
    once, end = "            self._n_updates += 1\n", "                break\n        explained_var"
    assert source.count(once) == source.count(end) == 1
    counted = end.replace("break\n", "break\n\n        self._n_updates += self.n_epochs\n")
    source = source.replace(once, "").replace(end, counted)
    assert hash_of_source(source) == maskable_ppo.TRAIN_OF_2_7
    file = "/sb3_contrib/of_2_7.py"
    lines = textwrap.dedent(source).splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, file, (len(source), None, lines, file))
    names = dict(vars(inspect.getmodule(MaskablePPO)))
    exec(compile(textwrap.dedent(source), file, "exec"), names)
    monkeypatch.setattr(MaskablePPO, "train", names["train"])

    def make() -> Any:
        return make_model(MaskablePPO, **(SMALL | {"n_epochs": 5, "target_kl": 1e-4, "learning_rate": 0.01}))

    ours, theirs = (learn(make, 128, is_boosted) for is_boosted in (True, False))
    assert ours.counters == theirs.counters == (10, 128)
    assert_same([ours, theirs])


def test_a_function_wrapped_by_somebody_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(PPO.train)
    def train(self: Any) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "train", train)
        with boosting():
            reason = install.prepare(make_ppo()).record.reason
    assert reason is not None
    assert "PPO.train was replaced by" in reason


def test_a_hook_added_during_training_ends_the_boost(capsys: pytest.CaptureFixture[str]) -> None:
    calls = []
    with boosting():
        model = make_ppo()
        model.learn(64)
        assert active.of(model) is not None
        model.policy.action_net.register_forward_hook(lambda *_: calls.append(1))
        model.learn(64)
        assert active.of(model) is None
    assert calls
    assert "PPO runs unboosted: policy.action_net has hooks" in capsys.readouterr().err


# ---- audits


def test_the_first_updates_are_audited_then_about_one_in_a_thousand() -> None:
    audits = Audits()
    audits._started_s -= 1e6  # so that time is never short
    audits._made, audited = EVERY, 0
    for _ in range(FIRST):
        assert audits.due(1) == 0
        audits.note(True, audits._started_s + 1e6)
    for _ in range(500):
        left = 100
        while (at := audits.due(left)) is not None:
            audited += 1
            left -= at + 1
    assert 20 < audited * EVERY / 1000 < 100  # 50 expected


def test_audits_take_at_most_their_share_of_the_time() -> None:
    audits = Audits(passed=FIRST)
    audits.spent_s = 1e9
    assert all(audits.due(1000) is None for _ in range(50))


def test_changed_settings_call_for_an_audit_but_a_slow_schedule_does_not() -> None:
    audits = Audits(passed=FIRST)
    audits.follow(1e-3, 0.0)
    assert audits.due(1) == 0
    audits._next = 10
    audits.follow(0.9e-3, 0.0)
    assert audits._next == 10
    audits.follow(0.4e-3, 0.0)
    assert audits._next == 0
    audits._next = 10
    audits.follow(0.4e-3, 0.01)
    assert audits._next == 0


def test_audited_gradient_steps_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(on_policy, "progress", lambda updates: made.append(updates))
    with boosting():
        model = make_ppo()
        patch = Patch(torch.optim.Adam, "step", _recorded_step)
        patches = Patches()
        patches.apply([patch])
        try:
            before = update_counting.count_step.most
            model.learn(64)
        finally:
            patches.undo()
    assert made == [8]
    assert active.history == []
    assert update_counting.count_step.most == before


class AtStep(BaseCallback):
    """Does something to the model in the middle of training."""

    def __init__(self, step: int, do: Any):
        super().__init__()
        self._step, self._do = step, do

    def _on_step(self) -> bool:
        if self.n_calls == self._step:
            self._do(self.model)
        return True


def counting(owner: Any, name: str, calls: list[str]) -> Any:
    """Replace a method by one that counts its calls."""
    method = getattr(owner, name)

    def run(*args: Any, **words: Any) -> Any:
        calls.append(name)
        return method(*args, **words)

    owner.__dict__[name] = run
    return run


@pytest.mark.parametrize("step", [40, 41])
def test_weights_may_change_at_any_step_of_a_rollout(step: int) -> None:
    """The last one included, after which the value of the next observation is computed."""

    def shrink(model: Any) -> None:
        model.policy.load_state_dict({name: 0.9 * value for name, value in model.policy.state_dict().items()})

    def more(model: Any) -> None:
        model.learn(120, callback=AtStep(step, shrink))

    assert_same(learn(lambda: make_model(A2C), 10, is_boosted, more) for is_boosted in (True, False))


def exchange_policy(model: Any) -> None:
    model.policy = make_model(A2C).policy
    with torch.no_grad():
        model.policy.action_net.bias.copy_(torch.arange(4.0))


def exchange_layer(model: Any) -> None:
    torch.manual_seed(5)
    model.policy.action_net = nn.Linear(16, 4)
    model.policy.optimizer = torch.optim.Adam(model.policy.parameters(), lr=1e-3)


@pytest.mark.parametrize("exchange", [exchange_policy, exchange_layer])
def test_what_is_exchanged_during_a_rollout_acts_at_once(exchange: Any) -> None:
    def more(model: Any) -> None:
        model.learn(120, callback=AtStep(8, exchange))

    assert_same(
        learn(lambda: make_model(A2C, n_steps=20), 40, is_boosted, more) for is_boosted in (True, False)
    )


def test_an_exchanged_distribution_acts_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Second(CategoricalDistribution):
        def sample(self) -> torch.Tensor:
            return torch.ones_like(super().sample())

    def exchange(model: Any) -> None:
        model.policy.action_dist = Second(4)

    with boosting():
        model = make_model(A2C, n_steps=20)
        model.learn(40)
        model.learn(40, callback=AtStep(8, exchange))
    actions = model.rollout_buffer.actions.reshape(2, 20)  # `train` has put the environments first
    assert (actions[:, 8:] == 1).all()
    assert "A2C runs unboosted: action_dist is Second: not Categorical" in capsys.readouterr().err


MEDDLERS: dict[str, Any] = {
    "optimizer-hook": lambda model, calls: model.policy.optimizer.register_step_post_hook(
        lambda *_: calls.append("hook")
    ),
    "optimizer-step": lambda model, calls: counting(model.policy.optimizer, "step", calls),
    "forward": lambda model, calls: counting(model.policy, "forward", calls),
    "evaluate_actions": lambda model, calls: counting(model.policy, "evaluate_actions", calls),
    "get": lambda model, calls: counting(model.rollout_buffer, "get", calls),
    "learning-rate": lambda model, calls: counting(model, "_update_learning_rate", calls),
}


@pytest.mark.parametrize("meddler", MEDDLERS)
def test_what_is_hooked_or_replaced_during_training_is_called_from_then_on(meddler: str) -> None:
    counts = []
    for is_boosted in (True, False):
        calls: list[str] = []

        def meddle(model: Any, calls: list[str] = calls) -> None:
            MEDDLERS[meddler](model, calls)

        with boosting() if is_boosted else contextlib.nullcontext():
            model = make_ppo()
            model.learn(64)
            assert not is_boosted or active.of(model) is not None
            model.learn(128, callback=AtStep(10, meddle))
        counts.append(calls)
    assert counts[0] == counts[1]
    assert counts[0]


@pytest.mark.parametrize("owner", [RolloutBuffer, torch.optim.Adam])
def test_functions_that_are_replaced_during_training_end_the_boost(
    owner: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "get" if owner is RolloutBuffer else "step"
    method = getattr(owner, name)

    def replace_it(_: Any) -> None:
        monkeypatch.setattr(owner, name, lambda *args, **words: method(*args, **words))

    with boosting():
        model = make_ppo()
        model.learn(128, callback=AtStep(10, replace_it))
        assert active.of(model) is None
    assert f"{owner.__name__}.{name}" in capsys.readouterr().err


def test_a_policy_can_be_copied_during_training() -> None:
    """An audit leaves no graph of autograd in the policy's distribution."""
    copies: list[Any] = []
    with boosting():
        model = make_ppo()
        model.learn(64)
        model.learn(64, callback=AtStep(10, lambda model: copies.append(copy.deepcopy(model.policy))))
    assert len(copies) == 1


correct_set_up = OnPolicyLearner.set_up


@pytest.mark.parametrize("setting", [kernels.LEARNING_RATE, kernels.MAX_GRAD_NORM, kernels.BETA1])
def test_a_failed_audit_keeps_the_librarys_result(
    setting: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def set_up(self: OnPolicyLearner, model: Any, *args: Any) -> None:
        correct_set_up(self, model, *args)
        self._settings[setting] *= 1.05

    expected = learn(make_ppo, 192, is_boosted=False)
    monkeypatch.setattr(OnPolicyLearner, "set_up", set_up)
    with boosting():
        model = make_ppo()
        model.learn(192)
        record = active.history[0]
        found = Result(model)
    assert record.audits.failed == 1
    assert_same((found, expected))
    lines = [line for line in capsys.readouterr().err.splitlines() if "audit failed" in line]
    assert len(lines) == 1
    assert "weights differ by" in lines[0]
    assert "The library's result was kept" in lines[0]


def test_an_audit_of_acting_keeps_the_librarys_actions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = learn(make_ppo, 128, is_boosted=False)
    correct = Actor.act

    def act(self: Actor, *args: Any) -> Any:
        actions, values, log_probs = correct(self, *args)
        return actions, values + 0.01, log_probs

    monkeypatch.setattr(Actor, "act", act)
    with boosting():
        model = make_ppo()
        model.learn(128)
        assert active.of(model) is None
        found = Result(model)
    assert_same((found, expected))
    assert "values of the policy differ by" in capsys.readouterr().err


# ---- pitfalls


class Meddler(BaseCallback):
    """Changes the model while it trains, also where torch does not notice."""

    def _on_step(self) -> bool:
        if self.n_calls == 10:
            for parameter in self.model.policy.parameters():
                parameter.data *= 0.5
        if self.n_calls == 40:
            model: Any = self.model
            model.ent_coef, model.n_epochs, model.batch_size = 0.05, 3, 8
            model.policy.optimizer.param_groups[0]["betas"] = (0.8, 0.99)
        return True


def test_changes_behind_our_back_are_followed() -> None:
    def train(model: Any) -> None:
        model.learn(128, callback=Meddler())

    results = [learn(make_ppo, 64, is_boosted, train) for is_boosted in (True, False)]
    assert_same(results)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("cls", [PPO, A2C])
def test_checkpoints_work_in_both_directions(tmp_path: Path, first: bool, second: bool, cls: Any) -> None:
    words = SMALL if cls is PPO else {}

    def run(is_first: bool, is_second: bool, name: str) -> Result:
        learn(lambda: make_model(cls, **words), 64, is_first, lambda model: model.save(tmp_path / name))

        def resume() -> Any:
            model = make_model(cls, **words)
            loaded = cls.load(tmp_path / name, env=model.env, device="cpu")
            loaded.set_random_seed(3)
            return loaded

        return learn(resume, 64, is_second)

    assert_same((run(first, second, "ours"), run(False, False, "theirs")))


def test_parameters_set_during_training_are_used() -> None:
    def meddle(model: Any) -> None:
        saved = copy.deepcopy(model.get_parameters())
        model.learn(64)
        model.set_parameters(saved)  # replaces Adam's tensors
        model.learn(64)

    assert_same(learn(make_ppo, 64, is_boosted, meddle) for is_boosted in (True, False))


def test_a_loaded_optimizer_calls_for_an_audit() -> None:
    with boosting():
        model = make_ppo()
        model.learn(64)
        audits = active.history[0].audits
        audits._next, audits.spent_s, before = 10**9, 0.0, audits.passed
        model.train()
        assert audits.passed == before
        model.policy.optimizer.load_state_dict(model.policy.optimizer.state_dict())
        model.train()
        assert audits.passed == before + 1


@pytest.mark.parametrize("change", STATE_CHANGES)
def test_optimizer_state_may_be_changed_in_place(change: str) -> None:
    def meddle(model: Any) -> None:
        STATE_CHANGES[change](model.policy.optimizer)
        model.learn(64)

    assert_same(learn(make_ppo, 64, is_boosted, meddle) for is_boosted in (True, False))


def test_state_removed_for_one_parameter_ends_the_boost() -> None:
    """The library then counts that parameter's steps from 0, and kernels count them once for all."""

    def remove(model: Any) -> None:
        del model.policy.optimizer.state[model.policy.action_net.bias]

    def run(is_boosted: bool) -> Result:
        with boosting() if is_boosted else contextlib.nullcontext():
            model = make_ppo()
            model.learn(64)
            model.learn(128, callback=AtStep(10, remove))
            if is_boosted:
                assert "different numbers of steps" in str(active.history[0].reason)
            return Result(model)

    assert_same((run(True), run(False)))


def one_ulp(model: Any) -> None:
    """Move the largest weight of a layer by one unit in the last place."""
    with torch.no_grad():
        weights = model.policy.mlp_extractor.policy_net[0].weight.view(-1)
        largest = weights.abs().argmax()
        weights[largest] = torch.nextafter(weights[largest], torch.tensor(float("inf")))


def test_weights_separate_no_faster_than_after_a_change_of_one_ulp() -> None:
    def make(change: Any = None) -> Any:
        model = make_ppo(learning_rate=1e-3)
        if change is not None:
            change(model)
        return model

    plain = learn(make, 640, is_boosted=False)
    moved = learn(functools.partial(make, one_ulp), 640, is_boosted=False)
    boosted = learn(make, 640, is_boosted=True)
    apart = [
        np.mean([np.abs(value - plain.weights[name]).mean() for name, value in other.weights.items()])
        for other in (boosted, moved)
    ]
    assert apart[1] > 0.0
    assert apart[0] < 30 * apart[1]  # every number is rounded in another way, not one


def _save(model: Any, file: Path) -> None:
    model.save(file)


def test_checkpoints_do_not_change(tmp_path: Path) -> None:
    sizes = {}
    for is_boosted in (True, False):
        file = tmp_path / f"{is_boosted}.zip"
        learn(make_ppo, 128, is_boosted, functools.partial(_save, file=file))
        with zipfile.ZipFile(io.BytesIO(file.read_bytes())) as archive:
            assert not any(b"hotloop.boost" in archive.read(name) for name in archive.namelist())
            sizes[is_boosted] = [
                archive.getinfo(name).file_size for name in archive.namelist() if name.endswith(".pth")
            ]
    assert sizes[True] == sizes[False]


def test_parameters_stay_tensors_of_their_own() -> None:
    with boosting():
        model = make_ppo()
        addresses = [parameter.data_ptr() for parameter in model.policy.parameters()]
        model.learn(64)
        assert addresses == [parameter.data_ptr() for parameter in model.policy.parameters()]
        assert all(parameter.is_contiguous() for parameter in model.policy.parameters())


class Recorder(BaseCallback):
    """What callbacks get to see at each step and at the end of a rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, type]] = []

    def _note(self) -> None:
        self.seen.append({name: type(value) for name, value in self.locals.items()})

    def _on_step(self) -> bool:
        self._note()
        return True

    def _on_rollout_end(self) -> None:
        self._note()


def _learn_more(model: Any, callback: Any) -> None:
    model.learn(64, callback=callback)


def test_callbacks_see_the_librarys_local_variables() -> None:
    seen = {}
    for is_boosted in (True, False):
        recorder = Recorder()
        learn(
            make_ppo,
            64,
            is_boosted,
            functools.partial(_learn_more, callback=recorder),
        )
        seen[is_boosted] = recorder.seen
    assert len(seen[True]) == len(seen[False])
    for ours, theirs in zip(seen[True], seen[False], strict=True):
        assert theirs.items() <= {name: kind for name, kind in ours.items() if name in theirs}.items()


def test_a_callback_can_end_training() -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 20

    def train(model: Any) -> None:
        model.learn(640, callback=Stop())

    results = [learn(make_ppo, 64, is_boosted, train) for is_boosted in (True, False)]
    assert_same(results)


def test_normalised_observations_work() -> None:
    def make() -> Any:
        model = make_ppo()
        return PPO("MlpPolicy", VecNormalize(model.env), seed=1, device="cpu", **SMALL)

    assert_same(learn(make, 128, is_boosted) for is_boosted in (True, False))


def error_of(is_boosted: bool, break_it: Any) -> tuple[type, str]:
    with boosting() if is_boosted else contextlib.nullcontext():
        model = make_ppo(learning_rate=1e-3)
        model.learn(64)
        break_it(model)
        with pytest.raises(ValueError, match="found invalid values") as error:
            model.learn(64)
        return type(error.value), str(error.value).partition("(")[0]


def spoil_weights(model: Any) -> None:
    model.policy.action_net.weight.data[0, 0] = float("nan")


def spoil_learning_rate(model: Any) -> None:
    model.lr_schedule = lambda left: 1e30  # the second minibatch is not finite


@pytest.mark.parametrize("break_it", [spoil_weights, spoil_learning_rate])
def test_numbers_that_are_not_finite_give_the_librarys_error(break_it: Any) -> None:
    assert error_of(True, break_it) == error_of(False, break_it)


@pytest.mark.parametrize("actions", ["discrete", "multi-discrete"])
def test_predict_with_masks_gives_the_librarys_actions(actions: str) -> None:
    random = np.random.default_rng(0)
    observations = random.normal(size=(6, 5)).astype(np.float32)
    found: dict[bool, list[Any]] = {}
    for is_boosted in (True, False):

        def predict(model: Any, is_boosted: bool = is_boosted) -> None:
            torch.manual_seed(7)
            width = model.policy.action_net.out_features
            masks = np.random.default_rng(1).random((6, width)) < 0.5
            found[is_boosted] = [
                model.predict(given, deterministic=deterministic, action_masks=allowed)[0]
                for deterministic in (True, False)
                for given, allowed in (
                    (observations, masks),
                    (observations[0], masks[0]),
                    (observations, None),
                )
            ]
            found[is_boosted].append(torch.rand(1).numpy())

        learn(lambda: make_model(MaskablePPO, actions, **SMALL), 64, is_boosted, predict)
    for mine, other in zip(found[True], found[False], strict=True):
        assert (type(mine), mine.shape, mine.dtype) == (type(other), other.shape, other.dtype)
        np.testing.assert_array_equal(mine, other)


def test_predict_leaves_numbers_that_are_not_finite_to_the_library() -> None:
    with boosting():
        model = make_ppo()
        model.learn(64)
        spoil_weights(model)
        with pytest.raises(ValueError, match="found invalid values"):
            model.predict(np.zeros((2, 5), dtype=np.float32))


@pytest.mark.parametrize("actions", ["discrete", "multi-discrete", "box"])
def test_predict_gives_the_librarys_actions(actions: str) -> None:
    observations = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)

    def predictions(is_boosted: bool) -> tuple[list[Any], float]:
        found: list[Any] = []

        def predict(model: Any) -> None:
            torch.manual_seed(7)
            for is_deterministic in (True, False):
                found.append(model.predict(observations, deterministic=is_deterministic)[0])
                found.append(
                    model.predict(observations[0].astype(np.float64), deterministic=is_deterministic)[0]
                )
            model.policy.value_net.register_forward_hook(lambda *_: None)  # from here on it is the library's
            found.append(model.predict(observations)[0])

        learn(lambda: make_ppo(actions=actions), 64, is_boosted, predict)
        return found, torch.rand(1).item()

    ours, theirs = predictions(True), predictions(False)
    assert ours[1] == theirs[1]
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert (type(mine), mine.shape, mine.dtype) == (type(other), other.shape, other.dtype)
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_two_models_in_one_process_do_not_mix() -> None:
    with boosting():
        one, two = make_ppo(), make_ppo(policy_kwargs={"net_arch": [8]})
        one.learn(64)
        two.learn(64)
        assert active.of(one) is not active.of(two)
        assert [record.gradient_steps for record in active.history] == [8, 8]


def test_a_model_is_freed_when_nobody_uses_it() -> None:
    with boosting():
        model = make_ppo()
        model.learn(64)
        gone = weakref.ref(model), weakref.ref(model.policy)
        del model
        gc.collect()
        assert gone[0]() is None
        assert gone[1]() is None
        assert len(active.history) == 1


# ---- compiling in the background


class FakeCompilation:
    """Ends when told to."""

    def __init__(self, ours: str, model: Any):
        self.ours, self.running, self.stopped = ours, True, False

    def is_running(self) -> bool:
        return self.running

    def failure(self) -> str | None:
        return "ValueError: no"

    def stop(self) -> None:
        self.stopped = True


def test_kernels_take_over_when_they_are_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = []

    def compile_kernels(self: Any, model: Any) -> None:
        compiled.append(install.is_background)
        if len(compiled) == 1:
            raise NotCompiledError

    monkeypatch.setattr(OnPolicyLearner, "compile", compile_kernels)
    monkeypatch.setattr(install, "Compilation", FakeCompilation)
    monkeypatch.setattr(install, "is_background", True)
    expected = learn(make_ppo, 256, is_boosted=False)
    with boosting():
        model = make_ppo()

        class Compiler(BaseCallback):
            def _on_step(self) -> bool:
                if self.num_timesteps == 128:
                    install._compilations["hotloop.boost.ppo"].running = False  # type: ignore[attr-defined]
                return True

        model.learn(256, callback=Compiler())
        (record,) = active.history
        assert record.gradient_steps == 3 * 8
        assert (record.switched_at_env_step, record.switched_at_n_updates) == (128, 2)
        assert record.reason is None
        assert_same((Result(model), expected))
        begun = install._compilations["hotloop.boost.ppo"]
    assert begun.stopped  # type: ignore[attr-defined]
    assert len(compiled) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "hotloop boost: PPO starts unboosted: its kernels are being compiled in the background"
    assert "compiling in the background failed (ValueError: no); compiling now" in said[1]
    assert said[2].startswith(
        "hotloop boost: PPO switches to compiled kernels at env step 128, n_updates 2 ("
    )
    assert len(said) == 3


def test_only_what_is_on_disk_is_loaded_when_compiling_is_refused() -> None:
    @kernel
    def never_called_before(values: Any) -> None:
        values[0] = 1.0

    with only_from_cache(), pytest.raises(NotCompiledError, match="never_called_before is not compiled"):
        never_called_before(np.zeros(1))
    assert KernelCache._held is None  # others may compile it now


@pytest.mark.parametrize(
    "space", [spaces.Discrete(7), spaces.MultiDiscrete([3, 4]), spaces.Box(0, 9, (5, 2))]
)
def test_the_model_to_compile_has_spaces_of_the_same_kind(space: Any) -> None:
    made = background.make_space(background.describe_space(space))
    assert (type(made), made.dtype) == (type(space), space.dtype)
    described = {
        "algorithm": "stable_baselines3.ppo.ppo.PPO",
        "observations": background.describe_space(BOX),
        "actions": background.describe_space(space),
    }
    assert install.why_not(background.make_model(described))[1] is None


# ---- the rest


def test_advice_counts_only_the_distributions_that_are_replaced() -> None:
    kinds = torch.distributions
    assert {f"{kind.__module__}." for kind in (kinds.Categorical, kinds.Normal)} == set(BOOSTED_CLASSES)
    assert not f"{kinds.MultivariateNormal.__module__}.".startswith(BOOSTED_CLASSES)


def test_what_the_report_recommends_can_be_boosted() -> None:
    known = {f"{module}.{cls}" for module, (cls, _) in install.ALGORITHMS.items()}
    assert set(BOOSTABLE) <= known
    for name in BOOSTABLE:
        assert importlib.util.find_spec(install.ALGORITHMS[name.rpartition(".")[0]][1]) is not None


def test_patches_that_were_kept_are_applied_when_training_begins(capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_threshold()
    try:
        with boosting():
            install.keep(["gc"])
            model = make_ppo()
            assert gc.get_threshold() == before
            model.learn(64)
            assert gc.get_threshold() != before
            assert "hotloop boost: gc: applied" in capsys.readouterr().err
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_kept_patches_are_applied_to_loops_of_plain_torch(capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_threshold()
    try:
        with boosting():
            install.keep(["gc"])
            weight = nn.Parameter(torch.zeros(3))
            adam = torch.optim.Adam([weight])
            for _ in range(STEPS):
                assert gc.get_threshold() == before
                weight.sum().backward()
                adam.step()
            assert gc.get_threshold() != before
            assert "hotloop boost: gc: applied" in capsys.readouterr().err
            install.say_what_was_not_kept()
            assert capsys.readouterr().err == ""
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_kept_patches_that_were_never_applied_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    install.keep(["gc", "threads"])
    try:
        install.say_what_was_not_kept()
    finally:
        install.kept_names.clear()
    assert "hotloop boost: gc, threads not applied: no Stable-Baselines3 model" in capsys.readouterr().err


def test_kept_patches_are_saved_beside_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "hotloop.toml"
    file.write_text('redact = ["--mine"]\n[categories]\n"my_*" = "environment"\n')
    for names in (["gc"], ["gc", "threads"]):
        save_patches_to_keep(file, names)
        assert patches_to_keep(file) == tuple(names)
    settings = load_settings(tmp_path)
    assert settings.redact == ("--mine",)
    assert settings.category_patterns == (("my_*", "environment"),)
    file.write_text('keep = ["nonsense"]')
    with pytest.raises(HotloopError, match="keep has 'nonsense'"):
        patches_to_keep(file)
    file.write_text("")
    with pytest.raises(HotloopError, match="keeps no patches"):
        patches_to_keep(file)


def test_boost_is_a_patch_that_can_be_switched() -> None:
    with boosting():
        patch = BoostPatch()
        model = make_ppo()
        assert patch.skip_reason() is None
        steps = []
        for switch in (patch.undo, patch.apply, patch.undo):
            switch()
            model.learn(64)
            steps.append(active.history[0].gradient_steps)
        patch.apply()
    assert steps == [0, 8, 8]


def test_the_front_door_boosts_this_process() -> None:
    try:
        hotloop.boost()
        assert install.current is not None
        hotloop.boost()  # a second time changes nothing
    finally:
        install.remove()


def test_infos_are_copied_as_deepcopy_does() -> None:
    calls = []

    def slow(value: Any, *memo: Any) -> Any:
        calls.append(value)
        return copy.deepcopy(value, *memo)

    fast = fast_deepcopy(slow)
    array = np.arange(3.0)
    plain = [
        {"a": 1, "r": np.float64(2.0), "nested": {"x": [array, None]}},
        collections.OrderedDict([(None, array * 2)]),
    ]
    found = fast(plain)
    assert not calls
    assert type(found[1]) is collections.OrderedDict
    np.testing.assert_array_equal(found[0]["nested"]["x"][0], array)
    assert found[0]["nested"]["x"][0] is not array
    shared = [array, array]
    found = fast(shared)
    assert found[0] is found[1]  # one object stays one object
    assert len(calls) == 1


def test_show_describes_parts_of_plain_torch() -> None:
    found = bootstrap.ModelReport(
        model="Sequential", boosted="4-64-64-2, tanh", reason=None, gradient_steps=640, audits_passed=11,
        audits_failed=0, acting_audits_passed=19, acting_audits_failed=0, largest_mean_difference=0.0,
        audit_s=0.03, kind="module", calls=5696, left={"autocast is on": 3},
    )  # fmt: skip
    assert about(found) == [
        "hotloop boost: Sequential (4-64-64-2, tanh): 5,696 forward and 640 backward passes compiled; "
        "audits: 30 equal to torch's, 0 failed, 0.03 s",
        "hotloop boost: Sequential (4-64-64-2, tanh): 3 calls left to torch: autocast is on",
    ]
    left = dataclasses.replace(
        found, boosted=None, reason="it has a LayerNorm", gradient_steps=0, calls=0, left={}
    )
    assert about(left) == ["hotloop boost: Sequential ran unboosted: it has a LayerNorm"]


@pytest.mark.parametrize(
    ("fact", "found"),
    [
        ({}, True),
        ({"action_space": "Discrete"}, True),
        ({"action_space": "MultiBinary"}, False),
        ({"use_sde": "True"}, False),
    ],
)
def test_no_report_recommends_what_boost_would_refuse(fact: dict[str, str], found: bool) -> None:
    capture, _ = small_ppo_of_stable_baselines3()
    (library,) = capture.facts["libraries"]
    model = library["models"][0] | fact
    facts = {**capture.facts, "libraries": [{**library, "models": [model]}]}
    names = {one.name for one in explain(replace(capture, facts=facts)).recommendations}
    assert ("boost" in names) is found
