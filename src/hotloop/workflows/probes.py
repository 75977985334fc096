"""Starts short training runs, follows their progress through the capture, and ends them early.

A user's script runs in a fresh process. A reference workload is forked from a host that has everything loaded
already (`probe_host.py`), which saves seconds in each run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from hotloop._util.errors import CaptureError, HotloopError
from hotloop.analysis.steady_state import RunProgress, progress_so_far, run_figures_over_cycles
from hotloop.capture.folder import CAPTURE_VARIABLE, RUN_ID_VARIABLE
from hotloop.capture.reader import load
from hotloop.capture.series import Figures
from hotloop.instrument.bootstrap import RUN_VARIABLE
from hotloop.lab.process import GRACE_S, Job, MakeRun, Outcome, failure_of

CONFIG_VARIABLE = "HOTLOOP_PROBE_CONFIG"  # the settings of a workload, as JSON
OUTCOME_FILE = "outcome.json"  # beside the capture: the workload's own result
STDERR_FILE = "stderr.txt"  # beside the capture, while the run lasts
REFUSED = 2  # exit code of a workload with an invalid setting; stderr says which
POLL_S = 0.25
COMPARE_S = 0.5  # of work in a run of a comparison: many short runs are more precise than a few long ones
SCRIPT_CYCLES = 2  # of collection and learning that a probe of a script must complete
TAIL_BYTES = 2000


@dataclass
class ProbeLength:
    """Decides when a probe may end; learns from the first probe whether there are updates to wait for."""

    work_s: float
    """Seconds of work to measure, without start-up."""
    most_s: float
    """Seconds of work after which the probe ends in any case."""
    cycles: int = SCRIPT_CYCLES
    """Whole cycles of collection and learning to wait for if the run learns at all; 0 for runs that complete
    their cycle when asked to stop."""
    learns: bool | None = None
    """Whether the run makes updates; None if not known yet."""
    warm_up_updates: int = 0
    """Updates to skip before measuring; 0: work counts from the first env step."""

    def has_started(self, seen: RunProgress) -> bool:
        """Whether the work to measure has started."""
        if self.warm_up_updates and self.learns is not False:
            return seen.updates >= self.warm_up_updates
        return bool(seen.env_steps or seen.updates)

    def is_enough(self, seen: RunProgress, worked_s: float) -> bool:
        """Whether the run may end now."""
        if worked_s >= self.most_s:
            return True
        if worked_s < self.work_s:
            return False
        if not self.cycles:
            return True
        if seen.updates or self.learns:
            self.learns = True
            return seen.cycles >= self.cycles
        # No update yet: the first probe waits longer, to find out whether there are any.
        return self.learns is False or worked_s >= min(5 * self.work_s, self.most_s)

    def learn_from(self, seen: RunProgress) -> None:
        """Remember from a finished probe whether there were updates."""
        if self.learns is None and seen.env_steps:
            self.learns = seen.updates > 0


class Running(Protocol):
    """A running probe."""

    @property
    def group(self) -> int:
        """Its process group."""

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for its end; return whether it has ended."""

    def terminate(self) -> None:
        """Ask it to stop."""

    def kill(self) -> None:
        """Kill it and all processes it started."""

    def result(self) -> tuple[int, float | None, str]:
        """Exit code (negative: killed by that signal), CPU seconds, last part of stderr."""


def ended_early(
    start: Callable[[Job], Running],
    length: ProbeLength,
    clock: Callable[[], float] = time.monotonic,
    on_start: Callable[[int], None] | None = None,
) -> Callable[[Job], Outcome]:
    """A function that runs a job and ends it when `length` says so; for `run_experiment(start=...)`.

    `on_start` gets its process group.
    """

    def run(job: Job) -> Outcome:
        capture, began_s = Path(job.environment[CAPTURE_VARIABLE]), clock()
        running: Running | None = None
        worked_since_s: float | None = None
        seen = RunProgress(0, 0, 0)
        enough = late = False
        try:
            with signals_deferred():
                running = start(job)
            if on_start is not None:
                on_start(running.group)
            while not running.wait(POLL_S):
                now_s = clock()
                seen = _progress(capture) or seen
                if worked_since_s is None and length.has_started(seen):
                    worked_since_s = now_s
                enough = worked_since_s is not None and length.is_enough(seen, now_s - worked_since_s)
                late = job.timeout_s is not None and now_s - began_s > job.timeout_s
                if enough or late:
                    end(running, late)
                    break
        except BaseException:
            if running is not None:
                end(running, at_once=False)
            raise
        length.learn_from(_progress(capture) or seen)
        code, cpu_s, tail = running.result()
        failure = "" if enough else failure_of(code)
        if late and not enough:
            failure = f"ended after {job.timeout_s:.4g} s, the timeout of a run"
        return Outcome(clock() - began_s, cpu_s, None if enough else code, failure, tail)

    return run


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP: in between, a process being started could not be killed."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        received.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = {number: signal.getsignal(number) for number in numbers}
        before = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt


def _progress(capture: Path) -> RunProgress | None:
    try:
        return progress_so_far(load(capture))
    except (CaptureError, OSError, ValueError):
        return None  # recording has not started


def end(running: Running, at_once: bool) -> None:
    """Terminate, wait, then kill; a reference workload completes its iteration first."""
    try:
        if not at_once:
            running.terminate()
            if running.wait(10 * GRACE_S):
                return
    finally:
        running.kill()
    running.wait(GRACE_S)


def probe_figures(folder: Path, warm_up_updates: int = 0) -> Figures:
    """Figures of a probe, from the workload's own result if there is one, else from the capture.

    From the capture, the first `warm_up_updates` updates are skipped if more follow.
    """
    known = run_figures_over_cycles(load(folder), warm_up_updates=warm_up_updates)
    try:
        outcome = json.loads((folder.parent / OUTCOME_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return known
    steps, updates, seconds = outcome["env_steps"], outcome["updates"], outcome["seconds"]
    if not seconds or not (steps or updates):
        return known
    return replace(
        known,
        env_steps=steps or None,
        updates=updates or None,
        s_per_env_step=seconds / steps if steps else None,
        s_per_update=seconds / updates if updates else None,
    )


# ---- on a node of a cluster


class StartOnNode(Protocol):
    """Makes a run on the node that a job names."""

    def __call__(self, job: Job, make: MakeRun) -> Outcome:
        """Waits for its end; raises NodeLost."""


def ended_early_on_nodes(
    start: StartOnNode, length: ProbeLength, workload: str = "", save_outcome: bool = True
) -> Callable[[Job], Outcome]:
    """`ended_early` for runs that are followed and ended on their node.

    `workload` names the reference workload that is forked from a host there; "": the job's command is run.
    """

    def run(job: Job) -> Outcome:
        outcome = start(job, ProbeOnNode(replace(length), workload, save_outcome))
        seen = _progress(Path(job.environment[CAPTURE_VARIABLE]))
        if seen is not None:
            length.learn_from(seen)
        return outcome

    return run


@dataclass(frozen=True)
class ProbeOnNode:
    """Makes one probe on a node; sent there."""

    length: ProbeLength
    workload: str
    save_outcome: bool

    def __call__(self, job: Job, on_start: Callable[[int], None]) -> Outcome:
        """Run the job until it may end."""
        try:
            start = self._host(job).start if self.workload else start_script
            return ended_early(start, self.length, on_start=on_start)(job)
        except HotloopError as error:  # an exception would count as the loss of the node
            return Outcome(0.0, failure=str(error).rstrip("."))

    def _host(self, job: Job) -> Host:
        """The host of this process; it ends with it."""
        key = (self.workload, str(job.folder))
        if key not in _hosts:
            own = (CAPTURE_VARIABLE, RUN_ID_VARIABLE, RUN_VARIABLE, CONFIG_VARIABLE)
            variables = {name: value for name, value in job.environment.items() if name not in own}
            _hosts[key] = Host(self.workload, variables, self.save_outcome, job.folder).__enter__()
        return _hosts[key]


_hosts: dict[tuple[str, str], Host] = {}


# ---- scripts


class _Script:
    """A fresh process and its children, in one process group."""

    def __init__(self, job: Job):
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 closed by `result`
        try:
            self._process = subprocess.Popen(
                job.command,
                env=job.environment,
                cwd=job.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise HotloopError(f"{job.command[0]} could not be started: {error.strerror}.") from error

    @property
    def group(self) -> int:
        return self._process.pid

    def wait(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def terminate(self) -> None:
        _signal_group(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        _signal_group(self._process.pid, signal.SIGKILL)

    def result(self) -> tuple[int, float | None, str]:
        self.kill()  # processes it left behind
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(size - TAIL_BYTES, 0))
        tail = self._stderr.read().decode("utf-8", "replace").strip()
        self._stderr.close()
        code = self._process.returncode
        return (-signal.SIGKILL if code is None else code), None, tail


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def start_script(job: Job) -> Running:
    """Start a user's command."""
    return _Script(job)


# ---- workloads


class Host:
    """Process that workloads are forked from; a context manager."""

    def __init__(
        self, name: str, environment: dict[str, str], save_outcome: bool = True, folder: Path | None = None
    ):
        """`save_outcome`: whether to keep the workload's own result for `probe_figures`."""
        self._name, self._environment, self._save_outcome = name, environment, save_outcome
        self._folder = folder  # working folder; None: that of this process
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._unread = b""

    def __enter__(self) -> Host:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hotloop.workflows.probe_host", self._name],
            env=self._environment,
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # `select` does not see what Python has buffered; `_unread` is our buffer
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S if self._is_ready else 0.0)  # one that still loads does not read
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def wait_until_ready(self) -> None:
        """Wait until the process has loaded the workload, which takes seconds; may be interrupted."""
        if not self._is_ready:
            try:
                self._answer()
            except (OSError, ValueError):
                raise self._died() from None
            self._is_ready = True

    def _died(self) -> HotloopError:
        return HotloopError(
            f"the process that forks runs of {self._name} died; try: hotloop train {self._name}"
        )

    def start(self, job: Job) -> Running:
        """Fork a child that trains with the settings in the job's environment."""
        config = json.loads(job.environment[CONFIG_VARIABLE])
        config["seed"] += int(job.environment.get("HOTLOOP_SEED", "0"))  # the same for both runs of a pair
        capture = job.environment[CAPTURE_VARIABLE]
        return self._fork(
            Path(capture).parent / STDERR_FILE,
            {"config": config, "capture": capture, "save_outcome": self._save_outcome},
        )

    def start_command(self, job: Job) -> Running:
        """Fork a child that does the same as the job's command, `python -m hotloop ...`."""
        return self._fork(
            Path(job.environment[CAPTURE_VARIABLE]).parent / STDERR_FILE,
            {
                "words": job.command[job.command.index("train") :],
                "environment": job.environment,
                "folder": str(job.folder),
                "cores": job.cores,
            },
        )

    def _fork(self, stderr: Path, request: dict[str, Any]) -> Running:
        assert self._process is not None and self._process.stdin is not None
        self.wait_until_ready()
        try:
            self._process.stdin.write(json.dumps(request | {"stderr": str(stderr)}).encode() + b"\n")
            pid = int(self._answer()["pid"])
        except (OSError, ValueError, KeyError):
            raise self._died() from None
        return _Forked(self, pid, stderr)

    def ended(self, seconds: float) -> dict[str, Any] | None:
        """The host's answer when the child has ended; None if there is none within `seconds`."""
        assert self._process is not None and self._process.stdout is not None
        if b"\n" not in self._unread and not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._unread:
            read = os.read(self._process.stdout.fileno(), 4096)
            if not read:
                raise self._died()
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class _Forked:
    """A child of the host."""

    def __init__(self, host: Host, pid: int, stderr: Path):
        self._host, self._pid, self._stderr = host, pid, stderr
        self._said: dict[str, Any] | None = None

    @property
    def group(self) -> int:
        return self._pid

    def wait(self, seconds: float) -> bool:
        if self._said is None:
            self._said = self._host.ended(seconds)
        return self._said is not None

    def terminate(self) -> None:
        # not its group: it stops its own workers, which would otherwise die in the middle of their work
        if self._said is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGTERM)

    def kill(self) -> None:
        _signal_group(self._pid, signal.SIGKILL)

    def result(self) -> tuple[int, float | None, str]:
        self.kill()  # processes it left behind
        said = self._said or {"code": -signal.SIGKILL, "cpu_s": None}
        try:
            tail = self._stderr.read_text(encoding="utf-8", errors="replace")[-TAIL_BYTES:].strip()
            self._stderr.unlink()
        except OSError:
            tail = ""
        return int(said["code"]), said["cpu_s"], tail
