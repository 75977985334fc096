"""`hotloop train petri` as a user runs it: three trainers, breakdown, comparison, functions, originals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hotloop import load
from hotloop._util.errors import HotloopError
from hotloop.analysis.batch_breakdown import batch_breakdown
from hotloop.capture.series import read
from hotloop.capture.stats import by_name
from hotloop.cli.main import main
from hotloop.cli.train import read as read_words
from hotloop.measure.profiler import default
from hotloop.rl.workloads.petri import Petri, run
from hotloop.workflows.train_petri import command_of
from tests.cli import hotloop

SMALL = ["--n-envs", "4", "--n-steps", "16", "--n-epochs", "2", "--batch-size", "32"]
SCRIPTS = Path(__file__).parents[2] / "examples" / "originals" / "scripts"


@pytest.fixture(autouse=True)
def last_recording_forgotten() -> Iterator[None]:
    """The default profiler keeps its last recording to be read; an empty one takes its place."""
    yield
    default.start()
    default.stop()


def small(**settings: Any) -> Petri:
    return Petri(n_envs=4, n_steps=16, n_epochs=2, batch_size=32, **settings)


@pytest.mark.parametrize("trainer", ["hotloop", "torchrl", "sb3"])
def test_every_trainer_does_the_same_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: str
) -> None:
    place = str(tmp_path / "cap")
    words = ["train", "petri", *SMALL, "--batches", "2", "--trainer", trainer, "--learner", "torch"]
    assert main([*words, "--capture", place, "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)["outcome"]
    assert outcome["env_steps"] == 3 * 64 and outcome["updates"] == 3 * 2 * 2 and outcome["episodes"] > 0
    capture = load(place)
    batch = next(node for node in capture.tree.children if node.name == "training_batch")
    stats = by_name(batch)
    assert batch.calls == 2 and stats["env_step"].calls == 2 * 16
    assert stats["backward"].calls == stats["optimizer_step"].calls == 2 * 2 * 2


@pytest.mark.parametrize("trainer", ["torchrl", "sb3"])
def test_other_trainers_stop_when_they_are_asked_to(trainer: str) -> None:
    def around() -> AbstractContextManager[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        return nullcontext()

    outcome = run(small(batches=8, trainer=trainer), quiet=True, around=around)
    assert outcome.stopped_by == "SIGTERM" and 64 <= outcome.env_steps <= 128
    assert outcome.kept == f"no agent (trainer='{trainer}' writes no checkpoints)"
    assert outcome.updates == outcome.env_steps // 64 * 4


@pytest.mark.long
@pytest.mark.parametrize("trainer", ["hotloop", "torchrl", "sb3"])
def test_turbo_changes_nothing_but_the_time(trainer: str) -> None:
    on, off = (run(small(batches=2, trainer=trainer, turbo=turbo), quiet=True) for turbo in (True, False))
    assert (on.env_steps, on.updates, on.episodes) == (off.env_steps, off.updates, off.episodes)
    assert on.mean_return is not None and on.mean_return == off.mean_return


@pytest.mark.parametrize("trainer", ["hotloop", pytest.param("torchrl", marks=pytest.mark.long)])
def test_the_breakdown_names_the_parts_of_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    words = ["train", "petri", *SMALL, "--breakdown", "--batches", "1", "--trainer", trainer]
    assert main([*words, "--learner", "torch", "--capture", "cap"]) == 0
    text = capsys.readouterr().out
    wanted = ["data collection", "- env step", "- policy forward", "advantage", "replay buffer", "loss"]
    wanted += ["backward", "optimizer", "unattributed"]
    wanted += ["- tensordict", "- env reset"] if trainer == "torchrl" else ["- storing"]
    assert all(f"  {name}" in text for name in wanted), text
    assert all(len(line) <= 80 for line in text.splitlines())
    found = batch_breakdown(load(tmp_path / "cap"))
    assert found is not None and found.batches == 1
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)


def test_the_breakdown_as_json_with_the_learner_in_one_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        "petri",
        *SMALL,
        "--breakdown",
        "--learner",
        "fused",
        "--capture",
        str(tmp_path / "cap"),
    ]
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "hotloop-breakdown" and data["batches"] == 5
    names = [part["name"] for part in data["parts"]]
    assert names[0] == "data_collection" and "fused_update" in names and "backward" not in names


def test_resuming_gives_the_same_agent_and_refuses_another_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, twice = tmp_path / "once.safetensors", tmp_path / "twice.safetensors"
    run(small(total_timesteps=256, learner="fused", checkpoint=once), quiet=True)
    run(small(total_timesteps=128, learner="fused", checkpoint=twice), quiet=True)
    run(small(total_timesteps=256, learner="fused", checkpoint=twice, resume=True), quiet=True)
    a, b = load_file(once), load_file(twice)
    assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)
    words = ["train", "petri", *SMALL, "--resume", "--checkpoint", str(twice), "--wafers", "7"]
    assert main([*words, "--no-profiling"]) == 2
    assert "wafers=7" in capsys.readouterr().err


SHOP = "2 2\n0 3 1 4\n1 2 0 5\n"


@pytest.mark.long
def test_training_on_a_job_shop_reports_makespans_beside_rules(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text(SHOP)
    outcome = run(small(total_timesteps=256, learner="fused", net=tmp_path / "tiny.txt"), quiet=True)
    makespan, rules, *_ = outcome.remarks
    assert makespan.startswith("makespan of tiny: ") and makespan.endswith("8 s best of 64 samples")
    assert "shortest processing time 8 s, 8 s best of 64" in rules and "random 8 s best of 64" in rules


def test_annealing_needs_our_ppo() -> None:
    with pytest.raises(HotloopError, match="trainer='sb3' anneals nothing here"):
        run(small(trainer="sb3", anneal_lr=True), quiet=True)


def test_training_on_a_pnml_file_reports_its_goal(tmp_path: Path) -> None:
    (tmp_path / "two.pnml").write_text(
        '<pnml><net id="two"><place id="a"><initialMarking><text>2</text></initialMarking></place>'
        '<place id="b"/><transition id="t"/><arc id="x" source="a" target="t"/>'
        '<arc id="y" source="t" target="b"/><finalmarkings><marking><place idref="b"><text>2</text></place>'
        "</marking></finalmarkings></net></pnml>"
    )
    outcome = run(small(total_timesteps=128, learner="fused", net=tmp_path / "two.pnml"), quiet=True)
    assert outcome.remarks[0] == "the agent reaches 2 of 2 goal tokens in 0 s"


@pytest.mark.long
def test_the_comparison_runs_both_modes_in_turn_and_explains_the_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    words = ["train", "petri", *SMALL, "--compare", "--batches", "2", "--learner", "torch", "--breakdown"]
    assert main([*words, "--budget", "1s", "--series", "s"]) == 0
    text = capsys.readouterr().out
    assert "turbo on against turbo off: undecided" in text and "too few for an interval" in text
    assert "Work: the same on both sides" in text and "no gain to explain" in text
    assert "\n  data collection " in text and "\n  neural network total " in text
    assert "A training batch, turbo off" in text and "A training batch, turbo on" in text
    assert "What to optimise next" in text and "--learner fused" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    series = read(tmp_path / "s")
    assert sorted(run.variant for run in series.runs) == ["turbo off", "turbo on"] and not series.failures
    for one in series.runs:  # times are those of the batches, part by part
        assert one.figures.s_per_env_step == pytest.approx(sum(one.figures.components_s.values()), rel=0.05)
        assert {"env_step", "policy_forward", "loss", "backward"} <= set(one.figures.components_s)


@pytest.mark.long
def test_turbo_makes_the_simulator_faster_and_the_gain_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "petri",
        "--compare",
        "--breakdown",
        "--trainer",
        "torchrl",
        "--n-steps",
        "32",
    ]
    assert main([*words, "--batches", "3", "--budget", "10m", "--series", "s", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    parts = {part["name"]: part["verdict"]["word"] for part in data["compared"][0]["components"]}
    assert parts["env_step"] == "faster" and "env_step" in data["explanation"]["parts"]
    assert data["explanation"]["predicted"]["value"] > 1 and data["impacts"]
    assert data["compared"][0]["work"] == []


def test_the_functions_of_both_modes_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "petri", *SMALL, "--detailed", "--batches", "1", "--learner", "torch"]
    assert main([*words, "--no-turbo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["profile_training_turbo_off.txt"]
    off = (tmp_path / "profile_training_turbo_off.txt").read_text()
    assert "percall" in off and "was called by" in off and "called..." in off
    assert "(_act)" in off and "List reduced from" in off and "to 50" in off
    assert not (tmp_path / "profile_training_turbo_on.txt").exists()
    (tmp_path / "profile_training_turbo_on.txt").write_text("mine")
    capsys.readouterr()
    assert main([*words, "--turbo"]) == 2
    assert "was not written by hotloop" in capsys.readouterr().err
    assert (tmp_path / "profile_training_turbo_on.txt").read_text() == "mine"


def test_a_command_line_for_the_lab_has_every_setting() -> None:
    words = command_of(small(batches=3, wafers=6, checkpoint=Path("a")), turbo=False)
    assert words[words.index("--seed") + 1] == "{seed}" and "--checkpoint" not in words
    without_seed = [word for word in words[4:] if word not in ("--no-profiling", "--seed", "{seed}")]
    assert read_words(without_seed).config == small(batches=3, wafers=6, turbo=False)
    changed = small(anneal_lr=True, net_arch=(32,), net=Path("a.pnml"), learner="torch")
    assert read_words([w for w in command_of(changed, True)[4:] if "seed" not in w]).config == changed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--wafers", "0"], "wafers=0 must be at least 1"),
        (["--n-steps", "7", "--n-envs", "16"], "batch_size=512 does not divide n_envs * n_steps = 112"),
        (["--trainer", "sb3", "--checkpoint", "a"], "writes no checkpoints"),
        (["--batches", "-1"], "leave nothing to train"),
        (["--batches", "0", "--compare"], "leave nothing to train"),
        (["--breakdown", "--no-profiling"], "nothing to break down"),
        (["--compare", "--checkpoint", "a"], "trains from scratch"),
        (["--compare", "--budget", "soon"], "--budget"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = hotloop("train", "petri", *words, cwd=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--net", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--schedule", "best.csv"], "is written for job shops"),
        (["--net", "a.pnml", "--trainer", "torchrl"], "needs trainer='hotloop'"),
        (["--instance", "ft06"], "needs a file with job shops"),
        (["--profiling-summary-freq", "-3"], "--profiling-summary-freq -3 is not allowed"),
        (["--resume", "--checkpoint", "nowhere"], "There is no checkpoint nowhere"),
    ],
)
def test_mistakes_come_before_predictions(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "petri", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and "memory and speed" not in said


def original(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / words[0]), *words[1:]]
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.long
def test_the_original_for_training_time(tmp_path: Path) -> None:
    words = ["profile_training_time.py", "--no-turbo", "--batches", "1", "--detailed", "--breakdown"]
    done = original([*words, *SMALL], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tensordict" in done.stdout and "turbo off" in done.stdout
    assert (tmp_path / "profile_training_turbo_off.txt").is_file()


@pytest.mark.long
def test_the_original_for_the_environment_alone(tmp_path: Path) -> None:
    words = ["profile_turbo_mode.py", "--steps", "200", "--envs", "4", "--wafers", "3"]
    done = original([*words, "--budget", "1s", "--timeout", "4m", "--series", "s"], tmp_path)
    assert done.returncode == 0, done.stderr
    off, on = done.stdout.split("turbo on, 200 env steps")
    assert "env_enabled_set" in off and "env_step" in on and "env_enabled_set" not in on
    assert "Work: the same on both sides" in on
    assert [run.figures.env_steps for run in read(tmp_path / "s").runs] == [200, 200]
