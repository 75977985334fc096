"""Reports of runs on several nodes: clocks, roles by actor class, spread, bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotloop.analysis.categories import Resolver
from hotloop.analysis.cluster import describe_cluster
from hotloop.analysis.explain import explain
from hotloop.analysis.find_system import find_system
from hotloop.analysis.ray_waits import actor_starts, task_waits
from hotloop.analysis.roles import find_parts, named
from hotloop.analysis.thread_states import thread_states
from hotloop.capture.model import Capture, FoldedRole, Progress
from hotloop.capture.nodes import NodeFacts
from hotloop.capture.origin import Origin
from hotloop.capture.samples import RUNNING, SAMPLE_DTYPE
from hotloop.instrument.ray_times import MOST, Sample
from hotloop.report.system_html import whole_system as html_system
from hotloop.report.text import terminal
from hotloop.report.to_json import findings_json
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


def test_coroutines_of_an_actor_are_its_work() -> None:
    """They run in a thread of their own; the main thread of the process waits all the time."""
    task = {"ray_task": Spec(100, 0.0, {"Agent.think": Spec(100, 0.06 * SECOND, category="other")})}
    threads = [
        ThreadSpec({"ray_idle": Spec(1, 10 * SECOND, category="wait")}, cpu=None),
        ThreadSpec(
            task | {"ipc_wait": Spec(100, 0.04 * SECOND, category="wait")}, name="AsyncIO Thread: default"
        ),
        ThreadSpec({"ray_serialize": Spec(100, 1e3, category="ipc")}, name="Dummy-1"),  # of Ray's core
    ]
    wait = {"wait for Agent.think": Spec(100, 0.08 * SECOND, category="wait")}
    driver = {"ray_get": Spec(100, 0.0, wait, category="wait"), "learn": Spec(100, 0.02 * SECOND)}
    made = make_capture(driver, processes=[ProcessSpec(threads), ProcessSpec(threads)], cpu=None)
    origins = [Origin(ray="driver"), *[Origin(ray="worker", actor="Agent")] * 2]
    processes = [replace(p, origin=origin) for p, origin in zip(made.processes, origins, strict=True)]
    system = find_system(replace(made, processes=tuple(processes)))
    assert system is not None
    (agents,) = [role for role in system.roles if role.name == "Agent actors"]
    members = [system.members[i] for i in agents.members]
    assert [m.thread for m in members] == [1, 1]
    assert not any("MainThread" in role.name or "Dummy" in role.name for role in system.roles)
    tasks = {(e.source, e.name) for e in system.edges if e.kind == "task"}
    assert tasks == {(i, "Agent.think") for i in agents.members}


def test_threads_of_an_actor_wait_between_tasks_though_nobody_sees_them() -> None:
    """Ray makes them in C++: Python, and so the sampler, knows them only while they run a task."""
    tree = {
        "ray_idle": Spec(100, 0.08 * SECOND, category="wait"),
        "ray_task": Spec(100, 0.0, {"Agent.work": Spec(100, 0.02 * SECOND, category="other")}),
    }
    made = make_capture(tree, cpu=None, unattributed=0.0)
    process, thread = made.processes[0], made.processes[0].threads[0]
    samples = np.zeros(20, SAMPLE_DTYPE)
    samples["native_id"], samples["weight_ns"], samples["state"] = thread.native_id, 0.1 * SECOND, RUNNING
    samples["node"] = next(i for i, path in enumerate(thread.paths) if "Agent.work" in path)
    states = thread_states(replace(process, samples=samples), thread, Resolver()).states
    assert states.waiting == pytest.approx(0.8, abs=0.01) and states.running == pytest.approx(0.2, abs=0.01)


def test_workers_that_run_tasks_are_no_actors_and_their_work_is_no_stepping_of_envs() -> None:
    """Bringing everything into the main process would undo what the cluster is for."""
    short = cluster(NodeFacts("b", "two"), (1.0, 1.0, 1.0))
    driver, *workers = short.processes
    tasks = [replace(p, origin=replace(p.origin, actor="") if p.origin else None) for p in workers]
    made = replace(short, processes=(driver, *tasks))
    system = find_system(made)
    assert system is not None
    assert {role.name for role in system.roles if role.works} == {"driver", "Ray workers"}
    elsewhere = tuple(replace(process, origin=Origin()) for process in made.processes)  # no job of Ray
    found = [
        any(one.name == "env_workers_cost_more_than_work" for one in explain(capture).recommendations)
        for capture in (made, replace(made, processes=elsewhere))
    ]
    assert found == [False, True]


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


def test_bytes_over_the_network_are_those_of_computers_not_of_nodes() -> None:
    def told(*nodes: NodeFacts) -> list[str]:
        capture = replace(cluster(nodes[1]), nodes=nodes)
        return [text for text in describe_cluster(capture, (), (), 10**10) if "network" in text]

    here = replace(HOME, network_id="boot net:1", network=(2 * 10**9, 1 << 20, 3 << 20))
    same = NodeFacts("b", "two", network_id="boot net:1", network=(2 * 10**9, 1 << 20, 3 << 20))
    other = NodeFacts("c", "three", network_id="boot net:2", network=(10**9, 8 << 20, 0))
    assert told(here, same) == ["All nodes are on one computer, so nothing went over a network."]
    assert told(here, replace(same, network_id="")) == []  # not known
    assert told(here, other) == [
        "Over the network, by all programs of each computer: three received 8.00 MiB and sent 0 B "
        "(8.00 MiB per second); one received 1.00 MiB and sent 3.00 MiB (2.00 MiB per second)."
    ]
    assert len(told(here, same, other)) == 1 and told(here, same, other)[0].count("received") == 2
    assert told(here, replace(other, network=None))[0].count("received") == 1


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
        "Runner 2 spent 8.00 s in its tasks, 4.0 times as much as the median." in sentences
    )
    assert "Ray was given 10.0 MiB of objects to send, 1.00 MiB per second." in describe_cluster(
        capture, system.members, system.roles, 10**10
    )


def test_stragglers_are_told_by_the_time_in_their_tasks() -> None:
    """Whatever they did before: actors that start late on a busy machine are no stragglers."""
    capture = cluster(NodeFacts("b", "two"), work_s=(2.0, 2.0, 2.2))
    system = find_system(capture)
    assert system is not None
    busy = replace(system.members[1].states, running=0.1, waiting=0.9)
    states = {"Runner 0": replace(busy, running=0.6, waiting=0.4), "Runner 1": busy, "Runner 2": busy}
    members = [replace(m, states=states.get(m.name, m.states)) for m in system.members]
    told = describe_cluster(capture, members, system.roles, 10**10)
    assert "The 3 Runner actors work 10.0 % to 60.0 % of their time." in told
    waits = cluster(
        NodeFacts("b", "two"), work_s=(2.0, 2.0, 9.0)
    )  # 9 s, of which it waits 7 for another actor
    slow = waits.processes[3]
    (thread,) = slow.threads
    (idle, task) = thread.root.children
    (method,) = task.children
    wait = replace(method, name="ray_get", category="wait", total_ns=7 * 10**9, children=[])
    root = replace(thread.root, children=[idle, replace(task, children=[replace(method, children=[wait])])])
    waiting = replace(slow, threads=(replace(thread, root=root),))
    made = replace(waits, processes=(*waits.processes[:3], waiting, *waits.processes[4:]))
    assert not any("in its tasks" in text for text in describe_cluster(made, members, system.roles, 10**10))
    assert any("in its tasks" in text for text in describe_cluster(waits, members, system.roles, 10**10))


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
    assert waits.ran_ns == pytest.approx(0.04 * SECOND)  # 2 + 2 + 8 s in 300 calls
    assert told[-1].startswith("Actors took to start (median): Runner 3.00 s, of which 1.00 s in __init__")

    rough = tuple((at, offset, 7 * 10**6) for at, offset, _ in far.clock)
    vague = replace(capture, nodes=(HOME, replace(far, clock=rough)))
    told = describe_cluster(vague, (), (), 10**10)
    assert (
        "Runner.sample less than 7.00 ms (95 % below 7.00 ms, 20 sampled; then they ran 40.0 ms)" in told[-2]
    )
    unknown = replace(capture, nodes=(HOME, replace(far, clock=())))
    assert task_waits(unknown) == [] and actor_starts(unknown) == []


def test_both_sides_keep_the_same_tasks() -> None:
    sent, began = Sample(), Sample()
    ids = [hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(5000)]
    for identity in ids:
        sent.add(identity, "f", 1)
        if identity[0] % 4 == 0:
            began.add(identity, 2)
    assert 100 < len(sent.kept) <= MOST and 100 < len(began.kept) <= MOST
    assert len(set(sent.kept) & set(began.kept)) >= 50


def test_processes_in_summaries_are_shown() -> None:
    many = cluster(NodeFacts("b", "two", folded=130))
    roles = (
        FoldedRole(
            "Runner",
            128,
            2,
            0.5,
            0.25,
            0.75,
            "Runner <7>",
            0.4,
            Progress(env_steps=12_800),
            (0, 10**19),
            (0, 12_800),
            (0, 0),
        ),
        FoldedRole("Logger", 2, 2, 0.01, 0.01, 0.01, "Logger 1", 0.99, Progress()),
    )
    findings = explain(replace(many, folded=roles))
    assert findings.env_steps == 12_800
    assert findings.system is not None
    text = terminal(findings, width=100)
    (row,) = [line.split() for line in text.splitlines() if line.split()[:2] == ["Runner", "128"]]
    assert " ".join(row[2:]) == "2 50.0 % 25.0 % 75.0 % 40.0 %"
    assert "The busiest Runner is Runner <7>: running 75.0 %, and 50.0 % on average." in " ".join(
        text.split()
    )
    assert "two: 132 processes" in text or "two: 133 processes" in text
    page = html_system(findings.system, "The whole system")
    assert "Processes in summaries" in page and "Runner &lt;7&gt;" in page and ">128<" in page
    listed = findings_json(findings)["system"]["folded"]
    assert [(role["name"], role["members"], role["waiting"]) for role in listed] == [
        ("Runner", 128, 0.4),
        ("Logger", 2, 0.99),
    ]
