"""Knobs and settings: which are allowed, which are safe, and commands with names in braces."""

from __future__ import annotations

import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.workloads.petri import Petri
from hotloop.rl.workloads.ricochet import Ricochet
from hotloop.rl.workloads.snake import Snake
from hotloop.tuning.space import Knob, Space, doubling
from hotloop.workflows.tune_script import ScriptTarget, TriedValues
from hotloop.workflows.tune_workload import WorkloadTarget

ENVS = Knob("envs", (1, 2, 4), 2, "envs", "semantic")
THREADS = Knob("threads", (1, 2), 2, "threads")
LEARNER = Knob("learner", ("fused", "torch"), "auto")


def test_all_settings_hold_the_current_ones_and_what_is_allowed() -> None:
    space = Space((ENVS, LEARNER), lambda settings: settings["envs"] != 4)
    found = list(space.all_settings())
    assert space.current in found and len(found) == len(set(found)) == 2 * 3
    assert not any(dict(settings)["envs"] == 4 for settings in found)


def test_the_current_value_counts_among_the_values() -> None:
    assert Knob("envs", (1, 4), 3, "envs").all_values == (1, 3, 4)
    assert LEARNER.all_values == ("auto", "fused", "torch")


def test_settings_are_safe_when_only_safe_knobs_differ() -> None:
    space = Space((ENVS, THREADS))
    assert space.is_safe((("envs", 2), ("threads", 1)))
    assert not space.is_safe((("envs", 4), ("threads", 2)))
    assert space.changed((("envs", 4), ("threads", 2))) == (("envs", 4),)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Knob("envs", (), 1, "envs"), "no values"),
        (lambda: Knob("envs", ("a",), 1, "envs"), "whole numbers"),
        (lambda: Space(()), "nothing to tune"),
        (lambda: Space((ENVS, ENVS)), "twice"),
        (
            lambda: Space(tuple(Knob(f"k{i}", tuple(range(30)), 0, "batch") for i in range(4))),
            "try fewer",
        ),
    ],
)
def test_a_space_that_cannot_be_searched_says_why(make: object, says: str) -> None:
    with pytest.raises(HotloopError, match=says):
        make()


def test_doubling_goes_up_to_the_limit() -> None:
    assert doubling(1, 9) == (1, 2, 4, 8) and doubling(3, 12) == (3, 6, 12) and doubling(8, 4) == ()


# ---- scripts


def script(*words: str, cores: float = 4, **wish: object) -> ScriptTarget:
    return ScriptTarget(("python", "train.py", *words), TriedValues(**wish), cores)  # type: ignore[arg-type]


def test_places_in_a_command_are_filled_and_rollouts_follow_the_envs() -> None:
    target = script("--n-envs", "{n_envs=8}", "--n-steps={n_steps=256}", "--seed", "{seed}", threads=False)
    assert target.command(target.space.current)[2:] == ("--n-envs", "8", "--n-steps=256", "--seed", "{seed}")
    assert target.command((("n_envs", 16),))[2:5] == ("--n-envs", "16", "--n-steps=128")
    assert target.changes((("n_envs", 16),)) == {"n_envs": 16, "n_steps": 128}
    knob = target.space.knob("n_envs")
    assert knob.safety == "semantic" and "n_envs * n_steps stays" in knob.invariant


def test_settings_that_do_not_divide_are_not_allowed() -> None:
    words = ("{n_envs=3}", "{n_steps=100}", "{gradient_steps=3}")
    target = script(*words, values=("n_envs=1,2,3,5,6,7",), threads=False)
    allowed = {dict(settings)["n_envs"] for settings in target.space.all_settings()}
    assert allowed == {1, 2, 3, 5, 6}  # 300 steps and 1 update per env
    assert target.changes((("n_envs", 6),)) == {"n_envs": 6, "n_steps": 50, "gradient_steps": 6}
    uneven = script("{n_envs=2}", "{gradient_steps=1}", values=("n_envs=1,2,3,4",))
    assert {dict(settings)["n_envs"] for settings in uneven.space.all_settings()} == {2, 4}


def test_threads_of_torch_are_tried_unless_the_command_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    target = script("{n_envs=2}")
    knob = target.space.knob("OMP_NUM_THREADS")
    assert knob.values == (1, 4) and knob.current == 4 and knob.safety == "safe"
    assert target.variables((("n_envs", 2), ("OMP_NUM_THREADS", 1))) == (("OMP_NUM_THREADS", "1"),)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert script("{n_envs=2}").space.knob("OMP_NUM_THREADS").current == 2
    assert [k.name for k in script("{threads}").space.knobs] == ["threads"]
    assert [k.name for k in script("{n_envs}", cores=1).space.knobs] == ["n_envs"]


def test_without_a_value_the_starting_rules_are_taken() -> None:
    target = script("{n_envs}", "{workers}", cores=4, threads=False)
    assert dict(target.space.current) == {"n_envs": 1, "workers": 2}  # 3 envs are not among the doublings
    assert target.space.knob("workers").all_values == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("words", "wish", "says"),
    [
        (("--lr", "1"), {"threads": False}, "nothing to tune"),
        (("{backend}",), {}, "--values backend="),
        (("{batch_size}",), {}, "batch_size=256"),
        (("{n_envs=x}",), {}, "whole number"),
        (("{n_steps=5}",), {}, "is computed from the number of envs"),
        (("{n_envs=2}", "{n_steps}"), {}, "needs its current value"),
        (("{n_envs=2}",), {"values": ("n_envs",)}, "is not a list"),
        (("{n_envs=2}",), {"values": ("workers=1,2",)}, "not in the command"),
        (("{n_envs=2}", "{n_envs=4}"), {}, "in one place"),
        (("{n_envs=2}", "{n_steps=8}"), {"values": ("n_steps=1,2",)}, "leave it out"),
    ],
)
def test_a_command_that_cannot_be_tuned_gets_a_reason(
    words: tuple[str, ...], wish: object, says: str
) -> None:
    with pytest.raises(HotloopError, match=says):
        script(*words, **wish)  # type: ignore[arg-type]


def test_user_defined_names_are_semantic_unless_declared_safe() -> None:
    target = script("{backend=dummy}", values=("backend=dummy,subproc",), safe=("backend",), threads=False)
    knob = target.space.knob("backend")
    assert (knob.values, knob.current, knob.safety) == (("dummy", "subproc"), "dummy", "safe")
    assert script("{x}", values=("x=a,b",), threads=False).space.knob("x").safety == "semantic"


# ---- workloads


def test_ricochet_keeps_the_samples_of_a_rollout() -> None:
    target = WorkloadTarget("ricochet", Ricochet(n_envs=16, n_steps=32), cores=2)
    assert target.changes((("threads", 1), ("n_envs", 64))) == {"n_envs": 64, "n_steps": 8}
    for settings in target.space.all_settings():
        config = target.config_of(settings)
        assert config.n_envs * config.n_steps == 512
    assert target.command((("threads", 2), ("n_envs", 64))) == (
        *("hotloop", "train", "ricochet", "--n-envs", "64"),
        *("--n-steps", "8", "--threads", "2"),
    )


def test_petri_keeps_the_samples_of_a_rollout_and_only_its_learner_is_safe() -> None:
    target = WorkloadTarget("petri", Petri(n_steps=6, batch_size=96), cores=2)
    values = target.space.knob("n_envs").values
    assert values == (1, 2, 4, 8, 16, 32)
    assert [knob.name for knob in target.space.knobs if knob.safety == "safe"] == ["learner"]
    assert "turbo" in [knob.name for knob in WorkloadTarget("petri", Petri(turbo=False), cores=2).space.knobs]
    with pytest.raises(HotloopError, match="batch_size"):
        WorkloadTarget("petri", Petri(), ("lr",), 2)
    assert WorkloadTarget("petri", Petri(), ("batch_size",), 2).space.knob("batch_size").role == "batch"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, (None, None)), ({"gradient_steps": 4}, (1, 8)), ({"train_freq": 4}, (2, 1))],
)
def test_snake_keeps_gradient_steps_per_env_step(given: dict[str, int], expected: tuple[int, int]) -> None:
    target = WorkloadTarget("snake", Snake(n_envs=256, **given), cores=2)  # type: ignore[arg-type]
    settings = target.space.with_values(target.space.current, n_envs=512)
    found = target.config_of(settings)
    assert (found.train_freq, found.gradient_steps) == expected
    assert target.config_of(target.space.current) == target.config


def test_the_slow_settings_of_snake_are_tuned_and_the_fast_ones_left() -> None:
    names = {knob.name for knob in WorkloadTarget("snake", Snake(variant="original"), cores=2).space.knobs}
    assert names >= {"learner", "loop", "push", "transfers", "split", "logging", "flood_fill", "n_envs"}
    names = {knob.name for knob in WorkloadTarget("snake", Snake(), cores=2).space.knobs}
    assert names == {"learner", "n_envs"}
