"""Translate the times of other computers to the clock of the driver's computer.

Times in a part come from the monotonic clock of the computer that wrote it. The driver measured now and then
how far the clock of each node is ahead of its own (`NodeFacts.clock`), since clocks drift; between two
measurements the offset is interpolated. After alignment, times of all processes can be compared,
up to the uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.capture.messages import MessageLog
from hotloop.capture.model import Process, Thread
from hotloop.capture.nodes import NodeFacts, node_of


class Alignment:
    """Turns times of one node into times of the driver."""

    def __init__(self, node: NodeFacts):
        measured = np.array(node.clock, dtype=np.int64).reshape(-1, 3)
        # Both clocks at the moment of each measurement, the node's increasing.
        there = measured[:, 0] + measured[:, 1]
        order = np.argsort(there, kind="stable")
        self._there = there[order]
        self._offset = measured[:, 1][order]
        self.is_needed = bool(measured[:, 1].any())

    def times(self, given: NDArray[Any]) -> NDArray[Any]:
        """The same moments on the driver's clock, of the same type; never below 0."""
        base = int(self._offset[0])  # offsets differ by little, so that their differences are exact as floats
        further = np.interp(
            given.astype(np.int64) - int(self._there[0]),
            (self._there - self._there[0]).astype(np.float64),
            (self._offset - base).astype(np.float64),
        )
        moved = given.astype(np.int64) - base - np.rint(further).astype(np.int64)
        return np.maximum(moved, 0).astype(given.dtype)

    def time(self, given: int) -> int:
        return int(self.times(np.array([given], dtype=np.int64))[0])


def align_processes(
    processes: Sequence[Process], nodes: tuple[NodeFacts, ...], driver: Process | None
) -> list[Process]:
    """The processes with all times on the driver's clock; those of nodes without a measurement stay."""
    known = {node.node: Alignment(node) for node in nodes if node.clock}
    found = []
    for process in processes:
        alignment = known.get(_node(process, nodes))
        if alignment is None or not alignment.is_needed:
            found.append(process)
            continue
        found.append(aligned(process, alignment, driver))
    return found


def _node(process: Process, nodes: tuple[NodeFacts, ...]) -> str:
    return node_of(process.host, process.origin.node if process.origin is not None else "", nodes)


def aligned(process: Process, alignment: Alignment, driver: Process | None) -> Process:
    """One process on the driver's clock, its real time included."""
    start_ns = alignment.time(process.start_ns)
    # The driver's real time at that moment: the node's own clock may be wrong.
    start_real_ns = (
        driver.start_real_ns + start_ns - driver.start_ns if driver is not None else process.start_real_ns
    )
    real_shift = start_real_ns - process.start_real_ns
    samples = process.samples.copy()
    samples["time_ns"] = alignment.times(samples["time_ns"])
    scheduling = process.scheduling
    return replace(
        process,
        start_ns=start_ns,
        start_real_ns=start_real_ns,
        end_ns=alignment.time(process.end_ns),
        threads=tuple(_thread(thread, alignment, real_shift) for thread in process.threads),
        scheduling=scheduling and replace(scheduling, time_ns=alignment.times(scheduling.time_ns)),
        thread_settings=tuple(
            replace(settings, time_ns=alignment.time(settings.time_ns))
            for settings in process.thread_settings
        ),
        samples=samples,
    )


def _thread(thread: Thread, alignment: Alignment, real_shift: int) -> Thread:
    rounds = thread.rounds.copy()
    rounds["start_ns"] = alignment.times(rounds["start_ns"])
    calls = thread.calls.copy()
    calls["start_ns"] = alignment.times(calls["start_ns"])
    windows, scheduling = thread.windows, thread.scheduling
    real_ns = np.maximum(windows.real_ns.astype(np.int64) + real_shift, 0).astype(windows.real_ns.dtype)
    return replace(
        thread,
        start_ns=alignment.time(thread.start_ns),
        end_ns=alignment.time(thread.end_ns),
        open=tuple(replace(region, since_ns=alignment.time(region.since_ns)) for region in thread.open),
        windows=replace(windows, time_ns=alignment.times(windows.time_ns), real_ns=real_ns),
        events=tuple(replace(event, start_ns=alignment.time(event.start_ns)) for event in thread.events),
        scheduling=scheduling and replace(scheduling, time_ns=alignment.times(scheduling.time_ns)),
        rounds=rounds,
        calls=calls,
        channels=tuple(replace(use, time_ns=alignment.times(use.time_ns)) for use in thread.channels),
    )


def align_messages(
    logs: Sequence[MessageLog], processes: Sequence[Process], nodes: tuple[NodeFacts, ...]
) -> tuple[MessageLog, ...]:
    """The same for message logs, which belong to processes by their pids."""
    known = {node.node: Alignment(node) for node in nodes if node.clock}
    node_by_pid = {process.pid: _node(process, nodes) for process in processes}
    node_by_process = {(process.host, process.pid): _node(process, nodes) for process in processes}
    found = []
    for log in logs:
        alignment = known.get(node_by_process.get((log.host, log.pid), node_by_pid.get(log.pid, "")))
        if alignment is None or not alignment.is_needed:
            found.append(log)
            continue
        records = log.records.copy()
        for field in ("begin_ns", "end_ns"):
            records[field] = alignment.times(records[field])
        found.append(replace(log, records=records))
    return tuple(found)
