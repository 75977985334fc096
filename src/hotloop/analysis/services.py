"""Processes and threads that only start or serve others: launchers, fork servers, resource trackers."""

from __future__ import annotations

import re

from hotloop.capture.model import Capture, Process

SERVICES = (
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "ray/autoscaler/",
    "ray/dashboard/",
    "ray/_private/log_monitor.py",
    "ray/_private/runtime_env/",
)
SERVICE_THREADS = re.compile(  # by their names
    r"\(_serve\)$|RendezvousKeepAlive|QueueFeederThread|QueueManagerThread|ExecutorManagerThread|pydevd|hotloop|"
    r"^ray_|PythonGCThread|\(_handle_(tasks|results|workers)\)$"
)
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")


def is_service(process: Process) -> bool:
    """Whether a process only serves others, by its program."""
    origin = process.origin
    program = (origin.program if origin is not None else "") or process.label
    return any(name in program for name in SERVICES) and not (origin is not None and origin.target)


def is_no_worker(capture: Capture, process: Process) -> bool:
    """Whether a process only starts or serves others: a launcher, a fork server, a resource tracker."""
    origin = process.origin
    program = (origin.program if origin is not None else "") or process.label
    if any(t.progress.updates + t.progress.env_steps for t in process.threads):
        return False
    if is_service(process):
        return True
    is_ranked = origin is not None and origin.rank is not None
    ranks = [p for p in capture.processes if p.origin is not None and p.origin.rank is not None]
    launches = any(name in program.rsplit("/", 1)[-1] for name in LAUNCHERS)
    return launches or (not is_ranked and any(p.parent_pid == process.pid for p in ranks))
