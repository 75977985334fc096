"""Patches for PufferLib on classes of the same shape; the library itself is in the long tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hotloop.capture.stats import by_name
from hotloop.instrument import pufferlib, step_counting
from hotloop.instrument.patch import Patches
from hotloop.instrument.standard_library import ipc_wait
from hotloop.measure.profiler import default

SOURCE = """
import numpy as np

class PufferEnv:
    num_agents = 4

    @property
    def driver_env(self):
        return self

    def async_reset(self, seed=None):
        _, self.infos = self.reset(seed)

    def send(self, actions):
        _, _, _, _, self.infos = self.step(actions)

    def recv(self):
        return (*self.shown, self.infos, np.arange(self.num_agents), np.ones(self.num_agents, dtype=bool))

class Native(PufferEnv):
    logs_every = 0  # steps

    def reset(self, seed=None):
        self.tick = 0
        self.shown = [np.zeros((4, 2)), np.zeros(4, "f"), np.zeros(4, bool), np.zeros(4, bool)]
        return self.shown[0], []

    def step(self, actions):
        self.tick += 1
        ended = np.arange(4) < (2 if self.tick % 5 == 0 else 0)  # two agents, after five steps
        self.shown = [np.full((4, 2), float(self.tick)), np.ones(4, "f"), ended, np.zeros(4, bool)]
        infos = []
        if self.logs_every and self.tick % self.logs_every == 0:
            infos = [{"episode_length": 5.0, "episode_return": 5.0, "n": 2.0 * self.logs_every / 5}]
        return (*self.shown, infos)

class Emulated:
    # One Gymnasium env, which is reset by the step after the end of an episode.
    num_agents = 1

    def __init__(self, length):
        self.length = length

    def reset(self):
        self.tick, self.done = 0, False
        return 0.0, False

    def step(self, action):
        self.tick += 1
        self.done = self.tick == self.length
        return 1.0, self.done

def reset(vecenv, seed=42):
    vecenv.async_reset(seed)
    return vecenv.recv()[0], []

def step(vecenv, actions):
    vecenv.send(actions)
    return vecenv.recv()[:5]

class Serial:
    reset = reset
    step = step

    def __init__(self, lengths):
        self.envs = [Emulated(length) for length in lengths]
        self.driver_env = self.envs[0]
        self.num_agents = self.agents_per_batch = len(lengths)

    def async_reset(self, seed=None):
        self.results = [env.reset() for env in self.envs]

    def send(self, actions):
        self.results = [env.reset() if env.done else env.step(0) for env in self.envs]

    def recv(self):
        rewards, ended = (np.array(column) for column in zip(*self.results))
        everyone = np.arange(len(rewards))
        return (rewards[:, None], rewards.astype("f"), ended.astype(bool), np.zeros(len(rewards), bool),
                [], everyone, np.ones(len(rewards), bool))

    def close(self):
        pass

class Multiprocessing:
    # Two workers with two agents each, of which one at a time is received and sent to.
    reset = reset
    step = step
    num_agents, agents_per_batch = 4, 2

    def __init__(self):
        self.driver_env = Native()
        self.workers = [[0, 0], [0, 0]]  # steps, and those that were received

    def async_reset(self, seed=0):
        self.turn = 1

    def recv(self):
        self.turn = 1 - self.turn
        ids = np.arange(2) + 2 * self.turn
        ended = np.full(2, self.workers[self.turn][0] % 3 == 2)
        return np.zeros((2, 2)), np.ones(2, "f"), ended, np.zeros(2, bool), [], ids, np.ones(2, bool)

    def send(self, actions):
        self.workers[self.turn][0] += 1

    def close(self):
        pass

class Ray:
    def async_reset(self, seed=None): ...
    def send(self, actions): ...
    def recv(self): ...
    def close(self): ...

def _worker_process(env_creators, num_envs, send_pipe, is_native, steps):
    envs = env_creators[0]() if is_native and num_envs == 1 else Serial([3])
    envs.reset()
    for _ in range(steps):
        envs.step(0)
        send_pipe.send([])

def make(creator):
    return creator()

class PettingZooPufferEnv:
    def step(self, actions): ...
    def reset(self, seed=None): ...

# -- the trainer

class Profile:
    def __call__(self, name, epoch, nest=False):
        pass

    def end(self):
        pass

def compute_puff_advantage():
    pass

class PuffeRL:
    total_minibatches = 2

    def __init__(self, config, vecenv):
        vecenv.async_reset(1)
        self.config, self.vecenv, self.profile = config, vecenv, Profile()
        self.epoch = self.global_step = 0

    def evaluate(self):
        profile, epoch = self.profile, self.epoch
        profile("eval", epoch)
        profile("eval_misc", epoch, nest=True)
        for _ in range(self.config["horizon"]):
            profile("env", epoch)
            o, r, d, t, info, env_id, mask = self.vecenv.recv()
            profile("eval_misc", epoch)
            self.global_step += int(mask.sum())
            profile("eval_copy", epoch)
            profile("eval_forward", epoch)
            profile("eval_copy", epoch)
            profile("eval_misc", epoch)
            profile("env", epoch)
            self.vecenv.send(np.zeros(len(r)))
        profile("eval_misc", epoch)
        profile.end()

    def train(self):
        profile, epoch = self.profile, self.epoch
        profile("train", epoch)
        for _ in range(self.total_minibatches):
            profile("train_misc", epoch, nest=True)
            compute_puff_advantage()
            profile("train_copy", epoch)
            profile("train_forward", epoch)
            profile("train_misc", epoch)
            compute_puff_advantage()
            profile("train_misc", epoch)
            profile("learn", epoch)
        profile("train_misc", epoch)
        if self.config.get("fails"):
            raise ValueError("out of luck")
        profile.end()
        self.epoch += 1
        self.mean_and_log()
        self.print_dashboard()
        self.save_checkpoint()

    def mean_and_log(self): ...
    def print_dashboard(self): ...
    def save_checkpoint(self): ...

def train(config, vecenv):
    trainer = PuffeRL(config, vecenv)
    while trainer.global_step < config["total_timesteps"]:
        trainer.evaluate()
        trainer.train()
    for _ in range(3):
        trainer.evaluate()
    return trainer

def eval(vecenv):
    vecenv.reset()
    vecenv.step(np.zeros(4))
"""


def stand_in(version: Any = 3.0) -> Any:
    module: Any = ModuleType("pufferlib")
    exec(compile(SOURCE, "pufferlib", "exec"), vars(module))
    module.__version__ = version
    return module


def patch(module: Any, into: Patches) -> None:
    pufferlib.patch_envs(module, into)
    pufferlib.patch_emulation(module, into)
    pufferlib.patch_vector(module, into)
    pufferlib.patch_trainer(module, into)


@pytest.fixture
def puffer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, patched; recording is on."""
    module, into = stand_in(), Patches()
    monkeypatch.setitem(sys.modules, "pufferlib", module)
    monkeypatch.setattr(step_counting, "trains", False)
    patch(module, into)
    default.start()
    try:
        yield module
    finally:
        default.stop()
        assert into.undo() == []
        pufferlib._trainers.discard(module)


def calls(name: str = "") -> dict[str, int]:
    """Calls by name, below one of the outermost regions or everywhere."""
    tree = default.capture().tree
    under = next((node for node in tree.children if node.name == name), tree)
    return {found: node.calls for found, node in by_name(under).items()}


def test_a_trainer_on_an_env_in_c(puffer: Any) -> None:
    trainer = puffer.PuffeRL({"horizon": 8, "total_timesteps": 999}, puffer.Native())
    for _ in range(3):
        trainer.evaluate()
        trainer.train()
    progress = default.capture().progress
    assert progress.env_steps == trainer.global_step == 3 * 8 * 4
    assert (progress.episodes, progress.mean_length) == (2 * (24 // 5), 5)
    found = calls()
    assert found["collect_rollouts"] == found["train"] == found["checkpoint"] == 3 and found["log"] == 6
    for name in ("env_step", "Native.step", "policy_forward", "replay_push"):
        assert found[name] == 3 * 8, name
    for name in ("learner_forward", "loss", "replay_sample"):
        assert found[name] == 3 * 2, name
    assert found["advantage"] == 12 and "evaluate" not in found


def test_episodes_are_those_that_an_env_logs(puffer: Any) -> None:
    env = puffer.Native()
    env.logs_every = 10
    trainer = puffer.PuffeRL({"horizon": 30, "total_timesteps": 999}, env)
    trainer.evaluate()  # the flags of two episodes come before the first log, which has them, too
    progress = default.capture().progress
    assert (progress.episodes, progress.mean_length, progress.mean_return) == (12, 5, 5)


def test_the_rollouts_after_training_are_an_evaluation(puffer: Any) -> None:
    trainer = puffer.train({"horizon": 8, "total_timesteps": 64}, puffer.Native())
    assert trainer.global_step == 64 + 3 * 32
    assert default.capture().progress.env_steps == 64
    assert calls("learn")["collect_rollouts"] == 2 and calls("learn")["evaluate"] == 3


def test_in_a_loop_of_the_users_the_second_rollout_without_training_is_an_evaluation(puffer: Any) -> None:
    trainer = puffer.PuffeRL({"horizon": 8, "total_timesteps": 0}, puffer.Native())
    trainer.evaluate()  # warms up
    for _ in range(2):
        trainer.evaluate()
        trainer.train()
    for _ in range(3):
        trainer.evaluate()
    assert (calls()["collect_rollouts"], calls()["evaluate"]) == (4, 2)
    assert default.capture().progress.env_steps == 4 * 32


def test_eval_and_functions_named_after_it_do_not_count(puffer: Any) -> None:
    trainer = puffer.PuffeRL({"horizon": 8, "total_timesteps": 0}, puffer.Native())
    trainer.evaluate()
    trainer.train()

    def run_eval() -> None:
        trainer.evaluate()

    run_eval()
    puffer.eval(puffer.Serial([3, 4, 5, 6]))
    assert default.capture().progress.env_steps == 32
    assert calls()["evaluate"] == 2 and calls()["collect_rollouts"] == 1


def test_steps_that_only_reset_an_env_do_not_count(puffer: Any) -> None:
    envs = puffer.Serial([3, 4])
    envs.reset()
    for _ in range(12):
        envs.step(np.zeros(2))
    # Every 4th of the first's steps is a reset, and every 5th of the other's.
    progress = default.capture().progress
    assert progress.env_steps == (12 - 3) + (12 - 2)
    assert progress.episodes == 3 + 2
    assert progress.mean_length == (3 * 3 + 2 * 4) / 5 == progress.mean_return
    assert calls()["env_step"] == calls()["Serial.step"] == calls()["Serial.send"] == 12
    assert calls()["env_reset"] == calls()["Serial.reset"] == 1


def test_steps_count_when_they_are_sent(puffer: Any) -> None:
    trainer = puffer.PuffeRL({"horizon": 9, "total_timesteps": 999}, puffer.Multiprocessing())
    trainer.evaluate()
    progress = default.capture().progress
    assert progress.env_steps == trainer.global_step == 18
    assert progress.episodes == 2 * (
        1 + 1
    )  # each worker has been received after two steps, and after five not
    found = calls("collect_rollouts")
    assert found["ipc_wait"] == found["spin_wait"] == found["env_step"] == found["policy_forward"] == 9


def test_an_error_in_a_rollout_or_an_update_closes_the_regions(puffer: Any) -> None:
    trainer = puffer.PuffeRL({"horizon": 8, "total_timesteps": 0, "fails": True}, puffer.Native())
    trainer.evaluate()
    with pytest.raises(ValueError, match="out of luck"):
        trainer.train()
    with default.profile("afterwards"):
        pass
    assert {"train", "afterwards"} <= {node.name for node in default.capture().tree.children}
    assert not pufferlib._section


def test_a_derived_trainer_is_recorded_once(puffer: Any) -> None:
    class Mine(puffer.PuffeRL):  # type: ignore[misc]
        def evaluate(self) -> None:
            super().evaluate()

        def train(self) -> None:
            super().train()

    trainer = Mine({"horizon": 8, "total_timesteps": 0}, puffer.Native())
    for _ in range(2):
        trainer.evaluate()
        trainer.train()
    assert calls()["collect_rollouts"] == calls()["train"] == 2 and "evaluate" not in calls()


@pytest.mark.parametrize("is_native", [True, False])
def test_a_worker_waits_between_steps_and_counts_nothing(
    puffer: Any, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(step_counting, "stop_counting", lambda: stopped.append(True))
    monkeypatch.setattr(step_counting, "enabled", False)
    sent: list[Any] = []
    before = [(cls, dict(vars(cls))) for cls in (puffer.Native, puffer.Serial)]
    puffer._worker_process([puffer.Native], 1, SimpleNamespace(send=sent.append), is_native, 7)
    for cls, was in before:  # a worker never takes these patches back
        for name in ("step", "reset"):
            setattr(cls, name, was[name])
    pufferlib.spin_wait.__exit__()
    ipc_wait.__exit__()
    assert stopped and len(sent) == 7
    tree = default.capture().tree
    outermost = {node.name: node.calls for node in tree.children}
    assert outermost["env_step"] == 7 and outermost["ipc_wait"] == 1 + 2 * 7  # after reset, steps and infos
    assert default.capture().progress.env_steps == 0
    assert "env_step" not in calls("ipc_wait")


def test_other_versions_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module, into = stand_in("2.0.6"), Patches()
    monkeypatch.setitem(sys.modules, "pufferlib", module)
    monkeypatch.setattr(pufferlib, "_refused", set())
    with pytest.raises(LookupError, match=r"PufferLib 2\.0\.6, known are 3\.x"):
        pufferlib.patch_envs(module, into)
    patch(module, into)  # says nothing more
    assert len(into) == 0


def test_everything_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    module, into = stand_in(), Patches()
    monkeypatch.setitem(sys.modules, "pufferlib", module)
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    before = [dict(vars(module)), *(dict(vars(cls)) for cls in classes)]
    patch(module, into)
    assert into.undo() == []
    pufferlib._trainers.discard(module)
    assert before == [dict(vars(module)), *(dict(vars(cls)) for cls in classes)]


def test_a_trainer_that_runs_as_a_program_is_patched_when_it_makes_envs(
    puffer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = stand_in()
    main.__spec__ = SimpleNamespace(name="pufferlib.pufferl")
    monkeypatch.setitem(sys.modules, "__main__", main)
    make: Callable[..., Any] = puffer.make
    trainer = main.PuffeRL({"horizon": 8, "total_timesteps": 0}, make(puffer.Native))
    trainer.evaluate()
    assert calls()["collect_rollouts"] == 1 and calls()["env_setup"] == 1
    pufferlib._trainers.discard(main)
