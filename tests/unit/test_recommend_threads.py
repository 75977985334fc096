"""Advice about compute threads: evidence from the scheduler, never from names or lengths of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotloop.analysis.explain import explain
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.utilisation import core_time, working_processes
from hotloop.capture.model import Capture, Node, Process
from hotloop.capture.scheduling import ProcessScheduling, Scheduling, ThreadSettings
from hotloop.report.text import terminal
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture
from hotloop.testing.planted import collect, learn

MS = 1e6
TORCH = {"versions": {"torch": "2.5.0"}, "machine": {"cores_granted": 2.0, "cores_present": 2}}


def scheduled(process: Process, threads: int | None, shares: dict[str, float]) -> Process:
    """The process with scheduling figures that grow evenly: shares of the wall time of its first thread."""
    first = process.threads[0]
    time_ns = np.linspace(first.start_ns, first.end_ns, 20).astype(np.uint64)

    def grown(share: float) -> Any:
        return ((time_ns - time_ns[0]) * share).astype(np.uint64)

    mine = Scheduling(
        time_ns, grown(shares["on"]), grown(shares["queue"]), grown(1e-7), grown(shares.get("off", 5e-8))
    )
    pools = ProcessScheduling(
        time_ns,
        os_threads=grown(0.0),
        python_threads=grown(0.0),
        cpu_ns=grown(shares["on"]),
        native_on_core_ns=grown(shares.get("pool", 0.0)),
        native_run_queue_ns=grown(shares.get("pool_queue", 0.0)),
        hotloop_ns=grown(0.0),
    )
    values = {"OMP_NUM_THREADS": None, "cores_granted": 2.0} | ({"torch": threads} if threads else {})
    return replace(
        process,
        threads=(replace(first, scheduling=mine), *process.threads[1:]),
        scheduling=pools,
        thread_settings=(ThreadSettings(first.start_ns, values),),
    )


def with_scheduling(capture: Capture, threads: int | None, **shares: float) -> Capture:
    processes = tuple(scheduled(process, threads, shares) for process in capture.processes)
    return replace(capture, processes=processes)


def ppo(scale: float = 1.0, **changes: Any) -> Capture:
    loop = {**collect(1000, policy_us=900 * scale), **learn(600, 10 * scale)}
    return make_capture(loop, env_steps=1000, updates=600, **{"facts": TORCH} | changes)


def advice_on(capture: Capture) -> dict[str, Recommendation]:
    return {one.name: one for one in explain(capture).recommendations}


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_contention_is_found_however_long_calls_are(scale: float) -> None:
    capture = with_scheduling(ppo(scale), 2, on=0.2, queue=0.7, pool=0.15, pool_queue=0.6)
    found = explain(capture)
    first = found.recommendations[0]
    assert first.name == "try_one_thread" and first.tier == "high" and first.gain is None
    assert "had no core 80.0 % of the time they wanted one" in first.title and first.title in found.headline
    assert any("on a core 20.0 % of the time" in sentence for sentence in first.evidence)
    assert any("15.0 %" in sentence and "60.0 %" in sentence for sentence in first.evidence)
    assert first.prove_command == "hotloop try --only threads -- python train.py"
    assert first.safety == "rounding"


def test_cores_that_other_programs_take_are_no_contention_of_this_script() -> None:
    shares = {"on": 0.2, "queue": 0.7, "pool": 0.15, "pool_queue": 0.6}
    capture = with_scheduling(ppo(), 2, **shares)
    machine = {**capture.facts["machine"], "load_1min": 7.5, "cores_granted": 2.0}
    busy = replace(capture, facts={**capture.facts, "machine": machine})
    assert advice_on(busy)["try_one_thread"].tier == "undecided"
    idle = replace(capture, facts={**capture.facts, "machine": {**machine, "load_1min": 0.3}})
    assert advice_on(idle)["try_one_thread"].tier == "high"


def test_calls_that_wait_for_the_pool_are_found_on_a_busy_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other programs take the cores from one thread as well, but do not make its short calls 500x as long."""
    capture = with_scheduling(ppo(), 2, on=0.1, queue=0.88, pool=0.1, pool_queue=0.84)
    machine = {**capture.facts["machine"], "load_1min": 7.5, "cores_granted": 2.0}
    busy = replace(capture, facts={**capture.facts, "machine": machine})
    for stretch, tier in ((500.0, "high"), (2.0, "undecided")):
        fastest = 1 / stretch

        def percentile_ns(node: Node, fraction: float, fastest: float = fastest) -> float:
            return (node.mean_ns or 0) * (1.0 if fraction > 0.1 else fastest)

        monkeypatch.setattr(Node, "percentile_ns", percentile_ns)
        assert advice_on(busy)["try_one_thread"].tier == tier


def test_the_report_of_one_thread_says_how_long_it_had_no_core() -> None:
    said = "without a core, 70.0 % of the time; all times include that."
    assert said in " ".join(terminal(explain(with_scheduling(ppo(), 1, on=0.2, queue=0.7))).split())
    assert said not in " ".join(terminal(explain(with_scheduling(ppo(), 1, on=0.85, queue=0.1))).split())


def test_a_process_with_one_compute_thread_gets_no_thread_advice() -> None:
    by_call = with_scheduling(ppo(), 1, on=0.2, queue=0.7, pool=0.15, pool_queue=0.6)
    assert "try_one_thread" not in advice_on(by_call)
    limited = TORCH["machine"] | {"threads_env": {"OMP_NUM_THREADS": "1"}}
    by_variable = ppo(facts=TORCH | {"machine": limited})
    assert "try_one_thread" not in advice_on(by_variable)


def test_a_pool_that_does_nothing_is_not_to_blame() -> None:
    assert "try_one_thread" not in advice_on(with_scheduling(ppo(), 2, on=0.2, queue=0.7))


@pytest.mark.parametrize(
    ("typical", "shares", "tier"),
    [
        (8.0, {"on": 0.9, "queue": 0.05, "pool": 0.9, "pool_queue": 0.02}, "undecided"),  # a quiet machine
        (8.0, {"on": 0.5, "queue": 0.4, "pool": 0.9, "pool_queue": 0.05}, "undecided"),  # others hold up both
        (8.0, {"on": 0.6, "queue": 0.2, "pool": 0.3, "pool_queue": 0.3}, "high"),
        (1.2, {"on": 0.6, "queue": 0.2, "pool": 0.3, "pool_queue": 0.3}, "undecided"),  # no call waits for it
    ],
)
def test_evidence_is_that_calls_wait_for_the_pool(
    typical: float, shares: dict[str, float], tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that other programs are busy: that slows down everything, with one thread as well."""
    monkeypatch.setattr(
        Node, "percentile_ns", lambda node, f: (node.mean_ns or 0) * (1.0 if f > 0.1 else 1 / typical)
    )
    capture = with_scheduling(ppo(), 2, **shares)
    found = explain(capture)
    advice = {one.name: one for one in found.recommendations}["try_one_thread"]
    assert advice.tier == tier
    text = terminal(found)
    test = "hotloop try --only threads -- python train.py"
    assert test in text.partition("\nNext\n")[2]  # the test is offered either way
    assert ("Use one compute thread" in text) == (tier == "high")


def test_blocked_is_not_without_a_core() -> None:
    """A driver that waits for others is off its core, but not in the run queue."""
    capture = with_scheduling(ppo(), 2, on=0.1, queue=0.01, pool=0.3)
    found = advice_on(capture)["try_one_thread"]
    assert found.tier == "undecided" and "no core" not in found.title
    summary = explain(capture).oversubscription
    assert summary is not None and "without a core, 1.0 %" in summary.summary


def test_without_scheduling_figures_contention_is_reported_as_unknown() -> None:
    found = explain(ppo())
    one = next(one for one in found.recommendations if one.name == "try_one_thread")
    assert one.tier == "undecided" and any("is unknown" in sentence for sentence in one.evidence)
    assert any(reason.startswith("whether your training thread had a core") for reason in found.not_measured)
    known = explain(with_scheduling(ppo(), 1, on=0.9, queue=0.05))
    assert not any(reason.startswith("whether your training") for reason in known.not_measured)


def test_a_device_does_the_arithmetic() -> None:
    assert "try_one_thread" not in advice_on(ppo(facts=TORCH | {"device": "cuda:0"}))


def workers(threads: int | None, queue: float) -> Capture:
    worker = ThreadSpec({"env_step": Spec(1000, 2 * MS)}, env_steps=1000)
    server = ThreadSpec({"import": Spec(40, MS)})
    processes = [ProcessSpec([worker]) for _ in range(3)] + [ProcessSpec([server], label="forkserver")]
    capture = make_capture(learn(700), updates=700, processes=processes, facts=TORCH)
    return with_scheduling(capture, threads, on=0.5, queue=queue, pool=0.1, pool_queue=queue)


def test_several_processes_with_threads_of_their_own() -> None:
    found = advice_on(workers(2, queue=0.4))["thread_oversubscription"]
    assert found.tier == "high" and "now 8 threads on 2 cores" in found.title
    assert "thread_oversubscription" not in advice_on(workers(1, queue=0.4))
    assert "thread_oversubscription" not in advice_on(workers(2, queue=0.001))


def test_a_fork_server_does_not_count_as_a_worker() -> None:
    assert len(working_processes(workers(1, 0.1))) == 4
    found = explain(workers(1, 0.1)).oversubscription
    assert found is not None and found.processes == 4


def test_core_time_speaks_of_the_stretch_of_the_thread() -> None:
    capture = with_scheduling(ppo(), 2, on=0.5, queue=0.25, pool=0.125, off=1e-7)
    process = capture.processes[0]
    thread = process.threads[0]
    middle = (thread.start_ns + thread.end_ns) // 2
    found = core_time(process, replace(thread, start_ns=middle))
    assert found is not None
    assert found.on_core == pytest.approx(0.5, rel=1e-6) and found.run_queue == pytest.approx(0.25, rel=1e-6)
    assert found.pool_on_core == pytest.approx(0.125, rel=1e-6)
    assert found.taken_off_per_s == pytest.approx(100, rel=1e-3)
    later = replace(thread, start_ns=thread.end_ns, end_ns=2 * thread.end_ns)
    assert core_time(process, later) is None
    assert core_time(process, replace(thread, scheduling=None)) is None
