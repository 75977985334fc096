"""How busy this computer is: load, pressure stalls, steal and throttling, as running totals.

Take one snapshot before a run and one after it; the difference is what the run was exposed to. What the
system does not report is missing from a snapshot, never 0.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil


def load_snapshot(
    pressure: Path = Path("/proc/pressure"), cgroup: Path = Path("/sys/fs/cgroup")
) -> dict[str, float]:
    """`at_s` (monotonic) and `load_1min`; totals since boot in seconds: `cpu_stall_s`, `memory_stall_s`,
    `io_stall_s` (at least one task waited), `steal_s`, `cpu_s` (all CPUs), `throttled_s` (our cgroup).
    """
    found = {"at_s": time.monotonic(), "load_1min": psutil.getloadavg()[0]}
    for resource in ("cpu", "memory", "io"):  # pressure stalls and cgroups are beyond psutil
        total_us = _pressure_total(pressure / resource)
        if total_us is not None:
            found[f"{resource}_stall_s"] = total_us / 1e6
    times = psutil.cpu_times()
    if hasattr(times, "steal"):
        # guest time is part of user time already
        found |= {"steal_s": times.steal, "cpu_s": sum(times) - times.guest - times.guest_nice}
    throttled = _line(cgroup / "cpu.stat", "throttled_usec").split()
    if len(throttled) == 2:
        found["throttled_s"] = float(throttled[1]) / 1e6
    return found


def _pressure_total(file: Path) -> float | None:
    for word in _line(file, "some").split():
        if word.startswith("total="):
            return float(word.removeprefix("total="))
    return None


def _line(file: Path, beginning: str) -> str:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(beginning)), "")
