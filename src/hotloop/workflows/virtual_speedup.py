"""`hotloop run --what-if` and `hotloop prove --virtual`: run a script with virtually faster regions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.virtual_speedups import VirtualResult, virtual_results
from hotloop.capture.model import Capture
from hotloop.capture.virtual import MOST_REGIONS, VirtualPlan, read_virtual
from hotloop.workflows.prove import find_recommendation, recorded_command
from hotloop.workflows.report import report_on
from hotloop.workflows.run import ScriptRun, run_recorded

SEGMENT_NS = 400_000_000
TWICE_AS_FAST = 0.5  # of its time is saved
FEW_MESSAGES = 20  # fewer in a run are those of its start and end


@dataclass(frozen=True, slots=True)
class VirtualProof:
    """What the experiment measured for a recommendation's region."""

    number: int
    region: str
    ran: ScriptRun
    results: tuple[VirtualResult, ...]


def regions_of(typed: str) -> tuple[str, ...]:
    """`a,b` as names. Raises HotloopError for none, too many, or one twice."""
    names = tuple(name.strip() for name in typed.split(",") if name.strip())
    if not names or len(names) > MOST_REGIONS or len(set(names)) != len(names):
        raise HotloopError(
            f"--what-if is {typed!r}; name 1 to {MOST_REGIONS} different regions, separated by commas."
        )
    return names


def waits_for_others(capture: Capture) -> bool:
    """Whether messages of the driving thread were logged: virtual speed-up delays the threads it talks to."""
    driver = driving_thread(capture)
    if driver is None or capture.path is None:
        return True  # not known
    process, thread = driver
    logs = [log for log in capture.messages if log.pid == process.pid]
    made = sum(int((log.records["thread"] == thread.native_id).sum()) for log in logs)
    return made >= FEW_MESSAGES


def new_plan(regions: Sequence[str]) -> VirtualPlan:
    """A plan that begins now; its seed is the time."""
    now = time.monotonic_ns()
    return VirtualPlan(tuple(regions), TWICE_AS_FAST, SEGMENT_NS, now % 1_000_003, now)


def results_of(capture: Capture) -> tuple[VirtualResult, ...]:
    """What the experiment in a capture measured; () if there was none."""
    found = read_virtual(capture.path) if capture.path is not None else None
    driver = driving_thread(capture)
    if found is None or driver is None:
        return ()
    process, thread = driver
    return virtual_results(*found, (process.pid, thread.native_id))


def prove_virtually(path: str | None, number: int, folder: Path | None) -> VirtualProof:
    """Run the recorded command again, with the region of a recommendation virtually twice as fast."""
    run = report_on(path)
    found = find_recommendation(run, number)
    if not found.region:
        raise HotloopError(
            f"Recommendation {number} is about the whole run, not about a region, so there is nothing to "
            f"make virtually faster; test it with: hotloop prove {run.name} {number}"
        )
    if not waits_for_others(run.capture):
        raise HotloopError(
            "In the recorded run the driving thread exchanged no messages with others, so delays cannot make "
            f"{found.region} virtually faster; ask: hotloop whatif {run.name} {found.region}=2x"
        )
    command = recorded_command(run)
    ran = run_recorded(command, folder, {"on": True}, quiet=True, what_if=new_plan([found.region]))
    return VirtualProof(number, found.region, ran, results_of(report_on(str(ran.folder)).capture))
