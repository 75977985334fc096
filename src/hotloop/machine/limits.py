"""The best this computer can do, measured once and cached: copies, matrix products, wake-ups, env steps.

Each measurement takes some tens of milliseconds and keeps the best of several attempts: noise can only make a
limit look worse than it is.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop._util.errors import FileError
from hotloop._util.files import write_atomically
from hotloop._util.interrupts import suppress_own
from hotloop._util.read_files import Reader, json_text
from hotloop.machine.facts import cores_granted, cpu_name

VERSION = 1  # of the measurements; limits of an older version are measured again
NAMES = (
    "copy_bytes_per_s",
    "copy_large_bytes_per_s",
    "matmul_flops_per_s",
    "wakeup_ns",
    "empty_step_ns",
)
_CACHE = Reader(16 << 20)
BUDGET_S = 0.03  # for each measurement, without its set-up
_SMALL_BYTES = (16 << 10, 128 << 10, 1 << 20)  # the fastest size differs from CPU to CPU
_LARGE_BYTES = 48 << 20
_MATRIX_SIZES = (256, 768)

Clock = Callable[[], int]


def limits(*, refresh: bool = False, file: Path | None = None) -> dict[str, float]:
    """Limits of this computer by `NAMES`, cached for this CPU and these versions.

    They are measured again with `refresh`, and when the cache cannot be read or written.
    """
    file = file or cache_file()
    remembered = read_cache(file)
    key = machine_key()
    if not refresh and key in remembered:
        return remembered[key]
    remembered[key] = measure()
    with suppress_own(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json_text(remembered))
    return remembered[key]


def cached_limits() -> dict[str, float] | None:
    """Limits of this computer if they have been measured before; never measures."""
    return read_cache(cache_file()).get(machine_key())


def cache_file() -> Path:
    """`$XDG_CACHE_HOME/hotloop/limits.json`, by default below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return folder / "hotloop" / "limits.json"


def machine_key() -> str:
    """What the limits depend on: processor, cores granted, thread settings, versions."""
    from importlib import metadata  # slow to load, and only needed when a recording begins

    threads = ",".join(
        f"{k}={os.environ[k]}" for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if k in os.environ
    )
    parts = (
        f"v{VERSION}",
        cpu_name(),
        f"{cores_granted():g} cores",
        f"python {platform.python_version()}",
        f"numpy {metadata.version('numpy')}",
        threads or "threads not set",
    )
    return "; ".join(parts)


def read_cache(file: Path) -> dict[str, dict[str, float]]:
    """The valid entries of the cache; {} for a missing or broken file."""
    try:
        data = _CACHE.read_object(file)
    except FileError:
        return {}
    return {k: v for k, v in data.items() if _is_whole(v)}


def _is_whole(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == set(NAMES)
        and all(type(v) in (int, float) and 0 < v < math.inf for v in entry.values())
    )


def measure(clock: Clock = time.perf_counter_ns) -> dict[str, float]:
    """Measure every limit; takes about a fifth of a second."""
    return {
        "copy_bytes_per_s": max(copy_bytes_per_s(size, clock) for size in _SMALL_BYTES),
        "copy_large_bytes_per_s": copy_bytes_per_s(_LARGE_BYTES, clock),
        "matmul_flops_per_s": max(matmul_flops_per_s(size, clock) for size in _MATRIX_SIZES),
        "wakeup_ns": wakeup_ns(clock=clock),
        "empty_step_ns": empty_step_ns(clock=clock),
    }


def best_ns(once: Callable[[], object], clock: Clock, budget_s: float = BUDGET_S) -> int:
    """Shortest of as many runs of `once` as fit into the budget, and at least three."""
    best, stop, runs = 1 << 62, clock() + int(budget_s * 1e9), 0
    while runs < 3 or clock() < stop:
        start = clock()
        once()
        best = min(best, clock() - start)
        runs += 1
    return max(best, 1)


def copy_bytes_per_s(size: int, clock: Clock = time.perf_counter_ns) -> float:
    """Bytes copied per second, in blocks of `size` (each byte read once and written once)."""
    import numpy as np  # recording must not load numpy before the script does

    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    repeat = max((1 << 20) // size, 1)  # makes the cost of the clock negligible

    def copy() -> None:
        for _ in range(repeat):
            np.copyto(target, source)

    return size * repeat / best_ns(copy, clock, BUDGET_S / len(_SMALL_BYTES)) * 1e9


def matmul_flops_per_s(size: int, clock: Clock = time.perf_counter_ns) -> float:
    """Floating point operations per second in a float32 product of two [size, size] matrices."""
    import numpy as np  # as above

    rng = np.random.default_rng(0)
    a, b = (rng.random((size, size), dtype=np.float32) for _ in range(2))
    out = np.empty_like(a)
    return 2.0 * size**3 / best_ns(lambda: np.matmul(a, b, out=out), clock, BUDGET_S / 2) * 1e9


def wakeup_ns(trips: int = 100, clock: Clock = time.perf_counter_ns) -> float:
    """Round trip between two threads, each of which sleeps until the other writes to its pipe."""
    ping_out, ping_in = os.pipe()
    pong_out, pong_in = os.pipe()

    def answer() -> None:
        while os.read(ping_out, 1) == b"p":
            os.write(pong_in, b"p")

    def trip() -> None:
        os.write(ping_in, b"p")
        os.read(pong_out, 1)

    thread = threading.Thread(target=answer, name="hotloop-limits", daemon=True)
    thread.start()
    try:
        return float(min(best_ns(trip, clock, BUDGET_S / trips) for _ in range(trips)))
    finally:
        os.write(ping_in, b"q")
        thread.join()
        for end in (ping_out, ping_in, pong_out, pong_in):
            os.close(end)


class _EmptyEnv:
    """An environment that does nothing, so that only the loop and the call are timed."""

    observation = 0

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self.observation, 0.0, False, False, {}


def empty_step_ns(steps: int = 2000, clock: Clock = time.perf_counter_ns) -> float:
    """One iteration of a Python loop that steps an environment which does nothing."""
    env = _EmptyEnv()

    def loop() -> None:
        for action in range(steps):
            env.step(action)

    return best_ns(loop, clock) / steps
