"""What `hotloop train` takes from presets and tuning, and its memory plan against the memory of runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop._util.errors import HotloopError
from hotloop.cli.main import main
from hotloop.cli.train import Arguments, read
from hotloop.rl.workloads.memory_estimates import estimate_memory, replay_bytes, rollout_bytes
from hotloop.rl.workloads.petri import Petri
from hotloop.rl.workloads.ricochet import Ricochet
from hotloop.rl.workloads.snake import Snake, make_envs
from hotloop.tuning.cache import Tuned, cache_file, recall, remember, tuned_elsewhere
from hotloop.workflows import train_predictions
from hotloop.workflows.train_predictions import memory_plan, predict
from hotloop.workflows.train_settings import largest_divisor
from tests.edited import edit_json


def arguments(*words: str) -> Arguments:
    found = read(list(words))
    assert found is not None
    return found


# ---- presets


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ricochet", "--preset", "small-ram"), {"n_envs": 2}),
        (("ricochet", "--preset=many-cores"), {"n_envs": 12}),
        (("ricochet", "--preset", "quick"), {"n_envs": 4, "total_timesteps": 100_000, "n_epochs": 3}),
        # 12 does not divide 2048, the samples of a rollout
        (("petri", "--preset", "gpu"), {"n_envs": 8, "n_steps": 256, "batch_size": 512}),
        # flags win
        (("petri", "--preset", "quick", "--n-envs", "16"), {"n_envs": 16, "total_timesteps": 100_000}),
        (("snake", "--preset", "gpu"), {"n_envs": 12, "batch_size": 512}),
        (("snake", "--preset", "quick"), {"n_envs": 4, "stop_at_episodes": 50}),
    ],
)
def test_a_preset_replaces_the_defaults(words: tuple[str, ...], expected: dict[str, int]) -> None:
    given = arguments(*words)
    assert {name: getattr(given.config, name) for name in expected} == expected
    assert given.chosen.messages[0].startswith("preset ")


def test_messages_leave_out_what_flags_decide(tmp_path: Path) -> None:
    (tmp_path / "shop.txt").write_text("1 1\n0 5\n")
    for words in (
        ["petri", "--net", str(tmp_path / "shop.txt"), "--total-timesteps", "64"],
        ["mario", "--total-timesteps=64"],
        ["petri", "--preset", "quick", "--total-timesteps", "64"],
    ):
        [said, *_] = read(words).chosen.messages
        assert "total_timesteps" not in said and "=" in said
        [said, *_] = read(
            [word for word in words if word != "64" and not word.startswith("--total-timesteps")]
        ).chosen.messages
        assert "total_timesteps=" in said


def test_a_preset_names_the_settings_it_could_not_apply() -> None:
    said = " ".join(arguments("petri", "--preset", "many-cores").chosen.messages)
    assert "n_envs=8 instead of 12" in said and "demonstration_workers=12" in said
    with pytest.raises(HotloopError, match="petri has no preset 'big'; use one of small-ram"):
        read(["petri", "--preset", "big"])
    with pytest.raises(HotloopError, match=r"ricochet has no preset 'picture'; use one of .*, pictures"):
        read(["ricochet", "--preset", "picture"])
    assert largest_divisor(2048, 12) == 8 and largest_divisor(7, 6) == 1


def test_a_job_shop_has_settings_of_its_own_unless_flags_choose_how_to_train(tmp_path: Path) -> None:
    shop, net = tmp_path / "tiny.txt", tmp_path / "net.pnml"
    shop.write_text("2 2\n0 3 1 4\n1 2 0 5\n")
    found = arguments("petri", "--net", str(shop), "--seed", "3", "--total-timesteps", "5000")
    assert (found.config.n_steps, found.config.n_envs, found.config.batch_size) == (4, 256, 128)
    assert found.config.anneal_ent_coef and (found.config.gamma, found.config.total_timesteps) == (1.0, 5000)
    assert found.chosen.messages[0].startswith("job shop: ")
    for file, *words in ((shop, "--n-envs", "16"), (net,), (tmp_path / "missing.txt",)):
        plain = arguments("petri", f"--net={file}", *words)
        assert not plain.chosen.messages and plain.config == Petri(net=file)


def test_doctor_lists_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "small-ram" in text and "demonstration_workers=12" in text and "batch_size=512" in text


# ---- what tuning found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hotloop/tuned.json"


FOUND = Tuned(
    target="petri",
    base={"wafers": 4, "n_epochs": 4},
    safe={"learner": "fused"},
    semantic={"learner": "fused", "n_envs": 64, "n_steps": 32},
    invariants=("n_envs: n_envs * n_steps stays 2048",),
    safe_gain="faster by 4.0 % [2.0, 6.0]",
    semantic_gain="faster by 30.0 % [28.0, 32.0]",
    rate_per_s=1000.0,
    semantic_rate_per_s=1300.0,
)


def test_tuned_settings_are_applied_safe_ones_first(cache: Path) -> None:
    assert remember(FOUND) and cache_file() == cache
    safe = arguments("petri", "--tuned")
    assert (safe.config.learner, safe.config.n_envs) == ("fused", 16)
    assert "faster by 4.0 %" in safe.chosen.messages[0] and "--tuned-semantic" in safe.chosen.messages[1]
    every = arguments("petri", "--tuned-semantic", "--wafers", "6")
    assert (every.config.learner, every.config.n_envs, every.config.wafers) == ("fused", 64, 6)
    assert any("n_steps stays" in sentence for sentence in every.chosen.messages)
    assert every.chosen.rate_per_s == 1300.0
    from hotloop.workflows.train_settings import messages_before_training

    assert messages_before_training("petri", every.chosen, every.config)[-1] == "it was tuned with wafers=4"
    assert "tuned with" not in " ".join(messages_before_training("petri", safe.chosen, safe.config))


def test_results_are_cached_by_hardware_and_versions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recall("petri") is None and not tuned_elsewhere("petri")
    remember(FOUND)
    again = recall("petri")
    assert again is not None and again.at_s > 0 and replace(again, at_s=0.0) == FOUND
    monkeypatch.setattr("hotloop.tuning.cache.library_versions", lambda: {"torch": "99"})
    assert recall("petri") is None and tuned_elsewhere("petri")
    with pytest.raises(HotloopError, match="other hardware or with other versions"):
        read(["petri", "--tuned"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1, "checksum": "crc32:00000000"}'])
def test_a_broken_cache_says_so_and_is_replaced_by_the_next_result(cache: Path, text: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    with pytest.raises(HotloopError, match="delete it, and tune again"):
        read(["petri", "--tuned"])
    assert remember(FOUND) and recall("petri") is not None


def test_a_flipped_digit_in_the_cache_is_noticed(cache: Path) -> None:
    remember(FOUND)
    cache.write_text(cache.read_text().replace("2.0, 6.0", "2.0, 7.0"))
    with pytest.raises(HotloopError, match="does not match its checksum"):
        recall("petri")


def test_entries_of_another_version_are_tuned_again(cache: Path) -> None:
    remember(FOUND)
    edit_json(cache, lambda data: next(iter(data.values()))["petri"].update(version=99))
    assert recall("petri") is None


# ---- the memory plan


def test_estimated_bytes_are_those_of_the_buffers() -> None:
    from hotloop.rl.buffers.replay import ReplayBuffer
    from hotloop.rl.buffers.rollout import RolloutBuffer

    for masked in (True, False):
        made = RolloutBuffer(7, 5, (3, 2), 4, masked=masked)
        held = sum(value.nbytes for value in vars(made).values() if hasattr(value, "nbytes"))
        assert rollout_bytes(7, 5, 3 * 2 * 4, 4, masked) == held
    envs = make_envs(Snake(n_envs=8))
    space, actions = envs.single_observation_space, envs.single_action_space
    stored = ReplayBuffer(1000, 8, space, actions).bytes_stored
    assert 0 <= stored - replay_bytes(1000, 8, space, actions) <= 64


def test_a_run_that_cannot_fit_is_refused_with_the_setting_that_would(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Snake(buffer_size=900_000_000)
    with pytest.raises(HotloopError, match=r"replay of 900,000,000 .*--buffer-size \d+ would fit") as refused:
        predict("snake", config, available_bytes=4 << 30)
    value = int(str(refused.value).split("--buffer-size ")[1].split()[0])
    fitting = predict("snake", replace(config, buffer_size=value), available_bytes=4 << 30)
    assert fitting is not None and fitting.plan.fits()
    monkeypatch.setattr(train_predictions, "memory_available_bytes", lambda: 1 << 30)
    assert main(["train", "ricochet", "--n-envs", "100000", "--no-profiling"]) == 2
    assert "--n-envs" in capsys.readouterr().err


def test_the_plan_grows_with_the_settings_it_names() -> None:
    for name, config, setting in (
        ("snake", Snake(), "buffer_size"),
        ("petri", Petri(), "n_steps"),
        ("ricochet", Ricochet(), "n_envs"),
    ):
        more = replace(config, **{setting: 8 * getattr(config, setting)})
        small, large = estimate_memory(name, config), estimate_memory(name, more)
        assert small is not None and large is not None
        assert sum(n.bytes for n in large) > sum(n.bytes for n in small)
        assert any(part.setting == setting for part in large)


def test_invalid_settings_are_left_to_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_plan("petri", Petri(wafers=0)) is None
    assert main(["train", "petri", "--n-envs", "0", "--no-profiling"]) == 2
    assert "n_envs=0 must be at least 1" in capsys.readouterr().err


MEASURE = """
import importlib, json, sys
from hotloop.workflows.train import config_class
from hotloop.workflows import train_predictions
from hotloop.workflows.train_predictions import ChildrenMemory, memory_plan, run_peak_bytes
name, given = sys.argv[1], json.loads(sys.argv[2])
config = config_class(name)(**given)
plan = memory_plan(name, config)
with ChildrenMemory(0.1) as children:
    importlib.import_module(f"hotloop.rl.workloads.{name}").run(config, None, True)
print(json.dumps([plan.total_bytes, run_peak_bytes(None, children)]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "given"),
    [
        pytest.param(
            "petri",
            {"n_steps": 4096, "total_timesteps": 1, "n_envs": 64, "n_epochs": 1, "batch_size": 2048}
            | {"learner": "fused"},
            marks=pytest.mark.long,
        ),
        ("snake", {"buffer_size": 2_000_000, "total_timesteps": 2_100_000, "gradient_steps": 0}),
        pytest.param(
            "ricochet",
            {"total_timesteps": 1, "n_envs": 32, "n_steps": 32, "n_epochs": 1},
            marks=pytest.mark.long,
        ),
        *(
            pytest.param(name, given, marks=pytest.mark.long)
            for name, given in (
                (
                    "snake",
                    {
                        "variant": "original",
                        "n_envs": 64,
                        "total_timesteps": 4000,
                        "learning_check_steps": 6400,
                    },
                ),
                ("snake", {"learner": "compiled", "total_timesteps": 4000}),
                ("snake", {"trainer": "sb3", "n_envs": 16, "total_timesteps": 4000}),
                ("petri", {"total_timesteps": 6000, "learner": "torch"}),
                ("petri", {"total_timesteps": 6000, "learner": "fused", "trainer": "torchrl"}),
                ("petri", {"total_timesteps": 6000, "learner": "fused", "trainer": "sb3"}),
                ("ricochet", {"total_timesteps": 1, "n_epochs": 1, "n_eval_episodes": 300}),
                (
                    "ricochet",
                    {"total_timesteps": 1, "algo": "dagger", "encoder": "scan", "robots": 2, "n_envs": 64}
                    | {"channels": 48, "max_episode_steps": 6, "n_eval_episodes": 300},
                ),
                ("ricochet", {"total_timesteps": 1, "n_epochs": 1, "obs_mode": "symbolic"}),
                ("ricochet", {"total_timesteps": 1, "n_epochs": 1, "trainer": "sb3"}),
            )
        ),
    ],
)
def test_the_memory_plan_is_within_15_percent_of_a_run(
    name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch compiles anew
    command = [sys.executable, "-c", MEASURE, name, json.dumps(given)]
    for _ in range(3):
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        if "compiling" not in ran.stderr:  # which takes memory of its own, once
            break
    predicted, measured = json.loads(ran.stdout.splitlines()[-1])
    assert predicted == pytest.approx(measured, rel=0.15)
