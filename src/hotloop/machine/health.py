"""What this computer has for training besides cores: memory, shared memory, governor, accelerator, noise."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotloop.machine.facts import THREAD_VARIABLES, cores_granted, cpu_name, memory_bytes

PROBES, PROBE_S = 200, 0.002


@dataclass(frozen=True, slots=True)
class Health:
    """Facts that decide settings; None is what the system does not tell."""

    cpu: str
    cores_granted: float
    cores_present: int | None
    memory_bytes: int | None
    """What this process may use in all: installed, cut by the cgroup."""
    memory_available_bytes: int | None
    """What is free of it now."""
    shared_memory_bytes: int | None
    """Room left in /dev/shm, where worker processes hand over data."""
    accelerators: tuple[str, ...]
    """Device files of GPUs that are visible."""
    thread_variables: dict[str, str]
    """OMP_NUM_THREADS and its kin, where set."""
    governor: str | None
    """Frequency governor of the first core."""
    load_1min: float | None
    noise_fraction: float
    """How much longer the 95th percentile of a fixed piece of work takes than its median."""


def health(
    proc: Path = Path("/proc"),
    system: Path = Path("/sys"),
    devices: Path = Path("/dev"),
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Health:
    """Look around; takes about half a second, nearly all of it for the noise."""
    return Health(
        cpu=cpu_name(),
        cores_granted=cores_granted(system / "fs/cgroup"),
        cores_present=os.cpu_count(),
        memory_bytes=memory_bytes(system / "fs/cgroup"),
        memory_available_bytes=memory_available_bytes(proc, system / "fs/cgroup"),
        shared_memory_bytes=shared_memory_bytes(devices / "shm"),
        accelerators=accelerators(devices),
        thread_variables={name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        governor=_word(system / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_1min=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        noise_fraction=noise_fraction(clock_ns),
    )


def memory_available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that can still be taken: what the system has free, cut by what the cgroup has left."""
    free = None
    try:
        for line in (proc / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        return None
    limit, used = _word(cgroup / "memory.max"), _word(cgroup / "memory.current")
    if limit and limit.isdigit() and used and used.isdigit():
        left = max(int(limit) - int(used), 0)
        return left if free is None else min(free, left)
    return free


def shared_memory_bytes(folder: Path) -> int | None:
    """Room left in the folder that holds shared memory; None where there is none."""
    try:
        about = os.statvfs(folder)
    except OSError:
        return None
    return about.f_bavail * about.f_frsize


def accelerators(devices: Path) -> tuple[str, ...]:
    """GPUs by their device files, without loading any library."""
    nvidia = sorted(file.name for file in devices.glob("nvidia[0-9]*"))
    amd = ["kfd"] if (devices / "kfd").exists() else []
    return (*nvidia, *amd)


def noise_fraction(clock_ns: Callable[[], int] = time.perf_counter_ns) -> float:
    """Do one fixed piece of work many times; how much longer the slow ones took than the middle one."""
    turns = 1000
    while _timed(turns, clock_ns) < PROBE_S * 1e9 and turns < 10**7:
        turns *= 2
    times = [_timed(turns, clock_ns) for _ in range(PROBES)]
    return statistics.quantiles(times, n=20)[-1] / statistics.median(times) - 1


def _timed(turns: int, clock_ns: Callable[[], int]) -> int:
    start, total = clock_ns(), 0
    for turn in range(turns):
        total += turn
    return clock_ns() - start


def _word(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError):
        return None
