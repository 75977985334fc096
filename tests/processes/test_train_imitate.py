"""`hotloop train imitate` as a user runs it: demonstrations, a clone that drives, RL that does not forget."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop import load
from hotloop.capture.stats import by_name
from hotloop.cli.main import main
from hotloop.measure.profiler import default
from hotloop.rl.buffers.demonstrations import DemonstrationStore
from hotloop.rl.collect import experts
from hotloop.rl.envs.track.expert import expert_actions
from hotloop.rl.train.bc import load_clone
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import StopRequests, load_checkpoint
from hotloop.rl.workloads import imitate_speedup
from hotloop.rl.workloads.imitate import SB3_WORKER_BYTES, WORKER_BYTES, Imitate, memory_needs, run
from hotloop.rl.workloads.imitate_speedup import take_turns, worker_counts
from hotloop.rl.workloads.track_laps import actor_policy, drive_laps

ORIGINALS = Path(__file__).parents[2] / "examples" / "originals"
# Small, but enough for a clone that drives laps.
SMALL = [
    *("--n-episodes", "4", "--workers", "2", "--n-epochs", "30", "--total-timesteps", "6000", "--n-envs", "4")
]
BRIEF = [
    *("--n-episodes", "4", "--workers", "2", "--n-epochs", "3", "--total-timesteps", "1000", "--n-envs", "4")
]


@pytest.fixture(autouse=True)
def last_recording_forgotten() -> Iterator[None]:
    """The default profiler keeps its last recording to be read; an empty one takes its place."""
    yield
    default.start()
    default.stop()


def all_stages(folder: Path, settings: list[str]) -> tuple[Path, dict[str, Any]]:
    """Run all three stages as a program of its own; the folder and what it printed as JSON."""
    words = ["train", "imitate", *settings, "--folder", "here", "--capture", "cap", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return all_stages(tmp_path_factory.mktemp("imitate"), SMALL)


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return all_stages(tmp_path_factory.mktemp("brief"), BRIEF)


def outcome(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    given = ["train", "imitate", *words, "--folder", str(folder), "--no-profiling", "--json"]
    assert main(given) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["outcome"]
    return found


def stage(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in found["stages"] if one["stage"] == name)


@pytest.mark.long
def test_the_expert_demonstrates_the_clone_drives_and_rl_does_not_forget(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    folder, told = trained
    figures = told["outcome"]["figures"]
    assert figures["expert_laps"] == 4
    assert figures["clone_laps"] == figures["agent_laps"] == 8
    assert figures["held_out_loss"] < 1e-3
    # over equal time: the return of a whole lap is greater for a slow one
    assert figures["agent_early_return"] >= figures["clone_early_return"]
    assert figures["agent_return"] > 0.98 * figures["clone_return"]
    # and the same from starts that nobody was chosen by
    actor = SquashedActor(8, 2)
    load_clone(folder / "here" / "clone", actor)
    clone = drive_laps(actor_policy(actor), 8, seed=777)
    assert clone.finished == 8


@pytest.mark.long
def test_every_stage_says_where_its_time_went_and_what_it_did(brief: tuple[Path, dict[str, Any]]) -> None:
    _, told = brief
    found = told["outcome"]
    assert [one["stage"] for one in found["stages"]] == ["demos", "bc", "rl"]
    for one in found["stages"]:
        assert sum(one["parts_s"].values()) == pytest.approx(one["parts_of_s"], rel=0.02), one
    demos, bc, rl = found["stages"]
    assert {"simulation", "aggregation", "disk"} <= set(demos["parts_s"])
    assert demos["parts_of"] == "time of 2 workers" and demos["worker_memory"]["private_bytes"] > 1 << 20
    assert {"forward/backward (gathering included)", "evaluation", "logging"} <= set(bc["parts_s"])
    assert {"stepping", "learning", "replay", "evaluation"} <= set(rl["parts_s"])
    said = "1 update per env step, for any number of envs: 900 after the first 100 steps"
    assert said in rl["remarks"]
    samples = round(found["figures"]["cloned_samples"]) // 3  # of an epoch
    assert found["updates"] == 3 * -(-samples // 256) + 1000 - 100


@pytest.mark.long
def test_the_capture_counts_all_stages_and_sees_the_workers(brief: tuple[Path, dict[str, Any]]) -> None:
    folder, told = brief
    capture, found = load(folder / "cap"), told["outcome"]
    assert capture.progress.env_steps == found["env_steps"]
    assert capture.progress.updates == found["updates"]
    stats = by_name(capture.tree)
    assert {"stage_demos", "stage_bc", "stage_rl", "fused_update", "replay_push", "disk_write"} <= set(stats)
    assert stats["disk_write"].calls == 4  # in the workers


@pytest.mark.long
def test_stages_alone_do_what_all_together_do(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, told = trained
    apart = tmp_path / "apart"
    outcome(capsys, apart, "--stage", "demos", "--n-episodes", "4", "--workers", "1")
    stores = [DemonstrationStore(place / "demonstrations") for place in (apart, folder / "here")]
    for number in range(4):
        one, other = (store.read(number).actions for store in stores)
        assert np.array_equal(one, other)
    outcome(capsys, apart, "--stage", "bc", "--n-epochs", "30")
    whole = load_checkpoint(folder / "here" / "clone").arrays
    assert all((load_checkpoint(apart / "clone").arrays[n] == a).all() for n, a in whole.items())
    done = outcome(capsys, apart, "--stage", "rl", "--total-timesteps", "6000", "--n-envs", "4")
    assert done["mean_return"] == told["outcome"]["mean_return"]


@pytest.mark.long
def test_the_memory_plan_knows_what_a_worker_takes(brief: tuple[Path, dict[str, Any]]) -> None:
    _, told = brief
    measured = stage(told["outcome"], "demos")["worker_memory"]["private_bytes"]
    assert WORKER_BYTES / 1.5 < measured < 2 * WORKER_BYTES  # more when the worker had to compile
    few, many = (memory_needs(Imitate(workers=count)) for count in (1, 40))
    assert ("workers", 40) in [(need.setting, need.value) for need in many]
    assert sum(need.bytes for need in many) - sum(need.bytes for need in few) > 30 * WORKER_BYTES
    apart = memory_needs(Imitate(stage="rl", trainer="sb3", n_envs=6))
    assert ("n_envs", 6, 6 * SB3_WORKER_BYTES) in [(need.setting, need.value, need.bytes) for need in apart]


@pytest.mark.long
def test_a_stage_restarts_from_its_own_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome(capsys, tmp_path, "--stage", "demos", "--n-episodes", "2", "--workers", "1")
    first = outcome(capsys, tmp_path, "--stage", "demos", "--n-episodes", "3", "--workers", "1", "--resume")
    assert first["episodes"] == 1
    assert any("2 episodes were there already" in line for line in first["remarks"])
    outcome(capsys, tmp_path, "--stage", "bc", "--n-epochs", "2")
    more = outcome(capsys, tmp_path, "--stage", "bc", "--n-epochs", "3", "--resume")
    assert round(more["figures"]["cloned_samples"]) == len(
        DemonstrationStore(tmp_path / "demonstrations").load().split(0.1, 0)[0].samples()
    )
    steps = ["--stage", "rl", "--n-envs", "2", "--net-arch", "64", "64"]
    outcome(capsys, tmp_path, *steps, "--total-timesteps", "400")
    again = outcome(capsys, tmp_path, *steps, "--total-timesteps", "400", "--resume")
    assert again["env_steps"] == 400 and stage(again, "rl")["summary"] == "nothing was left to do"


@pytest.mark.parametrize("envs", [pytest.param(envs, marks=pytest.mark.long) for envs in ("1", "2")])
def test_stable_baselines3_does_the_same_updates_for_each_env_step(
    trained: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], envs: str
) -> None:
    folder, _ = trained
    words = ("--stage", "rl", "--trainer", "sb3", "--total-timesteps", "300", "--n-envs", envs)
    done = outcome(capsys, folder / "here", *words, "--batch-size", "32")
    assert done["env_steps"] == 300 and done["updates"] == 300 - 30
    rl = stage(done, "rl")
    assert {"stepping", "learning", "replay", "evaluation"} <= set(rl["parts_s"])
    assert rl["worker_memory"]["private_bytes"] > 1 << 20
    assert done["figures"]["agent_laps"] == 8


@pytest.mark.long
def test_ctrl_c_keeps_what_was_driven(tmp_path: Path) -> None:
    words = [
        "train",
        "imitate",
        "--stage",
        "demos",
        "--n-episodes",
        "500",
        "--workers",
        "1",
        "--no-profiling",
    ]
    command, pipe = [sys.executable, "-m", "hotloop", *words, "--no-profiling"], subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe) as process:
        store, deadline = DemonstrationStore(tmp_path / "imitate/demonstrations"), time.monotonic() + 120
        while not store.numbers() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    kept = store.load()
    assert 1 <= len(kept.episodes) < 500
    assert f"stopped by SIGINT; kept: {len(kept.episodes)} of 500 episodes".encode() in said
    assert b"continue with: hotloop train imitate --stage demos --n-episodes 500" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--n-episodes", "1"], "n_episodes=1 leaves none to hold out"),
        (["--workers", "0"], "workers=0 must be at least 1"),
        (["--stage", "bc"], "There are no demonstrations in"),
        (["--stage", "rl"], "run --stage bc first, or use --start scratch"),
        (["--loading", "index", "--loading-workers", "2"], "loading_workers=2 needs --loading loader"),
        (["--stage", "bc", "--workers", "1", "--learner", "fused"], "cannot use a DataLoader"),
        (["--gradient-steps", "0"], "gradient_steps=0 must be at least 1, or -1"),
        (["--stage", "rl", "--trainer", "sb3", "--resume"], "saves no checkpoint"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    given = ["train", "imitate", *words, "--folder", str(tmp_path / "f"), "--no-profiling"]
    assert main(given) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.long
def test_a_clone_of_another_network_is_refused(
    brief: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = brief
    words = ["train", "imitate", "--stage", "rl", "--net-arch", "32", "32", "--no-profiling"]
    assert main([*words, "--folder", str(folder / "here")]) == 2
    assert "does not fit this actor" in capsys.readouterr().err


def test_laps_are_compared_over_equal_time() -> None:
    expert = drive_laps(expert_actions, 3, seed=1)
    assert expert.finished == 3 and expert.mean_steps > 1800
    assert expert.early_return < 1000 < expert.mean_return
    crash = drive_laps(lambda seen: np.ones((len(seen), 2), dtype=np.float32), 3, seed=1)
    assert crash.finished == 0 and crash.mean_steps < 1000 and crash.early_return == crash.mean_return < 0


def test_what_the_flags_mean() -> None:
    assert Imitate().dataloader_workers is None and Imitate(workers=3).dataloader_workers is None
    assert Imitate(stage="bc", workers=3).dataloader_workers == 3
    assert Imitate(loading_workers=2).dataloader_workers == 2
    assert Imitate(loading="loader").dataloader_workers == 0
    assert Imitate(loading="index", stage="bc", workers=2).dataloader_workers is None
    assert Imitate(workers=5).demonstration_workers == 5 and Imitate().demonstration_workers >= 1


def test_speedups_are_medians_of_ratios_of_the_same_round() -> None:
    rates = {"one": iter([10.0, 20.0, 10.0]), "two": iter([30.0, 40.0, 15.0])}
    found = take_turns("demos", {name: lambda r=r: (next(r), None) for name, r in rates.items()}, 3)  # type: ignore[misc]
    assert [(one.variant, one.rate, one.speedup) for one in found] == [("one", 10, 1.0), ("two", 30, 2.0)]
    assert worker_counts(1) == [1] and worker_counts(4) == [1, 2, 4] and worker_counts(6) == [1, 2, 4, 6]


def test_measuring_stops_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequests() as stop:
        stop.by = "SIGTERM"
        with pytest.raises(imitate_speedup.StoppedMeasuring):
            take_turns("demos", {"one": lambda: (1.0, None)})

        def stopped(*_: Any) -> None:
            raise imitate_speedup.StoppedMeasuring

        monkeypatch.setattr(imitate_speedup, "measure", stopped)
        outcome = run(Imitate(speedup=True), quiet=True)
    assert outcome.stopped_by == "SIGTERM" and outcome.work == "stopped while measuring the speed-up"
    assert outcome.kept is not None and "the same command starts again" in outcome.kept


def test_ctrl_c_does_not_reach_a_worker_that_still_loads(tmp_path: Path) -> None:
    worker = experts._Worker(DemonstrationStore(tmp_path), 0, {})
    number = worker.process.pid
    try:
        status = Path(f"/proc/{number}/status").read_text()
    finally:
        worker.end()
    [blocked] = re.findall(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE)
    assert int(blocked, 16) & 1 << (signal.SIGINT - 1)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert not Path(f"/proc/{number}").exists()


def run_original(folder: Path, words: list[str]) -> str:
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_scripts_of_the_original_take_their_flags(tmp_path: Path) -> None:
    small = {
        "collect_demonstrations.py": ["--episodes", "2", "--workers", "2"],
        "train_bc.py": ["--epochs", "2", "--workers", "1", "--batch-size", "64"],
        "train_rl.py": ["--timesteps", "60", "--envs", "2", "--batch-size", "16"],
    }
    said = {
        name: run_original(tmp_path, [sys.executable, str(ORIGINALS / name), *flags, "--capture", name[:-3]])
        for name, flags in small.items()
    }
    assert "with 2 workers" in said["collect_demonstrations.py"]
    assert "DataLoader, 1 worker," in said["train_bc.py"] and "laps finished" in said["train_bc.py"]
    assert "SubprocVecEnv" in said["train_rl.py"] and "Where the time goes" in said["train_rl.py"]
    all_flags = ["--episodes", "2", "--workers", "1", "--epochs", "2", "--timesteps", "100", "--envs", "2"]
    whole = run_original(
        tmp_path, ["sh", str(ORIGINALS / "train_optimized.sh"), *all_flags, "--no-profiling"]
    )
    assert all(f"  {name}: " in whole for name in ("demos", "bc", "rl", "all stages"))


@pytest.mark.long
def test_rl_improves_on_the_clone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--n-episodes", "10", "--total-timesteps", "50000")
    figures = outcome(capsys, tmp_path, *sizes, "--speedup")["figures"]
    assert figures["agent_early_return"] > figures["clone_early_return"]
    assert figures["agent_laps"] == 8
