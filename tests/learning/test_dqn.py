"""DQN: targets and losses by hand, learners compared with each other, known answers learned, resumed runs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import Prioritized, ReplayBuffer
from hotloop.rl.train.dqn import (
    DQNConfig,
    DQNResult,
    dqn_loss,
    make_learner,
    td_targets,
    train,
    upgrade_settings,
)
from hotloop.rl.train.make_envs import make_envs
from hotloop.rl.train.networks.q import QNetwork
from hotloop.rl.train.runs import CheckpointError, TrainingDiverged, load_checkpoint, torch_threads
from tests.old_files import written_by_0_1

QUIET = DQNConfig(quiet=True, learner="fused")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def config(**words: Any) -> DQNConfig:
    return dataclasses.replace(QUIET, **words)


def weights(result: DQNResult) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in result.network.parameters()])


# ---- by hand


def test_targets_by_hand() -> None:
    online = torch.tensor([[1.0, 5.0], [2.0, 0.0], [0.0, 3.0]])
    target = torch.tensor([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]])
    rewards, discounts = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.5, 0.0])
    double = td_targets(online, target, rewards, discounts, double=True)
    plain = td_targets(online, target, rewards, discounts, double=False)
    assert double.tolist() == [1 + 0.5 * 20, 2 + 0.5 * 30, 3.0]
    assert plain.tolist() == [1 + 0.5 * 20, 2 + 0.5 * 40, 3.0]


def test_losses_by_hand() -> None:
    errors, importance = torch.tensor([0.5, -3.0, 1.0]), torch.tensor([1.0, 2.0, 1.0])
    assert dqn_loss(errors, importance, huber=True).item() == pytest.approx((0.125 + 2 * 2.5 + 0.5) / 3)
    assert dqn_loss(errors, importance, huber=False).item() == pytest.approx((0.25 + 2 * 9 + 1) / 3)
    ones = torch.ones(3)
    torch_own = torch.nn.functional.smooth_l1_loss(errors, torch.zeros(3))
    assert dqn_loss(errors, ones, huber=True).item() == pytest.approx(torch_own.item())


def test_a_dueling_head_by_hand() -> None:
    network = QNetwork(2, 3, (4,), dueling=True)
    with torch.no_grad():
        network.layers[2].weight.zero_()
        network.layers[2].bias.copy_(torch.tensor([1.0, 2.0, 6.0, 10.0]))
    assert network(torch.zeros(1, 2)).tolist() == [[10 + 1 - 3, 10 + 2 - 3, 10 + 6 - 3]]


# ---- learners compared with each other


def filled(width: int, actions: int, prioritized: bool = False) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(
        500,
        4,
        Box(-3.0, 3.0, (width,), np.float32),
        Discrete(actions),
        prioritized=Prioritized() if prioritized else None,
    )

    def frames() -> np.ndarray:
        return rng.normal(size=(4, width)).astype(np.float32)

    buffer.start(frames())
    for _ in range(100):
        buffer.push(
            rng.integers(0, actions, 4),
            rng.normal(size=4) * 3,
            rng.random(4) < 0.1,
            rng.random(4) < 0.1,
            frames(),
            frames(),
        )
    return buffer


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"double": False},
        {"dueling": True},
        {"loss": "mse", "max_grad_norm": None},
        {"activation": "tanh", "net_arch": (40,), "tau": 0.3},
        {"prioritized": True},
    ],
    ids=lambda words: ",".join(words) or "default",
)
def test_the_fused_learner_is_the_torch_learner_up_to_rounding(words: dict[str, Any]) -> None:
    """The same samples, 120 updates, the target moved now and then."""
    settings = config(batch_size=48, **words)
    learners, buffers = [], []
    for name in ("torch", "fused"):
        torch.manual_seed(3)
        network = QNetwork(5, 3, settings.net_arch, settings.activation, dueling=settings.dueling)
        learners.append(make_learner(name, network, settings))
        buffers.append(filled(5, 3, settings.prioritized))
    for number in range(12):
        for learner, buffer in zip(learners, buffers, strict=True):
            learner.update(buffer, buffer.make_batch(settings.batch_size), 10)
            if number % 3 == 2:
                learner.update_target()
    states = [learner.state() for learner in learners]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        # as a whole: where a gradient is nearly 0, Adam makes a whole step of its rounding
        assert np.linalg.norm(array - states[1][name]) <= 1e-3 * np.linalg.norm(array), name
    np.testing.assert_allclose(learners[0].statistics, learners[1].statistics, rtol=1e-3)
    other = filled(5, 3).sample(filled(5, 3).make_batch(20)).observations
    assert (learners[0].greedy_actions(other, None) == learners[1].greedy_actions(other, None)).all()


def test_learners_exchange_weights_at_any_time() -> None:
    settings = config(batch_size=32)
    buffer = filled(5, 3)
    fused = make_learner("fused", QNetwork(5, 3), settings)
    plain = make_learner("torch", QNetwork(5, 3), settings)
    fused.update(buffer, buffer.make_batch(32), 20)
    plain.load(fused.state())
    plain.update(buffer, buffer.make_batch(32), 20)
    fused.load(plain.state())
    for name, array in plain.state().items():
        np.testing.assert_array_equal(array, fused.state()[name])


@pytest.mark.long
@pytest.mark.usefixtures("torch_compiles_here")
def test_torch_compile_is_the_torch_learner_up_to_rounding() -> None:
    settings = config(batch_size=32)
    results = []
    for name in ("torch", "compiled"):
        torch.manual_seed(1)
        learner = make_learner(name, QNetwork(5, 3), settings)
        buffer = filled(5, 3)
        learner.update(buffer, buffer.make_batch(32), 15)
        results.append(learner.state())
    for name, array in results[0].items():
        np.testing.assert_allclose(array, results[1][name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_compiled_loop_equals_the_python_loop() -> None:
    """To the last bit, however long: no kernel's sums depend on what it is compiled into."""
    for envs in (1, 5):
        runs = [
            train(config(total_timesteps=4_000, n_envs=envs, learning_starts=200, loop=loop))
            for loop in ("kernel", "python")
        ]
        assert [run.fused_loop for run in runs] == [True, False]
        for name in ("env_steps", "updates", "episodes", "mean_return"):
            assert getattr(runs[0], name) == getattr(runs[1], name), name
        np.testing.assert_array_equal(weights(runs[0]), weights(runs[1]))


def test_slow_settings_change_nothing_but_time() -> None:
    fast = train(config(total_timesteps=700, n_envs=4, learning_starts=100, learner="torch"))
    slow = train(
        config(
            total_timesteps=700,
            n_envs=4,
            learning_starts=100,
            learner="torch",
            push="items",
            transfers="items",
            log_every_steps=1,
        )
    )
    assert (fast.env_steps, fast.updates, fast.episodes) == (slow.env_steps, slow.updates, slow.episodes)
    np.testing.assert_array_equal(weights(fast), weights(slow))


def test_gradient_steps_are_made_when_they_are_due() -> None:
    for words, updates in (
        ({"train_freq": 1, "gradient_steps": 2, "n_envs": 8}, 2 * 76),
        ({"train_freq": 4, "n_envs": 8}, 19),
        ({"train_freq": 4, "gradient_steps": -1, "n_envs": 8}, 19 * 32),
        ({"gradient_steps": 0}, 0),
    ):
        result = train(config(total_timesteps=800, learning_starts=200, **words))
        assert result.env_steps == 800
        assert result.updates == updates


# ---- known answers


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Seven cells; left and right; 1 at the right end, 0.2 at the left one; cut after 30 steps."""

    observation_space = Box(0.0, 1.0, (7,), np.float32)
    action_space: Any = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.time = 3, 0
        return self.look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.cell += 1 if action == 1 else -1
        self.time += 1
        ended = self.cell in (0, 6)
        reward = {0: 0.2, 6: 1.0}.get(self.cell, 0.0)
        return self.look(), reward, ended, self.time >= 30, {}

    def look(self) -> np.ndarray:
        return np.eye(7, dtype=np.float32)[self.cell]


class Identity(gymnasium.Env[np.ndarray, int]):
    """Say which of four lamps burns; never terminates, cut after 10 steps, so values are 1 / (1 - gamma)."""

    observation_space = Box(0.0, 1.0, (4,), np.float32)
    action_space: Any = Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.lamp = 0, int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self.lamp], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.lamp)
        self.time, self.lamp = self.time + 1, int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self.lamp], reward, False, self.time >= 10, {}


SMALL = config(
    learning_starts=200,
    batch_size=32,
    train_freq=1,
    target_update_interval=100,
    net_arch=(32,),
    exploration_fraction=0.5,
    buffer_size=5000,
    learning_rate=3e-3,
    n_envs=2,
)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("words", [{}, {"n_steps": 3}, {"dueling": True, "prioritized": True}], ids=str)
def test_the_corridor_is_learned_with_its_exact_values(mode: AutoresetMode, words: dict[str, Any]) -> None:
    envs = SyncVectorEnv([Corridor, Corridor], autoreset_mode=mode)
    result = train(
        dataclasses.replace(SMALL, total_timesteps=6000, gamma=0.5, exploration_final_eps=0.3, **words),
        envs=envs,
    )
    with torch.no_grad():
        values = result.network(torch.eye(7))[1:6]
    assert values.argmax(dim=1)[2:].tolist() == [1, 1, 1]
    if not words.get("n_steps"):  # sums of several rewards are those of the policy that explored
        assert values.argmax(dim=1)[:2].tolist() == [0, 1]
        assert values.max(dim=1).values.tolist() == pytest.approx([0.2, 0.125, 0.25, 0.5, 1.0], abs=0.06)
    assert result.episodes > 100


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_truncation_does_not_end_the_value(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([Identity, Identity], autoreset_mode=mode)
    result = train(dataclasses.replace(SMALL, total_timesteps=6000, gamma=0.8), envs=envs)
    with torch.no_grad():
        values = result.network(torch.eye(4))
    assert values.argmax(dim=1).tolist() == [0, 1, 2, 3]
    assert values.max(dim=1).values.tolist() == pytest.approx([5.0] * 4, abs=0.5)
    assert result.episodes == result.env_steps // 10  # rows that are only a reset are no steps


def test_cartpole_is_solved() -> None:
    result = train(config(n_eval_episodes=20))
    assert result.fused_loop
    assert result.evaluation_return is not None and result.evaluation_return >= 475.0


@pytest.mark.long
def test_cartpole_is_solved_by_torch_on_gymnasiums_own() -> None:
    result = train(config(env="CartPole-v1", learner="torch", n_eval_episodes=20))
    assert result.evaluation_return is not None and result.evaluation_return >= 475.0


SNAKE = config(
    env="Snake",
    n_envs=256,
    total_timesteps=256 * 250,
    batch_size=64,
    train_freq=1,
    gradient_steps=64,
    net_arch=(128, 128),
    buffer_size=100_000,
    learning_starts=2560,
    target_update_interval=5120,
    exploration_fraction=0.3,
    exploration_final_eps=0.01,
    learning_rate=5e-4,
    gamma=0.95,
)


def mean_snake_length(result: DQNResult) -> float:
    """Over the first 128 games to end of 64 played side by side with the best actions."""
    envs = make_envs("Snake", 64, flood_fill="compiled")
    observations, _ = envs.reset(seed=77)
    lengths: list[int] = []
    while len(lengths) < 128:
        with torch.no_grad():
            actions = result.network(torch.from_numpy(observations)).argmax(dim=1).numpy()
        observations, _, terminated, truncated, infos = envs.step(actions)
        for row in np.flatnonzero(terminated | truncated):
            lengths.append(int(infos["final_info"]["length"][row]))
    return float(np.mean(lengths))


@pytest.mark.long
def test_snake_grows_to_fifteen() -> None:
    """Start length 3 on 10 x 10; games that end early count more often, so the mean is on the low side."""
    envs = make_envs("Snake", 256, flood_fill="compiled")
    result = train(dataclasses.replace(SNAKE, loop="python"), envs=envs)
    assert mean_snake_length(result) >= 15.0


@pytest.mark.long
def test_snake_in_the_kernel_is_snake_in_python() -> None:
    runs = [
        train(
            dataclasses.replace(SNAKE, total_timesteps=256 * 20, loop=loop),
            envs=make_envs("Snake", 256, flood_fill="compiled"),
        )
        for loop in ("kernel", "python")
    ]
    assert [run.fused_loop for run in runs] == [True, False]
    assert (runs[0].updates, runs[0].episodes) == (runs[1].updates, runs[1].episodes)
    np.testing.assert_array_equal(weights(runs[0]), weights(runs[1]))


def test_frames_stored_once_train_like_whole_stacks() -> None:
    """A stack of identical single frames rebuilt by the replay gives the same run as stacks stored whole."""

    class Stacked(Corridor):
        observation_space = Box(0.0, 1.0, (3, 7), np.float32)

        def reset(self, **words: Any) -> tuple[np.ndarray, dict[str, Any]]:
            self.stack: list[np.ndarray] = []
            return super().reset(**words)

        def look(self) -> np.ndarray:
            frame = super().look()
            self.stack = [*(self.stack or [frame] * 3)[-2:], frame]
            return np.stack(self.stack)

    runs = []
    for stack in (1, 3):
        envs = SyncVectorEnv([Stacked, Stacked], autoreset_mode=AutoresetMode.SAME_STEP)
        runs.append(train(dataclasses.replace(SMALL, total_timesteps=1500, frame_stack=stack), envs=envs))
    np.testing.assert_array_equal(weights(runs[0]), weights(runs[1]))


# ---- runs


def test_same_seed_same_weights_other_seed_others() -> None:
    runs = [train(config(total_timesteps=1500, seed=seed, learning_starts=200)) for seed in (4, 4, 5)]
    np.testing.assert_array_equal(weights(runs[0]), weights(runs[1]))
    assert not np.array_equal(weights(runs[0]), weights(runs[2]))


@pytest.mark.parametrize("words", [{}, {"loop": "python", "prioritized": True, "n_steps": 2}], ids=str)
def test_a_resumed_run_ends_with_the_same_numbers(tmp_path: Path, words: dict[str, Any]) -> None:
    settings = config(
        n_envs=2,
        learning_starts=200,
        total_timesteps=2000,
        exploration_initial_eps=0.1,
        exploration_final_eps=0.1,
        **words,
    )
    whole = train(settings)
    path = tmp_path / "dqn.safetensors"
    train(dataclasses.replace(settings, total_timesteps=900, checkpoint=path))
    resumed = train(dataclasses.replace(settings, checkpoint=path, resume=True))
    np.testing.assert_array_equal(weights(whole), weights(resumed))
    for name in ("env_steps", "updates", "episodes", "mean_return"):
        assert getattr(whole, name) == getattr(resumed, name), name
    with pytest.raises(CheckpointError, match="batch_size was 64, is 32"):
        train(dataclasses.replace(settings, checkpoint=path, resume=True, batch_size=32))


@pytest.mark.parametrize("learner", ["torch", "fused"])
def test_a_checkpoint_of_hotloop_0_1_is_resumed(tmp_path: Path, learner: Any) -> None:
    path = written_by_0_1("dqn.safetensors", tmp_path)
    before = load_checkpoint(path).arrays["learner.weights.layers.0.weight"]
    settings = DQNConfig(
        total_timesteps=1500, net_arch=(8,), buffer_size=512, learning_starts=200, loop="python", quiet=True,
        learner=learner, checkpoint=path, resume=True,
    )  # fmt: skip
    done = train(settings)
    assert (done.env_steps, done.resumed_at, done.updates) == (1500, 1500, 651)
    np.testing.assert_array_equal(dict(done.network.named_parameters())["layers.0.weight"].detach(), before)
    with pytest.raises(CheckpointError, match="gradient_steps was 1, is 2"):
        train(dataclasses.replace(settings, gradient_steps=2))


def test_settings_of_0_1_become_those_of_today() -> None:
    for updates, expected in (
        ("1/4", (4, 1)),
        ("n/4", (1, 2)),
        ("4", (1, 4)),
        ("0.5", (2, 1)),
        ("n", (1, 8)),
    ):
        found = upgrade_settings({"n_envs": 8, "learn": True, "log_every": 0, "updates": updates})
        assert found == {"n_envs": 8, "train_freq": expected[0], "gradient_steps": expected[1]}
    assert upgrade_settings({"n_envs": 1, "learn": False, "updates": "1"})["gradient_steps"] == 0
    with pytest.raises(CheckpointError, match=r"updates='3/4'.*start a new run"):
        upgrade_settings({"n_envs": 1, "learn": True, "updates": "3/4"})


INTERPRETED = """
from hotloop.rl.train.dqn import DQNConfig, train
done = train(DQNConfig(env="CartPole-v1", total_timesteps=200, n_envs=2, learning_starts=50, net_arch=(8,),
                       buffer_size=150, batch_size=16, learner="torch", quiet=True))
print(done.env_steps, done.updates, *(float(p.detach().double().sum()) for p in done.network.parameters()))
"""
WITHOUT_FUSED = """
import sys
assert not [name for name in sys.modules if name.startswith("hotloop.rl.train.fused.")]
"""


@pytest.mark.long
def test_it_runs_without_any_compiled_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    """With numba's compiler disabled, and with the same weights."""
    found = subprocess.run(
        [sys.executable, "-c", INTERPRETED + WITHOUT_FUSED],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    assert "compiling" not in found.stderr
    exec(INTERPRETED, {})  # here, numba compiles
    assert found.stdout == capsys.readouterr().out and found.stdout.startswith("200 38 ")


def test_a_run_that_diverges_stops_with_an_error() -> None:
    with pytest.raises(TrainingDiverged, match="loss is"):
        train(config(total_timesteps=3000, learning_rate=1e30, max_grad_norm=None, learning_starts=100))


def test_invalid_settings_raise_one_sentence() -> None:
    for words, part in (
        ({"n_envs": 0}, "n_envs=0"),
        ({"buffer_size": 1, "n_envs": 2}, "buffer_size=1"),
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"net_arch": ()}, "net_arch"),
        ({"env": "Nowhere-v0"}, "Nowhere"),
        ({"transfers": "items"}, "transfers='items'"),
        ({"loop": "kernel", "prioritized": True}, "loop='kernel'"),
        ({"resume": True}, "checkpoint"),
        ({"env": "Pendulum-v1"}, "discrete"),
    ):
        with pytest.raises(HotloopError, match=part):
            train(config(**words))
