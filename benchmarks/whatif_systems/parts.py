"""Shared by the systems: parameters, four kinds of work, and the meter that prints the rate.

A system is a script with parameters NAME=VALUE. A parameter named after a region multiplies the work in that
region; `workers`, `depth` and their like set a size. Work is an amount, never a time: on a busy core it takes
longer.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable

LOOPS_PER_MS = 29_000  # of `python`: one millisecond on an idle core of the machine of RESULTS.md
BYTES_PER_MS = 1_800_000  # of `native`: the same
_BLOCK = bytes(64 * 1024)
_LARGE = bytes(16 * 1024 * 1024)


def parameters(**defaults: float) -> dict[str, float]:
    """The parameters of this run; each may be given as NAME=VALUE on the command line."""
    given = {"seconds": 4.0, "seed": 1.0, **defaults}
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        if name not in given:
            sys.exit(f"{name!r} is not a parameter of this system; use one of {', '.join(given)}.")
        given[name] = float(value)
    random.seed(int(given["seed"]))
    return given


def python(ms: float) -> int:
    """Work in Python: holds the GIL and a core."""
    total = 0
    for i in range(int(ms * LOOPS_PER_MS)):
        total += i & 7
    return total


def native(ms: float) -> None:
    """Work in native code: holds a core but not the GIL."""
    digest = hashlib.sha256()
    blocks = ms * BYTES_PER_MS / len(_BLOCK)
    for _ in range(int(blocks)):
        digest.update(_BLOCK)
    digest.update(_BLOCK[: max(int((blocks - int(blocks)) * len(_BLOCK)), 1)])


def one_call(ms: float) -> None:
    """Work in one native call, like a large matrix product: gives up the GIL once and takes it back once."""
    left = int(ms * BYTES_PER_MS)
    digest = hashlib.sha256()
    while left > 0:
        digest.update(memoryview(_LARGE)[:left])
        left -= len(_LARGE)


def nap(ms: float) -> None:
    """Work elsewhere (a simulator, a disk, a network): holds neither."""
    time.sleep(ms / 1000)


def heavy_tailed(mean_ms: float, source: random.Random) -> float:
    """A duration with the given mean; one in twenty is many times longer."""
    return mean_ms * source.lognormvariate(-0.5, 1.0)


def meter(seconds: float, cycle: Callable[[], float], warm_up_s: float = 0.6) -> None:
    """Call `cycle`, which returns how much it did, and print what was done per second after the warm-up."""
    done, begin = 0.0, 0.0
    start = time.monotonic()
    while True:
        amount = cycle()
        now = time.monotonic()
        if begin:
            done += amount
            if now - start > seconds:
                break
        elif now - start > warm_up_s:
            begin = now
    print(f"rate {done / (now - begin):.6f}", flush=True)
