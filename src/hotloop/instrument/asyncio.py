"""`asyncio.gather`: how long each awaited result takes, and how long all of them together.

A round that gathers the answers of several envs lasts as long as the slowest of them. No stack shows that:
while an event loop waits, the coroutines it waits for are on no stack.
"""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import process_facts
from hotloop.instrument.patch import Patch, Patches

MOST_SITES = 16
MOST_PLACES = 64  # results of one call
MOST_TIMED = 4096  # calls of a site; then one in 16

_sites: dict[str, dict[str, Any]] = {}


def patch_package(module: ModuleType, into: Patches) -> None:
    """`asyncio`: the name that scripts use, and the one inside."""
    into.apply([Patch(module, "gather", _timed), Patch(module.tasks, "gather", _timed)])


def _timed(f: Any) -> Any:
    def gather(*awaitables: Any, **kwargs: Any) -> Any:
        together = f(*awaitables, **kwargs)
        with suppress_own(Exception):  # another implementation of futures
            _watch(getattr(together, "_children", ()))
        return together

    return gather


def _watch(results: Any) -> None:
    if not 2 <= len(results) <= MOST_PLACES:
        return
    caller = sys._getframe(2)
    site = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    found = _sites.get(site)
    if found is None:
        if len(_sites) >= MOST_SITES:
            return
        found = _sites[site] = {"site": site, "calls": 0, "timed": 0, "all_ns": 0, "each_ns": []}
    found["calls"] += 1
    if found["calls"] > MOST_TIMED and found["calls"] % 16:
        return
    _Round(found, results)


class _Round:
    """One call of gather, until its last result is there."""

    __slots__ = ("_began", "_site", "_took", "_unfinished")

    def __init__(self, site: dict[str, Any], results: Any):
        self._site, self._began = site, time.monotonic_ns()
        self._took = [0] * len(results)
        self._unfinished = len(results)
        for place, result in enumerate(results):
            result.add_done_callback(lambda _, place=place: self._ended(place))

    def _ended(self, place: int) -> None:
        self._took[place] = time.monotonic_ns() - self._began
        self._unfinished -= 1
        if self._unfinished:
            return
        site = self._site
        site["timed"] += 1
        site["all_ns"] += max(self._took)
        each = site["each_ns"]
        each += [0] * (len(self._took) - len(each))
        for number, took in enumerate(self._took):
            each[number] += took
        if site["timed"] == 1:
            process_facts.note("gathered", list(_sites.values()))
        else:
            process_facts.changed_again()


process_facts.at_fork(_sites.clear)
