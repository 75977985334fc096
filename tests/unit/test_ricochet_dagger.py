"""Imitation of Ricochet's solver: labels against the plain search, the evaluation table, resuming a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotloop._util.errors import HotloopError
from hotloop.cli.main import main
from hotloop.measure.profiler import default
from hotloop.rl.envs.ricochet.board import Position, is_solved, move
from hotloop.rl.envs.ricochet.env import RicochetVectorEnv
from hotloop.rl.envs.ricochet.solver import solve_plainly
from hotloop.rl.train import dagger
from hotloop.rl.train.dagger import Labels, imitation_loss
from hotloop.rl.workloads import ricochet_dagger, ricochet_evaluation
from hotloop.rl.workloads.ricochet_config import Ricochet, check, make_envs
from hotloop.rl.workloads.ricochet_dagger import (
    dagger_config,
    first_network,
    make_curriculum,
    solver_labels,
)
from hotloop.rl.workloads.ricochet_evaluation import SolvedInTime, Table, play_equally, random_policy

SMALL = Ricochet(
    algo="dagger",
    encoder="scan",
    robots=2,
    max_episode_steps=6,
    n_envs=8,
    channels=8,
    total_timesteps=32,
)


@pytest.fixture(autouse=True)
def last_recording_forgotten() -> Iterator[None]:
    """The default profiler keeps its last recording to be read; an empty one takes its place."""
    yield
    default.start()
    default.stop()


# ---- labels


def test_moves_by_action_are_those_of_the_plain_search() -> None:
    envs = RicochetVectorEnv(5, obs_mode="symbolic", robots=2, max_solution_moves=3)
    envs.reset(seed=3)
    found, ends = envs.moves_by_action(6), envs.move_ends()
    for row in range(envs.num_envs):
        position = envs.position(row)
        for action in range(8):
            after = move(position, action)
            assert ends[row, action] == after.robots[action // 4]
            assert found[row, action] == _plain_moves(position, after)
    assert (found.max(axis=1) > 0).all() and (found == -1).any()


def _plain_moves(before: Position, after: Position) -> int:
    if after == before:
        return -1
    solution = () if is_solved(after) else solve_plainly(after, 5)
    return -1 if solution is None else 1 + len(solution)


def test_labels_are_the_best_moves_the_cells_that_matter_and_the_return() -> None:
    envs = make_envs(SMALL)
    envs.reset(seed=0)
    labels = solver_labels(SMALL)(envs)
    first, moves = envs.expert_actions()
    assert labels.optimal[np.arange(8), first].all()
    assert (np.where(labels.optimal, labels.action_costs, 0).max(axis=1) == moves).all()
    assert (labels.places[:, :8] == envs.move_ends()).all()
    assert (labels.places[:, 8:] == envs.pieces[:, :3]).all()
    wanted = [sum(-0.01 * 0.95**k for k in range(n)) + 0.95 ** (n - 1) for n in moves.tolist()]
    np.testing.assert_allclose(labels.returns, wanted, rtol=1e-6)


def test_a_position_without_a_solution_has_no_best_action_and_no_loss() -> None:
    costs = np.array([[-1, -1, -1], [2, 1, 1]])
    optimal = Labels(costs, np.zeros((2, 0), np.int64), np.zeros(2, np.float32)).optimal
    assert optimal.tolist() == [[False, False, False], [False, True, True]]
    logits = torch.zeros(2, 3)
    assert imitation_loss(logits, torch.from_numpy(optimal)).item() == pytest.approx(np.log(3))
    assert imitation_loss(logits[:1], torch.from_numpy(optimal[:1])).item() == 0.0


# ---- the table


def test_the_solver_is_always_in_time_and_every_length_is_played_equally_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = dataclasses.replace(SMALL, algo="ppo", encoder="auto", obs_mode="symbolic")
    made: list[RicochetVectorEnv] = []
    monkeypatch.setattr(
        ricochet_evaluation, "make_envs", lambda config: made.append(make_envs(config)) or made[-1]
    )
    seen = play_equally(lambda *_: made[-1].expert_actions()[0].clip(0), config, 100)
    assert seen.boards == {1: 34, 2: 33, 3: 33} and seen.solved == seen.boards and seen.fraction == 1.0
    chance = play_equally(random_policy(config), config, 100)
    assert 0 < chance.fraction < 0.3 and chance.boards == seen.boards


class Played:
    """Environments with two boards, which end after given numbers of steps."""

    def __init__(self, ends: list[int]):
        self.ends, self.number = np.array(ends), 0

    def step(self, _: Any) -> tuple[Any, ...]:
        self.number += 1
        ended = self.ends == self.number
        return None, None, ended, np.zeros_like(ended), {}


def test_twice_the_optimum_is_in_time_and_one_more_is_not() -> None:
    optimal = np.array([1, 1, 2, 2, 3, 0, 3])
    envs = Played([2, 3, 4, 5, 6, 1, 1])
    found = ricochet_evaluation._solved_in_time(envs, np.zeros(1), lambda *_: np.zeros(7, np.int64), optimal)
    assert found.tolist() == [True, False, True, False, True, False, True]


def test_the_table_names_the_agent_and_random_play_by_length() -> None:
    table = Table(
        SolvedInTime({1: 2, 2: 4}, {1: 2, 2: 3}),
        SolvedInTime({1: 2, 2: 4}, {1: 1, 2: 3}),
        SolvedInTime({1: 2, 2: 4}, {1: 1, 2: 0}),
    )
    assert "\n".join(table.lines) == (
        "solved within twice the optimal number of moves, of 6 unseen boards:\n"
        "                              1 move   2 moves       all\n"
        "  agent, most likely moves   100.0 %    75.0 %    83.3 %\n"
        "  agent, sampled moves        50.0 %    75.0 %    66.7 %\n"
        "  random moves                50.0 %     0.0 %    16.7 %"
    )
    assert table.figures["agent_solved_fraction_2_moves"] == 0.75
    assert table.figures["random_solved_fraction"] == pytest.approx(1 / 6)


# ---- training


def weights(result: dagger.DaggerResult) -> dict[str, Any]:
    return {name: weight.detach().clone() for name, weight in result.network.named_parameters()}


@pytest.mark.parametrize("algo", ["dagger", "bc"])
def test_a_resumed_run_ends_with_the_same_agent(tmp_path: Path, algo: Any) -> None:
    config = dagger_config(dataclasses.replace(SMALL, algo=algo), quiet=True)
    ask = solver_labels(SMALL)
    whole = dagger.train(config, make_envs(SMALL), ask)
    assert (whole.env_steps, whole.updates) == (32, 4)
    saved = dataclasses.replace(config, checkpoint=tmp_path / "agent", checkpoint_every_steps=8)

    class Interrupted(Exception):
        pass

    def interrupt(fraction: float) -> None:
        if fraction >= 0.5:
            raise Interrupted

    with pytest.raises(Interrupted):
        dagger.train(saved, make_envs(SMALL), ask, before_step=interrupt)
    resumed = dagger.train(dataclasses.replace(saved, resume=True), make_envs(SMALL), ask)
    assert (resumed.resumed_at, resumed.env_steps) == (16, 32)
    wanted = weights(whole)
    for name, weight in weights(resumed).items():
        torch.testing.assert_close(weight, wanted[name], rtol=0, atol=0)
    ppo = dataclasses.replace(SMALL, algo="ppo", start_from=tmp_path / "agent")
    for name, weight in first_network(ppo, make_envs(SMALL)).named_parameters():
        torch.testing.assert_close(weight, wanted[name], rtol=0, atol=0)


def test_the_learning_rate_warms_up_and_falls() -> None:
    config = dagger.DaggerConfig(total_timesteps=1000, learning_rate=1.0)
    rates = [dagger.learning_rate(config, steps, steps) for steps in (0, 49, 500, 1000)]
    assert rates == pytest.approx([0.02, 0.994, 0.51, 0.02], abs=1e-3)


def test_a_curriculum_begins_with_one_move_and_ends_with_all() -> None:
    envs = make_envs(SMALL)
    admit = make_curriculum(envs, 3)
    seen = []
    for fraction in (0.0, 0.2, 0.4, 1.0):
        admit(fraction)
        seen.append(int(envs.reset(seed=0)[1]["optimal_moves"].max()))
    assert seen == [1, 2, 3, 3]


def test_the_preset_trains_evaluates_and_says_so_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ricochet_dagger, "CURVE_BOARDS", 9)
    words = ["train", "ricochet", "--preset", "pictures", "--n-envs", "8", "--channels", "8"]
    words += ["--total-timesteps", "16", "--eval-every-steps", "16", "--n-eval-episodes", "9"]
    assert main([*words, "--capture", str(tmp_path / "cap"), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)["outcome"]
    assert outcome["env_steps"] == 16 and outcome["updates"] == 2
    assert [steps for steps, _ in outcome["evaluations"]] == [16]
    assert "of 9 unseen boards" in outcome["remarks"][0]
    assert 0 <= outcome["figures"]["agent_solved_fraction_3_moves"] <= 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"obs_mode": "symbolic"}, "algo='dagger' needs obs_mode='rgb_image'"),
        ({"encoder": "auto"}, "trains encoders without memory"),
        ({"board_size": 7}, "needs 8 or 16"),
        ({"start_from": Path("agent")}, "it needs algo='ppo'"),
        ({"algo": "ppo", "curriculum": True}, "curriculum=True needs algo"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(HotloopError, match=says):
        check(dataclasses.replace(SMALL, **settings))
