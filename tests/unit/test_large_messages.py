"""Advice about env workers that send much with every step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.analysis.advice.large_messages import large_messages
from hotloop.analysis.advice.run_view import RunView, view_run
from hotloop.analysis.advice.workers import env_workers_cost_more_than_work
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.system import Edge, Member
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

US = 1e3
STEPS = 1000


def run_with(
    kib: float, passing_us: float = 800, step_us: float = 50, messages: int | None = STEPS
) -> RunView:
    """Two env workers that answer `STEPS` times; the learner also acts for 200 us a step."""
    worker = ThreadSpec({"env_step": Spec(STEPS, step_us * US), "ipc_wait": Spec(STEPS, 900 * US)})
    loop = {"act": Spec(STEPS, 200 * US), "ipc_wait": Spec(STEPS, passing_us * US)}
    capture = make_capture(loop, env_steps=2 * STEPS, processes=[ProcessSpec([worker]) for _ in range(2)])
    findings = explain_without_advice(capture)
    assert findings.system is not None

    def as_worker(member: Member) -> Member:
        return replace(member, kind="env_worker") if member.process else member

    members = tuple(map(as_worker, findings.system.members))
    size = None if messages is None else int(messages * kib * 1024)
    edges = tuple(
        Edge("pipe", f"pipe {number}", number, 0, messages, size, 0, 0)
        for number, member in enumerate(members)
        if member.kind == "env_worker"
    )
    system = replace(findings.system, members=members, edges=edges)
    found = view_run(capture, replace(findings, system=system))
    assert found is not None
    return found


@pytest.mark.parametrize("kib", [60, 200, 5000])
def test_large_answers_are_named_with_their_size(kib: float) -> None:
    run = run_with(kib)
    found = large_messages(run)
    assert found is not None and found.gain is not None
    assert "2,000 messages from 2 env workers" in found.evidence[0] and found.safety == "safe"
    assert (
        1.0 < found.gain.low <= found.gain.value <= found.gain.high < 1 / (1 - 0.8)
    )  # 80 % is spent on them
    run.given.append(found)
    assert env_workers_cost_more_than_work(run) is None  # about the same time


def test_larger_answers_promise_more() -> None:
    gains = [
        found.gain.value for kib in (60, 200, 5000) if (found := large_messages(run_with(kib))) and found.gain
    ]
    assert gains == sorted(gains) and gains[0] < gains[-1]


@pytest.mark.parametrize(
    "run",
    [
        {"kib": 2},  # a usual answer
        {"kib": 200, "passing_us": 15},  # hardly any time
        {"kib": 200, "passing_us": 1000, "step_us": 950},  # the learner waits for the work of the workers
        {"kib": 200, "messages": None},  # nobody measured it
        {"kib": 200, "messages": 20},  # at the start only
    ],
)
def test_other_workers_are_left_alone(run: dict[str, float]) -> None:
    assert large_messages(run_with(**run)) is None  # type: ignore[arg-type]
