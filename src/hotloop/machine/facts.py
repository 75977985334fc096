"""Facts about this computer: what it has, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from hotloop._util.errors import FileError
from hotloop._util.interrupts import is_users
from hotloop._util.read_files import Reader

_GIT = Reader(64 << 20)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LIBRARIES = (
    "numpy",
    "torch",
    "gymnasium",
    "numba",
    "stable_baselines3",
    "sb3_contrib",
    "torchrl",
    "tensordict",
    "ray",
    "jax",
)


def machine_facts() -> dict[str, Any]:
    """What a reader of a capture wants to know about the machine."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores_granted": cores_granted(),
        "cores_present": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "threads_env": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
    }


def cores_granted(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores this process may use: those in its affinity, limited by the quota of its cgroup."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores(cgroup)
    return float(affinity) if quota is None else min(float(affinity), quota)


def cgroup_cores(cgroup: Path) -> float | None:
    """CPU time the cgroup allows, in cores; None without a limit."""
    two = _words(cgroup / "cpu.max")
    if len(two) == 2 and two[0] != "max":
        return int(two[0]) / int(two[1])
    quota, period = _words(cgroup / "cpu/cpu.cfs_quota_us"), _words(cgroup / "cpu/cpu.cfs_period_us")
    if quota and period and int(quota[0]) > 0:
        return int(quota[0]) / int(period[0])
    return None


def memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory this process may use: what is installed, or less if its cgroup has a limit."""
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError) as error:
        if is_users(error):
            raise
        return None
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        words = _words(cgroup / name)
        if words and words[0].isdigit():
            return min(installed, int(words[0]))
    return installed


def cpu_name() -> str:
    """Model name of the processor."""
    try:  # psutil does not know it
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError as error:
        if is_users(error):
            raise
    return platform.processor() or platform.machine()


def library_versions() -> dict[str, str]:
    """Versions of the installed libraries that affect a run."""
    from importlib import metadata  # slow to load, and only needed when a recording begins

    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_hash(folder: Path) -> str | None:
    """Commit checked out in `folder` or a parent, read from git's files; None outside a checkout."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        try:
            if git.is_file():
                git = (place / _GIT.read_text(git).partition(":")[2].strip()).resolve()
            if git.is_dir():
                return _resolve(git, _GIT.read_text(git / "HEAD").strip())
        except (OSError, ValueError, FileError) as error:  # ValueError: a path with a zero byte
            if is_users(error):
                raise
            return None
    return None


def _resolve(git: Path, head: str) -> str | None:
    if not head.startswith("ref:"):
        return head
    name = head.partition(":")[2].strip()
    common = git / "commondir"
    home = (git / _GIT.read_text(common).strip()) if common.is_file() else git
    if (home / name).is_file():
        return _GIT.read_text(home / name).strip()
    if (home / "packed-refs").is_file():
        for line in _GIT.read_text(home / "packed-refs").splitlines():
            if line.endswith(" " + name):
                return line.partition(" ")[0]
    return None


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)[:1]).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        if is_users(error):
            raise
        return []
