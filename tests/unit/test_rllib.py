"""Patches for RLlib on classes of the same shape; the library itself is in the long tests."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hotloop.capture.stats import by_name
from hotloop.instrument import rllib
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


class EnvRunner:
    def __init__(self, in_evaluation: bool = False):
        self.config = SimpleNamespace(in_evaluation=in_evaluation)

    def set_state(self, state: Any) -> None:
        pass


class ConnectorPipelineV2:
    def __call__(self, *, batch: int) -> int:
        return batch + 1


class Learner:
    def update(self) -> str:
        return self.compute_losses()

    def compute_losses(self) -> str:
        return "loss"


class EpisodeReplayBuffer:
    def add(self, episodes: list[int]) -> int:
        return len(episodes)

    def sample(self, num_items: int) -> list[int]:
        return [0] * num_items


class RLModule:
    def forward_exploration(self, batch: int) -> int:
        return batch

    def forward_train(self, batch: int) -> int:
        return self.forward_exploration(batch)


def module(**names: Any) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(names)
    return made


@pytest.fixture
def patches() -> Any:
    into = Patches()
    rllib.patch_env_runners(module(EnvRunner=EnvRunner), into)
    rllib.patch_connectors(module(ConnectorPipelineV2=ConnectorPipelineV2), into)
    rllib.patch_learners(module(Learner=Learner), into)
    rllib.patch_modules(module(RLModule=RLModule), into)
    rllib.patch_replay_buffers(module(EpisodeReplayBuffer=EpisodeReplayBuffer), into)
    default.start()
    try:
        yield into
    finally:
        default.stop()
        into.undo()


def test_samples_connectors_and_updates_are_regions_also_of_classes_made_later(patches: Patches) -> None:
    class Runner(EnvRunner):  # as SingleAgentEnvRunner, defined after the base was patched
        def sample(self, *, num_timesteps: int) -> int:
            return num_timesteps

    class EnvToModule(ConnectorPipelineV2):
        pass

    class ModuleToEnv(ConnectorPipelineV2):
        def __call__(self, *, batch: int) -> int:
            return super().__call__(batch=batch) * 2

    assert Runner().sample(num_timesteps=3) == 3
    assert Runner(in_evaluation=True).sample(num_timesteps=4) == 4
    Runner().set_state({})
    assert EnvToModule()(batch=1) == 2
    assert ModuleToEnv()(batch=1) == 4
    assert Learner().update() == "loss"
    assert RLModule().forward_train(7) == 7
    found = {name: node.calls for name, node in by_name(default.capture().tree).items()}
    assert found["collect_rollouts"] == found["evaluate"] == found["weights_sync"] == 1
    assert (found["connector"], found["EnvToModule"], found["ModuleToEnv"]) == (2, 1, 1)
    assert found["learner_update"] == found["loss"] == found["learner_forward"] == 1
    assert "policy_forward" not in found


def test_everything_is_undone() -> None:
    before = [vars(cls).copy() for cls in (EnvRunner, ConnectorPipelineV2, Learner, RLModule)]
    into = Patches()
    rllib.patch_env_runners(module(EnvRunner=EnvRunner), into)
    rllib.patch_connectors(module(ConnectorPipelineV2=ConnectorPipelineV2), into)
    rllib.patch_learners(module(Learner=Learner), into)
    rllib.patch_modules(module(RLModule=RLModule), into)
    assert into.undo() == []
    after = [vars(cls).copy() for cls in (EnvRunner, ConnectorPipelineV2, Learner, RLModule)]
    assert before == after


def test_replay_buffers_are_regions_also_when_a_class_calls_the_one_it_derives_from(patches: Patches) -> None:
    class Prioritized(EpisodeReplayBuffer):
        def add(self, episodes: list[int]) -> int:
            return super().add(episodes) + 1

    buffer = Prioritized()
    assert buffer.add([1, 2]) == 3 and buffer.sample(2) == [0, 0]
    found = {name: node.calls for name, node in by_name(default.capture().tree).items()}
    assert found["replay_push"] == found["replay_sample"] == 1
