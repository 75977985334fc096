"""How busy this computer is: load, pressure stall, stolen and throttled time, as running totals.

Totals are read before and after a run; the difference says what the run had to bear. What the
system does not tell is absent, never 0.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def load_snapshot(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> dict[str, float]:
    """`at_s` (monotonic) and `load_1min`; totals since boot: `cpu_stall_s`, `memory_stall_s`,
    `io_stall_s` (some task waited), `steal_s`, `cpu_s` (all CPUs), `throttled_s` (of our cgroup).
    """
    found = {"at_s": time.monotonic()}
    if hasattr(os, "getloadavg"):
        found["load_1min"] = os.getloadavg()[0]
    for resource in ("cpu", "memory", "io"):
        total = _value(proc / "pressure" / resource, "some", "total=")
        if total is not None:
            found[f"{resource}_stall_s"] = total / 1e6
    ticks = [float(word) for word in _line(proc / "stat", "cpu ").split()[1:9]]
    if len(ticks) == 8:  # user nice system idle iowait irq softirq steal
        per_s = os.sysconf("SC_CLK_TCK")
        found |= {"steal_s": ticks[7] / per_s, "cpu_s": sum(ticks) / per_s}
    throttled = _line(cgroup / "cpu.stat", "throttled_usec").split()
    if len(throttled) == 2:
        found["throttled_s"] = float(throttled[1]) / 1e6
    return found


def _value(file: Path, line: str, word: str) -> float | None:
    for part in _line(file, line).split():
        if part.startswith(word):
            return float(part.removeprefix(word))
    return None


def _line(file: Path, beginning: str) -> str:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(beginning)), "")
