"""The errors hotloop raises on purpose; each message says what is wrong, what is allowed, what to do."""

from __future__ import annotations


class HotloopError(Exception):
    """Base of every error raised on purpose; the command line shows it as one sentence, exit 2."""


class CaptureError(HotloopError):
    """A folder or file that cannot be read as a capture, or cannot be written as one."""
