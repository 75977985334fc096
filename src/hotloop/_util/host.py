"""This computer's name, as files and readers spell it."""

from __future__ import annotations

import os


def host_name() -> str:
    """The node name with nothing in it that a file name could not have."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in os.uname().nodename) or "host"
