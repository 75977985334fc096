"""`hotloop train mario` as a user runs it: both variants, monitoring, stops and resumes, the benchmark."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from hotloop import load
from hotloop.analysis.load_snapshot import machine_load_of
from hotloop.analysis.pipeline import compare_pipelines, pipeline_figures
from hotloop.capture.series import read as read_series
from hotloop.capture.stats import by_name
from hotloop.cli.main import main
from hotloop.cli.train import read
from hotloop.measure.profiler import default
from hotloop.report.pen import Pen
from hotloop.report.pipeline import benchmark_text
from hotloop.rl.collect.protocol import CollectorState
from hotloop.rl.train.async_dqn import AsyncDQNConfig, train
from hotloop.rl.train.async_dqn_monitor import Epoch, Monitor, Pipeline, live_lines, main_line, processor_line
from hotloop.rl.train.learner_limit import LearnerLimit
from hotloop.rl.train.runs import CheckpointError, load_checkpoint
from hotloop.rl.workloads import mario
from hotloop.rl.workloads.mario import Mario, async_dqn_config
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture
from hotloop.workflows.train import lab_command
from hotloop.workflows.train_mario import Benchmark, equal_work
from tests.cli import hotloop
from tests.frame_game import make_corridor

ORIGINALS = Path(__file__).parents[2] / "examples" / "originals"
TINY: dict[str, Any] = {
    "channels": (4, 4, 4),
    "features_dim": 8,
    "batch_size": 16,
    "accumulate_grad_batches": 2,
    "learning_starts": 32,
    "buffer_size": 2000,
    "queue_size": 64,
    "experience_batch_size": 64,
    "epoch_steps": 128,
    "total_timesteps": 3 * 128,
    "device": "cpu",
    "precision": "float32",
    "quiet": True,
}
SMALL = [
    "--channels",
    "4",
    "4",
    "4",
    "--features-dim",
    "8",
    "--batch-size",
    "16",
    "--accumulate-grad-batches",
    "2",
    "--size",
    "36",
]
SMALL += [
    "--learning-starts",
    "32",
    "--queue-size",
    "64",
    "--experience-batch-size",
    "64",
    "--epoch-steps",
    "128",
]
SMALL += ["--stop-at-epochs", "3", "--envs-per-collector", "2", "--n-collectors", "2"]


@pytest.fixture(autouse=True)
def last_recording_forgotten() -> Iterator[None]:
    """The default profiler keeps its last recording to be read; an empty one takes its place."""
    yield
    default.start()
    default.stop()


def tiny(**given: Any) -> AsyncDQNConfig:
    return AsyncDQNConfig(
        **TINY | {"transport": "serial", "n_collectors": 2, "envs_per_collector": 2} | given
    )


# ---- the trainer


@pytest.mark.long
@pytest.mark.parametrize("transport", ["serial", "rings", "locked"])
def test_every_transport_does_the_same_amount_of_work(transport: Any) -> None:
    method = "fork" if transport == "locked" else "spawn"
    told: list[dict[str, Any]] = []
    config = tiny(transport=transport, start_method=method)
    done = train(config, make_corridor, distance="x_pos", report=lambda **words: told.append(words))
    assert done.epochs == 3 and 384 <= done.loop_env_steps < 384 + 8
    assert transport == "serial" or done.loop_env_steps == 384  # no epoch takes the rows of the next
    assert done.batches == (done.env_steps - 32) // 16 and done.updates == done.batches // 2
    assert sum(words.get("updates", 0) for words in told) == done.updates
    assert done.episodes > 0 and done.mean_distance is not None and done.mean_length is not None
    assert done.dropped == 0 and done.restarts == 0 and done.stopped_by is None
    assert len(done.epoch_s) == 3 and 0 < done.learner_busy_fraction <= 1
    assert done.versions_behind is not None and (transport == "locked" or done.lock_wait_s == 0)
    assert done.steps_per_s > 0 and done.batches_per_s > 0


@pytest.mark.long
def test_the_same_seed_gives_the_same_agent_without_processes() -> None:
    one, two, other = (train(tiny(seed=seed), make_corridor) for seed in (1, 1, 2))
    a, b, c = (list(done.network.state_dict().values()) for done in (one, two, other))
    assert all((x == y).all() for x, y in zip(a, b, strict=True))
    assert any((x != y).any() for x, y in zip(a, c, strict=True))


@pytest.mark.long
def test_epochs_can_end_by_their_episodes() -> None:
    done = train(
        tiny(epoch_steps=0, episodes_per_epoch=5, stop_at_epochs=2, total_timesteps=10**9), make_corridor
    )
    assert done.epochs == 2 and done.episodes >= 10


def test_no_learning_is_a_setting() -> None:
    done = train(tiny(replay_ratio=0.0), make_corridor)
    assert done.batches == 0 and done.env_steps >= 384 and done.learner_busy_fraction == 0


def test_it_continues_from_its_checkpoint_and_refuses_another_network(tmp_path: Path) -> None:
    file = tmp_path / "agent.safetensors"
    first = train(tiny(checkpoint=file, stop_at_epochs=2), make_corridor, distance="x_pos")
    saved = load_checkpoint(file)
    assert saved.state["epochs"] == 2 and saved.state["env_steps"] == first.env_steps
    second = train(tiny(checkpoint=file, stop_at_epochs=3, resume=True), make_corridor, distance="x_pos")
    assert second.epochs == 3 and len(second.epoch_s) == 1
    assert second.env_steps > first.env_steps and second.batches > first.batches
    assert second.env_steps - first.env_steps >= second.loop_env_steps
    assert (first.resumed_at, second.resumed_at) == (0, first.env_steps)
    assert second.episodes > first.episodes
    with pytest.raises(CheckpointError, match=r"features_dim was 8, is 16"):
        train(tiny(checkpoint=file, resume=True, features_dim=16), make_corridor)


def test_a_request_to_stop_saves_and_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "agent.safetensors"
    asked = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    asked.start()
    done = train(tiny(checkpoint=file, total_timesteps=10**9), make_corridor)
    asked.join()
    assert done.stopped_by == "SIGINT" and load_checkpoint(file).state["epochs"] == done.epochs


def test_other_observations_are_refused() -> None:
    import gymnasium

    with pytest.raises(Exception, match="takes uint8 stacks of frames"):
        train(tiny(), lambda seed: gymnasium.make("CartPole-v1"))


# ---- monitoring


def state(**given: Any) -> CollectorState:
    known: dict[str, Any] = {
        "rows": 2100, "env_steps": 2000, "episodes": 9, "dropped": 3, "queued": 40, "queue_fraction": 0.1,
        "lock_wait_s": 0.0125, "collector_wait_s": 1.0, "learner_wait_s": 0.5, "published_version": 4,
        "versions_behind": 1.5, "collector_busy_fractions": (0.75, None), "alive": 2, "restarts": 0,
        "failures": (),
    }  # fmt: skip
    return CollectorState(**known | given)


def pipeline(**given: Any) -> Pipeline:
    known: dict[str, Any] = {
        "env_steps": 2000, "takes": 4, "buffer": 1990, "seconds": 4.0, "loop_env_steps": 2000,
        "loop_batches": 8, "learning_s": 3.0, "collectors": state(),
    }  # fmt: skip
    return Pipeline(**known | given)


EPOCH = Epoch(3, 1.5, 0.01234, 0.5, 123.44, 456.0, 0.95, 1990)


def test_the_lines_have_the_form_people_know() -> None:
    assert processor_line(pipeline()) == (
        "[PROCESSOR] Processed: 2,000, Batches: 4, Drops: 3, Buffer: 1,990, Queue: 40, Learner busy: 75.0 %, "
        "Lock wait: 12.5 ms, Stale: 1.5, Collectors busy: 75.0 %"
    )
    assert main_line(EPOCH) == (
        "[MAIN] Epoch 3 - Loss: 0.0123, TD Error: 0.5000, Reward: 123.4, Distance: 456, Epsilon: 0.950, "
        "Buffer: 1,990, Time: 1.50 s"
    )
    unknown = dataclasses.replace(EPOCH, loss=None, td_error=None, mean_return=None, distance=None)
    assert "Loss: -, TD Error: -, Reward: -, Distance: -," in main_line(unknown)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_scroll_in_a_file_and_are_redrawn_on_a_terminal() -> None:
    clock = iter(np.arange(0.0, 1000.0, 6.0))
    file = io.StringIO()
    monitor = Monitor(stream=file, clock=lambda: float(next(clock)), note=lambda: "backward 60 %")
    assert not monitor.due and monitor.due
    monitor.show(pipeline())
    monitor.epoch(EPOCH, pipeline())
    monitor.line("collector 1 was started anew")
    lines = file.getvalue().splitlines()
    assert [line.split("]")[0] for line in lines[:3]] == ["[PROCESSOR", "[MAIN", "[PROCESSOR"]
    assert lines[0].endswith("backward 60 %") and lines[3] == "collector 1 was started anew"
    screen = Terminal()
    monitor = Monitor(stream=screen)
    monitor.show(pipeline())
    shown = live_lines(pipeline(), 99)
    assert screen.getvalue().count("\n") == len(shown) and "\033" not in screen.getvalue()
    assert any(line.startswith("  collector 0") and "75.0 % busy" in line for line in shown)
    assert any("500 steps/s" in line and "2.00 batches/s" in line for line in shown)
    monitor.epoch(EPOCH, pipeline())
    assert f"\033[{len(shown)}A\033[J[MAIN] Epoch 3" in screen.getvalue()
    quiet = io.StringIO()
    monitor = Monitor(stream=quiet, quiet=True)
    monitor.epoch(EPOCH, pipeline())
    assert not monitor.due and not quiet.getvalue()
    monitor.line("collector 1 was restarted")  # a problem, which --json must not hide until the end
    assert quiet.getvalue() == "collector 1 was restarted\n"


# ---- the workload


@pytest.mark.parametrize(
    ("words", "size", "channels"),
    [
        ([], 44, (16, 32, 32)),
        (["--stop-at-epochs", "20", "--seed=3"], 44, (16, 32, 32)),
        (["--n-collectors", "2"], 84, (32, 64, 64)),
        (["--benchmark"], 84, (32, 64, 64)),
        (["--preset", "full"], 84, (32, 64, 64)),
        (["--preset", "quick", "--size", "84"], 84, (16, 32, 32)),
    ],
)
def test_a_command_without_settings_of_its_own_is_small_enough_to_learn(
    words: list[str], size: int, channels: tuple[int, ...]
) -> None:
    given = read(["mario", *words])
    assert given is not None and (given.config.size, given.config.channels) == (size, channels)
    mario.check(given.config)


def test_the_best_network_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    distances = iter([100.0, 300.0, 200.0])
    asked: list[int] = []

    def evaluated(config: Mario, network: Any, episodes: int) -> mario.Evaluation:
        asked.append(config.seed)
        return mario.Evaluation(episodes, next(distances), 0.0, 0)

    monkeypatch.setattr(mario, "evaluate", evaluated)
    config = Mario(total_timesteps=800, epoch_steps=100, eval_every_epochs=2, seed=7)
    best, network = mario.BestNetwork(config), torch.nn.Linear(1, 1, bias=False)
    for epochs in range(1, 9):
        with torch.no_grad():
            network.weight.fill_(epochs)
        if epochs < 8:
            best.after_epoch(epochs, network)  # in the second half: after 4 and 6 epochs
    said = best.restore(8, network)
    assert network.weight.item() == 6 and "after epoch 6 (distance 300" in said and "one 200)" in said
    assert len(asked) == 3 and set(asked) == {7 + mario.SELECTION_SEED}


def test_variants_match_the_original_and_flags_override_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mario, "cores_granted", lambda: 8.0)
    original, fast = async_dqn_config(Mario(variant="original")), async_dqn_config(Mario())
    names = ("transport", "n_collectors", "buffer_size", "batch_size", "episodes_per_epoch")
    assert [getattr(original, n) for n in names] == ["locked", 2, 10_000, 256, 8]
    assert [getattr(fast, n) for n in names] == ["rings", 4, 50_000, 512, 16]
    assert (original.weights_every_epochs, fast.weights_every_epochs) == (3, 5)
    assert original.envs_per_collector == 1 and original.layout == "plain"
    assert fast.accumulate_grad_batches == 4
    assert async_dqn_config(Mario(batch_size=64, n_collectors=1)).batch_size == 64
    for cores, split in ((2.0, (1, 64)), (3.0, (2, 32)), (1.0, (1, 64)), (5.0, (4, 16))):
        monkeypatch.setattr(mario, "cores_granted", lambda cores=cores: cores)
        assert (Mario().settings.n_collectors, Mario().settings.envs_per_collector) == split
        assert Mario(n_collectors=4).settings.envs_per_collector == 16
        assert Mario(envs_per_collector=2).settings.n_collectors == 4
    same = (
        "gamma",
        "reward_scale",
        "learning_rate",
        "replay_ratio",
        "channels",
        "features_dim",
        "batch_norm",
    )
    assert all(getattr(original, n) == getattr(fast, n) for n in same)


@pytest.mark.long
def test_a_run_is_recorded_over_all_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "cap")
    assert main(["train", "mario", *SMALL, "--capture", place, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    outcome = data["outcome"]
    assert outcome["env_steps"] >= 384 and outcome["updates"] > 0
    assert any("learner busy" in remark and "lock wait none" in remark for remark in outcome["remarks"])
    capture = load(place)
    assert len(capture.processes) == 3  # the learner and two collectors
    stats = by_name(capture.tree)
    assert stats["training_epoch"].calls == 2 and stats["replay_push"].bytes_moved > 0
    assert {"env_step", "policy_forward", "ipc_send", "weights_sync", "replay_sample", "backward"} <= set(
        stats
    )
    assert "lock_wait" not in stats and "rows_dropped" not in stats
    assert capture.progress.env_steps >= outcome["env_steps"]
    found = pipeline_figures(capture, 128, 16)
    assert found is not None and found.epochs == 2 and found.lock_wait_s == 0
    assert 0 < found.learner_busy_fraction < 1 and found.learned_per_s > 0


@pytest.mark.long
def test_the_locked_queue_s_waits_are_in_the_recording(tmp_path: Path) -> None:
    place = str(tmp_path / "cap")
    words = [*SMALL, "--variant", "original", "--envs-per-collector", "1", "--no-profiling"]
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "train", "mario", *words],
        env=os.environ | {"HOTLOOP_CAPTURE": place},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"\[PROCESSOR\] Processed: \d+, Batches: \d+, Drops: 0, Buffer: [\d,]+, Queue: ", done.stderr
    )
    assert done.stderr.count("[MAIN] Epoch ") == 3
    capture = load(place)
    found = pipeline_figures(capture, 128, 16)
    assert found is not None and found.lock_wait_s > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--size", "50"], "size=50 must be a multiple of 4"),
        (["--world", "9-1"], "world='9-1' is unknown"),
        (["--stack", "1"], "stack=1 must be at least 2"),
        (["--stop-at-epochs", "0"], "stop_at_epochs=0 must be at least 1"),
        (["--n-eval-episodes", "-1"], "n_eval_episodes=-1 must be at least 0"),
        (["--epochs", "3"], "--epochs is now --stop-at-epochs"),
        (["--device", "tpu"], "device='tpu' is unknown"),
        (["--benchmark", "--checkpoint", "a"], "starts every run anew"),
        (["--benchmark", "--no-profiling"], "figures from captures"),
        (["--benchmark", "--benchmark-json", "nowhere/a.json"], "there is no folder"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = hotloop("train", "mario", *words, cwd=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr
    assert "memory" not in done.stdout + done.stderr and "compiling" not in done.stderr  # refused first


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("gym_super_mario_bros") is None, reason="the extra mario is not installed"
)
def test_the_real_game_runs_an_epoch() -> None:
    from hotloop.rl.workloads.mario import run

    config = Mario(
        env="mario", stop_at_epochs=1, epoch_steps=64, n_collectors=1, envs_per_collector=1,
        channels=(4, 4, 4), features_dim=8,
        batch_size=16, accumulate_grad_batches=1, learning_starts=16, max_episode_steps=50,
    )  # fmt: skip
    done = run(config, quiet=True)
    assert done.env_steps >= 64 and done.episodes >= 1 and done.updates >= 1


# ---- the benchmark


def test_both_sides_of_the_benchmark_do_the_same_work() -> None:
    original, fast = (equal_work(Mario(), name) for name in ("original", "fast"))
    for side in (original, fast):
        settings = side.settings
        assert settings.batch_size * settings.accumulate_grad_batches == 2048
        assert (side.epoch_steps, side.stop_at_epochs, side.total_timesteps) == (4096, 3, None)
        assert (side.exploration_initial_eps, side.exploration_final_eps) == (0.1, 0.1)
    assert original.settings.batch_size == 256 and fast.settings.batch_size == 512
    assert original.replay_ratio == fast.replay_ratio
    words = lab_command("mario", dataclasses.replace(original, checkpoint=Path("a")))
    assert read([word for word in words[4:] if "seed" not in word]).config == original


@pytest.mark.long
def test_the_original_for_the_benchmark(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ORIGINALS / "benchmark_performance.py"),
        *SMALL[:-4],
        "--n-collectors",
        "2",
    ]
    command += ["--pairs", "1", "--budget", "1s", "--series", "s"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"COLUMNS": "80"}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert "experience, steps/s" in done.stdout
    assert "raw values without an interval" in " ".join(done.stdout.split())
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    data = json.loads((tmp_path / "mario_benchmark.json").read_text())
    assert data["kind"] == "hotloop-pipeline-benchmark" and len(data["pairs"]) == 1
    pair = data["pairs"][0]
    assert pair["original"]["lock_wait_s"] > 0 and pair["fast"]["lock_wait_s"] == 0
    assert "times its convolutions and matrix products alone" in " ".join(done.stdout.split())
    assert all(data["learner_limits"][name]["products_s"] > 0 for name in ("original", "fast"))
    assert (tmp_path / "mario_benchmark.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(run.variant for run in read_series(tmp_path / "s").runs) == ["fast", "original"]


@pytest.mark.long
def test_the_original_for_training(tmp_path: Path) -> None:
    command = [sys.executable, str(ORIGINALS / "mario_rl_optimized.py"), *SMALL, "--transport", "serial"]
    done = subprocess.run(
        [*command, "--no-profiling"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "[MAIN] Epoch 3 - Loss: " in done.stderr and "learner busy" in done.stdout


def test_rows_of_the_table_come_from_ratios_of_pairs() -> None:
    from hotloop.analysis.pipeline import PipelineFigures

    def side(rate: float, lock_s: float) -> PipelineFigures:
        return PipelineFigures(2, 4096 / rate, rate, rate / 2, 0.9, 0.05, lock_s)

    pairs = [(side(500 + n, 0.004), side(2 * (500 + n), 0.0)) for n in range(8)]
    rows = {row.name: row for row in compare_pipelines(pairs)}
    rate = rows["experience rate"]
    assert rate.change is not None and rate.change.value == pytest.approx(1.0) and rate.reached is True
    assert rows["learner throughput"].reached is False  # +100 %, and +150 % was wanted
    assert rows["epoch time"].change is not None
    assert rows["epoch time"].change.value == pytest.approx(-0.5) and rows["epoch time"].reached is False
    assert rows["lock wait"].change is not None and rows["lock wait"].change.value == -1.0
    assert rows["lock wait"].reached is True and rows["learner busy"].reached is True
    few = compare_pipelines(pairs[:2])
    assert all(row.change is None for row in few if row.name != "lock wait")
    raw = {row.name: row.raw_change for row in few}
    assert raw["experience rate"] == pytest.approx(1.0) and raw["epoch time"] == pytest.approx(-0.5)
    limits = {"fast": LearnerLimit(0.0013, 0.001, 3, "float32")}
    words = Benchmark(cast(Any, None), Mario(), Mario(), (), (), "", limits).learner_limit_text
    said = benchmark_text(few, 2, "", words, machine_load_of([]), Pen())
    assert "+100 % *" in said and "raw values without an interval" in said
    assert "fast 1.3 ms, 1.30 times its convolutions" in " ".join(said.split())


def test_a_learner_that_made_no_update_has_figures_too() -> None:
    epoch = {"training_epoch": Spec(3, 1e9)}
    collector = ProcessSpec([ThreadSpec({"env_step": Spec(384, 1e6)}, env_steps=384)])
    capture = make_capture(epoch, processes=[collector])
    found = pipeline_figures(capture, 128, 16)
    assert found is not None and found.epochs == 3 and found.learned_per_s == 0
