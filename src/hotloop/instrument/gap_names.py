"""Names for the time between two regions of a main loop, guessed from what scripts usually do there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Regions that occur anywhere, so they tell nothing about the code before or after them.
MINOR = ("transfer", "gc_pause", "import", "hotloop_summary", "hotloop_meter", "log")
GAPS = ("between ", "before ", "after ")  # prefixes of the names of gaps
AFTER = {
    "policy_forward": "policy",  # sampling and converting the action
    "learner_forward": "loss",
    "backward": "optimizer",
    "clip_grad_norm": "optimizer",
    "replay_sample": "replay",
    "data_load": "data",
}
BEFORE = {"env_step": "policy", "backward": "loss", "zero_grad": "loss", "optimizer_step": "optimizer"}
# BEFORE does not apply to gaps that follow one of these.
ENDS = ("env_step", "env_reset", "optimizer_step")


def describe_gap(before: str, after: str) -> tuple[str, str]:
    """Name and category of the time between two regions; the category is "other" when it is unclear."""
    if before in MINOR and after in MINOR:
        return "between minor calls", "other"
    if before in MINOR:
        return f"before {after}", BEFORE.get(after, "other")
    if after in MINOR:
        return f"after {before}", AFTER.get(before, "other")
    category = AFTER.get(before) or (BEFORE.get(after, "other") if before not in ENDS else "other")
    return f"between {before} and {after}", category


def gap_namer(profile: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The `name_gap` callback of a recorder: the region between two others."""
    return lambda before, after: profile(*describe_gap(before.name, after.name))
