"""Problems of this machine that cost training time or make it fail, each with a remedy."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop._util.units import percent, size
from hotloop.machine.health import Health

LITTLE_SHARED_MEMORY_BYTES = 256 << 20
LITTLE_MEMORY_BYTES = 4 << 30
NOISY_FRACTION = 0.10


@dataclass(frozen=True, slots=True)
class MachineWarning:
    """One problem and what to do about it."""

    problem: str
    remedy: str


def machine_warnings(health: Health) -> tuple[MachineWarning, ...]:
    """All problems found, the worst first."""
    found = []
    if health.shared_memory_bytes is None or health.shared_memory_bytes < LITTLE_SHARED_MEMORY_BYTES:
        space = (
            "no /dev/shm"
            if health.shared_memory_bytes is None
            else f"only {size(health.shared_memory_bytes)} free in /dev/shm"
        )
        found.append(
            MachineWarning(
                f"{space}: too little for worker processes to pass data through",
                "start the container with --shm-size=2g, or use fewer workers",
            )
        )
    if health.memory_available_bytes is not None and health.memory_available_bytes < LITTLE_MEMORY_BYTES:
        found.append(
            MachineWarning(
                f"only {size(health.memory_available_bytes)} of memory free",
                "use --preset small-ram and a smaller replay buffer",
            )
        )
    if health.cores_present is not None and health.cores_granted < health.cores_present:
        found.append(
            MachineWarning(
                f"you may use {health.cores_granted:g} of {health.cores_present} cores, "
                "but libraries count all of them",
                f"export OMP_NUM_THREADS={max(int(health.cores_granted), 1)}, and set numbers of workers "
                "by the cores granted",
            )
        )
    if not health.thread_variables and health.cores_granted > 1:
        found.append(
            MachineWarning(
                "OMP_NUM_THREADS is not set: every worker process starts one thread per core",
                "export OMP_NUM_THREADS=1 for runs with worker processes",
            )
        )
    if health.governor in ("powersave", "conservative"):
        found.append(
            MachineWarning(
                f"the CPU frequency governor is {health.governor}",
                "sudo cpupower frequency-set -g performance",
            )
        )
    if health.load_1min is not None and health.load_1min > 0.5 * health.cores_granted:
        found.append(
            MachineWarning(
                f"load {health.load_1min:.1f} on {health.cores_granted:g} cores: other programs are running",
                "compare with hotloop compare, which runs in pairs, not with single runs",
            )
        )
    if health.noise_fraction > NOISY_FRACTION:
        found.append(
            MachineWarning(
                f"one in twenty repetitions of the same work takes {percent(health.noise_fraction)} longer "
                "or more",
                "expect wide intervals; give hotloop compare a larger --budget",
            )
        )
    return tuple(found)
