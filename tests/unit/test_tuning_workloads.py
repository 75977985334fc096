"""What tuning does to the settings of each workload: which it tries, what it keeps, what it remembers."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from hotloop._util.errors import HotloopError
from hotloop.cli.train import read
from hotloop.cli.tune import read as read_tune
from hotloop.rl.buffers.demonstrations import DemonstrationStore
from hotloop.rl.train.dqn import check_config as check_dqn
from hotloop.rl.workloads import imitate_rl
from hotloop.rl.workloads.imitate import Imitate
from hotloop.rl.workloads.mario import Mario
from hotloop.rl.workloads.petri import Petri
from hotloop.rl.workloads.ricochet import Ricochet
from hotloop.rl.workloads.snake import Snake, dqn_config
from hotloop.tuning.cache import Tuned, remember
from hotloop.tuning.space import Settings
from hotloop.workflows.experiments import Progress
from hotloop.workflows.probe_host import _given
from hotloop.workflows.probes import CONFIG_VARIABLE
from hotloop.workflows.train_settings import messages_before_training
from hotloop.workflows.tune import TuneTerms, tune
from hotloop.workflows.tune_knobs import TUNABLE
from hotloop.workflows.tune_workload import WorkloadTarget

CORES = 2
# name of the workload, settings in use
EVERY: list[tuple[str, Any]] = [
    ("petri", Petri()),
    ("ricochet", Ricochet()),
    ("ricochet", Ricochet(obs_mode="symbolic")),
    ("ricochet", Ricochet(algo="dagger", encoder="scan")),
    ("ricochet", Ricochet(trainer="sb3", rendering="pil")),
    ("snake", Snake()),
    ("snake", Snake(variant="original")),
    ("snake", Snake(gradient_steps=4, trainer="sb3")),
    ("mario", Mario()),
    ("mario", Mario(variant="original", channels=(8, 8, 8))),
    ("imitate", Imitate(stage="demos")),
    ("imitate", Imitate(stage="bc")),
    ("imitate", Imitate(stage="bc", workers=2)),
    ("imitate", Imitate(stage="rl")),
    ("imitate", Imitate(stage="rl", trainer="sb3")),
]
IDS = [f"{name}-{place}" for place, (name, _) in enumerate(EVERY)]


def check(name: str, config: Any) -> None:
    """What the workload itself says of the settings."""
    importlib.import_module(f"hotloop.rl.workloads.{name}").check(config)
    if name == "snake":
        check_dqn(dqn_config(config))


@pytest.mark.parametrize(("name", "config"), EVERY, ids=IDS)
def test_no_probe_has_settings_that_the_workload_refuses(
    name: str, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DemonstrationStore, "schema", lambda store: {})  # as if there were some
    monkeypatch.setattr(imitate_rl, "first_actor", lambda config: None)  # and a clone
    target = WorkloadTarget(name, config, cores=CORES)
    everything = list(target.space.all_settings())
    assert len(everything) > 1 and target.config_of(target.space.current) == config
    for settings in everything:
        check(name, target.config_of(settings))
        (variable, text), *_ = target.variables(settings)
        assert variable == CONFIG_VARIABLE
        check(name, type(config)(**_probe(config, text)))


def _probe(config: Any, text: str) -> dict[str, Any]:
    given = _given({"config": json.loads(text)})
    return given | ({"folder": Path(given["folder"])} if "folder" in given else {})


@pytest.mark.parametrize(("name", "config"), EVERY, ids=IDS)
def test_cached_settings_are_those_that_were_measured(name: str, config: Any) -> None:
    target = WorkloadTarget(name, config, cores=CORES)
    for settings in target.space.all_settings():
        kept = json.loads(json.dumps(target.changes(settings)))  # as the cache keeps it
        made = dataclasses.replace(config, **_given({"config": kept}))
        assert made == target.config_of(settings)
        names = {knob for knob, _ in target.space.changed(settings)}
        assert names <= set(kept), "every change is told"


def one(target: WorkloadTarget, **changes: Any) -> Settings:
    return target.space.with_values(target.space.current, **changes)


def test_only_changed_settings_of_a_variant_are_shown() -> None:
    target = WorkloadTarget("snake", Snake(variant="original"), cores=CORES)
    assert target.changes(one(target, learner="fused", transfers="batch")) == {
        "learner": "fused",
        "transfers": "batch",
    }
    assert not target.space.allowed(dict(one(target, learner="fused")))  # rows one by one need torch


def test_mario_is_tuned_with_its_learning_for_each_step_kept() -> None:
    target = WorkloadTarget("mario", Mario(variant="original"), cores=CORES)
    knobs = {knob.name: knob for knob in target.space.knobs}
    assert {n for n, k in knobs.items() if k.safety == "safe"} == {"layout", "transport", "threads"}
    assert "replay_ratio stays" in knobs["n_collectors"].invariant
    found = target.config_of(
        one(target, transport="rings", layout="fast", n_collectors=1, envs_per_collector=32)
    )
    now = found.settings
    assert (now.transport, now.layout) == ("rings", "fast")
    assert (now.n_collectors, now.envs_per_collector) == (1, 32)
    assert found.replay_ratio == Mario().replay_ratio and now.batch_size == 256
    small = WorkloadTarget("mario", Mario(buffer_size=100), cores=CORES)
    for settings in set(small.space.all_settings()) - {small.space.current}:
        games = int(dict(settings)["n_collectors"]) * int(dict(settings)["envs_per_collector"])
        assert 2 * games <= 100


def test_a_probe_of_mario_is_like_the_middle_of_a_training() -> None:
    config = TUNABLE["mario"].endless(Mario())
    assert config.exploration_initial_eps == Mario().exploration_final_eps  # actions come from the network
    assert config.settings.accumulate_grad_batches == 1 and config.settings.batch_size == 512
    assert config.learning_starts == 512
    assert config.target_every_updates == 4 * Mario().target_every_updates


def test_a_command_is_what_a_person_would_type() -> None:
    target = WorkloadTarget("mario", Mario(channels=(8, 16, 16), batch_norm=False), cores=CORES)
    words = " ".join(target.command(one(target, envs_per_collector=4)))
    assert words == "hotloop train mario --envs-per-collector 4 --no-batch-norm --channels 8 16 16"


def test_ways_of_loading_become_the_settings_of_imitate() -> None:
    target = WorkloadTarget("imitate", Imitate(stage="bc", workers=2), cores=CORES)
    assert dict(target.space.current) == {"learner": "torch", "loading": "loader:2"}
    assert not target.space.allowed({"learner": "fused", "loading": "loader:0"})
    index = target.config_of(one(target, loading="index", learner="fused"))
    assert index.dataloader_workers is None and index.learner == "fused"
    slow = target.config_of(one(target, loading="index"))
    assert slow.dataloader_workers is None and slow.learner == "torch"  # not what `auto` would take
    assert target.config_of(one(target, loading="loader:0")).dataloader_workers == 0
    assert dict(WorkloadTarget("imitate", Imitate(stage="bc"), cores=CORES).space.current) == {
        "learner": "fused",
        "loading": "index",
    }


def test_reinforcement_learning_keeps_its_updates_for_each_env_step() -> None:
    target = WorkloadTarget("imitate", Imitate(stage="rl", gradient_steps=2), cores=CORES)
    more, fewer = (target.config_of(one(target, n_envs=n_envs)) for n_envs in (64, 1))
    assert (more.train_freq, more.gradient_steps) == (1, 32)
    assert (fewer.train_freq, fewer.gradient_steps) == (2, 1)
    assert target.space.knob("n_envs").safety == "semantic"
    assert target.cycles and target.warm_up_updates  # its first steps are without updates
    assert not WorkloadTarget("imitate", Imitate(stage="demos"), cores=CORES).cycles


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Imitate(), "one stage at a time; add --stage demos, --stage bc or --stage rl"),
        (Imitate(stage="bc", folder=Path("nowhere")), "no demonstrations in nowhere"),
        (Mario(size=38), "size=38 must be a multiple of 4"),
        (Snake(n_envs=0), "n_envs=0 must be at least 1"),
        (Mario(), "--budget 4s is too short"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_runs(tmp_path: Path, config: Any, says: str) -> None:
    name = type(config).__name__.lower()
    budget_s = 4.0 if config == Mario() else 60.0
    with pytest.raises(HotloopError, match=says):
        tune(
            WorkloadTarget(name, config, cores=CORES),
            TuneTerms(budget_s),
            tmp_path / "t",
            Progress(quiet=True),
        )
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("words", ["petri", "ricochet", "snake", "mario", "imitate --stage rl --folder x"])
def test_the_flags_of_a_workload_and_of_tuning_do_not_meet(words: str) -> None:
    found = read_tune([*words.split(), "--probes", "here", "--budget", "9s"])
    assert found is not None and (found.options.probes, found.options.budget) == (Path("here"), "9s")
    assert getattr(found.config, "folder", Path("x")) == Path("x")


def test_settings_to_search_besides_are_named() -> None:
    with pytest.raises(HotloopError, match="mario has no further settings"):
        WorkloadTarget("mario", Mario(), ("lr",), CORES)


# ---- what is remembered of a workload that is tuned stage by stage


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    remember(Tuned("imitate --stage demos", {"n_envs": 4}, {"workers": 2}, safe_gain="faster by 80 %"))
    rl = {"learner": "torch", "n_envs": 16}
    kept = ("n_envs: updates for each env step stay the same",)
    base = {"stage": "rl", "batch_size": 64}
    remember(
        Tuned("imitate --stage rl", base, {"learner": "torch"}, rl, kept, "faster", "more", 100.0, 300.0)
    )


def given(*words: str) -> Any:
    found = read(["imitate", *words])
    assert found is not None
    return found


@pytest.mark.usefixtures("cache")
def test_a_stage_takes_what_was_found_for_it() -> None:
    demos = given("--stage", "demos", "--tuned")
    assert demos.config.workers == 2 and demos.config.learner == "auto"
    assert demos.chosen.messages == ("tuned: workers=2 (faster by 80 %)",)
    rl = given("--tuned-semantic", "--stage=rl")
    assert (rl.config.n_envs, rl.config.learner, rl.config.workers) == (16, "torch", None)
    assert rl.chosen.rate_per_s == 300.0
    assert messages_before_training("imitate", rl.chosen, rl.config)[-1] == "it was tuned with batch_size=64"
    with pytest.raises(
        HotloopError, match="--stage bc was not tuned on this machine, or without a clear result; run"
    ):
        given("--stage", "bc", "--tuned")


@pytest.mark.usefixtures("cache")
def test_all_stages_take_what_was_found_for_each_but_no_setting_that_they_share() -> None:
    found = given("--tuned-semantic")
    assert (found.config.workers, found.config.n_envs, found.config.learner) == (2, 16, "auto")
    said = " | ".join(found.chosen.messages)
    assert "demos: tuned: workers=2" in said
    assert "rl: learner=torch is for that stage only; --stage rl applies it" in said
    assert found.chosen.rate_per_s is None
