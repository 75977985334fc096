"""The agent learns to run the cluster tool: all wafers done, none scrapped, with a fixed seed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hotloop.cli.main import main
from hotloop.rl.workloads.petri import Petri, greedy_policy, make_network, play, run
from tests.oracle.test_petri_job_shop import FT06


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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_one_command_finds_a_schedule_of_ft06_within_3_percent_of_the_optimum(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines, durations = FT06
    rows = [
        " ".join(f"{machine} {duration}" for machine, duration in zip(*job, strict=True))
        for job in zip(machines, durations, strict=True)
    ]
    (tmp_path / "ft06.txt").write_text("\n".join(["6 6", *rows]))
    words = ["train", "petri", "--net", str(tmp_path / "ft06.txt"), "--seed", str(seed)]
    assert main([*words, "--no-profiling"]) == 0
    found = re.search(r"(\d+) s best of 64 samples", capsys.readouterr().out)
    assert found is not None and int(found[1]) <= 1.03 * 55


def _size(config: Petri) -> int:
    from hotloop.rl.envs.petri.env import PetriEnv

    shape = PetriEnv(wafers=config.wafers).observation_space.shape
    assert shape is not None
    return int(shape[0])


def _actions(config: Petri) -> int:
    from hotloop.rl.envs.petri.env import PetriEnv

    return int(PetriEnv(wafers=config.wafers).action_space.n)  # type: ignore[attr-defined]
