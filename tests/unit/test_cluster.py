"""Reports of runs on several nodes: clocks, roles by actor class, spread, bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from hotloop.analysis.categories import Resolver
from hotloop.analysis.cluster import describe_cluster
from hotloop.analysis.find_system import find_system
from hotloop.analysis.ray_waits import actor_starts, task_waits
from hotloop.analysis.roles import find_parts, named
from hotloop.capture.model import Capture
from hotloop.capture.nodes import NodeFacts
from hotloop.capture.origin import Origin
from hotloop.instrument.ray_times import MOST, Sample
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

SECOND = 1e9
HOME = NodeFacts("a", "one", driver=True, shared=True, complete=True)


def cluster(far: NodeFacts, work_s: tuple[float, ...] = (2.0, 2.0, 8.0)) -> Capture:
    """A driver and three actors of ten seconds, the last two on the other node, which work for so long."""
    workers = [
        ProcessSpec(
            [
                ThreadSpec(
                    {
                        "ray_idle": Spec(100, (10 - work) * SECOND / 100, category="wait"),
                        "ray_task": Spec(
                            100, 0.0, {"Runner.sample": Spec(100, work * SECOND / 100, category="other")}
                        ),
                    }
                )
            ],
            label="Runner",
        )
        for work in work_s
    ]
    idle = ProcessSpec([ThreadSpec({"ray_idle": Spec(1, 10 * SECOND, category="wait")})], label="Ray worker")
    driver = {
        "ray_get": Spec(100, 0.08 * SECOND, category="wait"),
        "learn": Spec(100, 0.02 * SECOND),
        "ray_put": Spec(
            10, 1e3, {"ray_serialize": Spec(10, 1e3, category="ipc", bytes_moved=1 << 20)}, category="ipc"
        ),
    }
    made = make_capture(driver, processes=[*workers, idle])
    origins = [
        Origin(ray="driver", node="a"),
        Origin(ray="worker", node="a", actor="Runner"),
        Origin(ray="worker", node="b", actor="Runner"),
        Origin(ray="worker", node="b", actor="Runner"),
        Origin(ray="worker", node="b"),
    ]
    processes = [replace(p, origin=origin) for p, origin in zip(made.processes, origins, strict=True)]
    return replace(made, processes=tuple(processes), nodes=(HOME, far))


def test_roles_are_named_after_the_class_of_an_actor() -> None:
    parts = find_parts(cluster(NodeFacts("b", "two")), Resolver())
    assert [name for _, name, _ in named(parts)] == ["driver", "Runner 0", "Runner 1", "Runner 2", "service"]
    system = find_system(cluster(NodeFacts("b", "two")))
    assert system is not None
    assert [role.name for role in system.roles if role.works] == ["driver", "Runner actors"] or [
        role.name for role in system.roles if role.works
    ] == ["Runner actors", "driver"]


@pytest.mark.parametrize(
    ("far", "clocks"),
    [
        (NodeFacts("b", "two", clock=((1, 0, 0),)), "They share one clock."),
        (
            NodeFacts("b", "two", clock=((1, 5, 40_000),)),
            "Their clocks are aligned to 40.0 us; closer orders",
        ),
        (NodeFacts("b", "two", clock=((1, 5, -1),)), "Not all of their clocks could be compared"),
        (NodeFacts("b", "two"), "Not all of their clocks could be compared"),
    ],
)
def test_nodes_and_clocks_are_described(far: NodeFacts, clocks: str) -> None:
    sentence = describe_cluster(cluster(far), [], [], 10**10)[0]
    assert (
        sentence.startswith("2 nodes (one: driver, 2 processes; two: 3 processes). ") and clocks in sentence
    )


def test_members_that_do_more_and_bytes_are_named() -> None:
    capture = cluster(NodeFacts("b", "two"))
    system = find_system(capture)
    assert system is not None
    busy = replace(system.members[1].states, running=0.2, waiting=0.8)
    states = {"Runner 0": busy, "Runner 1": busy, "Runner 2": replace(busy, running=0.8, waiting=0.2)}
    members = [replace(m, states=states.get(m.name, m.states)) for m in system.members]
    sentences = describe_cluster(capture, members, system.roles, 10**10)
    assert (
        "The 3 Runner actors work 20.0 % to 80.0 % of their time; "
        "Runner 2 works 4.0 times as much as the median." in sentences
    )
    assert "Ray was given 10.0 MiB of objects to send, 1.00 MiB per second." in describe_cluster(
        capture, system.members, system.roles, 10**10
    )


def test_a_run_on_one_computer_has_no_such_sentences() -> None:
    assert describe_cluster(make_capture({"a": Spec(1, 1e9)}), [], [], 10**9) == []


def test_waiting_before_tasks_and_the_start_of_actors_are_told() -> None:
    """The other node's clock is an hour ahead."""
    hour = 3600 * 10**9
    far = NodeFacts("b", "two", complete=True, clock=((0, hour, 1000), (10**10, hour, 1000)))
    tasks: dict[str, Any] = {f"{n:02x}": ["Runner.sample", n * 10**6] for n in range(20)}
    driver = {
        "pid": 1,
        "ray_tasks": {
            "node": "a",
            "submitted": tasks | {"ff": ["Runner.sample", 0]},  # it never began
            "began": {},
            "created": {"0a": ["Runner", 10**6], "0b": ["Runner", 10**6]},
            "started": {},
        },
    }
    worker = {
        "pid": 2,
        "ray_tasks": {
            "node": "b",
            "submitted": {},
            "began": {
                task: [at_ns + hour + (5 if task != "13" else 50) * 10**6]
                for task, (_, at_ns) in tasks.items()
            },
            "created": {},
            "started": {"0a": [hour + 2 * 10**9, hour + 3 * 10**9 + 10**6]},
        },
    }
    made = cluster(far)
    capture = replace(made, facts={**made.facts, "libraries": [driver, worker]})
    (waits,) = task_waits(capture)
    assert (waits.name, waits.known, waits.median_ns, waits.p95_ns) == ("Runner.sample", 20, 5e6, 5e6)
    (starts,) = actor_starts(capture)
    assert (starts.name, starts.known) == ("Runner", 1)
    assert starts.median_ns == starts.longest_ns == 3 * SECOND
    assert starts.init_median_ns == pytest.approx(1.001 * SECOND)
    told = describe_cluster(capture, (), (), 10**10)
    assert "From submission to start, tasks waited (median): Runner.sample 5.00 ms" in told[-2]
    assert told[-1].startswith("Actors took to start (median): Runner 3.00 s, of which 1.00 s in __init__")


def test_both_sides_keep_the_same_tasks() -> None:
    sent, began = Sample(), Sample()
    ids = [hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(5000)]
    for identity in ids:
        sent.add(identity, "f", 1)
        if identity[0] % 4 == 0:
            began.add(identity, 2)
    assert 100 < len(sent.kept) <= MOST and 100 < len(began.kept) <= MOST
    assert len(set(sent.kept) & set(began.kept)) >= 50
