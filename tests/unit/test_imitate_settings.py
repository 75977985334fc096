"""`hotloop train imitate`: the settings chosen for a machine, what a stopped run keeps, what it prints."""

from __future__ import annotations

import os
import runpy
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.cli.train import _fitted, _work_lines, command_that_goes_on, read
from hotloop.report.pen import Pen
from hotloop.rl.train.runs import StopRequests, stop_requested, stop_signal
from hotloop.rl.workloads.imitate import (
    LAP_STEPS,
    Imitate,
    check,
    kept_words,
    memory_needs,
    work_words,
)
from hotloop.rl.workloads.imitate_speedup import (
    Measured,
    against_sequential,
    choose_fastest,
    used_variant,
    variant_settings,
)
from hotloop.rl.workloads.outcome import Outcome
from hotloop.rl.workloads.stage_report import StageReport, nothing_done, report_lines
from hotloop.rl.workloads.track_laps import drive_laps, final_laps
from hotloop.workflows.train_settings import settings_for_this_machine

ORIGINALS = Path(__file__).parents[2] / "examples" / "originals"


# ---- --preset auto


def test_a_machine_gets_the_settings_that_doctor_names_with_reasons() -> None:
    found = settings_for_this_machine("imitate", cores=2.0, memory_free_bytes=20 << 30, gpus=0)
    assert found.settings == {
        "workers": 1,
        "n_envs": 2,
        "loading": "index",
        "speedup": True,
        "fastest": ("demos", "bc", "rl"),
    }
    said = "\n".join(found.messages)
    assert "2 cores granted, 20.0 GiB of memory free, no GPU" in said
    assert "workers=1 (2 cores granted; one stays free; at most 12)" in said
    large = settings_for_this_machine("imitate", cores=16.0, memory_free_bytes=1 << 30, gpus=1)
    assert (large.settings["workers"], large.settings["n_envs"]) == (12, 8)


def test_what_a_flag_decides_is_not_chosen() -> None:
    given = read(["imitate", "--preset", "auto", "--workers=3", "--n-epochs", "2"])
    assert given is not None and given.config.workers == 3 and given.config.fastest == ("bc", "rl")
    given = read(["imitate", "--preset", "auto", "--stage", "demos"])
    assert given is not None and given.config.fastest == ("demos",)
    given = read(["imitate", "--preset", "auto", "--trainer", "sb3"])
    assert given is not None and not given.config.speedup and given.config.fastest == ()


def test_nothing_is_said_about_what_a_flag_decides_or_no_stage_needs() -> None:
    given = read(["imitate", "--preset", "auto", "--workers", "3", "--loading-workers=2"])
    said = "\n".join(given.chosen.messages)
    assert "n_envs=" in said and "workers=" not in said and "loading=" not in said
    alone = read(["imitate", "--preset", "auto", "--stage", "bc", "--no-speedup"])
    assert "n_envs=" not in "\n".join(alone.chosen.messages)
    assert alone.config.loading == "index" and alone.config.dataloader_workers is None
    asked = read(["imitate", "--preset", "auto", "--stage", "bc", "--workers", "2"])
    assert asked.config.dataloader_workers == 2 and asked.config.fastest == ()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["snake", "--preset", "auto"], "use hotloop tune snake"),
        (["imitate", "--preset", "auto", "--resume"], "the command that it printed when it was stopped"),
    ],
)
def test_what_auto_cannot_choose_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(HotloopError, match=sentence):
        read(words)


def test_the_fastest_variant_is_used_where_it_is_clearly_faster() -> None:
    config = Imitate(workers=1, n_envs=2)
    rates = {"1 worker": 1.0, "2 workers": 1.6}
    found = [Measured("demos", name, rate, rate, None) for name, rate in rates.items()]
    chosen, said = choose_fastest(config, found)
    assert chosen.workers == 2
    assert said == "demos: 2 workers, instead of 1 worker; predicted 1.60x as fast as 1 worker"
    found[1] = Measured("demos", "2 workers", 1.04, 1.04, None)
    assert choose_fastest(config, found)[0].workers == 1
    cloning = [
        Measured("bc", name, 1.0, 9.0 - n, None) for n, name in enumerate(variant_settings(config, "bc"))
    ]
    slow_first = choose_fastest(config, cloning)[0]
    assert (slow_first.loading, slow_first.loading_workers) == ("loader", 0)


def test_every_variant_can_be_used_by_a_run() -> None:
    for config in (Imitate(), Imitate(n_envs=3, loading_workers=5, workers=7)):
        for stage in ("demos", "bc", "rl"):
            variants = variant_settings(config, stage)
            assert used_variant(config, stage) in variants
            for name, changes in variants.items():
                settings: dict[str, Any] = {**vars(config), **changes}
                assert used_variant(Imitate(**settings), stage) == name


def test_the_prediction_stands_next_to_what_was_achieved() -> None:
    report = StageReport("rl", "", 50.0, {"evaluation": 20.0}, 50.0, "time", (), 1000.0)
    lines = against_sequential([report], {"rl": 25.0}, {"rl": 2.0})
    # 1000 / 25 and 20 s to evaluate; 60 s against 50 s, and 40 / 2 + 20 = 40 s were predicted
    assert lines[1].split() == ["rl", "60.0", "s", "50.0", "s", "1.20x", "1.50x"]
    assert "saved 10.0 s)" in lines[-1]
    lines = against_sequential([report], {"rl": 25.0}, {"rl": 2.0}, measuring_s=45.0)
    assert "saved 10.0 s; measuring took 45.0 s)" in " ".join(line.strip() for line in lines)


# ---- a run that is stopped


def test_a_request_to_stop_reaches_every_block_and_the_loops_below() -> None:
    with StopRequests() as outer:
        with StopRequests() as inner:
            assert not stop_requested()
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner.by == outer.by == "SIGTERM" and stop_requested()
        with StopRequests() as late:
            assert late.by == "SIGTERM"
        laps = drive_laps(lambda seen: np.zeros((len(seen), 2), dtype=np.float32), 1, seed=0)
        assert laps.mean_steps == 0
    assert not stop_requested()


def test_what_is_kept_names_what_is_there(tmp_path: Path) -> None:
    config = Imitate(folder=tmp_path, n_episodes=5)
    assert kept_words(config, "demos") == "nothing"
    config.demonstrations.mkdir()
    for number in range(2):
        (config.demonstrations / f"episode-{number:06d}.npz").touch()
    assert kept_words(config, "demos") == f"2 of 5 episodes in {config.demonstrations}"
    config.clone.touch()
    config.agent.touch()
    assert kept_words(config, "rl").endswith(f"the clone in {config.clone}, the agent in {config.agent}")
    assert "not the agent" in kept_words(Imitate(folder=tmp_path, trainer="sb3"), "rl")


def test_the_command_that_goes_on_repeats_the_settings() -> None:
    given = read(["imitate", "--n-episodes", "9", "--capture", "runs/a", "--preset=auto", "--folder", "a b"])
    assert given is not None
    done = Outcome(10, 1, 0, None, 1.0, "SIGTERM", can_resume=True, resume_with=("--n-envs", "8"))
    command = command_that_goes_on(given, done)
    assert command == "hotloop train imitate --n-episodes 9 --folder 'a b' --n-envs 8 --resume"
    again = read(shlex.split(command)[2:])
    assert again is not None and again.config.resume and again.config.n_envs == 8
    assert command_that_goes_on(given, Outcome(10, 1, 0, None, 1.0, "SIGTERM")) == ""  # no checkpoint


@pytest.mark.parametrize(
    "words",
    [
        ["--speedup", "--fastest", "demos", "rl", "--n-epochs", "7"],
        ["--fastest=demos", "--speedup", "--n-epochs", "7"],
        ["--preset", "auto", "--n-envs", "2", "--n-epochs", "7", "--workers=3"],
    ],
)
def test_the_command_that_goes_on_after_a_choice_can_be_read(words: list[str]) -> None:
    given = read(["imitate", *words])
    chosen = ("--workers", "2", "--loading", "index", "--n-envs", "8")
    done = Outcome(10, 1, 0, None, 1.0, "SIGINT", can_resume=True, resume_with=chosen)
    again = read(shlex.split(command_that_goes_on(given, done))[2:]).config
    assert (again.workers, again.loading, again.n_envs, again.n_epochs) == (2, "index", 8, 7)
    assert again.resume and not again.speedup and not again.fastest


def test_laps_that_a_stop_request_ends_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def policy(seen: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return np.zeros((len(seen), 2), dtype=np.float32)

    with StopRequests():
        assert final_laps(policy, seed=0) is None
        assert stop_signal() == "SIGTERM" and steps == 3
        assert final_laps(policy, seed=0) is None and steps == 3
    assert stop_signal() is None


# ---- what it prints, and what it needs


def test_cloning_is_not_called_zero_env_steps() -> None:
    report = StageReport("bc", "900 samples in 1.00 s", 1.0, {}, 1.0, "time", (), 900.0)
    lines = _work_lines(Outcome(0, 7, 0, 12.5, 1.0, work=work_words([report])))
    assert lines == ["cloned from 900 samples in 1.00 s:", "  7 updates, mean return 12.50"]


def test_a_stage_that_did_nothing_has_no_rates() -> None:
    for stopped_by, words in (
        (None, "nothing was left to do"),
        ("SIGTERM", "stopped before the first episode was done"),
    ):
        summary = nothing_done(stopped_by, "episode")
        nothing = StageReport("demos", summary, 0.0, {"disk": 0.0}, 0.0, "time", ("6 are there",), 0.0)
        assert report_lines(nothing) == [f"demos: {words}", "  6 are there"]
        said = _work_lines(Outcome(0, 0, 0, None, 0.0, work=work_words([nothing])))
        assert said == [words]
        assert work_words([nothing, nothing]) == words


def test_a_resumed_run_counts_its_own_steps() -> None:
    resumed = Outcome(12_000, 7, 0, None, 2.0, resumed_at=8_000)
    assert _work_lines(resumed)[0] == (
        "trained 4,000 env steps in 2.00 s (2,000 steps/s), 12,000 with those of the checkpoint:"
    )
    nothing = Outcome(8_000, 7, 0, None, 0.1, resumed_at=8_000)
    assert _work_lines(nothing) == ["trained nothing: the checkpoint has its 8,000 env steps already"]


def test_sentences_are_wrapped_at_the_terminals_width_and_tables_are_not() -> None:
    pen = Pen(width=60)
    line = "    time: learning 87.8 %, stepping 3.5 %, replay 2.4 %, evaluation 1.3 %, other 4.9 %"
    wrapped = _fitted(pen, line).split("\n")
    assert [len(one) - len(one.lstrip()) for one in wrapped] == [4, 6]
    assert max(map(len, wrapped)) <= 60 and " ".join(" ".join(wrapped).split()) == line.strip()
    row = "  DataLoader, 0 workers     17,979     1.00x                  -     and more of it"
    assert _fitted(pen, row) == row and _fitted(pen, "  short") == "  short"


def test_demonstrations_are_not_called_training() -> None:
    demos = StageReport("demos", "2 episodes, 90 env steps in 1.00 s", 1.0, {}, 1.0, "time", (), 90.0)
    bc = StageReport("bc", "900 samples in 1.00 s", 1.0, {}, 1.0, "time", (), 900.0)
    rl = StageReport("rl", "10 env steps in 2.00 s", 2.0, {}, 2.0, "time", (), 10.0)
    assert work_words([demos]) == "collected 2 episodes, 90 env steps in 1.00 s"
    assert work_words([rl]) is None
    lines = _work_lines(Outcome(100, 7, 2, 12.5, 4.0, work=work_words([demos, bc, rl])))
    assert lines == ["ran demos, bc and rl in 4.00 s:", "  7 updates, mean return 12.50"]


def test_cloning_plans_memory_for_the_episodes_that_are_there(tmp_path: Path) -> None:
    config = Imitate(stage="bc", folder=tmp_path, n_episodes=50)
    config.demonstrations.mkdir()
    for number in range(3):
        (config.demonstrations / f"episode-{number:06d}.npz").touch()
    assert "3 episodes" in [need.what for need in memory_needs(config)]
    large = memory_needs(Imitate(stage="bc", folder=tmp_path, batch_size=10**6))
    assert f"batches of {3 * LAP_STEPS:,}" in [need.what for need in large]
    both = memory_needs(Imitate(folder=tmp_path / "none", n_episodes=100_000))
    assert "100,000 episodes" in [need.what for need in both]


def test_demonstrations_of_another_folder_can_be_cloned(tmp_path: Path) -> None:
    config = Imitate(stage="bc", folder=tmp_path / "a", data=tmp_path / "b")
    assert config.demonstrations == tmp_path / "b/demonstrations" and config.clone == tmp_path / "a/clone"
    with pytest.raises(HotloopError, match="is for cloning demonstrations that exist"):
        check(Imitate(data=tmp_path))


def test_pickle_names_of_the_original_scripts_become_folders(capsys: pytest.CaptureFixture[str]) -> None:
    translate = runpy.run_path(str(ORIGINALS / "_translate.py"))["translate"]
    words = ["--output", "runs/x.pkl", "--data=y.pkl", "--output=z", "--episodes", "3"]
    expected = ["--folder", "runs/x", "--data=y", "--folder=z", "--n-episodes", "3"]
    assert translate("imitate", words) == expected
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "runs/x.pkl stands for the folder runs/x" in said[0]
    for nameless in (["--output="], ["--data", ".pkl"]):
        with pytest.raises(SystemExit) as ended:
            translate("imitate", nameless)
        assert ended.value.code == 2 and "names no folder" in capsys.readouterr().err
