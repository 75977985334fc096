"""One attempt to break something, and how many of them there are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """What was tried, the seed that repeats it, and what went wrong, if anything did."""

    kind: str
    seed: int
    failure: str | None


def seeds(first: int, seconds: float, count: int | None) -> Iterator[int]:
    """Seeds of `count` cases, or, without a count, until `seconds` have passed; always at least one."""
    end_s = time.monotonic() + seconds
    for done in itertools.count(1):
        yield first + done - 1
        if done >= count if count is not None else time.monotonic() >= end_s:
            return
