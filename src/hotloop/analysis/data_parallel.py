"""Ranks with DistributedDataParallel: whose gradients are added up in `backward`, and its own clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop._util.units import duration
from hotloop.analysis.system import Member
from hotloop.capture.model import Capture

LEAST_ITERATIONS = 2  # after fewer, its clocks have seen the first one only
SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def data_parallel_pids(capture: Capture) -> set[int]:
    """Processes in which a DistributedDataParallel adds up gradients during `backward`."""
    return {entry["pid"] for entry in _entries(capture)}


def _entries(capture: Capture) -> list[dict[str, Any]]:
    return [entry for entry in capture.facts.get("libraries") or () if "data_parallel" in entry]


def gradient_bytes(capture: Capture, pid: int) -> int:
    """Bytes of all gradients of a process whose gradients are added up across ranks."""
    for entry in _entries(capture):
        if entry.get("pid") == pid:
            return sum(
                int(one["parameters"]) * SIZES.get(next(iter(one["dtypes"]), ""), 4)
                for one in entry.get("optimizers", ())
            )
    return 0


def data_parallel_sentences(capture: Capture, members: Sequence[Member]) -> list[str]:
    """What DistributedDataParallel measured in `backward` of the ranks that exchange least and longest."""
    found: dict[int, str] = {}
    for member in members:
        for entry in _entries(capture):
            clocks = entry["data_parallel"]
            if entry.get("pid") != member.pid or member.kind != "rank" or not isinstance(clocks, dict):
                continue
            names = ("compute", "comm", "compute_comm_overlap")
            read = [clocks.get(f"avg_backward_{name}_time") for name in names]
            known = [value for value in (*read, clocks.get("iteration")) if isinstance(value, int)]
            if len(known) < 4 or min(known) < 0 or not known[0] or known[3] < LEAST_ITERATIONS:
                continue
            backward, exchange, overlap, _ = known
            found[exchange] = (
                f"{member.name[:1].upper()}{member.name[1:]}: backward computes for {duration(backward)} and "
                f"exchanges gradients for {duration(exchange)}, waiting for other ranks included; "
                f"{duration(overlap)} of that overlap (DistributedDataParallel's own clocks)."
            )
    return [found[exchange] for exchange in sorted({min(found), max(found)})] if found else []
