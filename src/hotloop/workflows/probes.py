"""Runs of a training, started, watched through their capture and ended once they have shown enough.

Two ways to start one: a script of the user's is a fresh process; a workload of ours is forked from a host
that has everything loaded already (`probe_host.py`), which saves seconds for each run.
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
from hotloop.capture.folder import CAPTURE_VARIABLE
from hotloop.capture.reader import load
from hotloop.capture.series import Figures
from hotloop.lab.process import GRACE_S, Job, Outcome, failure_of

CONFIG_VARIABLE = "HOTLOOP_PROBE_CONFIG"  # the settings of a workload, as JSON
OUTCOME_FILE = "outcome.json"  # beside the capture: what the workload said of itself
STDERR_FILE = "stderr.txt"  # beside the capture, while a run is going
REFUSED = 2  # exit code of a workload that said in one sentence what is wrong with its settings
LOOK_S = 0.25
COMPARE_S = 0.5  # of work in a run of a comparison: many short runs tell more than few long ones
SCRIPT_CYCLES = 2  # of collecting and learning that a script must show
TAIL_BYTES = 2000


@dataclass
class Patience:
    """When a probe has shown enough; it learns from the first one how long a cycle takes."""

    work_s: float
    """Seconds of work to look at, start-up apart."""
    most_s: float
    """Seconds of work after which it is ended in any case."""
    cycles: int = SCRIPT_CYCLES
    """Whole cycles of collecting and learning to wait for, where a run learns at all; 0 for one that ends its
    cycle by itself when asked to stop."""
    learns: bool | None = None
    """Whether updates are to be waited for; None: not known yet."""
    settling: int = 0
    """Updates before which nothing counts; 0: work counts from the first env step."""

    def begun(self, seen: RunProgress) -> bool:
        """Whether what is to be looked at has begun."""
        if self.settling and self.learns is not False:
            return seen.updates >= self.settling
        return bool(seen.env_steps or seen.updates)

    def enough(self, seen: RunProgress, worked_s: float) -> bool:
        """Whether the run may be ended now."""
        if worked_s >= self.most_s:
            return True
        if worked_s < self.work_s:
            return False
        if not self.cycles:
            return True
        if seen.updates or self.learns:
            self.learns = True
            return seen.cycles >= self.cycles
        # No update was seen yet: a first probe waits longer, to see whether there are any.
        return self.learns is False or worked_s >= min(5 * self.work_s, self.most_s)

    def ended(self, seen: RunProgress) -> None:
        """A probe is over."""
        if self.learns is None and seen.env_steps:
            self.learns = seen.updates > 0


class Running(Protocol):
    """A probe under way."""

    def wait(self, seconds: float) -> bool:
        """Wait for its end, so long at most; whether it has ended."""

    def ask(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it and all that it started, whether it has ended itself or not."""

    def result(self) -> tuple[int, float | None, str]:
        """Exit code (negative: killed by that signal), CPU seconds, the end of its stderr."""


def watched(
    start: Callable[[Job], Running],
    patience: Patience,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[Job], Outcome]:
    """A function that makes one probe, for the lab's hands: as long as `patience` wants."""

    def run(job: Job) -> Outcome:
        capture, began_s = Path(job.environment[CAPTURE_VARIABLE]), clock()
        running: Running | None = None
        worked_since_s: float | None = None
        seen = RunProgress(0, 0, 0)
        enough = late = False
        try:
            with held_back():
                running = start(job)
            while not running.wait(LOOK_S):
                now_s = clock()
                seen = _look(capture) or seen
                if worked_since_s is None and patience.begun(seen):
                    worked_since_s = now_s
                enough = worked_since_s is not None and patience.enough(seen, now_s - worked_since_s)
                late = job.timeout_s is not None and now_s - began_s > job.timeout_s
                if enough or late:
                    end(running, late)
                    break
        except BaseException:
            if running is not None:
                end(running, at_once=False)
            raise
        patience.ended(_look(capture) or seen)
        code, cpu_s, tail = running.result()
        failure = "" if enough else failure_of(code)
        if late and not enough:
            failure = f"ended after {job.timeout_s:.4g} s, the timeout of a run"
        return Outcome(clock() - began_s, cpu_s, None if enough else code, failure, tail)

    return run


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C and its kin wait until this is over: a process that is just being started could not be ended."""
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        came.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        kin = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heard = {number: signal.getsignal(number) for number in kin}
        before = {number: handler for number, handler in heard.items() if callable(handler)}
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _look(capture: Path) -> RunProgress | None:
    try:
        return progress_so_far(load(capture))
    except (CaptureError, OSError, ValueError):
        return None  # it has not begun to record


def end(running: Running, at_once: bool) -> None:
    """Ask, wait, insist; a workload of ours ends its iteration first."""
    try:
        if not at_once:
            running.ask()
            if running.wait(10 * GRACE_S):
                return
    finally:
        running.kill()
    running.wait(GRACE_S)


def measured(folder: Path, settling: int = 0) -> Figures:
    """What a probe did, by its capture; its own account of the training loop comes first.

    Without one, the first `settling` updates do not count where others follow.
    """
    known = run_figures_over_cycles(load(folder), warm_up_updates=settling)
    try:
        said = json.loads((folder.parent / OUTCOME_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return known
    steps, updates, seconds = said["env_steps"], said["updates"], said["seconds"]
    if not seconds or not (steps or updates):
        return known
    return replace(
        known,
        env_steps=steps or None,
        updates=updates or None,
        s_per_env_step=seconds / steps if steps else None,
        s_per_update=seconds / updates if updates else None,
    )


# ---- scripts


class _Script:
    """A fresh process, with all it starts in one group."""

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

    def wait(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def ask(self) -> None:
        _signal_group(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        _signal_group(self._process.pid, signal.SIGKILL)

    def result(self) -> tuple[int, float | None, str]:
        self.kill()  # what it left running
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
    """Start a command of the user's."""
    return _Script(job)


# ---- workloads


class Host:
    """The process that workloads are forked from; a context manager."""

    def __init__(self, name: str, environment: dict[str, str], accounts: bool = True):
        """`accounts`: whether what a workload says of itself in the end is to be kept."""
        self._name, self._environment, self._accounts = name, environment, accounts
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Host:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hotloop.workflows.probe_host", self._name],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what was read and not used is in `_unread`, where `select` cannot miss it
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
            process.wait(GRACE_S)
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def start(self, job: Job) -> Running:
        """Fork a child that trains with the settings in the job's environment."""
        config = json.loads(job.environment[CONFIG_VARIABLE])
        config["seed"] += int(job.environment.get("HOTLOOP_SEED", "0"))  # the runs of a pair share one
        capture = job.environment[CAPTURE_VARIABLE]
        return self._fork(
            Path(capture).parent / STDERR_FILE,
            {"config": config, "capture": capture, "accounts": self._accounts},
        )

    def start_command(self, job: Job) -> Running:
        """Fork a child that does what the job's command, `python -m hotloop ...`, would do."""
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
        try:
            self._process.stdin.write(json.dumps(request | {"stderr": str(stderr)}).encode() + b"\n")
            pid = int(self._answer()["pid"])
        except (OSError, ValueError, KeyError):
            raise HotloopError(
                f"the process that runs of {self._name} are forked from died; try: hotloop train {self._name}"
            ) from None
        return _Forked(self, pid, stderr)

    def ended(self, seconds: float) -> dict[str, Any] | None:
        """What the host says of the child that ended; None after so many seconds without."""
        assert self._process is not None and self._process.stdout is not None
        if b"\n" not in self._unread and not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._unread:
            read = os.read(self._process.stdout.fileno(), 4096)
            if not read:
                raise HotloopError(f"the process that runs of {self._name} are forked from died.")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class _Forked:
    """A child of the host."""

    def __init__(self, host: Host, pid: int, stderr: Path):
        self._host, self._pid, self._stderr = host, pid, stderr
        self._said: dict[str, Any] | None = None

    def wait(self, seconds: float) -> bool:
        if self._said is None:
            self._said = self._host.ended(seconds)
        return self._said is not None

    def ask(self) -> None:
        # not its group: it ends its own workers, which would otherwise die in the middle of their work
        if self._said is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGTERM)

    def kill(self) -> None:
        _signal_group(self._pid, signal.SIGKILL)

    def result(self) -> tuple[int, float | None, str]:
        self.kill()  # what it left running
        said = self._said or {"code": -signal.SIGKILL, "cpu_s": None}
        try:
            tail = self._stderr.read_text(encoding="utf-8", errors="replace")[-TAIL_BYTES:].strip()
            self._stderr.unlink()
        except OSError:
            tail = ""
        return int(said["code"]), said["cpu_s"], tail
