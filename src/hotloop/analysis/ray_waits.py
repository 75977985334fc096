"""How long tasks of Ray waited before a worker began them, and how long actors took to start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hotloop._util.units import duration
from hotloop.capture.clock_alignment import Alignment
from hotloop.capture.model import Capture
from hotloop.capture.region_names import RAY_TASK

MOST_NAMES = 3  # in a sentence


@dataclass(frozen=True, slots=True)
class TaskWaits:
    """Tasks of one name: from submission to start."""

    name: str
    known: int  # tasks of which both times are known: a sample
    median_ns: float
    p95_ns: float
    uncertainty_ns: int = 0  # of the clocks of the nodes where they were submitted and began
    ran_ns: float | None = None  # mean time of all tasks of this name; None: not recorded


@dataclass(frozen=True, slots=True)
class ActorStarts:
    """Actors of one class: from the call that makes one until it can be used."""

    name: str
    known: int
    median_ns: float
    longest_ns: float
    init_median_ns: float  # of that in its __init__


def task_waits(capture: Capture) -> list[TaskWaits]:
    """By name of the task, those that waited longest altogether first."""
    times = _Times(capture)
    waits: dict[str, list[int]] = {}
    unsure: dict[str, int] = {}
    for task, (name, at_ns) in times.of("submitted").items():
        if task in times.of("began"):
            waits.setdefault(name, []).append(max(times.of("began")[task][0] - at_ns, 0))
            unsure[name] = max(unsure.get(name, 0), times.uncertainty_ns("submitted", "began", task))
    ran = _ran(capture)
    found = [
        TaskWaits(name, len(all_ns), median(all_ns), _p95(all_ns), unsure[name], ran.get(name))
        for name, all_ns in waits.items()
    ]
    return sorted(found, key=lambda one: (-one.known * one.median_ns, one.name))


def _ran(capture: Capture) -> dict[str, float]:
    """Mean time of a task, by its name, of those that ended."""
    total: dict[str, list[float]] = {}
    for thread in capture.threads:
        for task in thread.root.children:
            if task.name == RAY_TASK:
                for node in task.children:
                    sums = total.setdefault(node.name, [0, 0.0])
                    sums[0] += node.calls
                    sums[1] += node.total_ns
    return {name: spent / calls for name, (calls, spent) in total.items() if calls}


def actor_starts(capture: Capture) -> list[ActorStarts]:
    """By class of the actor, those that took longest first."""
    times = _Times(capture)
    known: dict[str, list[tuple[int, int]]] = {}
    for actor, (name, at_ns) in times.of("created").items():
        if actor in times.of("started"):
            begin_ns, end_ns = times.of("started")[actor]
            known.setdefault(name, []).append((max(end_ns - at_ns, 0), end_ns - begin_ns))
    found = [
        ActorStarts(
            name,
            len(pairs),
            median(whole for whole, _ in pairs),
            max(whole for whole, _ in pairs),
            median(inside for _, inside in pairs),
        )
        for name, pairs in known.items()
    ]
    return sorted(found, key=lambda one: (-one.median_ns, one.name))


def wait_sentences(capture: Capture) -> list[str]:
    """A sentence about tasks and one about actors; none where nothing is known."""
    found = []
    if waits := task_waits(capture):
        words = [
            f"{one.name} {_told(one.median_ns, one)} (95 % below "
            f"{duration(max(one.p95_ns, one.uncertainty_ns))}, {one.known} sampled"
            f"{'' if one.ran_ns is None else f'; then they ran {duration(one.ran_ns)}'})"
            for one in waits[:MOST_NAMES]
        ]
        found.append(f"From submission to start, tasks waited (median): {'; '.join(words)}.")
    if starts := actor_starts(capture):
        words = [
            f"{one.name} {duration(one.median_ns)}, of which {duration(one.init_median_ns)} in __init__"
            + (f" ({one.known} actors, at most {duration(one.longest_ns)})" if one.known > 1 else "")
            for one in starts[:MOST_NAMES]
        ]
        found.append(f"Actors took to start (median): {'; '.join(words)}.")
    return found


def _told(wait_ns: float, waits: TaskWaits) -> str:
    """A time between two nodes; one that their clocks cannot tell is not claimed."""
    unsure_ns = waits.uncertainty_ns
    return duration(wait_ns) if wait_ns > unsure_ns else f"less than {duration(unsure_ns)}"


class _Times:
    """What all processes have noted, on the driver's clock; not those of nodes whose clock is not known."""

    def __init__(self, capture: Capture):
        clocks = {node.node: Alignment(node) for node in capture.nodes if node.clock}
        unknown = {
            node.node for node in capture.nodes if not node.driver and node.clock_uncertainty_ns is None
        }
        unsure = {node.node: node.clock_uncertainty_ns or 0 for node in capture.nodes}
        self._all: dict[str, dict[str, tuple[Any, ...]]] = {}
        self._unsure: dict[tuple[str, str], tuple[str, int]] = {}  # kind and id -> node, uncertainty
        for library in capture.facts.get("libraries", ()):
            noted: Mapping[str, Any] = library.get("ray_tasks", {})
            place = noted.get("node", "")
            if place in unknown:
                continue
            clock = clocks.get(place)
            move = clock.time if clock is not None and clock.is_needed else int
            for kind in ("submitted", "began", "created", "started"):
                for key, values in noted.get(kind, {}).items():
                    moved = (value if isinstance(value, str) else move(value) for value in values)
                    self._all.setdefault(kind, {})[key] = tuple(moved)
                    self._unsure[kind, key] = place, unsure.get(place, 0)

    def uncertainty_ns(self, begin: str, end: str, key: str) -> int:
        """Of the time from one moment to another; none on one node."""
        (here, here_ns), (there, there_ns) = self._unsure[begin, key], self._unsure[end, key]
        return 0 if here == there else here_ns + there_ns

    def of(self, kind: str) -> dict[str, tuple[Any, ...]]:
        return self._all.get(kind, {})


def _p95(values: list[int]) -> float:
    """The value that 95 % do not exceed."""
    ordered = sorted(values)
    return float(ordered[math.ceil(0.95 * len(ordered)) - 1])
