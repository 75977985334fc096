"""Runs a script with clocks for a busy machine, so that the speed it prints is its own.

    python tests/truth/busy_clock.py core|cpu slow.py --episodes 10

`time.perf_counter` and `time.time` (which still begins with today's date) go on by seconds of
- core: wall time without the time in which the main thread was ready to run but had no core (Linux). Waiting
  for others counts, and with it the time that these waited for a core.
- cpu: CPU time of the process and of its ended children. Time asleep does not count.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path


def cpu_seconds() -> float:
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


def core_clock() -> Callable[[], float]:
    wall = time.perf_counter
    file = os.open(f"/proc/self/task/{os.getpid()}/schedstat", os.O_RDONLY)

    def core_seconds() -> float:
        return wall() - int(os.pread(file, 96, 0).split()[1]) / 1e9

    return core_seconds


if __name__ == "__main__":
    clock = {"core": core_clock, "cpu": lambda: cpu_seconds}[sys.argv[1]]()
    script = sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)
    began_s = time.time() - clock()  # files get today's date
    time.perf_counter, time.time = clock, lambda: began_s + clock()
    runpy.run_path(script, run_name="__main__")
