"""Trainings that take turns inside one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop._util.errors import HotloopError
from hotloop.analysis.comparison import work_per_env_step
from hotloop.capture.plan_file import read_plan
from hotloop.capture.series import Figures, Run
from hotloop.lab.process import Job
from hotloop.rl.workloads.snake import Snake, endless_training, is_warm, learning_return
from hotloop.rl.workloads.turns import TakesTurns, Turn
from hotloop.workflows import experiments
from hotloop.workflows.turns import TurnHost

FLAGS = ["--variant", "original", "--flood-fill", "off", "--n-envs", "4", "--batch-size", "8"]


def counting(log: list[str], name: str) -> Callable[[Callable[..., None]], None]:
    def train(report: Callable[..., None]) -> None:
        while True:
            log.append(name)
            report(env_steps=2, updates=1, episodes=1, episode_length=5.0, loss=0.0)

    return train


def test_one_training_runs_at_a_time_and_goes_on_where_it_was() -> None:
    log: list[str] = []
    a, b = TakesTurns(counting(log, "a")), TakesTurns(counting(log, "b"))
    for training in (a, b, a):
        turn = training.turn(0.0, lambda turn: turn.env_steps >= 6)
        assert (turn.env_steps, turn.updates, turn.episodes, turn.total_length) == (6, 3, 3, 15.0)
        assert turn.cpu_s >= 0 and turn.wall_s > 0
    assert log == [*"aaabbbaaa"]
    a.close()
    b.close()
    assert log == [*"aaabbbaaa"]


def test_a_turn_lasts_as_long_as_asked() -> None:
    training = TakesTurns(counting([], "a"))
    assert training.turn(0.02).wall_s >= 0.02
    training.close()


def test_what_a_training_raises_is_raised_by_its_turn() -> None:
    def fails(report: Callable[..., None]) -> None:
        report(env_steps=1)
        raise ValueError("no more")

    training = TakesTurns(fails)
    assert training.turn(0.0).env_steps == 1
    with pytest.raises(ValueError, match="no more"):
        training.turn(0.0)
    training.close()
    ended = TakesTurns(lambda report: None)
    with pytest.raises(RuntimeError, match="ended before its last turn"):
        ended.turn(0.0)


def test_a_training_learns_the_same_in_turns_as_alone() -> None:
    config = Snake(variant="original", flood_fill="off", n_envs=4, batch_size=8, logging="on")

    def losses(others: int) -> list[float]:
        found: list[float] = []

        def noting(report: Callable[..., None]) -> None:
            def note(**work: Any) -> None:
                found.append(work["loss"])
                report(**work)

            endless_training(config)(note)

        first = TakesTurns(noting)
        all_of_them = [first, *(TakesTurns(endless_training(config)) for _ in range(others))]
        for _ in range(3):
            for training in all_of_them:
                training.turn(0.0, lambda turn: turn.env_steps >= 120)
        for training in all_of_them:
            training.close()
        return [loss for loss in found if loss is not None]

    alone = losses(0)
    assert len(alone) > 10 and losses(2) == alone


def test_warm_means_that_learning_has_begun() -> None:
    assert not is_warm(Snake(n_envs=4), Turn(env_steps=511, updates=9))
    assert not is_warm(Snake(n_envs=4), Turn(env_steps=512, updates=0))
    assert is_warm(Snake(n_envs=4), Turn(env_steps=512, updates=1))
    assert is_warm(Snake(n_envs=4, gradient_steps=0), Turn(env_steps=512))


def test_settings_that_a_training_without_an_end_cannot_have() -> None:
    with pytest.raises(HotloopError, match="cannot have --trainer sb3"):
        endless_training(Snake(trainer="sb3"))
    assert learning_return(Snake()) is None


def job(*more: str, seed: int = 0, timeout_s: float | None = None) -> Job:
    command = ("python", "-m", "hotloop", "train", "snake", *FLAGS, "--seed", str(seed), *more)
    return Job(command, {"HOTLOOP_SEED": str(seed)}, Path(), timeout_s)


@pytest.mark.long
def test_a_host_makes_runs_of_turns_and_survives_what_fails() -> None:
    with TurnHost("snake", dict(os.environ)) as host:
        first, second = host.run(job()), host.run(job("--push", "batch"))
        for outcome in (first, second):
            assert outcome.failure == "" and outcome.exit_code == 0 and outcome.figures is not None
            assert outcome.figures.env_steps and outcome.figures.updates == outcome.figures.env_steps // 4
            assert outcome.figures.s_per_env_step and outcome.figures.cpu_s_per_env_step
        assert "does not know --no-such-flag" in host.run(job("--no-such-flag")).failure
        assert "not a whole number" in host.run(job("--size", "large")).failure
        assert "size" in host.run(job("--size", "2")).failure
        assert "the timeout of a run" in host.run(job(seed=1, timeout_s=0.001)).failure


def test_work_of_turns_is_compared_per_env_step() -> None:
    def run(steps: int, updates: int) -> Run:
        return Run(0, "a", 0, 0, 0, (), figures=Figures(env_steps=steps, updates=updates))

    assert work_per_env_step([(run(256, 64), run(512, 128))]) == ()
    (found,) = work_per_env_step([(run(256, 64), run(512, 32))]) or ()
    assert (found.counter, found.a, found.b) == ("updates in 1,000 env steps", 250.0, 62.5)
    assert work_per_env_step([(run(0, 0), run(0, 0))]) is None


def test_turns_need_variants_of_one_workload(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('command = "python train.py"\nturns = true\n[[suspects]]\nname = "b"\nset = { x = 1 }\n')
    with (
        pytest.raises(HotloopError, match="leave the line out"),
        experiments.taking_turns(read_plan(file), {}, True),
    ):
        pass
