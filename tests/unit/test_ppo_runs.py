"""PPO runs that are interrupted, resumed, stopped or given invalid settings: clear errors, nothing lost."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotloop._util.errors import HotloopError
from hotloop._util.units import counted
from hotloop.rl.train import runs
from hotloop.rl.train.ppo import PPOConfig, PPOResult, train
from hotloop.rl.train.runs import (
    CheckpointError,
    ProgressLine,
    RecentEpisodes,
    StopRequests,
    TensorboardLog,
    TrainingDiverged,
    load_checkpoint,
    save_checkpoint,
)
from hotloop.testing.fakes import FakeClock
from tests.learning.tasks import Endless, Identity, MaskedIdentity
from tests.old_files import written_by_0_1

SMALL = PPOConfig(
    n_envs=4, n_steps=16, batch_size=32, net_arch=(16,), total_timesteps=640, quiet=True, learner="fused"
)


def changed(**settings: Any) -> PPOConfig:
    return dataclasses.replace(SMALL, **settings)


def weights(result: PPOResult) -> list[Any]:
    return [parameter.detach().numpy().copy() for parameter in result.network.parameters()]


@pytest.mark.parametrize("learner", ["fused", "torch"])
@pytest.mark.parametrize("anneal", [False, True])
def test_a_resumed_run_ends_at_the_same_numbers(tmp_path: Path, learner: Any, anneal: bool) -> None:
    more = {"anneal_lr": anneal, "ent_coef": 0.1, "anneal_ent_coef": anneal}
    whole = train(changed(learner=learner, **more))
    path = tmp_path / "run.safetensors"
    parts = changed(learner=learner, checkpoint=path, **more)

    class Cut(Exception):
        pass

    def cut(steps: int, _: dict[str, float]) -> None:
        if steps >= 320:
            raise Cut

    with pytest.raises(Cut):  # the last save was after 256 steps
        train(dataclasses.replace(parts, checkpoint_every_steps=128), after_update=cut)
    assert load_checkpoint(path).state["env_steps"] == 256
    resumed = train(dataclasses.replace(parts, resume=True))
    assert resumed.resumed_at == 256 and whole.resumed_at == 0
    assert resumed.env_steps == whole.env_steps and resumed.updates == whole.updates
    assert resumed.episodes == whole.episodes and resumed.mean_return == whole.mean_return
    for own, twin in zip(weights(resumed), weights(whole), strict=True):
        assert (own == twin).all()


def test_a_run_of_one_learner_continues_with_the_other(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(changed(total_timesteps=320, checkpoint=path))
    resumed = train(changed(checkpoint=path, resume=True, learner="torch"))
    whole = train(SMALL)
    for own, twin in zip(weights(resumed), weights(whole), strict=True):
        np.testing.assert_allclose(own, twin, rtol=0, atol=1e-5)
    assert (
        train(changed(checkpoint=path, resume=True, learner="auto", total_timesteps=700)).learner == "torch"
    )


def test_the_entropy_bonus_is_annealed_alike_by_both_learners() -> None:
    annealed = changed(ent_coef=0.5, anneal_ent_coef=True, learning_rate=3e-3, threads=1)
    fused, plain = (
        weights(train(dataclasses.replace(annealed, learner=name))) for name in ("fused", "torch")
    )
    constant = weights(train(dataclasses.replace(annealed, anneal_ent_coef=False)))
    for own, twin in zip(fused, plain, strict=True):
        np.testing.assert_allclose(own, twin, rtol=0, atol=1e-5)
    assert any(np.abs(own - other).max() > 1e-3 for own, other in zip(fused, constant, strict=True))
    with pytest.raises(HotloopError, match="has ent_coef in its graph"):
        train(dataclasses.replace(annealed, learner="compiled"))


def test_a_run_of_hotloop_0_1_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    path = written_by_0_1("ppo.safetensors", tmp_path)
    config = PPOConfig(total_timesteps=4096, net_arch=(8,), learner="torch", threads=1, quiet=True)
    resumed = train(dataclasses.replace(config, checkpoint=path, resume=True))
    whole = train(config)
    assert resumed.resumed_at == 2048 and resumed.episodes == whole.episodes
    for own, twin in zip(weights(resumed), weights(whole), strict=True):
        # The first half was computed on another machine, whose processor may round otherwise (6e-8 seen).
        np.testing.assert_allclose(own, twin, atol=1e-6)
    with pytest.raises(CheckpointError, match=r"gamma was 0.99, is 0.9\b"):
        train(dataclasses.replace(config, checkpoint=path, resume=True, gamma=0.9))


PLAIN = """
import sys
from hotloop.rl.train import ppo, recurrent_ppo
from tests.learning.test_recurrent_ppo import SMALL, cues

config = ppo.PPOConfig(env="CartPole-v1", total_timesteps=192, n_envs=4, n_steps=16, batch_size=32)
found = ppo.train(dataclasses.replace(config, learner="torch", threads=1, quiet=True, n_eval_episodes=2))
print(found.learner, found.env_steps, found.evaluation_return > 0)
found = recurrent_ppo.train(dataclasses.replace(SMALL, total_timesteps=256, channels=4), cues(8))
print(found.learner, found.env_steps, found.statistics["grad_norm"] > 0)
print([name for name in sys.modules if "train.fused" in name])
"""


@pytest.mark.long
def test_the_plain_learners_run_without_any_compiled_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import dataclasses" + PLAIN],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["torch 192 True", "torch 256 True", "[]"]


def test_masked_envs_that_cannot_be_saved_restart_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.safetensors"
    train(changed(checkpoint=path), envs=MaskedIdentity(4))
    result = train(changed(checkpoint=path, resume=True, total_timesteps=704), envs=MaskedIdentity(4))
    assert result.env_steps == 704
    assert "starts new episodes" in capsys.readouterr().err


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    train(changed(checkpoint=path))
    with pytest.raises(CheckpointError, match=r"other settings \(net_arch was \[16\], is \[8\]\)"):
        train(changed(checkpoint=path, resume=True, net_arch=(8,)))
    with pytest.raises(CheckpointError, match="seed was 0, is 1"):
        train(changed(checkpoint=path, resume=True, seed=1))
    own = {f"setting_{letter}": 1 for letter in "abcdefgh"}
    with pytest.raises(CheckpointError, match=r"setting_f was 1, is 2; and 2 more\); use the same settings"):
        runs.check_same_settings(path, own, dict.fromkeys(own, 2), frozenset())
    with pytest.raises(CheckpointError) as refused:
        runs.check_same_settings(path, own, {"gamma": 0.9}, frozenset())
    assert str(refused.value) == (
        f"{path} is an agent of another trainer (it has setting_a, setting_b and 6 more settings that are "
        "unknown here); use another checkpoint path."
    )
    assert train(changed(checkpoint=path, resume=True, total_timesteps=704)).env_steps == 704


def test_truncated_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        train(changed(checkpoint=path, resume=True))
    train(changed(checkpoint=path))
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="is truncated or damaged"):
            load_checkpoint(path)
    path.write_bytes(whole.replace(b'"format_version":"3"', b'"format_version":"9"'))
    with pytest.raises(CheckpointError, match=r"version '9'; this hotloop reads versions 1 to 3"):
        load_checkpoint(path)


def test_a_save_that_fails_keeps_the_old_file_and_leaves_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, {"a": np.arange(3)}, {"x": 1}, {})
    with pytest.raises(TypeError):
        save_checkpoint(path, {"a": np.arange(4)}, {"x": object()}, {})
    assert load_checkpoint(path).arrays["a"].tolist() == [0, 1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poisoned(Endless):
        calls = 0

        def move(self, actions: np.ndarray) -> Any:
            self.calls += 1
            rewards, done = super().move(actions)
            return np.full_like(rewards, np.nan if self.calls > 100 else 1.0), done

    for learner in ("fused", "torch"):
        path = tmp_path / f"{learner}.safetensors"
        config = changed(checkpoint=path, checkpoint_every_steps=1, learner=learner, allow_nonfinite=True)
        with pytest.raises(TrainingDiverged, match=f"value_loss is nan.*last good checkpoint is {path}"):
            train(config, envs=Poisoned(4))
        saved = load_checkpoint(path)
        assert saved.state["env_steps"] == 384  # six rollouts of 16 steps x 4 envs were clean
        assert all(np.isfinite(array).all() for array in saved.arrays.values())
    with pytest.raises(TrainingDiverged, match="no checkpoint had been written yet"):
        train(dataclasses.replace(SMALL, allow_nonfinite=True), envs=Poisoned(4))


def test_an_env_that_raises_leaves_the_checkpoint_and_the_process_whole(tmp_path: Path) -> None:
    class Broken(Identity):
        calls = 0

        def move(self, actions: np.ndarray) -> Any:
            self.calls += 1
            if self.calls > 40:
                raise RuntimeError("the simulator died")
            return super().move(actions)

    path = tmp_path / "run.safetensors"
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="the simulator died"):
        train(changed(checkpoint=path, checkpoint_every_steps=1), envs=Broken(4))
    assert load_checkpoint(path).state["env_steps"] == 128
    assert torch.get_num_threads() == threads and signal.getsignal(signal.SIGTERM) == handler


def test_a_signal_saves_a_checkpoint_and_the_resumed_run_ends_at_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"

    def ask(steps: int, _: dict[str, float]) -> None:
        if steps == 192:
            os.kill(os.getpid(), signal.SIGTERM)

    result = train(changed(checkpoint=path), after_update=ask)
    assert result.stopped_by == "SIGTERM" and result.env_steps == 192
    resumed = train(changed(checkpoint=path, resume=True))
    for own, twin in zip(weights(resumed), weights(train(SMALL)), strict=True):
        assert (own == twin).all()


def test_a_process_asked_to_stop_ends_well_with_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    program = (
        "import sys; from pathlib import Path; from hotloop.rl.train.ppo import *\n"
        f"result = train(PPOConfig(total_timesteps=10**9, checkpoint=Path({str(path)!r}), learner='fused',\n"
        "    checkpoint_every_steps=1, quiet=True))\n"
        "print(result.stopped_by, result.env_steps)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    for _ in range(600):
        if path.is_file() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    stopped_by, steps = out.split()
    assert process.returncode == 0 and stopped_by == "SIGTERM"
    assert load_checkpoint(path).state["env_steps"] == int(steps)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 33}, r"batch_size=33 does not divide n_envs \* n_steps = 64.*use 16, 32 or 64"),
        ({"batch_size": 1}, "does not divide"),
        ({"batch_size": 128}, "does not divide"),
        ({"n_envs": 0}, "n_envs=0 must be at least 1"),
        ({"threads": -1}, "threads=-1 must be at least 1, or 0 to choose by measuring"),
        ({"total_timesteps": -5}, "total_timesteps=-5 must be at least 1"),
        ({"gamma": 1.5}, "gamma=1.5 must be between 0 and 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be above 0"),
        ({"net_arch": ()}, "net_arch=.. must be widths"),
        ({"net_arch": (8, 0)}, "must be widths"),
        ({"activation": "sine"}, "activation='sine' is unknown; use tanh or relu"),
        ({"learner": "magic"}, "learner='magic' is unknown; use auto, fused, torch or compiled"),
        ({"env": "NoSuchEnv-v7"}, "env='NoSuchEnv-v7' is unknown.*CartPole"),
        ({"env": "Pendulum-v1"}, "needs one array of observations .* and discrete actions; Pendulum-v1"),
        ({"resume": True}, "resume=True needs a checkpoint"),
    ],
)
def test_impossible_settings_are_one_clear_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(HotloopError, match=words):
        train(changed(**settings))


def test_envs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(HotloopError, match="n_envs=4 does not match the 3 envs"):
        train(SMALL, envs=Identity(3))
    from gymnasium.vector import AutoresetMode

    with pytest.raises(HotloopError, match="autoreset disabled"):
        train(SMALL, envs=Identity(4, mode=AutoresetMode.DISABLED))


def test_the_choice_of_learner_is_measured_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    result = train(changed(learner="auto", quiet=False))
    said = capsys.readouterr().err
    assert f"hotloop: learner {result.learner} (one gradient step: " in said
    assert "fused" in said and "torch" in said and " ms" in said


def test_threads_are_measured_where_a_gradient_step_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "THREADS_PAY_OFF_MS", 0.0)
    monkeypatch.setattr(runs, "cores_granted", lambda: 2.0)
    before = torch.get_num_threads()
    for times, threads in (([8.0, 3.0], 2), ([8.0, 7.9], 1)):
        left = list(times)
        torch.set_num_threads(1)
        found = runs.choose_threads(lambda left=left: left.pop(0), quiet=False)  # type: ignore[misc]
        assert found == min(times) and torch.get_num_threads() == threads
        assert f"torch uses {counted(threads, 'thread')} (" in capsys.readouterr().err
    torch.set_num_threads(before)


def test_what_a_trainer_frees_is_in_the_region_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Replay:
        def __del__(self) -> None:
            said.append("freed")

    @contextmanager
    def region() -> Iterator[None]:
        said.append("entered")
        yield
        said.append("left")

    @runs.frees_in_region
    def trainer(result: int) -> int:
        replay = Replay()
        said.append(f"trains with {type(replay).__name__}")
        runs.begin_shut_down()
        return result

    monkeypatch.setattr(runs, "shut_down", region())
    assert trainer(3) == 3
    assert said == ["trains with Replay", "entered", "freed", "left"]


def test_the_config_is_plain_data() -> None:
    assert runs.settings_as_json(changed(checkpoint=Path("a/b")))["checkpoint"] == "a/b"


def test_the_progress_line_shows_rate_and_time_left() -> None:
    clock, out = FakeClock(), io.StringIO()
    line = ProgressLine(10_000, 0, stream=out, clock=lambda: clock() / 1e9)
    clock.advance(1_000_000_000)
    line.update(100, None)
    assert out.getvalue() == ""  # not a terminal: every ten seconds
    clock.advance(9_000_000_000)
    line.update(2_000, 12.34, "fused")
    line.close()
    assert out.getvalue() == "2,000 / 10,000 steps  200 steps/s  37.9 s left  return 12.3  fused\n"


def test_the_time_left_leaves_out_the_warm_up() -> None:
    clock, out = FakeClock(), io.StringIO()
    line = ProgressLine(10_000, 0, stream=out, clock=lambda: clock() / 1e9)
    clock.advance(60_000_000_000)  # compiling, then the first update
    line.update(100, None)
    clock.advance(10_000_000_000)
    line.update(1_100, None)
    assert out.getvalue().splitlines() == [
        "100 / 10,000 steps  2 steps/s",
        "1,100 / 10,000 steps  16 steps/s  89.0 s left",
    ]


def test_a_second_interrupt_does_not_wait() -> None:
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.by == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


def test_recent_episodes_know_nothing_before_the_first_ended() -> None:
    recent = RecentEpisodes(keep=2)
    assert recent.mean_return is None
    recent.add([1.0, 2.0, 4.0], [1, 1, 1])
    assert recent.mean_return == 3.0 and recent.finished == 3


def test_metrics_without_tensorboard_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(HotloopError, match="needs the package 'tensorboard'"):
        TensorboardLog(tmp_path)
    TensorboardLog(None).write(1, {"a": 1.0})
