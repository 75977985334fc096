"""A signal during the evaluation after training ends the evaluation, and the run still says what it did."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.rl.envs.petri.job_shop import job_shop
from hotloop.rl.train.runs import FinalEvaluation, StopRequests, end_if_stopped
from hotloop.rl.workloads import job_shop_play, mario, petri, ricochet, ricochet_evaluation

SYMBOLS = ricochet.Ricochet(obs_mode="symbolic", robots=2, max_episode_steps=4)
EVALUATIONS: dict[str, Callable[[], Any]] = {
    "ricochet": lambda: ricochet_evaluation.play(ricochet_evaluation.random_policy(SYMBOLS), SYMBOLS, 2),
    "ricochet, by length": lambda: ricochet_evaluation.play_equally(
        ricochet_evaluation.random_policy(SYMBOLS), SYMBOLS, 2
    ),
    "petri": lambda: petri.play(petri.Petri(wafers=1), lambda _, masks: masks.argmax(axis=1)),
    "job shop": lambda: job_shop_play.play(job_shop([[0]], [[3]]), job_shop_play.at_random, 1),
    "mario": lambda: mario.evaluate(mario.Mario(size=36, max_episode_steps=4), None, 1),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_evaluation_ends_at_its_next_step(name: str) -> None:
    ended = False
    with FinalEvaluation() as evaluation:
        os.kill(os.getpid(), signal.SIGTERM)
        EVALUATIONS[name]()
        ended = True
    assert evaluation.by == "SIGTERM" and not ended


def test_other_blocks_are_not_ended() -> None:
    end_if_stopped()
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        end_if_stopped()
    assert stop.by == "SIGTERM"
    with pytest.raises(ValueError), FinalEvaluation():
        raise ValueError


def test_an_outcome_names_the_signal_that_ended_its_evaluation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end_if_stopped()

    monkeypatch.setattr(petri, "play", stopped)
    config = petri.Petri(
        total_timesteps=32, n_envs=2, n_steps=16, batch_size=16, wafers=1, learner="torch",
        checkpoint=tmp_path / "agent",
    )  # fmt: skip
    outcome = petri.run(config, quiet=True)
    assert outcome.stopped_by == "SIGINT" and outcome.env_steps == 32
    assert outcome.remarks == ("learner: torch",) and outcome.checkpoint == tmp_path / "agent"
