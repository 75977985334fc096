"""`hotloop attach PID`: watch a process that runs without us, and explain what was seen."""

from __future__ import annotations

from collections.abc import Callable

from hotloop._util.errors import HotloopError
from hotloop.analysis.attached import AttachedFindings, explain_attached
from hotloop.measure.attached import watch

MOST_SECONDS = 3600.0


def attach(pid: int, seconds: float, begins: Callable[[], None] = lambda: None) -> AttachedFindings:
    """Watch for `seconds`; `begins` is called first. Raises HotloopError if it cannot be watched."""
    if pid < 1:
        raise HotloopError(f"PID is {pid}; it must be the number of a running process.")
    if not 1 <= seconds <= MOST_SECONDS:
        raise HotloopError(f"--seconds is {seconds:g}; it must be between 1 and {MOST_SECONDS:g}.")
    return explain_attached(watch(pid, seconds, begins))
