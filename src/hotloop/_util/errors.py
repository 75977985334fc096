"""The errors hotloop raises on purpose; each message says what is wrong, what is allowed, what to do."""

from __future__ import annotations


class HotloopError(Exception):
    """Base of every error raised on purpose; the command line prints it as one sentence and exits with 2."""


class FileError(HotloopError):
    """A file that is missing, damaged, too large or not a regular file."""


class CaptureError(FileError):
    """A capture that cannot be read or written."""
