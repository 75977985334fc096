"""The region trees of a capture, for `hotloop show`: everything merged, or one for each process or thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hotloop.analysis.tree import cost_of_calls
from hotloop.capture.model import Capture, Node, Thread, merged

Grouping = Literal["all", "process", "thread"]


@dataclass(frozen=True, slots=True)
class RegionTree:
    """The regions of one or more threads, merged into one tree."""

    label: str
    thread_count: int
    wall_ns: int  # wall time of its threads added up; shares refer to this
    unattributed_ns: int
    hotloop_ns: float | None  # our own cost: completed calls x calibrated cost; None: not calibrated
    root: Node
    open_now: tuple[str, ...]  # innermost open region of each thread when the capture was read

    def share(self, ns: float) -> float | None:
        """A time as a fraction of the wall time of these threads."""
        return ns / self.wall_ns if self.wall_ns else None


def region_trees(capture: Capture, by: Grouping = "all") -> list[RegionTree]:
    """One tree for the whole capture, or one for each process or thread."""
    groups: list[tuple[str, tuple[Thread, ...]]]
    if by == "all":
        groups = [("all processes and threads", capture.threads)]
    elif by == "process":
        groups = [(f"process {p.pid} {p.label}", p.threads) for p in capture.processes]
    else:
        groups = [
            (f"process {p.pid} {p.label}, thread {t.name}", (t,))
            for p in capture.processes
            for t in p.threads
        ]
    found = []
    for label, threads in groups:
        root = merged(threads)
        cost = capture.region_cost_ns
        found.append(
            RegionTree(
                label=label,
                thread_count=sum(max(t.folded_threads, 1) for t in threads),
                wall_ns=sum(t.wall_ns for t in threads),
                unattributed_ns=root.own_ns,
                hotloop_ns=None if cost is None else _own_cost(root, cost),
                root=root,
                open_now=tuple(t.open[-1].name for t in threads if t.open),
            )
        )
    return found


def _own_cost(root: Node, region_cost_ns: float) -> float:
    below = sum(_own_cost(child, region_cost_ns) for child in root.children)
    return below + sum(cost_of_calls(child.calls, root.total_ns, region_cost_ns) for child in root.children)


def walk(root: Node) -> Iterator[tuple[int, Node]]:
    """Every node below the root with its depth, parents first, siblings by total time."""
    todo = [(0, child) for child in sorted(root.children, key=lambda n: n.total_ns)]
    while todo:
        depth, node = todo.pop()
        yield depth, node
        todo += [(depth + 1, child) for child in sorted(node.children, key=lambda n: n.total_ns)]
