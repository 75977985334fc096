"""`hotloop diff A B`: open both captures, set them side by side."""

from __future__ import annotations

from hotloop.analysis.diff import Difference, diff
from hotloop.capture.open_capture import open_capture


def diff_captures(a: str, b: str) -> Difference:
    """Compare the captures at `a` and `b`, each a folder or a one-file JSON export."""
    return diff(open_capture(a), open_capture(b), labels=(a, b))
