"""Where the threads of a process were, sampled over time: lines of the user's code, states of threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.capture import layout

if TYPE_CHECKING:
    from hotloop.capture.model import Process

UNKNOWN, RUNNING, RUNNABLE, SLEEPING = (
    layout.STATE_UNKNOWN,
    layout.STATE_RUNNING,  # on a core
    layout.STATE_RUNNABLE,  # ready to run, but without a core
    layout.STATE_SLEEPING,  # waiting: for time, a lock, the GIL, input, a device
)
STATES = ("unknown", "running", "runnable", "sleeping")
REASONS = ("", "gil", "lock", "sleep", "input", "output", "event", "child process", "disk")
FOR_THE_GIL = layout.REASON_GIL
GIL_UNKNOWN, GIL_ELSEWHERE, GIL_HELD = layout.GIL_UNKNOWN, layout.GIL_ELSEWHERE, layout.GIL_HELD

SAMPLE_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("weight_ns", "<u8"),  # the time this sample stands for
        ("native_id", "<u4"),  # of the thread, as in Thread.native_id; that of the main thread is the pid
        ("thread", "<i4"),  # index into Process.threads; -1: the thread has opened no region
        ("node", "<i4"),  # innermost open region: index into Thread.paths; 0: none is open
        ("path", "<i4"),  # index into Process.paths
        ("state", "<u1"),  # UNKNOWN, RUNNING, RUNNABLE or SLEEPING
        ("reason", "<u1"),  # what a sleeping thread waits for: index into REASONS
        ("gil", "<u1"),  # GIL_UNKNOWN, GIL_ELSEWHERE or GIL_HELD: whether the thread had it
    ]
)
Samples = NDArray[np.void]  # of SAMPLE_DTYPE


def no_samples() -> Samples:
    return np.zeros(0, dtype=SAMPLE_DTYPE)


@dataclass(frozen=True, slots=True)
class SampledFrame:
    """A line of the user's code on a sampled stack."""

    file: str
    function: str  # qualified name; "<module>" for the code of the file itself
    first_line: int  # of the function
    line: int

    @property
    def site(self) -> str:
        return f"{self.file}:{self.line}"


class Expression(NamedTuple):
    """A place in a file: lines from 1, columns in bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class SampledPath:
    """A stack as far as it is the user's code, and the library functions below it."""

    frames: tuple[SampledFrame, ...]  # outermost first; empty: only libraries were on the stack
    called: str = ""  # the library function that the last frame called, such as "json.dumps"; "": none
    innermost: str = ""  # the innermost library function; "": the user's line itself was running
    left_out: int | None = None  # index of the frame in front of which frames are missing; None: none are
    other: bool = False  # stands for all paths that did not fit into the recording
    expression: Expression | None = None  # what ran in the innermost line of the user's code; None: not known

    @property
    def line(self) -> SampledFrame | None:
        """The innermost line of the user's code."""
        return self.frames[-1] if self.frames else None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the samples of a process were taken."""

    method: Literal["native", "python-thread"]
    interval_ns: int  # at the end; it grows in a long run, or when a sample is expensive
    moments: int  # how often all threads were looked at
    cost_ns: int  # CPU time that took
    unread: int  # stacks that could not be read
    thread_names: dict[int, str]  # native id -> name; of threads that were alive when it was written

    @property
    def biased(self) -> bool:
        """Whether lines that hold the GIL are under-represented: a Python thread sees them seldom."""
        return self.method == "python-thread"


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """Source text of a function that was sampled often."""

    file: str
    function: str
    first_line: int  # line number of the first line of `text`
    text: str
    changed: bool = False  # the file was modified after the process had started


def lines_outside_regions(processes: Iterable[Process]) -> dict[str, Any] | None:
    """Time of the main threads by line of the user's code while no region was open; None: not sampled.

    `samples` is all time that was sampled, `lines` the part outside regions, both in nanoseconds.
    """
    total, lines, sampled = 0, dict[str, int](), False
    for process in processes:
        sampled |= process.sampling is not None
        mine = process.samples[process.samples["native_id"] == process.pid]
        total += int(mine["weight_ns"].sum())
        outside = mine[mine["node"] == 0]
        times = np.bincount(outside["path"], weights=outside["weight_ns"], minlength=len(process.paths))
        for number in np.flatnonzero(times):
            path = process.paths[number]
            package = path.innermost.partition(".")[0].lstrip("_") or "python"
            site = (
                path.line.site if path.line else "(other)" if path.other else f"({package}, not the script)"
            )
            lines[site] = lines.get(site, 0) + int(times[number])
    return {"samples": total, "lines": lines} if sampled else None
