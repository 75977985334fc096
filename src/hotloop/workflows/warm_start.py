"""Runs of our own workloads in the lab, forked from a process that has loaded Python, torch and the kernels.

Loading takes longer than many a run. The command, its environment and what it records are the same as in a
fresh process; only the start-up is gone, which no time per env step contains anyway.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hotloop.capture.plan import Plan
from hotloop.lab.process import Job, Outcome, failure_of
from hotloop.workflows.probes import Host, end, held_back

FORKED = ("ricochet", "petri", "snake")  # the others start processes of their own
LOOK_S = 0.5


def workload_of(plan: Plan) -> str | None:
    """The workload that all variants train, when a host can be forked for each; None when not.

    Not with variables of a variant's own: libraries read some when they are loaded. Not for revisions, which
    are other code, and not without a recording, where the time of the whole process counts.
    """
    if not plan.record or any(variant.environment or variant.revision for variant in plan.variants):
        return None
    names = {_name_in(variant.command) for variant in plan.variants}
    return names.pop() if len(names) == 1 else None


def _name_in(command: Sequence[str]) -> str | None:
    """NAME of `python -m hotloop train NAME` or `hotloop train NAME` with this very Python, else None."""
    program, own = shutil.which(command[0]), Path(sys.executable)
    if program is None:
        return None
    if Path(program) == own and tuple(command[1:3]) == ("-m", "hotloop"):
        rest = command[3:]
    elif Path(program) == own.with_name("hotloop"):
        rest = command[1:]
    else:
        return None
    return rest[1] if len(rest) > 1 and rest[0] == "train" and rest[1] in FORKED else None


@contextlib.contextmanager
def warm_start(
    plan: Plan, environment: dict[str, str], wanted: bool = True
) -> Iterator[Callable[[Job], Outcome] | None]:
    """What makes a run, for the lab's hands; None where each run must be a process of its own."""
    name = workload_of(plan) if wanted else None
    if name is None:
        yield None
        return
    with Host(name, environment) as host:
        yield lambda job: run_forked(host, job)


def run_forked(host: Host, job: Job) -> Outcome:
    """Fork the job and wait for it; on KeyboardInterrupt it is ended and the interrupt goes on."""
    began_s = time.perf_counter()
    with held_back():
        running = host.start_command(job)
    late = False
    try:
        while not running.wait(LOOK_S):
            late = job.timeout_s is not None and time.perf_counter() - began_s > job.timeout_s
            if late:
                end(running, at_once=True)
                break
    except BaseException:
        end(running, at_once=False)
        raise
    wall_s = time.perf_counter() - began_s
    code, cpu_s, tail = running.result()
    why = f"ended after {job.timeout_s:.4g} s, the time-out for one run" if late else failure_of(code)
    return Outcome(wall_s, cpu_s, None if late else code, why, tail)
