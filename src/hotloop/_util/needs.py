"""What a part of a run will hold in memory; said by those who know the part, added up by the memory plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """One part of what a run will hold at its peak."""

    what: str
    """`replay of 50,000 transitions`."""
    bytes: int
    setting: str = ""
    """The setting that decides it; "" when none does."""
    value: int = 0
    """What it is set to."""
    in_children: bool = False
    """Whether processes that the run starts hold it, each for itself."""
