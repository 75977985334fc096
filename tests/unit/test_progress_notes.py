"""The progress lines of trainers name the current bottleneck, or say that it is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hotloop.cli.main import main
from hotloop.measure.profiler import default
from hotloop.rl.train import dqn, ppo, runs
from hotloop.rl.train.dqn import DQNConfig
from hotloop.rl.train.ppo import PPOConfig
from hotloop.rl.train.runs import progress_words
from hotloop.workflows import train as workflow

SMALL_PPO = PPOConfig(
    total_timesteps=256, n_envs=4, n_steps=32, batch_size=32, net_arch=(8,), learner="fused"
)
SMALL_DQN = DQNConfig(
    total_timesteps=256, n_envs=4, batch_size=16, net_arch=(8,), learner="fused", learning_starts=32
)


class Lines:
    """Takes the place of a progress line and keeps the notes it is given."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, *_: Any, **__: Any) -> Lines:
        return self

    def update(self, _steps: int, _mean_return: float | None, note: str = "", **_: Any) -> None:
        self.notes.append(note)

    def close(self) -> None:
        pass


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    found = Lines()
    monkeypatch.setattr(runs, "ProgressLine", found)
    yield found
    default.start()  # the default profiler keeps its last recording to be read; an empty one takes its place
    default.stop()


def test_ppo_shows_the_given_note_or_the_learner(lines: Lines) -> None:
    ppo.train(SMALL_PPO, note=lambda: "learner waits 60 % for env")
    assert lines.notes == ["learner waits 60 % for env"] * 2
    ppo.train(SMALL_PPO)
    assert lines.notes[2:] == ["fused"] * 2


def test_dqn_shows_the_given_note_where_the_loop_has_parts(lines: Lines) -> None:
    settings = {"loop": "python", "log_every_steps": 64}
    dqn.train(DQNConfig(**{**vars(SMALL_DQN), **settings}), note=lambda: "env waits 80 % for the learner")
    assert lines.notes == ["env waits 80 % for the learner"] * 4
    lines.notes.clear()
    dqn.train(SMALL_DQN, note=lambda: "never asked")
    assert set(lines.notes) == {dqn.IN_ONE_KERNEL}


@pytest.mark.parametrize(
    "words",
    [
        [
            "ricochet",
            "--obs-mode",
            "symbolic",
            "--n-envs",
            "4",
            "--n-steps",
            "16",
            "--total-timesteps",
            "256",
        ],
        ["petri", "--n-envs", "4", "--n-steps", "16", "--batch-size", "32", "--total-timesteps", "256"],
    ],
)
def test_a_workload_reports_which_side_waits(
    lines: Lines, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(workflow, "NOTE_EVERY_S", 0.0)
    assert main(["train", *words, "--capture", str(tmp_path / "cap")]) == 0
    told = [note for note in lines.notes if note]
    assert told and all("waits" in note or "framework" in note for note in told)
    assert any("%" in note for note in told)


def test_snake_in_one_kernel_says_how_to_see_its_parts(
    lines: Lines, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "NOTE_EVERY_S", 0.0)
    monkeypatch.setattr(dqn, "RECORD_EVERY_S", 0.0)  # however fast the machine is
    small = ["train", "snake", "--n-envs", "8", "--total-timesteps", "512", "--batch-size", "16"]
    assert main([*small, "--capture", str(tmp_path / "one")]) == 0
    assert set(lines.notes) == {"whole loop in one kernel; loop python shows its parts"}
    lines.notes.clear()
    assert main([*small, "--loop", "python", "--capture", str(tmp_path / "two")]) == 0
    assert "one kernel" not in " ".join(lines.notes) and any("waits" in words for words in lines.notes)


def test_a_line_that_does_not_fit_loses_its_return_first() -> None:
    head, note = "2,000 / 10,000 steps  200 steps/s  40.0 s left", "env waits 80 % for the learner"
    assert progress_words(head, 12.34, note, None) == f"{head}  return 12.3  {note}"
    assert progress_words(head, 12.34, note, 95) == f"{head}  return 12.3  {note}"
    assert progress_words(head, 12.34, note, 80) == f"{head}  {note}"
    assert progress_words(head, 12.34, note, 60) == f"{head}  {note}"[:59]
    assert progress_words(head, None, "", 80) == head
