"""The memory one part of a run will take: estimated by workloads, added up by the tuner's memory plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Estimated memory of one part of a run at its peak."""

    what: str
    """Name of the part, such as `replay of 50,000 transitions`."""
    bytes: int
    setting: str = ""
    """Setting that determines the size; "" when none does."""
    value: int = 0
    """Value of that setting."""
    in_children: bool = False
    """True when child processes hold it, `bytes` in total."""
