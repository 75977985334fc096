"""Where the time of a stage goes, told by the stage itself: a few named parts beside the capture's regions.

A capture explains a run afterwards and in detail; a stage that prints its own split needs no capture for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any


class Stopwatch:
    """Seconds of named parts, which do not nest."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.seconds: dict[str, float] = {}
        self.clock = clock

    def part(self, name: str, region: AbstractContextManager[Any] | None = None) -> Part:
        """A context manager, made once and entered often, whose time is added to the part `name`.

        `region` is entered with it, so that one `with` serves the capture and the split.
        """
        self.seconds.setdefault(name, 0.0)
        return Part(self, name, region if region is not None else nullcontext())

    def add(self, name: str, seconds: float) -> None:
        """Time that somebody else measured."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


class Part:
    """One place in the code whose time belongs to a part of a stopwatch."""

    def __init__(self, watch: Stopwatch, name: str, region: AbstractContextManager[Any]):
        self._seconds, self._clock, self._name, self._region = watch.seconds, watch.clock, name, region
        self._began = 0.0

    def __enter__(self) -> None:
        self._region.__enter__()
        self._began = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds[self._name] += self._clock() - self._began
        self._region.__exit__(kind, error, trace)
