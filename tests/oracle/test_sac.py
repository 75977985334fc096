"""Soft actor-critic and behaviour cloning: formulae, twins, equal work, warm starts, resuming."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.train.bc import BCConfig, read_clone, take_clone
from hotloop.rl.train.bc import train as clone
from hotloop.rl.train.fused.sac_learner import FusedLearner
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import CheckpointError
from hotloop.rl.train.sac import SACConfig, make_networks, train
from hotloop.rl.train.sac_torch import (
    Temperature,
    TorchLearner,
    actor_loss,
    critic_loss,
    soft_targets,
    temperature_gradient,
)

SMALL = SACConfig(
    total_steps=240,
    num_envs=4,
    batch_size=80,  # more than one chunk of the kernels, the last one not full
    learning_starts=80,
    actor_starts=120,
    first_log_std=-1.0,
    hidden=(24, 16),
    quiet=True,
)
LEARNERS = ["torch", "fused"]


def silent(**_: Any) -> None:
    """Nobody is told of the work."""


# ---- formulae


def test_the_log_probability_is_that_of_a_squashed_normal() -> None:
    actor = SquashedActor(3, 2, (8,), first_log_std=-0.7)
    observations, noise = torch.randn(50, 3), torch.randn(50, 2)
    actions, found = actor.sample(observations, noise)
    means, log_stds = actor(observations)
    normal = torch.distributions.Normal(means.double(), log_stds.double().exp())
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
    raw = (means + log_stds.exp() * noise).double()
    expected = squashed.log_prob(torch.tanh(raw)).sum(dim=1)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert torch.allclose(actions, torch.tanh(raw).float(), atol=1e-6)


def test_the_log_probability_stays_finite_where_the_action_is_saturated() -> None:
    actor = SquashedActor(1, 1, (4,))
    with torch.no_grad():
        actor.layers[-1].bias[0] = 60.0
    actions, found = actor.sample(torch.zeros(1, 1), torch.zeros(1, 1))
    assert actions.item() == 1.0 and math.isfinite(found.item())


def test_losses_by_hand() -> None:
    values = torch.tensor([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0]])
    rewards, logs = torch.tensor([10.0, 20.0, 30.0]), torch.tensor([0.5, -1.0, 2.0])
    discounts = torch.tensor([0.9, 0.9, 0.0])  # the third step terminated: no value of what comes next
    targets = soft_targets(values, logs, rewards, discounts, 0.1)
    assert torch.allclose(targets, torch.tensor([10.0 + 0.9 * 0.95, 20.0 + 0.9 * 4.1, 30.0]))
    assert actor_loss(logs, values, 0.1).item() == pytest.approx((0.05 - 1 - 0.1 - 4 + 0.2 - 2) / 3)
    loss = critic_loss(values, torch.zeros(3))
    assert loss.item() == pytest.approx(0.5 * (1 + 25 + 4) / 3 + 0.5 * (9 + 16 + 4) / 3)


def test_the_temperature_rises_where_there_is_too_little_entropy() -> None:
    for mean_log, rises in ((5.0, True), (-5.0, False)):
        temperature = Temperature(0.3, 1e-2, learned=True)
        temperature.move(temperature_gradient(mean_log, target_entropy=-2.0))
        assert (temperature.value > 0.3) == rises
    log = torch.tensor([math.log(0.3)], requires_grad=True)
    adam = torch.optim.Adam([log], lr=1e-2)
    temperature = Temperature(0.3, 1e-2, learned=True)
    for mean_log in (5.0, 1.0, -3.0):
        adam.zero_grad()
        (-(log * (mean_log - 2.0))).sum().backward()
        adam.step()
        temperature.move(temperature_gradient(mean_log, -2.0))
    assert temperature.value == pytest.approx(math.exp(log.item()), rel=1e-6)
    fixed = Temperature(0.3, 1e-2, learned=False)
    fixed.move(1.0)
    assert fixed.value == pytest.approx(0.3)


# ---- twins


def weights_of(actor: SquashedActor) -> dict[str, Any]:
    return {name: weight.detach().numpy().copy() for name, weight in actor.named_parameters()}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_fused_learner_does_the_same_updates(activation: Any) -> None:
    results = [
        train(replace(SMALL, learner=learner, activation=activation, anchor_weight=3.0), report=silent)
        for learner in ("torch", "fused")
    ]
    plain, fused = results
    assert (plain.learner, fused.learner) == ("torch", "fused")
    assert plain.updates == fused.updates == 160 and plain.actor_updates == fused.actor_updates == 120
    for name, weight in weights_of(plain.actor).items():
        assert np.allclose(weights_of(fused.actor)[name], weight, rtol=2e-3, atol=2e-4), name
    assert fused.statistics["temperature"] == pytest.approx(plain.statistics["temperature"], rel=1e-4)


def test_one_update_is_the_same_to_the_last_digits_but_one() -> None:
    """Actor, critics, targets and temperature after one update on the same transitions and noise."""
    from gymnasium.spaces import Box

    from hotloop.rl.buffers.replay import ReplayBuffer

    config = replace(SMALL, target_rate=0.3, actor_learning_rate=1e-2, anchor_weight=2.0, discount=0.9)
    states = []
    for kind in (TorchLearner, FusedLearner):
        actor, critics = make_networks(config, 5, 2)
        learner: Any = kind(actor, critics, config)
        with torch.no_grad():
            actor.layers[-1].get_parameter("bias").add_(0.3)  # off its anchor
        learner.load(learner.state())
        buffer = ReplayBuffer(512, 2, Box(-9, 9, (5,), np.float32), Box(-1, 1, (2,), np.float32), gamma=0.9)
        rng = np.random.default_rng(0)
        buffer.start(rng.normal(size=(2, 5)).astype(np.float32))
        for _ in range(100):
            ends = rng.random((2, 2)) < 0.1
            seen = rng.normal(size=(2, 2, 5)).astype(np.float32)
            actions = rng.uniform(-1, 1, (2, 2)).astype(np.float32)
            buffer.push(actions, rng.random(2), ends[0], ends[1] & ~ends[0], *seen)
        batch = buffer.make_batch(SMALL.batch_size)
        noise = rng.normal(size=(1, 2, SMALL.batch_size, 2)).astype(np.float32)
        learner.learn(buffer, batch, noise, True)
        states.append(learner.state())
        moved = learner.state()
        learner.load(moved)
        assert all((moved[name] == array).all() for name, array in learner.state().items())
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert np.allclose(states[1][name], array, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_resumed_run_goes_on_to_the_same_numbers(learner: Any, tmp_path: Path) -> None:
    whole = replace(SMALL, learner=learner, evaluate_every=100, evaluation_episodes=2)
    straight = train(whole, judge=lambda best: float(best(np.ones((1, 8), dtype=np.float32)).sum()))
    file = tmp_path / "agent"
    first = replace(whole, total_steps=140, checkpoint=file)
    train(first, judge=lambda best: float(best(np.ones((1, 8), dtype=np.float32)).sum()))
    rest = replace(whole, checkpoint=file, resume=True)
    resumed = train(rest, judge=lambda best: float(best(np.ones((1, 8), dtype=np.float32)).sum()))
    assert resumed.env_steps == 240 and resumed.steps_here == 100
    assert resumed.updates == straight.updates and resumed.actor_updates == straight.actor_updates
    assert resumed.kept_from == straight.kept_from
    assert {s for s, _ in straight.evaluations} <= {s for s, _ in resumed.evaluations}
    for name, weight in weights_of(straight.actor).items():
        assert (weights_of(resumed.actor)[name] == weight).all(), name
    with pytest.raises(CheckpointError, match="batch_size was 80, is 81"):
        train(replace(rest, batch_size=81))


# ---- equal work


@pytest.mark.parametrize(("updates", "each"), [("1", 1.0), ("1/4", 0.25), ("2", 2.0)])
def test_updates_for_each_env_step_do_not_hang_on_the_number_of_envs(updates: str, each: float) -> None:
    for envs in (1, 2, 8):
        done = train(
            replace(SMALL, num_envs=envs, updates=updates, total_steps=160, hidden=(8,)), report=silent
        )
        assert done.env_steps == 160 and done.updates == each * (160 - 80), envs


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_resets_are_no_steps_and_any_bounded_box_will_do(mode: AutoresetMode) -> None:
    """Pendulum: actions in -2 .. 2, episodes of 200 steps."""
    seen: list[np.ndarray] = []

    class Watched(gymnasium.ActionWrapper):
        def action(self, action: Any) -> Any:
            seen.append(action)
            return action

    envs = SyncVectorEnv([lambda: Watched(gymnasium.make("Pendulum-v1"))] * 2, autoreset_mode=mode)
    config = replace(SMALL, env="Pendulum-v1", total_steps=500, num_envs=2, learning_starts=450)
    done = train(replace(config, random_steps=100), envs=envs, report=silent)
    assert done.env_steps == 500 and done.episodes == 2 and done.updates == 50
    assert 1.0 < max(np.abs(action).max() for action in seen) <= 2.0
    envs.close()


# ---- warm starts


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_given_actor_acts_the_same_before_the_first_update(learner: Any) -> None:
    observations = np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32)
    actor = SquashedActor(8, 2, SMALL.hidden, first_log_std=-2.0)
    with torch.no_grad():
        actor.layers[-1].weight[:2] *= 50.0  # far from a new actor, which hardly steers
        expected = actor.best(torch.from_numpy(observations)).numpy()
    seen: list[np.ndarray] = []

    def judge(best: Any) -> float:
        seen.append(best(observations))
        return 0.0

    config = replace(SMALL, learner=learner, evaluate_every=120, keep_best=False)
    done = train(config, actor=actor, judge=judge, report=silent)
    assert np.allclose(seen[0], expected, atol=1e-6)  # before the first step
    assert np.array_equal(seen[0], seen[1])  # only the critics have learnt up to actor_starts
    assert not np.allclose(seen[-1], expected, atol=1e-3) and done.actor is actor


def test_the_best_actor_is_kept_the_first_one_included() -> None:
    scores = iter([3.0, 1.0, 2.0, 0.5])
    actor = SquashedActor(8, 2, SMALL.hidden)
    before = weights_of(actor)
    config = replace(SMALL, evaluate_every=80)
    done = train(config, actor=actor, judge=lambda best: next(scores), report=silent)
    assert done.evaluations == ((0, 3.0), (80, 1.0), (160, 2.0), (240, 0.5)) and done.kept_from == 0
    assert all((weight == before[name]).all() for name, weight in weights_of(done.actor).items())


def test_an_actor_of_another_network_is_refused() -> None:
    with pytest.raises(HotloopError, match=r"layers \(8, 7, 4\) and relu"):
        train(SMALL, actor=SquashedActor(8, 2, (7,)))


# ---- cloning


def samples(count: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(count, 4)).astype(np.float32)
    actions = np.tanh(observations[:, :2] * [1.0, -2.0] + 0.3 * observations[:, 2:]).astype(np.float32)
    return Samples(observations, actions)


CLONING = BCConfig(epochs=3, batch_size=96, hidden=(24, 16), learning_rate=3e-3, first_log_std=-2.0)


def cloned(**settings: Any) -> Any:
    return clone(replace(CLONING, **settings), samples(1000, 0), samples(200, 1), report=silent)


def test_all_ways_of_loading_and_both_learners_clone_the_same() -> None:
    plain = cloned(learner="torch")
    assert plain.updates == 3 * 11 and plain.samples == 3000
    for way in ({"loading": "loader"}, {"loading": "loader", "loading_workers": 1}):
        same = cloned(**way)
        assert same.learner == "torch" and same.loss == plain.loss
        for name, weight in weights_of(plain.actor).items():
            assert (weights_of(same.actor)[name] == weight).all(), (way, name)
        assert (same.worker_memory is None) == ("loading_workers" not in way)
    fused = cloned()
    assert fused.learner == "fused" and fused.loss == pytest.approx(plain.loss, rel=1e-3)
    assert fused.held_out_loss == pytest.approx(plain.held_out_loss, rel=1e-3)
    for name, weight in weights_of(plain.actor).items():
        assert np.allclose(weights_of(fused.actor)[name], weight, rtol=1e-3, atol=1e-4), name


def test_cloning_learns_and_leaves_the_noise_alone() -> None:
    done = cloned(epochs=40)
    assert done.held_out_loss < 0.01
    observations = torch.from_numpy(samples(50, 2).observations)
    assert torch.allclose(done.actor(observations)[1], torch.tensor(-2.0))


@pytest.mark.parametrize("learner", LEARNERS)
def test_cloning_resumes_to_the_same_numbers(learner: Any, tmp_path: Path) -> None:
    straight = cloned(learner=learner, epochs=5)
    file = tmp_path / "clone"
    cloned(learner=learner, epochs=2, checkpoint=file)
    resumed = cloned(learner=learner, epochs=5, checkpoint=file, resume=True)
    assert resumed.epochs == 5 and resumed.samples == 3000 and resumed.updates == straight.updates
    assert resumed.loss == straight.loss and resumed.held_out_loss == straight.held_out_loss
    kept = read_clone(file)
    for name, weight in weights_of(straight.actor).items():
        assert (weights_of(resumed.actor)[name] == weight).all(), name
        assert (weights_of(kept)[name] == weight).all(), name
    again = cloned(learner=learner, epochs=5, checkpoint=file, resume=True)  # nothing is left to do
    assert again.samples == 0 and again.loss is None and again.held_out_loss == straight.held_out_loss


def test_a_clone_that_does_not_fit_is_an_error_not_a_fallback(tmp_path: Path) -> None:
    file = tmp_path / "clone"
    cloned(epochs=1, checkpoint=file)
    with pytest.raises(CheckpointError, match=r"layers\.0\.bias is \(24,\) in the file and \(20,\) here"):
        take_clone(file, SquashedActor(4, 2, (20, 16)))
    with pytest.raises(CheckpointError, match="activation is relu, not tanh"):
        take_clone(file, SquashedActor(4, 2, (24, 16), "tanh"))
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        read_clone(tmp_path / "nothing")
    train(replace(SMALL, checkpoint=tmp_path / "agent", total_steps=80), report=silent)
    with pytest.raises(CheckpointError, match="holds no clone"):
        read_clone(tmp_path / "agent")


def test_stable_baselines3_takes_the_clone_over_and_refuses_another_network() -> None:
    from stable_baselines3 import SAC

    from hotloop.rl.envs.track.env import TrackEnv
    from hotloop.rl.workloads.imitate_sb3 import best_of_model, copy_actor

    actor = SquashedActor(8, 2, (24, 16), first_log_std=-2.4)
    with torch.no_grad():
        actor.layers[-1].weight[:2] *= 50.0
    model = SAC("MlpPolicy", TrackEnv(), policy_kwargs={"net_arch": [24, 16]}, buffer_size=10)
    copy_actor(actor, model.actor)
    observations = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    with torch.no_grad():
        expected = actor.best(torch.from_numpy(observations)).numpy()
    assert np.allclose(best_of_model(model)(observations), expected, atol=1e-6)
    log_stds = model.actor.get_action_dist_params(torch.from_numpy(observations))[1]
    assert torch.allclose(log_stds, torch.tensor(-2.4))
    for other in (SquashedActor(8, 2, (24, 17)), SquashedActor(8, 2, (24, 16), "tanh")):
        with pytest.raises(HotloopError, match="make both with the same network"):
            copy_actor(other, model.actor)


# ---- learning


class Aim(gymnasium.Env):
    """One step: the reward is the greater the nearer the action is to what is seen."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self.seen, {}

    def step(self, action: Any) -> Any:
        return self.seen, -float(np.square(action - self.seen).sum()), True, False, {}


@pytest.mark.parametrize("learner", LEARNERS)
def test_it_learns_where_to_aim(learner: Any) -> None:
    steps = 1200 if learner == "torch" else 2400
    envs = SyncVectorEnv([Aim] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    config = SACConfig(
        total_steps=steps, num_envs=4, batch_size=64, learning_starts=200, random_steps=200,
        hidden=(32,), learning_rate=3e-3, first_temperature=0.1, learner=learner, quiet=True,
    )  # fmt: skip
    done = train(config, envs=envs, report=silent)
    seen = torch.linspace(-0.8, 0.8, 9)[:, None]
    with torch.no_grad():
        error = (done.actor.best(seen) - seen).abs().max().item()
    assert error < 0.25 and done.statistics["temperature"] < 0.1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"updates": "often"}, "updates='often' is no amount"),
        ({"updates": "0"}, "updates='0' is no amount"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"discount": 1.5}, "discount=1.5 must lie in 0 .. 1"),
        ({"first_temperature": 0.0}, "first_temperature=0.0 must be above 0"),
        ({"hidden": ()}, "widths of at least 1"),
        ({"resume": True}, "give checkpoint as well"),
        ({"env": "CartPole"}, "a bounded vector of continuous actions"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HotloopError, match=sentence):
        train(replace(SMALL, **wrong))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"loading_workers": 2}, "have nothing to do with loading='index'"),
        ({"loading": "loader", "learner": "fused"}, "gathers its batches itself"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"resume": True}, "give checkpoint as well"),
    ],
)
def test_cloning_that_cannot_be_is_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HotloopError, match=sentence):
        cloned(**wrong)
