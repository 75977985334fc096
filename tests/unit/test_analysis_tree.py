"""Flat rows: exclusive times add up, our own cost is taken out, the driving thread is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.analysis.categories import Resolver
from hotloop.analysis.tree import (
    breakdown,
    driving_thread,
    flatten,
    merged_tree,
    percentiles_ns,
    region_findings,
)
from hotloop.capture import layout
from hotloop.capture.model import Capture, Node
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

names = st.sampled_from(["env_step", "ipc_wait", "loss", "x", "hotloop_summary", "y"])


@st.composite
def trees(draw: st.DrawFn) -> Node:
    """A thread's tree: totals are sums, the root's total is the wall time."""
    nodes = [Node("", own_ns=draw(st.integers(0, 10_000)))]
    for _ in range(draw(st.integers(0, 25))):
        parent = nodes[draw(st.integers(0, len(nodes) - 1))]
        node = Node(
            draw(names),
            draw(st.sampled_from(["", "", "wait", "mine"])),
            calls=draw(st.integers(0, 500)),
            own_ns=draw(st.integers(0, 100_000)),
        )
        parent.children.append(node)
        nodes.append(node)
    for node in reversed(nodes):
        node.total_ns = node.own_ns + sum(c.total_ns for c in node.children)
    return nodes[0]


@given(trees(), st.none() | st.floats(0, 500))
def test_everything_adds_up_to_the_wall_time_exactly(root: Node, cost: float | None) -> None:
    flat = flatten(root, Resolver(), cost)
    assert flat.wall_ns == root.total_ns
    assert sum(flat.own_ns) + flat.unattributed_ns + flat.cost_ns == flat.wall_ns
    assert min((*flat.own_ns, flat.unattributed_ns, flat.cost_ns)) >= 0
    found = breakdown(flat, "x")
    assert sum(c.own_ns for c in found.categories) == found.wall_ns
    if found.wall_ns:
        assert sum(c.share for c in found.categories) == pytest.approx(1.0, abs=1e-12)
        rows = region_findings(flat, 10)
        assert sum(r.own_ns for r in rows) + flat.unattributed_ns + flat.cost_ns == found.wall_ns
    assert (found.hotloop_ns is None) == (cost is None)


@given(trees(), st.floats(0, 500))
def test_our_cost_is_never_more_than_calls_times_cost(root: Node, cost: float) -> None:
    flat = flatten(root, Resolver(), cost)
    assert flat.cost_ns <= sum(round(n.calls * cost) for n in flat.nodes)


def test_our_cost_is_taken_half_from_the_region_and_half_from_around_it() -> None:
    inner = Node("inner", calls=10, own_ns=2000, total_ns=2000)
    outer = Node("outer", calls=1, own_ns=50_000, total_ns=52_000, children=[inner])
    flat = flatten(Node("", own_ns=3000, total_ns=55_000, children=[outer]), Resolver(), 100.0)
    # inner: 10 x 100 = 1000, 500 from itself, 500 from outer; outer: 50 from itself, 50 from the top
    assert flat.own_ns == (50_000 - 500 - 50, 2000 - 500)
    assert (flat.unattributed_ns, flat.cost_ns) == (2950, 1100)


def test_calls_that_follow_each_other_closely_cost_a_third() -> None:
    for total_ns, cost_ns in ((19_999, 1000), (20_000, 3000)):
        child = Node("c", calls=10, own_ns=9000, total_ns=9000)
        root = Node("", own_ns=total_ns - 9000, total_ns=total_ns, children=[child])
        assert flatten(root, Resolver(), 300.0).cost_ns == cost_ns


def test_cost_that_a_region_cannot_cover_is_taken_from_its_parent() -> None:
    child = Node("c", calls=10, own_ns=100, total_ns=100)
    flat = flatten(Node("", own_ns=700, total_ns=800, children=[child]), Resolver(), 300.0)
    assert (flat.own_ns, flat.unattributed_ns, flat.cost_ns) == ((0,), 0, 800)


def test_shares_and_paths_by_hand() -> None:
    capture = make_capture(
        {"train": Spec(1, 0, children={"env_step": Spec(100, 600), "loss": Spec(10, 2000)})},
        env_steps=100,
        unattributed=0.2,
        facts={"region_cost_ns": None},
    )
    flat = flatten(capture.threads[0].root, Resolver(), None)
    rows = region_findings(flat, 100)
    assert [(r.path, r.own_ns, r.calls_per_env_step) for r in rows] == [
        (("train", "env_step"), 60_000, 1.0),
        (("train", "loss"), 20_000, 0.1),
        (("train",), 0, 0.01),
    ]
    assert [r.share for r in rows] == [0.6, 0.2, 0.0]
    assert {c.category: c.share for c in breakdown(flat, "").categories} == {
        "environment": 0.6,
        "unattributed": 0.2,
        "loss": 0.2,
        "other": 0.0,
    }


def test_threads_processes_and_captures_are_added_up_by_path() -> None:
    one = make_capture({"env_step": Spec(10, 1000)}, extra_threads=[ThreadSpec({"env_step": Spec(5, 1000)})])
    two = make_capture({"env_step": Spec(1, 1000, children={"x": Spec(2, 10)})})
    tree = merged_tree([one, two], Resolver())
    flat = flatten(tree, Resolver(), None)
    assert [(n.name, n.calls, n.own_ns) for n in flat.nodes] == [("env_step", 16, 16_000), ("x", 2, 20)]
    assert flat.wall_ns == sum(t.wall_ns for c in (one, two) for t in c.threads)


def test_siblings_that_differ_only_in_how_they_got_their_category_are_one_row() -> None:
    capture = make_capture(
        {"env_step": Spec(10, 1000)},
        extra_threads=[ThreadSpec({"env_step": Spec(5, 1000, category="environment")})],
    )
    flat = flatten(merged_tree([capture], Resolver()), Resolver(), None)
    assert [(n.name, n.calls) for n in flat.nodes] == [("env_step", 15)]


def test_more_inside_than_outside_makes_the_wall_larger_not_negative() -> None:
    flat = flatten(Node("", total_ns=50, children=[Node("x", own_ns=80, total_ns=80)]), Resolver(), None)
    assert (flat.wall_ns, flat.unattributed_ns) == (80, 0)


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 50_000_000), max_size=30), min_size=1, max_size=6))
def test_percentiles_of_many_equal_those_of_each(durations: list[list[int]]) -> None:
    nodes = []
    for calls in durations:
        buckets = np.zeros(layout.BUCKETS, dtype=np.uint64)
        for ns in calls:
            buckets[layout.bucket_of(ns)] += np.uint64(1)
        ends = (min(calls), max(calls)) if calls else (None, None)
        nodes.append(Node("x", calls=len(calls), min_ns=ends[0], max_ns=ends[1], buckets=buckets))
    nodes.append(Node("no histogram", calls=3, min_ns=1, max_ns=2))
    nodes.append(Node("damaged", calls=3, min_ns=1, buckets=np.ones(layout.BUCKETS, dtype=np.uint64)))
    for node, found in zip(nodes, percentiles_ns(nodes, (0.5, 0.9, 0.99)), strict=True):
        for fraction, value in zip((0.5, 0.9, 0.99), found, strict=True):
            one = node.percentile_ns(fraction)
            assert value == (None if one is None else pytest.approx(one, rel=1e-12))


def test_the_thread_with_most_progress_drives() -> None:
    region = {"x": Spec(10, 1000)}
    learner = ThreadSpec(region, name="learner", updates=50)
    collectors = [ProcessSpec([ThreadSpec(region, env_steps=500)]) for _ in range(4)]
    capture = make_capture({"x": Spec(10, 90_000)}, extra_threads=[learner], processes=collectors)
    found = driving_thread(capture)
    assert found is not None and found[1].name == "learner"
    only_collectors = make_capture(
        {"x": Spec(10, 90_000)},
        processes=[*collectors[:1], ProcessSpec([ThreadSpec(region, env_steps=501, name="more")])],
    )
    found = driving_thread(only_collectors)
    assert found is not None and found[1].name == "more"


def test_at_a_tie_the_learner_drives_and_without_progress_the_longest_thread() -> None:
    region = {"x": Spec(10, 1000)}
    tie = make_capture(region, env_steps=10, extra_threads=[ThreadSpec(region, name="learner", updates=1)])
    found = driving_thread(tie)
    assert found is not None and found[1].name == "learner"
    long = make_capture(region, extra_threads=[ThreadSpec({"x": Spec(10, 5000)}, name="long")])
    found = driving_thread(long)
    assert found is not None and found[1].name == "long"
    assert driving_thread(Capture(None, {}, ())) is None


def test_workers_that_are_started_again_and_again_drive_nothing() -> None:
    def started(count: int) -> Capture:
        workers = [ProcessSpec([ThreadSpec({"x": Spec(10, 1000)}, env_steps=50)]) for _ in range(count)]
        capture = make_capture({"x": Spec(10, 90_000)}, processes=workers)
        main, *others = capture.processes
        ended = [replace(p, threads=(replace(p.threads[0], wall_ns=10_000),)) for p in others]
        return replace(capture, processes=(main, *ended))

    found = driving_thread(started(10))
    assert found is not None and found[0].label == "train.py"
    found = driving_thread(started(1))  # it makes all steps, however short it lives
    assert found is not None and found[0].label == "worker"


def test_a_helper_thread_that_only_waits_drives_nothing() -> None:
    work = {"policy_forward": Spec(10, 5000)}
    waits = {"queue_wait": Spec(1, 80_000, category="wait"), "write": Spec(1, 500)}
    found = driving_thread(make_capture(work, extra_threads=[ThreadSpec(waits, name="Thread-1")]))
    assert found is not None and found[1].name == "MainThread"
    # One that learns in between drives, and so does one that works half of its time.
    learner = ThreadSpec(waits, name="learner", updates=3)
    found = driving_thread(make_capture(work, extra_threads=[learner]))
    assert found is not None and found[1].name == "learner"
    half = {"queue_wait": Spec(1, 80_000, category="wait"), "work": Spec(1, 80_000)}
    found = driving_thread(make_capture(work, extra_threads=[ThreadSpec(half, name="half")]))
    assert found is not None and found[1].name == "half"
    # The main thread of a program that waits for its workers stays the one that drives.
    found = driving_thread(make_capture(waits, extra_threads=[ThreadSpec(work, name="worker")]))
    assert found is not None and found[1].name == "MainThread"


def test_folded_threads_drive_only_without_other_threads() -> None:
    capture = make_capture({"x": Spec(10, 1000)}, extra_threads=[ThreadSpec({"x": Spec(10, 9000)})])
    process = capture.processes[0]
    folded = replace(process.threads[1], folded_threads=7)
    capture = replace(capture, processes=(replace(process, threads=(process.threads[0], folded)),))
    found = driving_thread(capture)
    assert found is not None and found[1].folded_threads == 0
    alone = replace(capture, processes=(replace(process, threads=(folded,)),))
    found = driving_thread(alone)
    assert found is not None and found[1].folded_threads == 7
