"""`hotloop train ricochet` as a user runs it: flags, regions, summaries, report, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop import load
from hotloop.capture.open_capture import open_capture
from hotloop.capture.stats import by_name
from hotloop.cli.main import main
from hotloop.measure.profiler import default
from tests.cli import hotloop

SMALL = ["--n-envs", "4", "--channels", "8", "--n-steps", "8", "--n-epochs", "1"]
DRAWN = {f"env_rgb_draw_{part}" for part in ("grid", "walls", "robots", "target")}
NAMES = DRAWN | {
    "env_rgb_observation_generation",
    "env_rgb_rendering",
    "env_rgb_resizing",
    "convlstm_forward_pass",
    "convlstm_boundary_padding",
    "convlstm_conv_encoder",
    "convlstm_layers",
    "convlstm_global_pooling",
    "recurrent_policy_forward",
    "recurrent_policy_action_value",
}


@pytest.fixture(autouse=True)
def last_recording_forgotten() -> Iterator[None]:
    """The default profiler keeps its last recording to be read; an empty one takes its place."""
    yield
    default.start()
    default.stop()


def test_pictures_drawn_by_pil_have_every_region_and_exact_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "ricochet", *SMALL, "--total-timesteps", "64", "--rendering", "pil", "--capture", "cap"]
    assert main([*words, "--enable-profiling", "--profiling-summary-freq", "32"]) == 0
    output = capsys.readouterr()
    assert "trained 64 env steps" in output.out and "env_rgb_rendering" in output.err
    capture = load(tmp_path / "cap")
    stats = by_name(capture.tree)
    assert set(stats) >= NAMES
    assert capture.progress.env_steps == 64 and capture.progress.updates == 2 * 4
    assert stats["env_step"].calls == 16 and stats["backward"].calls == 8
    assert stats["recurrent_policy_action_value"].calls == 16
    assert stats["replay_push"].calls == 2 * (1 + 8)  # the first observation of each rollout, then each step
    exported = open_capture("profiling_report.json")
    assert by_name(exported.tree)["env_step"].calls == 16
    assert main(["report", "profiling_report.json"]) == 0


def test_compiled_pictures_record_their_outer_region_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "cap")
    assert main(["train", "ricochet", *SMALL, "--total-timesteps", "32", "--capture", place, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["outcome"]["env_steps"] == 32 and "outer region" in data["outcome"]["remarks"][0]
    stats = by_name(load(place).tree)
    assert "env_rgb_observation_generation" in stats and not DRAWN & set(stats)


@pytest.mark.parametrize("mode", ["image", "symbolic"])
def test_planes_and_symbols_train_a_small_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    words = [
        "train",
        "ricochet",
        "--n-envs",
        "4",
        "--n-steps",
        "8",
        "--total-timesteps",
        "64",
        "--obs-mode",
        mode,
    ]
    assert main([*words, "--capture", str(tmp_path / "cap"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"]["env_steps"] == 64


def test_the_same_network_trains_in_stable_baselines3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "cap")
    words = [
        "train",
        "ricochet",
        *SMALL,
        "--total-timesteps",
        "32",
        "--trainer",
        "sb3",
        "--capture",
        place,
        "--json",
    ]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["outcome"]["env_steps"] == 32 and "without memory" in data["outcome"]["remarks"][0]
    stats = by_name(load(place).tree)
    assert {"env_step", "backward", "optimizer_step", "convlstm_layers"} <= set(stats)


def test_nothing_is_recorded_when_nothing_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ricochet", *SMALL, "--total-timesteps", "32", "--no-profiling"]) == 0
    assert "trained 32 env steps" in capsys.readouterr().out and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nosuch"], "'nosuch' is not a workload; use one of ricochet"),
        (["ricochet", "--n-envs", "0"], "must be at least 1"),
        (["ricochet", "--board-size", "3"], "7 to 16"),
        (["ricochet", "--no-profiling", "--enable-profiling"], "no report to write"),
        (["ricochet", "--profiling-report", "nowhere/a.json"], "does not exist; create it"),
        (["ricochet", "--profiling-report", "mine.json"], "was not written by hotloop"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "mine.json").write_text("{}")
    place = ["--capture", "c"] if "--no-profiling" not in words else []
    done = hotloop("train", *words, *place, cwd=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr
    assert (tmp_path / "mine.json").read_text() == "{}"


@pytest.mark.long
def test_ctrl_c_keeps_the_agent_and_still_explains(tmp_path: Path) -> None:
    words = [
        "train",
        "ricochet",
        *SMALL,
        "--total-timesteps",
        "1000000",
        "--capture",
        "cap",
        "--checkpoint",
        "a.st",
    ]
    child = subprocess.Popen(
        [sys.executable, "-m", "hotloop", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and not (
        list(tmp_path.glob("cap/parts/*")) and _steps(tmp_path / "cap") > 64
    ):
        time.sleep(0.2)
    os.kill(child.pid, signal.SIGINT)
    out = child.communicate(timeout=120)[0].decode()
    assert child.returncode == 130 and "stopped by SIGINT; kept: the agent in a.st" in out
    assert "continue with: hotloop train ricochet" in out
    assert "Where the time goes" in out and (tmp_path / "a.st").is_file()


def _steps(folder: Path) -> float:
    return load(folder).progress.env_steps
