"""Rewards and observations that are NaN or infinite: named, counted, and never learned from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop._util.console import guarded
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.demonstrations import Samples
from hotloop.rl.collect.locked import LockedCollector
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Setup, Spaces, Task
from hotloop.rl.collect.serial import SerialCollector
from hotloop.rl.envs.cartpole.env import CartPoleVectorEnv
from hotloop.rl.nonfinite import NonFiniteCheck, NonFiniteData, count_nonfinite, first_nonfinite, is_finite
from hotloop.rl.train import bc, dqn, ppo, recurrent_ppo, runs, sac

LENGTH = 5  # steps of an episode


class Spoiled(gymnasium.Env[Any, Any]):
    """Returns a value that is not finite in the reward, the observation or the last one of an episode."""

    def __init__(self, what: str = "", at: int = 12, value: float = math.nan, continuous: bool = False):
        self.observation_space = Box(-1, 1, (3,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32) if continuous else Discrete(2)
        self._what, self._at, self._value, self._steps = what, at, value, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._in_episode = 0
        return np.zeros(3, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps, self._in_episode = self._steps + 1, self._in_episode + 1
        observation, reward = np.full(3, 0.5, dtype=np.float32), 1.0
        now, last = self._steps == self._at, self._in_episode == LENGTH
        if self._what == "reward" and now:
            reward = self._value
        if (self._what == "observation" and now) or (
            self._what == "final" and last and self._steps >= self._at
        ):
            observation[1] = self._value
        return observation, reward, False, last, {}


def envs(what: str, value: float = math.nan, continuous: bool = False) -> SyncVectorEnv:
    """Three environments, of which number 1 is spoiled."""
    made = [Spoiled, lambda: Spoiled(what, value=value), Spoiled]
    if continuous:
        made = [lambda what=name: Spoiled(what, value=value, continuous=True) for name in ("", what, "")]  # type: ignore[misc]
    return SyncVectorEnv(made, autoreset_mode=AutoresetMode.SAME_STEP)


def train_ppo(what: str, value: float = math.nan, **more: Any) -> Any:
    config = ppo.PPOConfig(
        n_envs=3, n_steps=8, total_timesteps=96, batch_size=8, net_arch=(4,), n_epochs=1, learner="torch",
        quiet=True, **more,
    )  # fmt: skip
    return ppo.train(config, envs=envs(what, value))


def train_dqn(what: str, value: float = math.nan, **more: Any) -> Any:
    config = dqn.DQNConfig(
        n_envs=3, total_timesteps=96, buffer_size=90, learning_starts=200, batch_size=8, net_arch=(4,),
        learner="torch", quiet=True, **more,
    )  # fmt: skip
    return dqn.train(config, envs=envs(what, value))


def train_sac(what: str, value: float = math.nan, **more: Any) -> Any:
    config = sac.SACConfig(
        n_envs=3, total_timesteps=96, buffer_size=90, learning_starts=200, batch_size=8, net_arch=(4,),
        learner="torch", eval_every_steps=0, quiet=True, **more,
    )  # fmt: skip
    return sac.train(config, envs=envs(what, value, continuous=True))


TRAINERS: dict[str, Callable[..., Any]] = {"ppo": train_ppo, "dqn": train_dqn, "sac": train_sac}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("what", ["reward", "observation", "final"])
def test_a_training_stops_before_it_learns_from_it(
    trainer: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agent"
    runs.save_checkpoint(file, {}, {}, {})
    after = 33 if what != "final" else 42  # three environments, and the twelfth step of one of them
    named = "reward" if what == "reward" else "observation"
    said = rf"Environment 1 returned nan in its {named} after {after}.*nothing was learned.*{file}"
    with pytest.raises(NonFiniteData, match=said):
        TRAINERS[trainer](what, checkpoint=file)
    assert runs.load_checkpoint(file).state == {}


@pytest.mark.parametrize("trainer", ["dqn", "sac"])  # PPO learns at once, and diverges
def test_it_can_be_allowed_and_is_counted(trainer: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = TRAINERS[trainer]("reward", math.inf, allow_nonfinite=True)
    assert done.nonfinite == 1 and done.env_steps == 96
    assert (
        capsys.readouterr().err.count("returned inf in its reward after 33 env steps; training goes on") == 1
    )
    assert TRAINERS[trainer]("").nonfinite == 0
    with pytest.raises(runs.TrainingDiverged):
        train_ppo("reward", allow_nonfinite=True)


class Pictures(Spoiled):
    """The same with pictures, for networks that need them."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self.observation_space = Box(0, 255, (1, 16, 16), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset()
        return np.zeros((1, 16, 16), dtype=np.uint8), {}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.zeros((1, 16, 16), dtype=np.uint8), *rest


def test_recurrent_ppo_stops_too() -> None:
    config = recurrent_ppo.RecurrentPPOConfig(
        total_timesteps=96,
        channels=4,
        features=8,
        layers=1,
        n_steps=8,
        n_epochs=1,
        num_minibatches=1,
        quiet=True,
    )
    made = SyncVectorEnv(
        [Pictures, lambda: Pictures("reward", value=-math.inf)], autoreset_mode=AutoresetMode.SAME_STEP
    )
    with pytest.raises(NonFiniteData, match="Environment 1 returned -inf in its reward after 22 env steps"):
        recurrent_ppo.train(config, made)


@pytest.mark.parametrize("allow", [False, True])
def test_the_loop_in_one_kernel_stops_before_it_stores_the_step(
    allow: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dqn.DQNConfig(
        n_envs=4, total_timesteps=8_192, buffer_size=400, learning_starts=10**6, batch_size=8, net_arch=(4,),
        learner="fused", loop="kernel", quiet=True, allow_nonfinite=allow,
    )  # fmt: skip
    made = CartPoleVectorEnv(4, autoreset_mode=AutoresetMode.SAME_STEP, copy=False)
    reset = made.reset

    def spoiled_reset(**how: Any) -> Any:
        found = reset(**how)
        made.state[1, 2] = np.nan  # the velocity of a cart
        return found

    made.reset = spoiled_reset  # type: ignore[method-assign]
    if allow:
        assert dqn.train(config, envs=made).nonfinite > 0
        assert "training goes on" in capsys.readouterr().err
    else:
        with pytest.raises(NonFiniteData, match=r"Environment 2 returned .* in its observation"):
            dqn.train(config, envs=made)


def test_a_rollout_of_a_kernel_is_checked_as_a_whole() -> None:
    check = NonFiniteCheck()
    check.env_steps = 1_000
    observations, rewards = np.zeros((6, 4, 3), dtype=np.float32), np.zeros((5, 4), dtype=np.float32)
    check.rollout(observations, rewards)
    rewards[3, 2] = np.inf
    with pytest.raises(NonFiniteData, match="Environment 2 returned inf in its reward after 1,012 env steps"):
        check.rollout(observations, rewards)


def test_demonstrations_are_checked_before_they_are_cloned() -> None:
    seen, actions = np.zeros((20, 3), dtype=np.float32), np.zeros((20, 2), dtype=np.float32)
    actions[13, 1], actions[15, 0] = np.nan, np.inf
    samples = Samples(seen, actions)
    config = bc.BCConfig(n_epochs=1, batch_size=8, net_arch=(4,), learner="torch")
    with pytest.raises(
        NonFiniteData, match=r"have 2 numbers .*\(nan\) in the action of step 13; nothing was"
    ):
        bc.train(config, samples, samples)
    with pytest.raises(runs.TrainingDiverged):
        bc.train(replace(config, allow_nonfinite=True), samples, samples)


class Idle:
    """Does nothing in particular."""

    def __init__(self, spaces: Spaces):
        self._actions = np.zeros(spaces.n_envs, dtype=np.int64)

    def load(self, weights: Any) -> None:
        pass

    def act(self, observations: Any, control: float, rng: Any) -> Any:
        return self._actions


@pytest.mark.parametrize("kind", [SerialCollector, ProcessCollector, LockedCollector])
def test_collectors_hand_over_no_such_row_unless_allowed(kind: Any) -> None:
    def task(what: str) -> Task:
        return Task(lambda seed: Spoiled(what, at=40), Idle, n_envs=2)

    def take(what: str, allow: bool) -> Any:
        setup = Setup(collectors=1, method="fork", allow_nonfinite=allow)
        rows = 0
        with kind(task(what), setup) as collector:
            while rows < 200:
                rows += sum(map(len, collector.take(64, 0.5)))
                collector.release()
            return collector.state()

    with pytest.raises(
        NonFiniteData, match="Environment 0 of collector 0 returned nan in its reward after 79"
    ):
        take("reward", allow=False)
    with pytest.raises(NonFiniteData, match="Environment 0 of collector 0 returned nan in its frame"):
        take("observation", allow=False)
    assert take("reward", allow=True).nonfinite == 2
    assert take("", allow=False).nonfinite == 0


def test_which_numbers_are_finite() -> None:
    large = np.full(4, 1e30, dtype=np.float32)  # their squares are not finite
    assert is_finite(large) and is_finite(np.array([2**62])) and is_finite(np.zeros((0, 3)))
    large[2] = -np.inf
    assert not is_finite(large) and count_nonfinite(large) == 1
    assert first_nonfinite(np.array([[0.0, 1.0], [np.nan, 2.0]]))[0] == (1, 0)
    assert not is_finite(np.array([1j, np.nan]))


def test_it_is_a_mistake_of_the_user_and_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def verb() -> int:
        NonFiniteCheck().report("environment 3", "reward", math.nan, 1_200, 1)
        return 0

    assert issubclass(NonFiniteData, HotloopError) and guarded(verb) == 2
    assert capsys.readouterr().err.startswith("hotloop: Environment 3 returned nan in its reward after 1,200")


def test_torch_is_left_as_it_was() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(NonFiniteData):
        train_ppo("reward")
    assert torch.get_num_threads() == threads
