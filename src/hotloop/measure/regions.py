"""What both cores ask when a region is made: is the name allowed, where was it made, is it device work."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
DEVICE_NAMES = frozenset(
    ("policy_forward", "learner_forward", "loss", "backward", "optimizer_step", "transfer", "advantage")
)
DEVICE_CATEGORIES = frozenset(("policy", "model", "loss", "backward", "optimizer", "transfer"))


def describe(name: object, category: object, device: object) -> tuple[bool, str]:
    """Whether device time is taken in the region, and file:line of the caller outside hotloop."""
    if not isinstance(name, str):
        raise TypeError(f"A region's name is a string, not {type(name).__name__} ({name!r}).")
    if category is not None and not isinstance(category, str):
        raise TypeError(f"A category is a string, not {type(category).__name__} ({category!r}).")
    if device is None:
        device = name in DEVICE_NAMES or category in DEVICE_CATEGORIES
    return bool(device), call_site()


def call_site() -> str:
    """file:line of the nearest caller outside hotloop."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
