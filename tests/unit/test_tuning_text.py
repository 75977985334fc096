"""What tuning prints: whole at 80 columns, and in the right words for what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.tune_text import tuning_text
from hotloop.report.pen import Pen
from hotloop.rl.workloads.imitate import Imitate
from hotloop.rl.workloads.snake import Snake
from hotloop.tuning.cache import Tuned
from hotloop.tuning.search import SearchResult
from hotloop.tuning.space import Settings
from hotloop.tuning.time_model import Probe
from hotloop.workflows.tune import UPDATE, Tuning
from hotloop.workflows.tune_workload import WorkloadTarget

PLAIN = Pen(width=80, colour=False, unicode=False)


def text_of(target: WorkloadTarget, met: list[Settings], **more: Any) -> str:
    probes = tuple(Probe(settings, 1e-3 * (place + 1)) for place, settings in enumerate(met))
    now = target.space.current
    searched = SearchResult(
        target.space, probes, None, now, now, 30, 2, 21.0, predicted_s={met[0]: 0.002}, finalists=tuple(met)
    )
    return tuning_text(Tuning(target, searched, Path("t"), (), Tuned(target.name, {}), **more), PLAIN)


def test_shared_settings_are_shown_once() -> None:
    target = WorkloadTarget("snake", Snake(variant="original"), cores=2)
    fast = {"learner": "fused", "loop": "kernel", "push": "batch", "transfers": "batch", "split": "off"}
    best = target.space.with_values(target.space.current, **fast)
    more = target.space.with_values(best, n_envs=1024)
    text = text_of(target, [best, more, target.space.current])
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split()[:3] for line in text.splitlines() if line.startswith("  n_envs=")]
    assert rows == [
        ["n_envs=256", "500/s", "1,000/s"],
        ["n_envs=1024", "-", "500/s"],
        ["n_envs=256", "(yours)", "-"],
    ]
    assert "All but yours have learner=fused loop=kernel push=batch" in text
    assert "env steps per second of the best settings" in text and "2 combinations were left out" in text


def test_a_stage_without_env_steps_is_measured_in_updates() -> None:
    target = WorkloadTarget("imitate", Imitate(stage="bc"), cores=2)
    others = [
        target.space.with_values(target.space.current, learner="torch", loading=way)
        for way in ("loader:0", "loader:1")
    ]
    text = text_of(target, [target.space.current, *others], unit=UPDATE)
    assert "Tuning imitate --stage bc" in text and "updates per second of the best settings" in text
    assert "loading=index (yours)" in text and "All but yours have learner=torch." in text
    assert "Keep your settings: " in text or "No result: " in text


@pytest.mark.parametrize(("safe", "next_words"), [({"learner": "torch"}, "--stage bc --tuned"), ({}, "")])
def test_the_next_command_names_the_stage(safe: dict[str, Any], next_words: str) -> None:
    target = WorkloadTarget("imitate", Imitate(stage="bc"), cores=2)
    now = target.space.current
    searched = SearchResult(target.space, (Probe(now, 1e-3),) * 3, None, now, now, 3, 0, 1.0)
    tuned = Tuned(target.name, {}, safe, safe_gain="faster")
    text = tuning_text(Tuning(target, searched, Path("t"), (), tuned), PLAIN)
    assert (f"next: hotloop train imitate {next_words}" in text) == bool(safe)


def test_too_little_time_names_a_sufficient_budget() -> None:
    target = WorkloadTarget("imitate", Imitate(stage="rl"), cores=2)
    now = target.space.current
    searched = SearchResult(target.space, (Probe(now, 1e-3, spent_s=5.0),), None, now, now, 14, 0, 5.0)
    text = tuning_text(Tuning(target, searched, Path("t"), (), Tuned(target.name, {})), PLAIN)
    said = " ".join(text.split())
    assert "time to try 1 of 14 combinations; each takes 5 s here, so give about --budget 4m." in said


def test_the_next_command_has_the_settings_that_were_given_but_not_those_that_were_tuned() -> None:
    target = WorkloadTarget("snake", Snake(variant="original", learner="torch", n_envs=64), cores=2)
    assert target.command_for({"learner": "fused"}) == (
        *("hotloop", "train", "snake", "--n-envs", "64", "--variant", "original"),
    )
