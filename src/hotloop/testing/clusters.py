"""Synthetic recordings of large clusters: many nodes with many processes, made without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hotloop.capture import layout
from hotloop.capture.model import Node, Process, Progress, Thread, Windows
from hotloop.capture.origin import Origin

SECOND_NS = 1_000_000_000
BEGIN_REAL_NS = 1_700_000_000 * SECOND_NS


def make_node_processes(
    node: int,
    processes: int = 64,
    *,
    regions: int = 40,
    windows: int = 32,
    length_s: float = 600.0,
    seed: int = 0,
) -> Iterator[Process]:
    """The processes of one node of a job on Ray, one by one: env runners, and one learner for every 16.

    Node 0 also has the driver. Each process has `regions` regions at two levels; a tenth of the nodes is
    half as fast as the others.
    """
    rng = np.random.default_rng((seed, node))
    slow = 2.0 if node % 10 == 9 else 1.0
    for number in range(processes):
        if node == 0 and number == 0:
            origin = Origin(program="train.py", ray="driver", node=f"node{node}")
        else:
            actor = "Learner" if number % 16 == 15 else "EnvRunner"
            origin = Origin(ray="worker", node=f"node{node}", actor=actor)
        yield _process(node, number, origin, slow * rng.uniform(0.9, 1.1), regions, windows, length_s, rng)


def _process(
    node: int,
    number: int,
    origin: Origin,
    slowness: float,
    regions: int,
    windows: int,
    length_s: float,
    rng: np.random.Generator,
) -> Process:
    wall_ns = round(length_s * SECOND_NS)
    waiting_ns = round(wall_ns * max(0.6 - 0.2 * slowness, 0.05))
    root = Node("", total_ns=wall_ns)
    paths: list[tuple[str, ...]] = [()]
    shares = rng.dirichlet(np.ones(regions - 1)) * (wall_ns - waiting_ns) * 0.95
    idle = _node("ray_idle", "wait", waiting_ns, 1000, rng)
    task = Node("ray_task", "other")
    for at, share in enumerate(shares):
        task.children.append(_node(f"region_{at}", "", round(share), int(rng.integers(100, 10_000)), rng))
    task.calls, task.total_ns = 1000, sum(child.total_ns for child in task.children)
    task.min_ns, task.max_ns = 1, task.total_ns
    root.children = [idle, task]
    root.own_ns = wall_ns - idle.total_ns - task.total_ns
    paths += [("ray_idle",), ("ray_task",), *(("ray_task", child.name) for child in task.children)]
    steps = round(100_000 / slowness) if origin.actor == "EnvRunner" else 0
    updates = round(1000 / slowness) if origin.actor == "Learner" else 0
    start_ns = 10**15 + node
    times = (start_ns + np.linspace(0, wall_ns, windows + 1)[1:]).astype(np.uint64)
    part = np.linspace(0, 1, windows + 1)[1:]
    zeros = np.zeros((windows, len(paths)), dtype=np.uint64)
    thread = Thread(
        name="MainThread",
        native_id=1000 + number,
        start_ns=start_ns,
        end_ns=start_ns + wall_ns,
        wall_ns=wall_ns,
        cpu_ns=wall_ns - waiting_ns,
        folded_threads=0,
        ended=False,
        progress=replace(Progress(), env_steps=steps, updates=updates),
        open=(),
        paths=tuple(paths),
        root=root,
        windows=Windows(
            time_ns=times,
            real_ns=times - np.uint64(start_ns) + np.uint64(BEGIN_REAL_NS),
            cpu_ns=(part * (wall_ns - waiting_ns)).astype(np.uint64),
            rss_bytes=np.zeros(windows, dtype=np.uint64),
            progress={
                "env_steps": (part * steps).astype(np.uint64),
                "updates": (part * updates).astype(np.uint64),
            },
            calls=zeros,
            total_ns=zeros,
            own_ns=zeros,
        ),
    )
    return Process(
        host=f"node{node}",
        pid=1000 + number,
        parent_pid=1,
        label=origin.actor or "train.py",
        core="compiled",
        start_ns=start_ns,
        start_real_ns=BEGIN_REAL_NS,
        end_ns=start_ns + wall_ns,
        closed=True,
        alive=False,
        rss_bytes=None,
        rss_peak_bytes=None,
        threads=(thread,),
        origin=origin,
    )


def _node(name: str, category: str, total_ns: int, calls: int, rng: np.random.Generator) -> Node:
    mean = max(total_ns // max(calls, 1), 1)
    buckets = np.zeros(layout.BUCKETS, dtype=np.uint64)
    middle = min(4 * max(mean.bit_length() - 6, 1), layout.BUCKETS - 3)
    spread = rng.multinomial(calls, [0.2, 0.5, 0.3])
    buckets[middle : middle + 3] = spread
    return Node(
        name,
        category,
        calls=calls,
        total_ns=total_ns,
        own_ns=total_ns,
        min_ns=mean // 2,
        max_ns=mean * 2,
        squares=float(calls) * mean,
        buckets=buckets,
    )
