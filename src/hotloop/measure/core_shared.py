"""Shared by both cores: a recorder's flags, and what is known about a region when it is created."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

RECORD_TIMELINE, RECORD_GAPS = 1, 2  # bits of `Recorder.flags`; state.h defines the same

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_OWN_TRAINING = os.path.join(_PACKAGE, "rl") + os.sep  # marks regions as a user's code does
_LIBRARIES = tuple(
    path + os.sep
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
    for path in {sysconfig.get_paths().get(key, ""), os.path.realpath(sysconfig.get_paths().get(key, ""))}
    if path
)
DEVICE_NAMES = frozenset(
    ("policy_forward", "learner_forward", "loss", "backward", "optimizer_step", "transfer", "advantage")
)
DEVICE_CATEGORIES = frozenset(("policy", "model", "loss", "backward", "optimizer", "transfer"))


def describe_region(name: object, category: object, device: object) -> tuple[bool, str]:
    """Whether the region gets device time, and the file:line outside hotloop that created it.

    Raises TypeError when the name or the category is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"A region's name is a string, not {type(name).__name__} ({name!r}).")
    if category is not None and not isinstance(category, str):
        raise TypeError(f"A category is a string, not {type(category).__name__} ({category!r}).")
    if device is None:
        device = name in DEVICE_NAMES or category in DEVICE_CATEGORIES
    return bool(device), call_site()


def call_site() -> str:
    """file:line of the nearest caller outside hotloop and the import system; "" when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN_TRAINING) or not file.startswith((_PACKAGE, "<frozen ")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def user_site() -> str:
    """file:line of the user's code that is running now; "" when only libraries are on the stack."""
    return user_line(sys._getframe(1)) or ""


def user_line(frame: FrameType | None) -> str | None:
    """file:line of the innermost frame that belongs to no library."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", _PACKAGE, *_LIBRARIES)):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None
