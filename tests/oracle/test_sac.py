"""Soft actor-critic and behaviour cloning: losses, fused learners, equal work, warm starts, resuming."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tarfile
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
from hotloop.rl.train.bc import BCConfig, load_clone
from hotloop.rl.train.bc import train as clone
from hotloop.rl.train.fused.sac import FusedSAC
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import CheckpointError, load_checkpoint
from hotloop.rl.train.sac import (
    EntropyCoefficient,
    SACConfig,
    TorchLearner,
    actor_loss,
    critic_loss,
    critic_targets,
    make_networks,
    parse_ent_coef,
    train,
)

SMALL = SACConfig(
    total_timesteps=240,
    n_envs=4,
    batch_size=80,  # more than one chunk of the kernels, the last one not full
    learning_starts=80,
    actor_learning_starts=120,
    log_std_init=-1.0,
    net_arch=(24, 16),
    quiet=True,
)
LEARNERS = ["torch", "fused"]


def silent(**_: Any) -> None:
    """A progress report that goes nowhere."""


# ---- losses


def test_the_log_probability_is_that_of_a_squashed_normal_distribution() -> None:
    actor = SquashedActor(3, 2, (8,), log_std_init=-0.7)
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
    targets = critic_targets(values, logs, rewards, discounts, 0.1)
    assert torch.allclose(targets, torch.tensor([10.0 + 0.9 * 0.95, 20.0 + 0.9 * 4.1, 30.0]))
    assert actor_loss(logs, values, 0.1).item() == pytest.approx((0.05 - 1 - 0.1 - 4 + 0.2 - 2) / 3)
    loss = critic_loss(values, torch.zeros(3))
    assert loss.item() == pytest.approx(0.5 * (1 + 25 + 4) / 3 + 0.5 * (9 + 16 + 4) / 3)


def test_the_entropy_coefficient_rises_while_the_entropy_is_too_low() -> None:
    learned = SACConfig(ent_coef="auto_0.3", learning_rate=1e-2)
    for mean_log_prob, rises in ((5.0, True), (-5.0, False)):
        ent_coef = EntropyCoefficient(learned, n_actions=2)
        ent_coef.update(mean_log_prob)
        assert (ent_coef.value > 0.3) == rises
    log = torch.tensor([math.log(0.3)], requires_grad=True)
    adam = torch.optim.Adam([log], lr=1e-2)
    ent_coef = EntropyCoefficient(learned, n_actions=2)
    for mean_log_prob in (5.0, 1.0, -3.0):
        adam.zero_grad()
        (-(log * (mean_log_prob - 2.0))).sum().backward()
        adam.step()
        ent_coef.update(mean_log_prob)
    assert ent_coef.value == pytest.approx(math.exp(log.item()), rel=1e-6)
    fixed = EntropyCoefficient(SACConfig(ent_coef=0.3), n_actions=2)
    fixed.update(1.0)
    assert fixed.value == pytest.approx(0.3)


def test_ent_coef_is_written_as_in_stable_baselines3() -> None:
    assert parse_ent_coef("auto") == (1.0, True) and parse_ent_coef("auto_0.1") == (0.1, True)
    assert parse_ent_coef(0.2) == (0.2, False) and parse_ent_coef("0.2") == (0.2, False)
    for wrong in ("automatic", "auto_x", "auto_-1", 0.0, "nan"):
        with pytest.raises(HotloopError, match="ent_coef="):
            parse_ent_coef(wrong)


def test_one_update_equals_that_of_stable_baselines3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and weights after `SAC.train` and after ours: same weights, same batch, same noise."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    from hotloop.rl.workloads.imitate_sb3 import copy_actor

    config = SACConfig(
        net_arch=(16, 12), batch_size=64, log_std_init=-0.5, ent_coef="auto_0.2", tau=0.1, gamma=0.9,
        learning_rate=1e-3,
    )  # fmt: skip
    actor, critics = make_networks(config, 3, 1)
    model = SAC(
        "MlpPolicy", "Pendulum-v1", buffer_size=10, batch_size=64, ent_coef="auto_0.2", tau=0.1, gamma=0.9,
        learning_rate=1e-3, policy_kwargs={"net_arch": [16, 12]}, device="cpu",
    )  # fmt: skip
    copy_actor(actor, model.actor)
    for ours, theirs in ((critics.first, "qf0"), (critics.second, "qf1")):
        for networks in (model.critic, model.critic_target):
            getattr(networks, theirs).load_state_dict(ours.state_dict())

    rng = np.random.default_rng(0)
    observations, next_observations, rewards, noise, next_noise = (
        torch.from_numpy(rng.normal(size=(64, width)).astype(np.float32)) for width in (3, 3, 1, 1, 1)
    )
    actions = torch.from_numpy(rng.uniform(-1, 1, (64, 1)).astype(np.float32))
    dones = torch.from_numpy((rng.random((64, 1)) < 0.2).astype(np.float32))
    batch = ReplayBufferSamples(observations, actions, next_observations, dones, rewards)
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *given, **more: batch)
    drawn = iter([noise, next_noise])  # the order in which SAC.train draws them
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *given, **more: next(drawn))
    model.set_logger(Logger(None, []))
    model.train(gradient_steps=1, batch_size=64)
    logged = model.logger.name_to_value

    learner = TorchLearner(actor, critics, EntropyCoefficient(config, 1), config)
    fields = {
        "observations": observations,
        "actions": actions,
        "rewards": rewards[:, 0],
        "discounts": 0.9 * (1 - dones[:, 0]),
        "next_observations": next_observations,
    }
    learner._update_once(fields, torch.stack([next_noise, noise]), train_actor=True)
    losses = learner.statistics
    assert losses[0] == pytest.approx(logged["train/critic_loss"], rel=1e-5)
    assert losses[2] == pytest.approx(logged["train/actor_loss"], rel=1e-5)
    assert learner.ent_coef.value == pytest.approx(model.log_ent_coef.exp().item(), rel=1e-6)

    def linears(layers: Any) -> list[torch.nn.Linear]:
        return [layer for layer in layers if isinstance(layer, torch.nn.Linear)]

    *hidden, last = linears(actor.layers)
    pairs = list(zip(hidden, linears(model.actor.latent_pi), strict=True))
    their_critics: list[Any] = [model.critic, model.critic_target]
    for twins, peers in zip((critics, learner.targets), their_critics, strict=True):
        pairs += zip(linears(twins.first), linears(peers.qf0), strict=True)
        pairs += zip(linears(twins.second), linears(peers.qf1), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine.weight, other.weight, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mine.bias, other.bias, rtol=1e-4, atol=1e-6)
    their_actor: Any = model.actor
    heads = torch.cat([their_actor.mu.weight, their_actor.log_std.weight])
    torch.testing.assert_close(last.weight, heads, rtol=1e-4, atol=1e-6)


# ---- the fused learner and the torch learner


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
    assert fused.statistics["ent_coef"] == pytest.approx(plain.statistics["ent_coef"], rel=1e-4)


def test_one_fused_update_equals_one_torch_update_up_to_rounding() -> None:
    """Actor, critics, targets and entropy coefficient after one update on the same transitions and noise."""
    from gymnasium.spaces import Box

    from hotloop.rl.buffers.replay import ReplayBuffer

    config = replace(SMALL, tau=0.3, actor_learning_rate=1e-2, anchor_weight=2.0, gamma=0.9)
    states = []
    for kind in (TorchLearner, FusedSAC):
        actor, critics = make_networks(config, 5, 2)
        learner: Any = kind(actor, critics, EntropyCoefficient(config, 2), config)
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
        learner.update(buffer, batch, noise, True)
        states.append(learner.state())
        moved = learner.state()
        learner.load(moved)
        assert all((moved[name] == array).all() for name, array in learner.state().items())
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert np.allclose(states[1][name], array, rtol=1e-4, atol=1e-6), name


def first_action(policy: Any) -> float:
    """An evaluation that only looks at the actions for one observation."""
    return float(policy(np.ones((1, 8), dtype=np.float32)).sum())


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_resumed_run_ends_with_the_same_numbers(learner: Any, tmp_path: Path) -> None:
    whole = replace(SMALL, learner=learner, eval_every_steps=100)
    straight = train(whole, evaluate=first_action)
    file = tmp_path / "agent"
    first = replace(whole, total_timesteps=140, checkpoint=file)
    train(first, evaluate=first_action)
    rest = replace(whole, checkpoint=file, resume=True)
    resumed = train(rest, evaluate=first_action)
    assert resumed.env_steps == 240 and resumed.steps_here == 100
    assert resumed.updates == straight.updates and resumed.actor_updates == straight.actor_updates
    assert resumed.best_at_step == straight.best_at_step
    assert {s for s, _ in straight.evaluations} <= {s for s, _ in resumed.evaluations}
    for name, weight in weights_of(straight.actor).items():
        assert (weights_of(resumed.actor)[name] == weight).all(), name
    with pytest.raises(CheckpointError, match="batch_size was 80, is 81"):
        train(replace(rest, batch_size=81))


# ---- checkpoints of 0.1, and runs without a compiler

WRITTEN_BY_0_1 = Path(__file__).parents[1] / "golden" / "written_by_0_1.tar.gz"


def checkpoint_of_0_1(name: str, folder: Path) -> Path:
    with tarfile.open(WRITTEN_BY_0_1) as archive:
        member = next(one for one in archive if Path(one.name).name == name)
        content = archive.extractfile(member)
        assert content is not None
        (folder / name).write_bytes(content.read())
    return folder / name


@pytest.mark.parametrize("learner", LEARNERS)
def test_sac_continues_a_checkpoint_of_0_1(learner: Any, tmp_path: Path) -> None:
    config = SACConfig(
        env="Pendulum-v1", total_timesteps=440, n_envs=2, net_arch=(8,), buffer_size=512, batch_size=32,
        learning_starts=100, learner=learner, quiet=True, resume=True,
        checkpoint=checkpoint_of_0_1("sac.safetensors", tmp_path),
    )  # fmt: skip
    done = train(config, report=silent)
    assert done.env_steps == 440 and done.steps_here == 40 and done.updates == 340
    with pytest.raises(CheckpointError, match=r"gamma was 0\.99, is 0\.9; gradient_steps was -1, is 1"):
        train(replace(config, gamma=0.9, gradient_steps=1))


@pytest.mark.long
@pytest.mark.parametrize("learner", LEARNERS)
def test_cloning_continues_a_checkpoint_of_0_1(learner: Any, tmp_path: Path) -> None:
    file = checkpoint_of_0_1("bc.safetensors", tmp_path)
    weights = load_checkpoint(file).arrays
    n_inputs, n_actions = (
        weights["weights.layers.0.weight"].shape[1],
        len(weights["weights.layers.2.bias"]) // 2,
    )
    load_clone(file, SquashedActor(n_inputs, n_actions, (8,)))
    rng = np.random.default_rng(0)
    learn = Samples(rng.normal(size=(64, n_inputs)).astype(np.float32), np.zeros((64, n_actions), np.float32))
    config = BCConfig(n_epochs=3, net_arch=(8,), learner=learner, checkpoint=file, resume=True)
    done = clone(config, learn, learn, report=silent)
    assert done.epochs == 3 and done.samples == 64
    with pytest.raises(CheckpointError, match="trained on 64 samples, this run has 63"):
        clone(config, Samples(learn.observations[1:], learn.actions[1:]), learn, report=silent)


WITHOUT_COMPILER = """
import sys
import numpy as np
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.train import bc, sac
done = sac.train(sac.SACConfig(
    env="Pendulum-v1", total_timesteps=60, n_envs=2, batch_size=8, learning_starts=40, net_arch=(8,),
    buffer_size=100, learner="torch", quiet=True,
))
assert done.updates == 20 and done.learner == "torch"
pairs = Samples(np.zeros((20, 3), np.float32), np.zeros((20, 1), np.float32))
assert bc.train(bc.BCConfig(n_epochs=2, learner="torch"), pairs, pairs).epochs == 2
assert not any(name.startswith("hotloop.rl.train.fused.") for name in sys.modules)
"""


@pytest.mark.long
def test_the_torch_learners_need_no_compiled_kernel() -> None:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- equal work


@pytest.mark.parametrize(
    ("n_envs", "train_freq", "gradient_steps", "updates"),
    [(1, 1, -1, 80), (2, 1, -1, 80), (8, 1, -1, 80), (8, 5, -1, 80), (4, 1, 1, 20), (4, 2, 3, 30)],
)
def test_train_freq_and_gradient_steps_mean_the_same_as_in_stable_baselines3(
    n_envs: int, train_freq: int, gradient_steps: int, updates: int
) -> None:
    config = replace(SMALL, n_envs=n_envs, train_freq=train_freq, gradient_steps=gradient_steps)
    done = train(replace(config, total_timesteps=160, net_arch=(8,)), report=silent)
    assert done.env_steps == 160 and done.updates == updates


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_resets_do_not_count_as_steps_and_any_bounded_box_is_accepted(mode: AutoresetMode) -> None:
    """Pendulum: actions in -2 .. 2, episodes of 200 steps."""
    seen: list[np.ndarray] = []

    class Watched(gymnasium.ActionWrapper):
        def action(self, action: Any) -> Any:
            seen.append(action)
            return action

    envs = SyncVectorEnv([lambda: Watched(gymnasium.make("Pendulum-v1"))] * 2, autoreset_mode=mode)
    config = replace(SMALL, env="Pendulum-v1", total_timesteps=500, n_envs=2, learning_starts=450)
    done = train(replace(config, random_steps=100), envs=envs, report=silent)
    assert done.env_steps == 500 and done.episodes == 2 and done.updates == 50
    assert 1.0 < max(np.abs(action).max() for action in seen) <= 2.0
    envs.close()


# ---- warm starts


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_given_actor_acts_the_same_before_the_first_update(learner: Any) -> None:
    observations = np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32)
    actor = SquashedActor(8, 2, SMALL.net_arch, log_std_init=-2.0)
    with torch.no_grad():
        actor.layers[-1].weight[:2] *= 50.0  # far from a new actor, which hardly steers
        expected = actor.greedy_actions(torch.from_numpy(observations)).numpy()
    seen: list[np.ndarray] = []

    def evaluate(policy: Any) -> float:
        seen.append(policy(observations))
        return 0.0

    config = replace(SMALL, learner=learner, eval_every_steps=120, keep_best=False)
    done = train(config, actor=actor, evaluate=evaluate, report=silent)
    assert np.allclose(seen[0], expected, atol=1e-6)  # before the first step
    assert np.array_equal(seen[0], seen[1])  # only the critics learn up to actor_learning_starts
    assert not np.allclose(seen[-1], expected, atol=1e-3) and done.actor is actor


def test_the_best_actor_is_kept_the_first_one_included() -> None:
    scores = iter([3.0, 1.0, 2.0, 0.5])
    actor = SquashedActor(8, 2, SMALL.net_arch)
    before = weights_of(actor)
    config = replace(SMALL, eval_every_steps=80)
    done = train(config, actor=actor, evaluate=lambda policy: next(scores), report=silent)
    assert done.evaluations == ((0, 3.0), (80, 1.0), (160, 2.0), (240, 0.5)) and done.best_at_step == 0
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


CLONING = BCConfig(n_epochs=3, batch_size=96, net_arch=(24, 16), learning_rate=3e-3, log_std_init=-2.0)


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
    done = cloned(n_epochs=40)
    assert done.held_out_loss < 0.01
    observations = torch.from_numpy(samples(50, 2).observations)
    assert torch.allclose(done.actor(observations)[1], torch.tensor(-2.0))


@pytest.mark.parametrize("learner", LEARNERS)
def test_cloning_resumes_to_the_same_numbers(learner: Any, tmp_path: Path) -> None:
    straight = cloned(learner=learner, n_epochs=5)
    file = tmp_path / "clone"
    cloned(learner=learner, n_epochs=2, checkpoint=file)
    resumed = cloned(learner=learner, n_epochs=5, checkpoint=file, resume=True)
    assert resumed.epochs == 5 and resumed.samples == 3000 and resumed.updates == straight.updates
    assert resumed.loss == straight.loss and resumed.held_out_loss == straight.held_out_loss
    kept = SquashedActor(4, 2, (24, 16))
    load_clone(file, kept)
    for name, weight in weights_of(straight.actor).items():
        assert (weights_of(resumed.actor)[name] == weight).all(), name
        assert (weights_of(kept)[name] == weight).all(), name
    again = cloned(learner=learner, n_epochs=5, checkpoint=file, resume=True)  # nothing is left to do
    assert again.samples == 0 and again.loss is None and again.held_out_loss == straight.held_out_loss


def test_a_clone_that_does_not_fit_is_an_error_not_a_fallback(tmp_path: Path) -> None:
    file = tmp_path / "clone"
    cloned(n_epochs=1, checkpoint=file)
    with pytest.raises(CheckpointError, match=r"layers\.0\.bias is \(24,\) in the file and \(20,\) here"):
        load_clone(file, SquashedActor(4, 2, (20, 16)))
    with pytest.raises(CheckpointError, match="activation is relu, not tanh"):
        load_clone(file, SquashedActor(4, 2, (24, 16), "tanh"))
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        load_clone(tmp_path / "nothing", SquashedActor(4, 2))
    train(replace(SMALL, checkpoint=tmp_path / "agent", total_timesteps=80), report=silent)
    with pytest.raises(CheckpointError, match="is not a clone"):
        load_clone(tmp_path / "agent", SquashedActor(8, 2))


def test_stable_baselines3_takes_the_clone_over_and_refuses_another_network() -> None:
    from stable_baselines3 import SAC

    from hotloop.rl.envs.track.env import TrackEnv
    from hotloop.rl.workloads.imitate_sb3 import copy_actor, model_policy

    actor = SquashedActor(8, 2, (24, 16), log_std_init=-2.4)
    with torch.no_grad():
        actor.layers[-1].weight[:2] *= 50.0
    model = SAC("MlpPolicy", TrackEnv(), policy_kwargs={"net_arch": [24, 16]}, buffer_size=10)
    copy_actor(actor, model.actor)
    observations = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    with torch.no_grad():
        expected = actor.greedy_actions(torch.from_numpy(observations)).numpy()
    assert np.allclose(model_policy(model)(observations), expected, atol=1e-6)
    log_stds = model.actor.get_action_dist_params(torch.from_numpy(observations))[1]
    assert torch.allclose(log_stds, torch.tensor(-2.4))
    for other in (SquashedActor(8, 2, (24, 17)), SquashedActor(8, 2, (24, 16), "tanh")):
        with pytest.raises(HotloopError, match="use the same network for both"):
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


@pytest.mark.parametrize("learner", [pytest.param("torch", marks=pytest.mark.long), "fused"])
def test_it_learns_where_to_aim(learner: Any) -> None:
    steps = 1200 if learner == "torch" else 2400
    envs = SyncVectorEnv([Aim] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    config = SACConfig(
        total_timesteps=steps, n_envs=4, batch_size=64, learning_starts=200, random_steps=200,
        net_arch=(32,), learning_rate=3e-3, ent_coef="auto_0.1", learner=learner, quiet=True,
    )  # fmt: skip
    done = train(config, envs=envs, report=silent)
    seen = torch.linspace(-0.8, 0.8, 9)[:, None]
    with torch.no_grad():
        error = (done.actor.greedy_actions(seen) - seen).abs().max().item()
    assert error < 0.25 and done.statistics["ent_coef"] < 0.1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"gradient_steps": 0}, "gradient_steps=0 must be at least 1, or -1"),
        ({"train_freq": 0}, "train_freq=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"gamma": 1.5}, "gamma=1.5 must be between 0 and 1"),
        ({"ent_coef": 0.0}, "ent_coef=0.0 is invalid"),
        ({"net_arch": ()}, "widths of at least 1"),
        ({"resume": True}, "needs a checkpoint to resume from"),
        ({"env": "CartPole"}, "a bounded vector of continuous actions"),
    ],
)
def test_invalid_settings_of_sac_are_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HotloopError, match=sentence):
        train(replace(SMALL, **wrong))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"loading_workers": 2}, "loading_workers=2 needs loading='loader'"),
        ({"loading": "loader", "learner": "fused"}, "gathers its batches inside the kernel"),
        ({"n_epochs": 0}, "n_epochs=0 must be at least 1"),
        ({"resume": True}, "needs a checkpoint to resume from"),
    ],
)
def test_invalid_settings_of_cloning_are_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HotloopError, match=sentence):
        cloned(**wrong)
