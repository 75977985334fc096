"""The whole: one capture in, findings out, also for empty, broken and very large captures."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.explain import explain, explain_without_advice
from hotloop.capture.layout import BUCKETS
from hotloop.capture.model import Capture, Node, Progress, Windows
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

LOOP = {
    "env_step": Spec(10_000, 60_000),
    "policy_forward": Spec(10_000, 20_000),
    "loss": Spec(100, 100_000),
}


def test_a_simple_loop_is_explained() -> None:
    found = explain(make_capture(LOOP, env_steps=10_000, updates=100, episodes=50, mean_return=3.5))
    assert found.headline.startswith("env_step (environment) takes ")
    gain = found.bottlenecks[0].gain_if_twice_as_fast
    assert gain is not None
    assert f"speed up training {gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}]" in found.headline
    assert found.headline.count(".\n") == 0 and found.headline.endswith(".")
    assert (found.env_steps, found.updates, found.episodes, found.mean_return) == (10_000, 100, 50, 3.5)
    assert found.env_steps_per_s == pytest.approx(10_000 / (found.wall_ns / 1e9))
    assert found.basis == "shares of the wall time of train.py (pid 4000), MainThread"
    assert found.breakdown.categories[0].category == "environment"
    assert sum(c.own_ns for c in found.breakdown.categories) == found.breakdown.wall_ns
    assert found.regions[0].path == ("env_step",)
    assert found.forecast is None and not any("forecast" in r for r in found.not_measured)
    assert found.versions["numpy"] == "2.0.0"
    assert not found.warnings


def test_the_same_capture_gives_the_same_findings() -> None:
    capture = make_capture(LOOP, env_steps=10_000, updates=100, episodes=50)
    assert explain(capture, goal_env_steps=30_000) == explain(capture, goal_env_steps=30_000)


def test_a_goal_gives_a_forecast() -> None:
    found = explain_without_advice(make_capture(LOOP, env_steps=10_000), goal_env_steps=20_000)
    assert found.forecast is not None and found.forecast.done_env_steps == 10_000
    assert found.forecast.remaining_s.value == pytest.approx(found.wall_ns / 1e9, rel=0.1)
    reached = explain_without_advice(make_capture(LOOP, env_steps=10_000), goal_env_steps=10_000)
    assert reached.forecast is None and any("is reached" in r for r in reached.not_measured)


def test_patterns_of_the_user_change_the_categories() -> None:
    found = explain_without_advice(
        make_capture({"frobnicate": Spec(100, 1000)}), category_patterns=[("frob", "rendering")]
    )
    assert found.regions[0].category == "rendering"
    assert any(c.category == "rendering" for c in found.breakdown.categories)


def test_advice_functions_can_be_passed() -> None:
    capture = make_capture(LOOP, env_steps=10_000)
    assert explain(capture, advice=[]).recommendations == ()


@pytest.mark.parametrize(
    ("capture", "says"),
    [
        (make_capture({"x": Spec(10, 100)}, unattributed=0.9), "is in no region: wrap more"),
        (
            make_capture({"a": Spec(10, 99_999)}, windows=4),
            "a (other) takes 95.0 % of your training thread's time.",
        ),
        (make_capture({f"draw_{i}": Spec(100, 99_999) for i in range(8)}), "rendering takes 95.0 %"),
        (
            make_capture({"tiny": Spec(1000, 40)}, facts={"region_cost_ns": 150.0}),
            "is the cost of hotloop itself",
        ),
        (
            make_capture({**LOOP, "store": Spec(10_000, 90_000, growth=1.0)}, env_steps=10_000, episodes=90),
            "and calls of store get slower as the run goes on (",
        ),
        (Capture(None, {}, ()), "Nothing was recorded"),
        (make_capture({}), "Nothing was measured"),
    ],
)
def test_headlines(capture: Capture, says: str) -> None:
    assert says in explain_without_advice(capture).headline


def test_a_line_is_named_where_no_region_is_known() -> None:
    capture = make_capture({"x": Spec(10, 100)}, unattributed=0.9)
    capture.facts["lines"] = {"samples": 8, "lines": {"/home/me/train.py:7": 6, "/home/me/train.py:9": 2}}
    found = explain_without_advice(capture).headline
    assert found.endswith("is in no region, most of it at train.py:7 (75.0 % of the samples).")


def test_a_waiting_learner_is_the_headline() -> None:
    worker = ProcessSpec([ThreadSpec({"env_step": Spec(1000, 1000)}, env_steps=1000)])
    capture = make_capture(
        {"loss": Spec(1000, 100), "queue_wait": Spec(1000, 900)}, updates=1000, processes=[worker]
    )
    found = explain_without_advice(capture)
    assert found.headline.startswith("The learner waits for the env workers: the learner waits 85")
    assert "drives training" in found.basis and "all 2 recorded threads" in found.basis
    assert any("turn into more waiting" in reason for reason in found.not_measured)


def test_shares_leave_out_threads_that_only_wait() -> None:
    monitor = ThreadSpec(
        {"condition_wait": Spec(2, 500_000, category="wait")}, name="tqdm_monitor", unattributed=0.0
    )
    capture = make_capture({"loss": Spec(1000, 900)}, updates=1000, extra_threads=[monitor], unattributed=0.1)
    found = explain_without_advice(capture)
    assert [one.name for one in found.bottlenecks] == ["loss"]
    assert found.bottlenecks[0].share == pytest.approx(0.9, abs=0.04) and found.waits is None
    assert len(found.utilisation) == 2  # the table of threads still has it


def test_unmeasured_values_are_none_and_named() -> None:
    found = explain_without_advice(make_capture(LOOP, windows=4, facts={"region_cost_ns": None}))
    assert found.env_steps_per_s is None and found.updates_per_s is None and found.mean_return is None
    assert found.growth is None and found.breakdown.hotloop_ns is None
    assert all(b.gain_if_twice_as_fast is None for b in found.bottlenecks)
    assert all(r.calls_per_env_step is None and r.device_ns is None for r in found.regions)
    for word in (
        "cost of hotloop itself",
        "env steps per second",
        "updates per second",
        "of the 8 windows that an interval needs",
        "memory",
        "device",
    ):
        assert any(word in reason for reason in found.not_measured), word


def test_a_capture_of_nothing_is_explained() -> None:
    found = explain(
        Capture(None, {"command": ["python", "x.py"]}, (), ("no process has recorded anything yet",))
    )
    assert found.command == ("python", "x.py") and found.regions == ()
    assert found.warnings == ("no process has recorded anything yet",)


def test_warnings_name_dead_uncertain_and_out_of_order_recordings() -> None:
    capture = make_capture(LOOP)
    process = capture.processes[0]
    process.threads[0].root.children[0].out_of_order = True
    thread = replace(process.threads[0], uncertain=True)
    dead = replace(process, closed=False, threads=(thread,), warnings=("cut short",), core="python")
    text = "\n".join(explain_without_advice(replace(capture, processes=(dead,))).warnings)
    for word in (
        "died before",
        "in the middle of an update",
        "cut short",
        "Python core",
        "order",
        "env_step",
    ):
        assert word in text, word


TEMPLATE = make_capture({"x": Spec(1, 1)})


def large_capture(processes: int, nodes: int) -> Capture:
    """Every process with names of its own, so that nothing merges: the worst case."""
    rng = np.random.default_rng(0)
    buckets = np.zeros(BUCKETS, dtype=np.uint64)
    buckets[20:40] = 50
    moments = np.arange(1, 97) / 96
    counts = {name: np.zeros(96) for name in Progress.__slots__}
    counts["env_steps"] = counts["episodes"] = (moments * 1000).astype(np.uint64)
    made = []
    for pid in range(processes):
        paths: list[tuple[str, ...]] = [()]
        built = [Node("", own_ns=10**6)]
        for number in range(1, nodes + 1):
            above = int(rng.integers(max(0, number - 60), number))
            name = f"p{pid}_{number}"
            own = int(rng.integers(10**5, 10**6))
            node = Node(name, calls=1000, own_ns=own, min_ns=100, max_ns=9000, buckets=buckets.copy())
            built[above].children.append(node)
            built.append(node)
            paths.append((*paths[above], name))
        for node in reversed(built):
            node.total_ns = node.own_ns + sum(c.total_ns for c in node.children)
        wall = built[0].total_ns
        table = [
            np.outer(moments, [getattr(n, figure) for n in built]).astype(np.uint64)
            for figure in ("calls", "total_ns", "own_ns")
        ]
        at = (10**9 + moments * wall).astype(np.uint64)
        windows = Windows(at, at, at, at, counts, *table)
        thread = replace(
            TEMPLATE.threads[0],
            start_ns=10**9,
            end_ns=10**9 + wall,
            wall_ns=wall,
            progress=Progress(1000, 0, 1000),
            paths=tuple(paths),
            root=built[0],
            windows=windows,
        )
        made.append(replace(TEMPLATE.processes[0], pid=pid, end_ns=10**9 + wall, threads=(thread,)))
    facts = {"region_cost_ns": 40.0, "machine": {"cores_granted": 2, "cores_present": 2}}
    return Capture(None, facts, tuple(made))


def cpu_time_s(capture: Capture) -> float:
    start = time.process_time()  # other work on this machine shall not fail the test
    explain(capture)
    return time.process_time() - start


def test_the_time_to_explain_grows_with_the_nodes_and_no_faster() -> None:
    few, many = large_capture(4, 100), large_capture(40, 100)
    ratios = [cpu_time_s(many) / cpu_time_s(few) for _ in range(3)]
    assert min(ratios) < 3 * 10  # quadratic growth gives 100


@pytest.mark.long
def test_200_processes_are_explained_in_little_memory() -> None:
    found = explain(large_capture(200, 50))
    assert len(found.regions) == 10_000 and len(found.utilisation) == 200
    assert sum(c.own_ns for c in found.all_threads.categories) == found.all_threads.wall_ns
    capture = large_capture(20, 250)
    tracemalloc.start()
    explain(capture)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6  # for 5,000 nodes
