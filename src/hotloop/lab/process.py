"""Runs a command in a fresh process group; measures wall and CPU time and keeps the end of stderr."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hotloop.capture.series import Figures

TAIL_BYTES = 4000
GRACE_S = 3.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: Path  # working folder
    timeout_s: float | None = None
    cores: tuple[int, ...] = ()  # the only cores it may use; (): all that the lab may use
    node: str = ""  # of a cluster, where it is to run; "": here


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a job. Times are of the whole process, including its start-up."""

    wall_s: float
    cpu_s: float | None = None
    exit_code: int | None = None
    failure: str = ""  # one sentence when it failed
    stderr_tail: str = ""
    before: dict[str, float] | None = None  # load of the node it ran on; None: it ran here
    after: dict[str, float] | None = None
    figures: Figures | None = None  # None: they are in its capture


# Makes a run; tells the second argument its process group. Sent to nodes of a cluster, so by name.
MakeRun = Callable[[Job, Callable[[int], None]], Outcome]


def run(job: Job, on_start: Callable[[int], None] | None = None) -> Outcome:
    """Start the job and wait for it; kills whatever it leaves running in its process group.

    `on_start` gets its group. A KeyboardInterrupt ends the job and is raised again. May be called from
    several threads.
    """
    with tempfile.TemporaryFile() as stderr:
        began = time.perf_counter()
        try:
            with _only(job.cores):
                process = subprocess.Popen(
                    job.command,
                    env=job.environment,
                    cwd=job.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    start_new_session=True,
                )
        except OSError as error:
            why = f"{job.command[0]} could not be started: {error.strerror}"
            return Outcome(time.perf_counter() - began, failure=why)
        try:
            _running.add(process)
            if on_start is not None:
                on_start(process.pid)
            with _limited(process, job.timeout_s) as limit:
                code, cpu_s = _wait(process)
                wall_s = time.perf_counter() - began
        except BaseException:
            _end(process)
            raise
        finally:
            _running.discard(process)
            _signal(process, signal.SIGKILL)
        late = limit.is_set()
        return Outcome(
            wall_s=wall_s,
            cpu_s=cpu_s,
            exit_code=None if late else code,
            failure=f"ended after {job.timeout_s:.4g} s, the timeout of a run" if late else failure_of(code),
            stderr_tail=_tail(stderr),
        )


_running: set[subprocess.Popen[bytes]] = set()


def end_running(insist: bool) -> None:
    """Send SIGTERM to all running jobs of all threads; SIGKILL with `insist`."""
    for process in tuple(_running):
        _signal(process, signal.SIGKILL if insist else signal.SIGTERM)


@contextlib.contextmanager
def _only(cores: tuple[int, ...]) -> Iterator[None]:
    """Processes that this thread starts meanwhile inherit its affinity: only these cores."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Exit code, and CPU time of the process and of the children it waited for."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def failure_of(code: int) -> str:
    """The exit code in words; "" for 0."""
    if code >= 0:
        return f"exit code {code}" if code else ""
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@contextlib.contextmanager
def _limited(process: subprocess.Popen[bytes], timeout_s: float | None) -> Iterator[threading.Event]:
    """Kill the process at the timeout; the event tells whether that happened.

    Uses a timer next to a plain wait because `wait(timeout)` polls, which would round the wall time to 50 ms.
    """
    fired = threading.Event()
    if timeout_s is None:
        yield fired
        return

    def end() -> None:
        fired.set()
        _signal(process, signal.SIGKILL)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield fired
    finally:
        timer.cancel()
        timer.join()


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL after a grace period."""
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
        return
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - TAIL_BYTES, 0))
    return file.read().decode("utf-8", "replace").strip()
