"""What is wrong with a machine for training, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop._util.units import percent, size
from hotloop.machine.health import Health

LITTLE_SHARED_MEMORY_BYTES = 256 << 20
LITTLE_MEMORY_BYTES = 4 << 30
NOISY_FRACTION = 0.10


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that will cost time or fail."""

    what: str
    remedy: str


def complaints(seen: Health) -> tuple[Complaint, ...]:
    """Everything wrong, the worst first."""
    found = []
    if seen.shared_memory_bytes is None or seen.shared_memory_bytes < LITTLE_SHARED_MEMORY_BYTES:
        room = (
            "no /dev/shm"
            if seen.shared_memory_bytes is None
            else f"{size(seen.shared_memory_bytes)} in /dev/shm"
        )
        found.append(
            Complaint(
                f"{room}: worker processes cannot hand over much",
                "start the container with --shm-size=2g, or use fewer workers",
            )
        )
    if seen.memory_available_bytes is not None and seen.memory_available_bytes < LITTLE_MEMORY_BYTES:
        found.append(
            Complaint(
                f"only {size(seen.memory_available_bytes)} of memory free",
                "use --preset small-ram and a smaller replay buffer",
            )
        )
    if seen.cores_present is not None and seen.cores_granted < seen.cores_present:
        found.append(
            Complaint(
                f"{seen.cores_granted:g} of {seen.cores_present} cores granted, but libraries count them all",
                f"export OMP_NUM_THREADS={max(int(seen.cores_granted), 1)}; count cores with hotloop doctor",
            )
        )
    if not seen.thread_variables and seen.cores_granted > 1:
        found.append(
            Complaint(
                "OMP_NUM_THREADS is not set: every worker process starts a thread for each core",
                "export OMP_NUM_THREADS=1 for runs with worker processes",
            )
        )
    if seen.governor in ("powersave", "conservative"):
        found.append(
            Complaint(f"frequency governor {seen.governor}", "sudo cpupower frequency-set -g performance")
        )
    if seen.load_1min is not None and seen.load_1min > 0.5 * seen.cores_granted:
        found.append(
            Complaint(
                f"load {seen.load_1min:.1f} on {seen.cores_granted:g} cores: others are working here",
                "measure with hotloop compare, which runs in pairs, not with single runs",
            )
        )
    if seen.noise_fraction > NOISY_FRACTION:
        found.append(
            Complaint(
                f"the same work takes {percent(seen.noise_fraction)} longer in one of twenty tries",
                "expect wide intervals; give hotloop compare a larger --budget",
            )
        )
    return tuple(found)
