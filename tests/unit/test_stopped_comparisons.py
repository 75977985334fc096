"""Comparisons of `hotloop train` that were stopped: the command that goes on, and what it refuses."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Plan, Variant
from hotloop.cli.train import command_of_series, read
from hotloop.workflows.experiments import continue_series, create_series

PLAN = Plan(
    (Variant("turbo off", ("a",)), Variant("turbo on", ("b",))), seeds=(3, 4), budget_s=5.0, looks=(8,)
)


def test_the_command_that_goes_on_names_the_series() -> None:
    for words in (
        ["petri", "--compare", "--batches", "2", "--series", "old"],
        ["mario", "--benchmark", "--pairs=3", "--series=old", "--resume"],
    ):
        command = command_of_series(read(words), Path("runs/a b"))
        again = read(shlex.split(command)[2:])
        assert again.request.wanted and again.request.series == Path("runs/a b") and again.config.resume
        assert command.count("--series") == command.count("--resume") == 1


def test_a_series_goes_on_with_its_own_plan_only(tmp_path: Path) -> None:
    folder = tmp_path / "series"
    create_series(PLAN, folder, "test")
    more = dataclasses.replace(PLAN, budget_s=60.0, looks=(8, 12))
    found = continue_series(more, folder)
    assert (found.plan.budget_s, found.plan.looks) == (60.0, (8, 12))
    other = dataclasses.replace(
        PLAN, variants=(PLAN.variants[0], Variant("turbo on", ("b", "--n-envs", "4")))
    )
    for plan in (other, dataclasses.replace(PLAN, seeds=(5, 6))):
        with pytest.raises(HotloopError, match="was started with other settings, which cannot be mixed"):
            continue_series(plan, folder)
    with pytest.raises(HotloopError):
        continue_series(PLAN, tmp_path / "none")
