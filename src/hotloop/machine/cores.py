"""Which cores this process may use and how busy they are, so that runs can get separate cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.machine.facts import cgroup_cores

SAMPLE_S = 0.5  # how long to watch the cores


@dataclass(frozen=True, slots=True)
class AvailableCores:
    """The cores that can be shared out."""

    cores: tuple[int, ...]
    """Core numbers, hyper-threads of one physical core side by side; () where they cannot be chosen."""
    quota: float | None
    """CPU time the cgroup allows, in cores; None without a limit."""
    busy: Mapping[int, float]
    """Core -> fraction of its time in use now; {} where the system does not report it."""


def available_cores(
    seconds: float = SAMPLE_S,
    proc: Path = Path("/proc"),
    system: Path = Path("/sys/devices/system/cpu"),
    cgroup: Path = Path("/sys/fs/cgroup"),
    sleep: Callable[[float], None] = time.sleep,
) -> AvailableCores:
    """Watch the cores this process may use for `seconds`."""
    if not hasattr(os, "sched_getaffinity"):
        return AvailableCores((), cgroup_cores(cgroup), {})
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (physical_core(core, system), core))
    return AvailableCores(tuple(cores), cgroup_cores(cgroup), core_usage(cores, seconds, proc, sleep))


def core_usage(
    cores: Sequence[int], seconds: float, proc: Path, sleep: Callable[[float], None]
) -> dict[int, float]:
    """Fraction of its time each core is in use over the next `seconds`."""
    before = _ticks(proc)
    sleep(seconds)
    after = _ticks(proc)
    found = {}
    for core in cores:
        if core in before and core in after:
            total, idle = (now - then for now, then in zip(after[core], before[core], strict=True))
            if total > 0:
                found[core] = min(max(1 - idle / total, 0.0), 1.0)
    return found


def physical_core(core: int, system: Path = Path("/sys/devices/system/cpu")) -> int:
    """Lowest number among the hyper-threads of its physical core; `core` itself when that is unknown."""
    try:
        listed = (system / f"cpu{core}" / "topology" / "thread_siblings_list").read_text(encoding="utf-8")
        return int(listed.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return core


def _ticks(proc: Path) -> dict[int, tuple[float, float]]:
    """Core -> all ticks since boot, and the idle ones (including those that wait for a disk)."""
    # psutil lists cores without their numbers, so one that is offline would shift all after it.
    try:
        lines = (proc / "stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(words) >= 8:
            ticks = [float(word) for word in words[:8]]
            found[int(name[3:])] = (sum(ticks), ticks[3] + ticks[4])
    return found
