"""Names for the time between two known regions of a main loop: what usually stands there in a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Regions that may come anywhere, so they say nothing about what stands before or after them.
MINOR = ("transfer", "gc_pause", "import", "hotloop_summary", "hotloop_meter", "log")
GAPS = ("between ", "before ", "after ")  # how the names of gaps begin
AFTER = {
    "policy_forward": "policy",  # sampling the action, handing it over
    "learner_forward": "loss",
    "backward": "optimizer",
    "clip_grad_norm": "optimizer",
    "replay_sample": "replay",
    "data_load": "data",
}
BEFORE = {"env_step": "policy", "backward": "loss", "zero_grad": "loss", "optimizer_step": "optimizer"}
# After one of these, what comes before the next region is not of the kind BEFORE says.
ENDS = ("env_step", "env_reset", "optimizer_step")


def describe_gap(before: str, after: str) -> tuple[str, str]:
    """Name and category of the time between two regions; "other" when nobody can tell."""
    if before in MINOR and after in MINOR:
        return "between minor calls", "other"
    if before in MINOR:
        return f"before {after}", BEFORE.get(after, "other")
    if after in MINOR:
        return f"after {before}", AFTER.get(before, "other")
    category = AFTER.get(before) or (BEFORE.get(after, "other") if before not in ENDS else "other")
    return f"between {before} and {after}", category


def gap_namer(profile: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """What the recorder asks for the region between two others."""
    return lambda before, after: profile(*describe_gap(before.name, after.name))
