"""The agent learns to run the cluster tool: all wafers done, none scrapped, with a fixed seed."""

from __future__ import annotations

import pytest

from hotloop.rl.workloads.petri import Petri, greedy_policy, make_network, play, run


def test_an_untrained_agent_scraps_wafers() -> None:
    config = Petri(wafers=3)
    network = make_network(config, observation=_size(config), actions=_actions(config))
    seen = play(config, greedy_policy(network))
    assert seen.scrapped or seen.wafers_done < 3


def test_three_wafers_are_finished_without_scrap(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(Petri(wafers=3, total_timesteps=160_000, learner="fused"), quiet=True)
    assert outcome.remarks[0].startswith("the agent finishes 3 of 3 wafers in ")
    assert outcome.remarks[0].endswith("none scrapped")
    assert outcome.mean_return is not None and outcome.mean_return > 15


@pytest.mark.long
def test_eight_wafers_are_finished_without_scrap() -> None:
    outcome = run(Petri(wafers=8, total_timesteps=400_000, learner="fused"), quiet=True)
    assert "8 of 8 wafers" in outcome.remarks[0] and "none scrapped" in outcome.remarks[0]


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["torchrl", "sb3"])
def test_the_libraries_learn_it_too(trainer: str) -> None:
    outcome = run(Petri(wafers=3, total_timesteps=200_000, trainer=trainer), quiet=True)  # type: ignore[arg-type]
    assert "3 of 3 wafers" in outcome.remarks[0] and "none scrapped" in outcome.remarks[0]


def _size(config: Petri) -> int:
    from hotloop.rl.envs.petri.env import PetriEnv

    shape = PetriEnv(wafers=config.wafers).observation_space.shape
    assert shape is not None
    return int(shape[0])


def _actions(config: Petri) -> int:
    from hotloop.rl.envs.petri.env import PetriEnv

    return int(PetriEnv(wafers=config.wafers).action_space.n)  # type: ignore[attr-defined]
