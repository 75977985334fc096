"""Names for the time between two regions of a main loop.

Neighbours tell where a gap is, not what runs in it: sampling a replay buffer and choosing an action are both
"before the next policy call". So a gap has the category "other"; sampled lines say what it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Regions that occur anywhere, so they tell nothing about the code before or after them.
MINOR = ("transfer", "gc_pause", "import", "compile", "hotloop_summary", "hotloop_meter", "log")
GAPS = ("between ", "before ", "after ")  # prefixes of the names of gaps


def describe_gap(before: str, after: str) -> str:
    """Name of the time between two regions."""
    if before in MINOR and after in MINOR:
        return "between minor calls"
    if before in MINOR:
        return f"before {after}"
    if after in MINOR:
        return f"after {before}"
    return f"between {before} and {after}"


def gap_namer(profile: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The `name_gap` callback of a recorder: the region between two others."""
    return lambda before, after: profile(describe_gap(before.name, after.name), "other")
