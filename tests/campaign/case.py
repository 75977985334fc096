"""One attempt to break something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """What was tried, the seed that repeats it, and what went wrong, if anything did."""

    kind: str
    seed: int
    failure: str | None
