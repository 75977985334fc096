"""What the operating system did with threads over time: time on a core, time in the run queue, switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """One thread: figures at increasing times, cumulative from the start of the thread.

    Differences between two rows hold for the time between them. Rows start 50 ms apart, and grow further
    apart in a long run. A figure that the system does not report is None.
    """

    time_ns: Counts
    on_core_ns: Counts | None
    run_queue_ns: Counts | None  # ready to run, but without a core
    voluntary_switches: Counts | None
    involuntary_switches: Counts | None

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class ProcessScheduling:
    """A whole process: figures at increasing times, the times cumulative from its start.

    Native threads are those that run no Python, such as the pools of OpenMP and MKL; threads that have
    ended still count. A figure that the system does not report is None.
    """

    time_ns: Counts
    os_threads: Counts  # threads of the process at that time, our sampler included
    python_threads: Counts | None
    cpu_ns: Counts  # all threads
    native_on_core_ns: Counts | None
    native_run_queue_ns: Counts | None
    hotloop_ns: Counts  # CPU time of our own sampler

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class ThreadSettings:
    """How many threads the libraries of a process were allowed to use from `time_ns` on.

    `values` holds what was known: the environment variables (`OMP_NUM_THREADS`, `MKL_NUM_THREADS`, ..., None
    where unset), `cores_granted`, and `torch`, `torch_interop` and `numba` once the process uses them.
    """

    time_ns: int
    values: dict[str, Any]
