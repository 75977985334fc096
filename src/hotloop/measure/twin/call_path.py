"""A number for the chain of Python frames that led to a call; `compiled/call_path.h` is the same in C."""

from __future__ import annotations

from types import FrameType

PATH_FRAMES = 64  # innermost frames that count
# Path of the last call that was picked by its path since the last env step; 0 for none.
last_path = 0


def call_path(frame: FrameType | None) -> int:
    """A number for this frame and its callers: the same for the same lines, never 0."""
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) < PATH_FRAMES:
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(found)) or 1
