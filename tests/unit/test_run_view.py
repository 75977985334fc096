"""What advice sees of a run: the number of envs is what the envs report, not a ratio of counts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.analysis.advice.run_view import RunView, view_run
from hotloop.analysis.explain import explain_without_advice
from hotloop.testing.captures import Spec, make_capture

PID = 7


def view(env_steps: int, *libraries: dict[str, Any]) -> RunView:
    capture: Any = SimpleNamespace(
        facts={"libraries": list(libraries)}, progress=SimpleNamespace(env_steps=env_steps)
    )
    nothing: Any = None
    process: Any = SimpleNamespace(pid=PID)
    return RunView(capture, nothing, process, nothing, (), ())


def entry(num_envs: int, *policy_rows: int, pid: int = PID) -> dict[str, Any]:
    return {"pid": pid, "envs": [{"num_envs": num_envs}], "policy_rows": list(policy_rows)}


@pytest.mark.parametrize(
    ("entries", "envs"),
    [
        ([entry(1, 1)], 1),  # however few of the actions the policy chose
        ([entry(4, 4)], 4),
        ([entry(4, 1)], 4),  # the policy is called for one env after another
        ([entry(1, 8)], 8),  # the script stacks the observations of eight envs
        ([entry(1), entry(16, pid=8)], 1),  # of another process
    ],
)
def test_the_number_of_envs_is_recorded(entries: list[dict[str, Any]], envs: int) -> None:
    run = view(1200, *entries)
    assert (run.recorded_envs, run.envs, run.iterations) == (envs, envs, 1200 // envs)


def test_without_a_record_the_counts_decide() -> None:
    assert view(1200).recorded_envs is None


@pytest.mark.parametrize(("entries", "steps"), [([], 400), ([{"pid": PID, "evaluates": True}], 0)])
def test_steps_of_evaluations_are_no_steps_of_training(entries: list[dict[str, Any]], steps: int) -> None:
    """Offline RL steps envs only to see how good its policy is; a region of the script may mean anything."""
    step = make_capture({"env_step": Spec(400, 1e5), "backward": Spec(4000, 1e6)}, updates=4000)
    found = view_run(replace(step, facts=step.facts | {"libraries": entries}), explain_without_advice(step))
    assert found is not None
    for one in entries:
        one["pid"] = found.process.pid
    assert found.env_steps == steps


@pytest.mark.parametrize(("policies", "envs"), [(840, 1), (10, 84)])
def test_the_height_of_a_picture_is_no_number_of_envs(policies: int, envs: int) -> None:
    """A policy that is called at each step of the one env gets one observation, whatever its shape says."""
    regions = {"env_step": Spec(840, 1e5), "policy_forward": Spec(policies, 1e6)}
    capture = make_capture(regions, env_steps=840)
    made = view_run(capture, explain_without_advice(capture))
    assert made is not None
    facts = capture.facts | {"libraries": [entry(1, 84, pid=made.process.pid)]}
    found = view_run(replace(capture, facts=facts), explain_without_advice(capture))
    assert found is not None and found.recorded_envs == envs
