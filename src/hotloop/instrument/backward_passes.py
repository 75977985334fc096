"""Counts backward passes in the core, and calls Python only after those that somebody waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hotloop.measure.profiler import default

NEVER = sys.maxsize // 2
_listeners: list[Callable[[int], int]] = []
_told = 0  # passes


def listen(listener: Callable[[int], int]) -> None:
    """Call `listener(passes since the last time)`, which returns after how many more it wants to know."""
    _listeners.append(listener)


def tell_next() -> None:
    """Call the listeners after the next pass."""
    counter.due = 0


def _ended(tensor: Any, result: Any) -> None:
    """A backward pass ended for which somebody waits."""
    global _told
    made, _told = counter.calls - _told, counter.calls
    counter.due = NEVER
    for listener in _listeners:
        counter.due = min(counter.due, _told + listener(made))


counter = default.call_counter(_ended)
