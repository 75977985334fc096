"""An update is one gradient step of every network: counted from the steps of several optimizers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.capture.facts import read_libraries
from hotloop.instrument import process_facts, step_counting, torch_mlps, update_counting
from hotloop.measure.profiler import default


class Optimizer:
    param_groups: tuple[Any, ...] = ()


@pytest.fixture
def recording() -> Iterator[None]:
    update_counting.begin_training()
    default.start()
    yield
    default.stop()


OPTIMIZERS = {name: Optimizer() for name in "qaxbv"}


def updates(steps: str) -> int:
    """Updates of a sequence of optimizer steps; a dot is an env step."""
    before = default.capture().progress.updates
    for step in steps:
        if step == ".":
            step_counting.single_step(OPTIMIZERS, ("observation", 1.0, False, False, {}))
        else:
            update_counting.count_step(OPTIMIZERS[step], None)
    return default.capture().progress.updates - before


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("q.q.q.", 3),  # DQN
        ("qax." * 5, 5),  # SAC: critic, actor, temperature
        ("q.qaxax." * 5, 10),  # SAC with a delayed policy that makes up for it
        ("axq." * 5, 5),
        ("q.qa." * 5, 10),  # TD3: the actor at every second step
        (("a" * 80 + "v" * 80 + ".") * 3, 240),  # PPO with two optimizers, one after the other
        (("a" * 5 + "v" * 80 + ".") * 3, 240),  # stopped early by the KL divergence
        ("....", 0),
        ("ab." * 7, 7),  # two agents that learn independently
        ("q" * 10, 10),  # offline: no env at all
        ("qa" * 10, 10),
        ("q." * 100 + "qa." * 100, 200),  # the actor begins late
    ],
)
def test_updates(recording: None, steps: str, expected: int) -> None:
    assert updates(steps) == expected


def test_a_second_training_in_the_same_script_counts_too(recording: None) -> None:
    assert updates("qax." * 50 + "bv." * 30) == 80


def test_a_library_that_begins_a_training_is_noticed(recording: None) -> None:
    assert updates("q." * 50) == 50
    update_counting.begin_training()
    assert updates("bb.") == 2


@given(st.lists(st.text(alphabet="qa", max_size=6), max_size=40))
def test_updates_lie_between_the_most_steps_and_all_steps(rounds: list[str]) -> None:
    steps = "".join(one + "." for one in rounds)
    update_counting.begin_training()
    default.start()
    try:
        counted = updates(steps)
    finally:
        default.stop()
    assert counted <= steps.count("q") + steps.count("a")
    if all("q" in one or "a" not in one for one in rounds) and all(
        one.count("q") >= one.count("a") for one in rounds
    ):
        assert counted == steps.count("q")  # it leads in every round


def test_steps_of_each_optimizer_are_in_the_capture(
    recording: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_facts, "default", SimpleNamespace(folder=tmp_path, is_recording=True))
    update_counting.forget_parent()
    updates("qax.qa.")
    process_facts.save()
    update_counting.forget_parent()
    (file,) = (tmp_path / "libraries").glob("*.json")
    (facts,) = read_libraries(tmp_path / "libraries", [])
    assert [one["steps"] for one in facts["optimizers"]] == [2, 2, 1]
    assert facts["optimizers"][0]["class"] == "Optimizer"
    assert json.loads(file.read_text())["optimizers"] == facts["optimizers"]


def test_parameters_in_mlps_are_counted() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    mlp = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 2)))
    others = [
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(4, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double(),
        nn.Linear(4, 8),
    ]
    in_mlp = sum(one.numel() for one in mlp.parameters())
    assert torch_mlps.parameters_in_mlps(mlp.parameters()) == in_mlp
    for other in others:
        assert torch_mlps.parameters_in_mlps(other.parameters()) == 0
        assert torch_mlps.parameters_in_mlps([*mlp.parameters(), *other.parameters()]) == in_mlp
