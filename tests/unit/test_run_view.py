"""What advice sees of a run: the number of envs is what the envs report, not a ratio of counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.analysis.advice.run_view import RunView

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
