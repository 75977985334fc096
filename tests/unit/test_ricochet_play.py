"""Evaluation on Ricochet boards: counts by the moves of the shortest solution, with known policies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.cli.main import main
from hotloop.measure.profiler import default
from hotloop.rl.envs.ricochet.env import RicochetVectorEnv
from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig, make_network
from hotloop.rl.workloads import ricochet_evaluation
from hotloop.rl.workloads.ricochet_config import Ricochet, make_envs
from hotloop.rl.workloads.ricochet_evaluation import (
    BOARDS_AT_ONCE,
    Solved,
    play,
    random_policy,
    recurrent_policy,
)

SMALL = Ricochet(obs_mode="symbolic", board_size=7, robots=2, max_solution_moves=3, max_episode_steps=12)


@pytest.fixture(autouse=True)
def last_recording_forgotten() -> Iterator[None]:
    """The default profiler keeps its last recording to be read; an empty one takes its place."""
    yield
    default.start()
    default.stop()


def test_the_solver_solves_every_board_in_as_few_moves_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RicochetVectorEnv] = []
    monkeypatch.setattr(
        ricochet_evaluation, "make_envs", lambda config: made.append(make_envs(config)) or made[-1]
    )
    boards = BOARDS_AT_ONCE + 44
    seen = play(lambda *_: made[-1].expert_actions()[0].clip(0), SMALL, boards)
    assert [len(envs.observations) for envs in made] == [BOARDS_AT_ONCE, 44]
    assert seen.solved == seen.boards and seen.fraction == 1.0 and set(seen.boards) == {1, 2, 3}
    total = sum(moves * count for moves, count in seen.boards.items())
    assert sum(seen.boards.values()) == boards and seen.mean_steps == pytest.approx(total / boards)


def test_moving_only_one_robot_solves_few_boards() -> None:
    up = lambda observations, _: np.zeros(len(observations), dtype=np.int64)  # noqa: E731
    seen = play(up, SMALL, 100)
    assert 0 < seen.fraction < 0.3  # boards whose first robot has the target above it
    one = play(up, SMALL, 100, seed=5)
    assert one != seen and one == play(up, SMALL, 100, seed=5)


def test_chance_solves_some_and_more_with_more_steps() -> None:
    few = play(random_policy(SMALL), SMALL, 200).fraction
    many = play(random_policy(SMALL), Ricochet(**{**vars(SMALL), "max_episode_steps": 100}), 200).fraction
    assert 0.1 < few < many < 0.95


def test_the_sentence_counts_by_moves() -> None:
    seen = Solved(20, {1: 4, 2: 6}, {1: 4, 2: 3}, 2.5)
    assert seen.summary == ("solves 70.0 % of 10 unseen boards within 20 steps (100 % of 1, 50 % of 2 moves)")


def test_a_policy_with_memory_plays_pictures() -> None:
    config = Ricochet(board_size=7, robots=1, max_episode_steps=3)
    policy = make_network(RecurrentPPOConfig(channels=4, features=8, layers=1), (3, 128, 128), 4)
    seen = play(recurrent_policy(policy), config, 6)
    assert sum(seen.boards.values()) == 6 and seen == play(recurrent_policy(policy), config, 6)


def test_train_ricochet_reports_the_solved_boards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[Any] = ["train", "ricochet", "--obs-mode", "symbolic", "--n-envs", "4", "--n-steps", "8"]
    words += ["--total-timesteps", "64", "--n-eval-episodes", "20", "--max-episode-steps", "10", "--json"]
    assert main([*words, "--capture", str(tmp_path / "cap")]) == 0
    remarks = json.loads(capsys.readouterr().out)["outcome"]["remarks"]
    assert "of 20 unseen boards within 10 steps" in remarks[0] and remarks[1].startswith("random actions: ")


def test_invalid_boards_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "ricochet", "--no-profiling", "--trainer", "sb3", "--n-eval-episodes", "5"]
    assert main(words) == 2 and "leave it out" in capsys.readouterr().err
