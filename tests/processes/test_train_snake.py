"""`hotloop train snake` as a user runs it: settings, regions, counts, twins, the plan, the original."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop import load
from hotloop.capture.plan import fill_command
from hotloop.capture.stats import by_name
from hotloop.cli.main import main
from hotloop.cli.train import read
from hotloop.measure.profiler import default
from hotloop.rl.train.runs import ProgressLine, load_checkpoint
from hotloop.rl.workloads.snake import VARIANTS, Snake, sanity_figures
from hotloop.workflows.lab import SHIPPED_PLANS, find_plan, shipped_plans

ROOT = Path(__file__).parents[2]
SMALL = ["--n-envs", "8", "--total-timesteps", "512", "--batch-size", "16"]  # 64 vector steps
LEARNING_STEPS = 64 - 32 + 1  # of them with gradient steps: from 256 env steps on
SPLIT = {
    *("policy_forward", "env_step", "env_collision", "env_features", "env_flood_fill", "replay_push"),
    *("replay_sample", "transfer", "learner_forward", "loss", "backward", "optimizer_step", "log"),
}


@pytest.fixture(autouse=True)
def last_recording_forgotten() -> Iterator[None]:
    """The default profiler keeps its last recording to be read; an empty one takes its place."""
    yield
    default.start()
    default.stop()


def outcome(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["train", "snake", *words, "--capture", str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["outcome"]
    return found


@pytest.mark.long
def test_the_original_has_every_region_of_a_step_and_exact_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    done = outcome(capsys, tmp_path / "cap", "--variant", "original", *SMALL, "--log", str(log))
    assert done["env_steps"] == 512 and done["updates"] == 2 * LEARNING_STEPS and done["episodes"] > 0
    each = done["env_steps"] / done["episodes"]
    assert f"512 env steps in {done['episodes']} episodes: {each:.0f} steps per episode" in done["remarks"][0]
    capture = load(tmp_path / "cap")
    stats = by_name(capture.tree)
    assert set(stats) >= SPLIT
    in_no_region = capture.threads[0].unattributed_ns / capture.threads[0].wall_ns
    assert in_no_region < 0.1  # setting up a trainer alone was 32 to 69 % of a short run
    assert capture.progress.env_steps == 512 and capture.progress.updates == 2 * LEARNING_STEPS
    assert capture.progress.episodes == done["episodes"]
    assert stats["env_step"].calls == stats["replay_push"].calls == 64
    assert stats["backward"].calls == stats["replay_sample"].calls == 2 * LEARNING_STEPS
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == list(range(8, 520, 8)) and lines[-1]["loss"] > 0


def weights(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    """What a run of the original with these settings counted, and the weights it ended with."""
    folder.mkdir()
    file = folder / "agent"
    done = outcome(capsys, folder / "cap", "--variant", "original", *SMALL, *words, "--checkpoint", str(file))
    arrays = load_checkpoint(file).arrays
    return {key: done[key] for key in ("env_steps", "updates", "episodes", "mean_return")} | {
        name: array for name, array in arrays.items() if name.startswith("learner.weights")
    }


@pytest.mark.long
def test_settings_that_claim_the_same_training_end_with_the_same_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = weights(capsys, tmp_path / "plain")
    for setting in (
        ("--push", "batch"),
        ("--transfers", "batch"),
        ("--logging", "off"),
        ("--flood-fill", "cached"),
        ("--flood-fill", "compiled"),
        ("--flood-fill", "compiled", "--split", "off"),
    ):
        same = weights(capsys, tmp_path / "-".join(setting), *setting)
        for name, value in plain.items():
            assert np.array_equal(same[name], value), (setting, name)
    fused = weights(capsys, tmp_path / "fused", "--learner", "fused")
    for name, value in plain.items():
        assert np.allclose(fused[name], value, rtol=1e-3, atol=1e-4), name


@pytest.mark.long
def test_the_loop_in_a_kernel_stops_at_the_same_episode_with_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--n-envs", "8", "--stop-at-episodes", "20", "--batch-size", "16")
    kernel = outcome(capsys, tmp_path / "a", *words)
    python = outcome(capsys, tmp_path / "b", *words, "--split", "on")
    keys = ("env_steps", "updates", "episodes", "mean_return")
    assert {k: kernel[k] for k in keys} == {k: python[k] for k in keys}
    assert 20 <= kernel["episodes"] < 28
    assert "fused_loop" in by_name(load(tmp_path / "a").tree)
    assert {"policy_forward", "env_collision", "env_features"} <= set(by_name(load(tmp_path / "b").tree))


@pytest.mark.long
def test_fewer_gradient_steps_are_reported_as_different_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = outcome(
        capsys, tmp_path / "cap", "--variant", "fewer", "--n-envs", "32", "--total-timesteps", "512"
    )
    assert done["updates"] == 9 * 2 and "a different amount of work" in done["remarks"][1]
    same = outcome(capsys, tmp_path / "same", "--n-envs", "32", "--total-timesteps", "512")
    assert same["updates"] == 9 * 8 and len(same["remarks"]) == 1


def test_a_run_without_gradient_steps_only_collects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = outcome(capsys, tmp_path / "cap", "--variant", "original", *SMALL, "--gradient-steps", "0")
    assert done["updates"] == 0 and "no gradient steps" in done["remarks"][1]
    stats = by_name(load(tmp_path / "cap").tree)
    assert stats["shut_down"].calls == 1
    assert stats["replay_push"].calls == 64 and "backward" not in stats


@pytest.mark.long
def test_the_learning_check_gives_the_return_and_no_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--variant", "original", *SMALL, "--learning-check-steps", "1024")
    done = outcome(capsys, tmp_path / "cap", *words)
    said = next(remark for remark in done["remarks"] if remark.startswith("learning check"))
    assert "after 1,024 env steps and 194 gradient steps" in said  # 2 per vector step from 256 env steps on
    capture = load(tmp_path / "cap")
    assert capture.progress.env_steps == 512 and capture.progress.return_count == 1
    assert f"return {capture.progress.mean_return:.1f} " in said
    again = outcome(capsys, tmp_path / "again", *words, "--flood-fill", "cached")
    assert said in again["remarks"]  # the twin is the same


def test_stable_baselines3_trains_the_same_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trainer", "sb3", "--n-envs", "4", "--total-timesteps", "400", "--flood-fill", "compiled")
    done = outcome(capsys, tmp_path / "cap", *words, "--batch-size", "16")
    assert done["env_steps"] == 400 and done["updates"] > 0 and "no double Q-learning" in done["remarks"][-1]
    stats = by_name(load(tmp_path / "cap").tree)
    assert {"env_step", "backward", "optimizer_step"} <= set(stats)
    assert stats["backward"].calls == done["updates"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--n-envs", "0"], "n_envs=0 must be at least 1"),
        (["--stop-at-episodes", "0"], "stop_at_episodes=0 must be at least 1"),
        (["--gradient-steps", "-2"], "gradient_steps=-2 must be at least -1"),
        (["--updates", "n/4"], "--updates is now --gradient-steps with --train-freq"),
        (["--transfers", "items"], "needs learner='torch'"),
        (["--size", "2"], "size=2"),
        (["--variant", "original", "--log", "nowhere/log.jsonl"], "there is no folder"),
        (["--trainer", "sb3", "--learning-check-steps", "9"], "need trainer hotloop"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["train", "snake", *words, "--capture", str(tmp_path / "c")]) == 2
    assert sentence in capsys.readouterr().err


def test_a_given_setting_overrides_the_variants() -> None:
    assert Snake(variant="original").settings == VARIANTS["original"]
    one = Snake(variant="original", push="batch").settings
    assert one.push == "batch" and one.transfers == "items" and one.env_steps_per_gradient_step == 4
    fused = Snake(variant="original", learner="fused").settings
    assert fused.transfers == "batch"  # there is nothing to move


def test_sanity_figures_are_compared_with_the_expected_range() -> None:
    assert sanity_figures(1000, 10).endswith("100 steps per episode, within the expected 50 to 200")
    assert "below" in sanity_figures(100, 10) and "above" in sanity_figures(10_000, 10)
    assert "no episode finished" in sanity_figures(100, 0)
    early = sanity_figures(1280, 2, n_envs=256)
    assert "640 steps per episode with those of up to 256 unfinished games, too early to compare" in early
    assert sanity_figures(25_600, 256, n_envs=256).endswith("within the expected 50 to 200")


def test_the_progress_line_counts_episodes() -> None:
    now, stream = [0.0], io.StringIO()
    line = ProgressLine(10**9, total_episodes=100, stream=stream, clock=lambda: now[0])
    line.update(500, 1.0, "env_step 60 %", episodes=10)
    assert stream.getvalue() == ""  # not due yet
    now[0] = 10.0
    line.update(1000, 2.5, "env_step 60 %", episodes=20)
    assert stream.getvalue() == "20 / 100 episodes  100 steps/s  80.0 s left  return 2.5  env_step 60 %\n"


def test_the_shipped_plan_can_be_run_as_written() -> None:
    assert shipped_plans() == ["snake-investigation"]
    plan = find_plan(Path("snake-investigation"))
    assert plan.baseline.command[0] == sys.executable and plan.sizes
    for variant in plan.variants:
        words = fill_command(variant.command, seed=0, size=plan.size)
        assert words[1:4] == ["-m", "hotloop", "train"] and read(words[4:]) is not None, variant.name
    control = plan.variant("control: flood off")
    assert control.command == plan.baseline.command  # so its verdict must be no_difference
    settings = {
        name for variant in plan.variants for name in (o.partition("=")[0] for o in variant.overrides)
    }
    suspects = {"push", "gradient-steps", "train-freq", "flood-fill", "n-envs", "transfers", "logging"}
    assert settings == suspects | {"learner"}


def test_a_file_takes_precedence_over_a_shipped_plan_and_unknown_names_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "run", "nosuch"]) == 2
    assert "name a file, or one of: snake-investigation" in capsys.readouterr().err
    text = (SHIPPED_PLANS / "snake-investigation.toml").read_text()
    Path("snake-investigation").write_text(text.replace('name = "snake-investigation"', 'name = "mine"'))
    assert find_plan(Path("snake-investigation")).name == "mine"


@pytest.mark.long
def test_the_script_of_the_original_takes_its_flags(tmp_path: Path) -> None:
    script = ROOT / "examples/originals/scripts/training/train_dqn_mlp.py"
    words = ["--episodes", "8", "--envs", "8", "--capture", "cap"]
    done = subprocess.run(
        [sys.executable, str(script), *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "steps per episode" in done.stdout and "Where the time goes" in done.stdout
    assert load(tmp_path / "cap").progress.episodes >= 8
