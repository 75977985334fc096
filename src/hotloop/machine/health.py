"""What this computer offers training besides cores: memory, shared memory, governor, accelerators, noise."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from hotloop.machine.facts import THREAD_VARIABLES, cores_granted, cpu_name, memory_bytes

PROBES, PROBE_S = 200, 0.002


@dataclass(frozen=True, slots=True)
class Health:
    """Facts that affect the choice of settings; None where the system does not report one."""

    cpu: str
    cores_granted: float
    cores_present: int | None
    memory_bytes: int | None
    """Memory this process may use: what is installed, or less if its cgroup has a limit."""
    memory_available_bytes: int | None
    """How much of it is free now."""
    shared_memory_bytes: int | None
    """Space left in /dev/shm, through which worker processes exchange data."""
    accelerators: tuple[str, ...]
    """Device files of visible GPUs."""
    thread_variables: dict[str, str]
    """OMP_NUM_THREADS and similar variables that are set."""
    governor: str | None
    """Frequency governor of the first core."""
    load_1min: float | None
    noise_fraction: float
    """How much longer the 95th percentile of a fixed piece of work takes than its median."""


def health(
    system: Path = Path("/sys"),
    devices: Path = Path("/dev"),
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Health:
    """Examine this computer; takes about half a second, nearly all of it to measure the noise."""
    return Health(
        cpu=cpu_name(),
        cores_granted=cores_granted(system / "fs/cgroup"),
        cores_present=os.cpu_count(),
        memory_bytes=memory_bytes(system / "fs/cgroup"),
        memory_available_bytes=memory_available_bytes(system / "fs/cgroup"),
        shared_memory_bytes=shared_memory_bytes(devices / "shm"),
        accelerators=accelerators(devices),
        thread_variables={name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        governor=_word(system / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_1min=psutil.getloadavg()[0],
        noise_fraction=noise_fraction(clock_ns),
    )


def memory_available_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can still be allocated: free in the system, and within the limit of the cgroup."""
    free = psutil.virtual_memory().available
    limit, used = _word(cgroup / "memory.max"), _word(cgroup / "memory.current")
    if limit and limit.isdigit() and used and used.isdigit():
        return min(free, max(int(limit) - int(used), 0))
    return free


def shared_memory_bytes(folder: Path) -> int | None:
    """Space left in the folder that holds shared memory; None where there is no such folder."""
    try:
        about = os.statvfs(folder)
    except OSError:
        return None
    return about.f_bavail * about.f_frsize


def accelerators(devices: Path) -> tuple[str, ...]:
    """Device files of GPUs, found without loading a library."""
    nvidia = sorted(file.name for file in devices.glob("nvidia[0-9]*"))
    amd = ["kfd"] if (devices / "kfd").exists() else []
    return (*nvidia, *amd)


def noise_fraction(clock_ns: Callable[[], int] = time.perf_counter_ns) -> float:
    """Repeat a fixed piece of work: how much longer its 95th percentile takes than its median."""
    turns = 1000
    while _time_loop(turns, clock_ns) < PROBE_S * 1e9 and turns < 10**7:
        turns *= 2
    times = [_time_loop(turns, clock_ns) for _ in range(PROBES)]
    return statistics.quantiles(times, n=20)[-1] / statistics.median(times) - 1


def _time_loop(turns: int, clock_ns: Callable[[], int]) -> int:
    start, total = clock_ns(), 0
    for turn in range(turns):
        total += turn
    return clock_ns() - start


def _word(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError):
        return None
