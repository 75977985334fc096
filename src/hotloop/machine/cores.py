"""Which cores this process may use and how busy they are now: runs can be given cores of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.machine.facts import cgroup_cores

LOOK_S = 0.5  # how long to look at what the cores do


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to share out."""

    cores: tuple[int, ...]  # by number, threads of one physical core side by side; (): cannot be chosen here
    quota: float | None  # cores' worth of time the cgroup allows; None without a limit
    busy: Mapping[int, float]  # core -> share of its time in use just now; {} when the system does not tell


def room(
    seconds: float = LOOK_S,
    proc: Path = Path("/proc"),
    system: Path = Path("/sys/devices/system/cpu"),
    cgroup: Path = Path("/sys/fs/cgroup"),
    sleep: Callable[[float], None] = time.sleep,
) -> Room:
    """Look for so many seconds at the cores this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return Room((), cgroup_cores(cgroup), {})
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (physical(core, system), core))
    return Room(tuple(cores), cgroup_cores(cgroup), busy(cores, seconds, proc, sleep))


def busy(
    cores: Sequence[int], seconds: float, proc: Path, sleep: Callable[[float], None]
) -> dict[int, float]:
    """Share of its time each core is in use during so many seconds."""
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


def physical(core: int, system: Path = Path("/sys/devices/system/cpu")) -> int:
    """The lowest number of the threads that share its physical core; itself when the system does not tell."""
    try:
        listed = (system / f"cpu{core}" / "topology" / "thread_siblings_list").read_text(encoding="utf-8")
        return int(listed.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return core


def _ticks(proc: Path) -> dict[int, tuple[float, float]]:
    """Core -> all ticks since boot, and the idle ones (waiting for a disk included)."""
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
