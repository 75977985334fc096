"""Keeps collectors alive: starts their processes, detects deaths and hangs, reports and restarts.

One thread does all of it. It sleeps until a process ends or a heartbeat is overdue. It also starts every
process, for two reasons: Linux ties a child's death signal to the thread that started it, and this thread
blocks SIGINT, which children inherit, so that Ctrl-C reaches only the learner.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Protocol

from hotloop.rl.collect.collector_process import OneThread, run_collector
from hotloop.rl.collect.protocol import CollectionFailed, Failure, Setup
from hotloop.rl.collect.shared_memory import SharedNote
from hotloop.rl.collect.status import (
    HEARTBEAT_NS,
    PHASE,
    STARTING,
    STEPS,
    WAITING_FOR_LEARNER,
    WAITING_FOR_LOCK,
    StatusTable,
)
from hotloop.rl.collect.weight_channel import WeightChannel

if TYPE_CHECKING:
    from hotloop.rl.collect.row_writers import RowWriter

CHECK_INTERVAL_S = 0.25
STOP_TIMEOUT_S = 2.0
KEPT_FAILURES = 100
_FAILED_EARLY = (
    "failed while its process was starting; its stderr says why (often a script without "
    "`if __name__ == '__main__':`, or a module that a new process cannot import)"
)


class Link(Protocol):
    """One collector's end of a transport; can be sent to its process."""

    def open(self, spec: ProcessSpec) -> RowWriter:
        """Called in the collector's process: return the writer for its rows."""

    def wake(self) -> None:
        """Called in the learner's process: end the waits of that collector."""

    def is_blocked(self, pid: int) -> bool:
        """Called in the learner's process: whether another process than `pid` holds the collector's lock."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Everything that a collector's process receives."""

    task: bytes
    collector: int
    life: int
    channel: WeightChannel
    status: StatusTable
    note: SharedNote
    link: Link
    method: str
    parent_pid: int


class _Slot:
    """One collector and its current process."""

    def __init__(self) -> None:
        self.note = SharedNote()
        self.life = -1
        self.process: Any = None
        self.pid: int | None = None
        self.blocked_ns = 0  # when it was last seen waiting for a lock that another process held
        self.failures_without_step = 0  # in a row
        self.steps_before = 0


class Supervisor:
    """`setup.collectors` processes, kept alive from `start` to `stop`."""

    def __init__(
        self,
        setup: Setup,
        task: bytes,
        channel: WeightChannel,
        status: StatusTable,
        links: Sequence[Link],
        before_life: Callable[[int], None],
    ):
        self._setup, self._task, self._channel, self._status = setup, task, channel, status
        self._links, self._before_life = links, before_life
        self._context: Any = multiprocessing.get_context(setup.method)
        self._slots = [_Slot() for _ in range(setup.collectors)]
        self._wake, self._woken = self._context.Pipe(duplex=False)
        self._stopping = False
        self._begun = threading.Event()
        self.failures: deque[Failure] = deque(maxlen=KEPT_FAILURES)
        self.restarts = 0
        self.error: CollectionFailed | None = None
        """Why collection failed; set once, and then the learner is woken."""
        self._thread = threading.Thread(target=self._main, name="hotloop-supervisor", daemon=True)

    def start(self) -> None:
        """Start all processes. Raises if one of them cannot be started."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise CollectionFailed(
                "The script starts collectors while it is being imported by one of them; "
                "put its main part under `if __name__ == '__main__':`."
            )
        self._thread.start()
        self._begun.wait()
        if self.error is not None:
            self.stop()
            raise self.error

    def stop(self) -> None:
        """Ask all processes to stop, then kill those that do not."""
        self._stopping = True
        if self._thread.is_alive():
            self._woken.send_bytes(b"x")
            self._thread.join()
        for slot in self._slots:
            slot.note.close()
        self._wake.close()
        self._woken.close()

    @property
    def alive(self) -> int:
        return sum(slot.pid is not None for slot in self._slots)

    def pid(self, collector: int) -> int | None:
        """Process id of a collector; None between two lives."""
        return self._slots[collector].pid

    # ---- the thread

    def _main(self) -> None:
        if self._setup.method != "forkserver":  # its server may also start processes for others
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for number in range(len(self._slots)):
                if not self._stopping:
                    self._begin_life(number)
            self._begun.set()
            while not self._stopping and self.error is None:
                running = [slot.process.sentinel for slot in self._slots]
                connection.wait([self._wake, *running], timeout=CHECK_INTERVAL_S)
                for number in range(len(self._slots)):
                    if not self._stopping and self.error is None:
                        self._check(number)
        except CollectionFailed as error:
            self._give_up(error)
        except Exception as error:  # otherwise the learner would wait for rows for ever
            self._give_up(CollectionFailed(f"The thread that keeps collectors alive failed: {error!r}."))
        finally:
            self._begun.set()
            self._end_all()

    def _give_up(self, error: CollectionFailed) -> None:
        self.error = error
        self._channel.rows.ring()

    def _begin_life(self, number: int) -> None:
        slot = self._slots[number]
        slot.life += 1
        slot.blocked_ns = 0
        slot.note.take()
        self._status.begin_life(number)
        self._before_life(number)
        slot.steps_before = int(self._status.words[number, STEPS])
        spec = ProcessSpec(
            self._task, number, slot.life, self._channel, self._status, slot.note, self._links[number],
            self._setup.method, os.getpid(),
        )  # fmt: skip
        slot.process = self._context.Process(
            target=run_collector, args=(OneThread(), spec), name=f"hotloop-collector-{number}"
        )
        try:
            slot.process.start()
        except Exception as error:
            slot.process = None
            raise CollectionFailed(
                f"Could not start the process of collector {number} (of {len(self._slots)}) with method="
                f"{self._setup.method!r} ({type(error).__name__}: {error}); use fewer collectors, raise the "
                "limits on processes (ulimit -u) and memory, or try another method ('spawn', 'fork')."
            ) from error
        slot.pid = slot.process.pid

    def _check(self, number: int) -> None:
        slot = self._slots[number]
        if slot.process.exitcode is not None:
            self._restart(number, _describe_exit(slot.process.exitcode))
            return
        line = self._status.words[number]
        limit_s = self._setup.start_timeout_s if line[PHASE] == STARTING else self._setup.hang_timeout_s
        now_ns = time.monotonic_ns()
        # A process may be stopped after it got the lock and before it says so: then it is not blocked.
        if line[PHASE] == WAITING_FOR_LOCK and self._links[number].is_blocked(slot.process.pid):
            slot.blocked_ns = now_ns
        silent_s = (now_ns - max(int(line[HEARTBEAT_NS]), slot.blocked_ns)) / 1e9
        if silent_s > limit_s:
            self._request_traceback(slot)
            slot.process.kill()
            slot.process.join()
            self._restart(number, f"made no progress for {silent_s:.1f} s and was killed")

    def _request_traceback(self, slot: _Slot) -> None:
        """Let a hung process write its traceback into the note."""
        try:
            os.kill(slot.process.pid, signal.SIGUSR1)
        except ProcessLookupError:
            return
        end = time.monotonic() + 0.5
        while time.monotonic() < end and not os.fstat(slot.note.fileno()).st_size:
            time.sleep(0.01)
        time.sleep(0.02)  # it may not be complete yet

    def _restart(self, number: int, what: str) -> None:
        slot = self._slots[number]
        slot.pid = None
        slot.process.join()
        slot.process.close()
        trace = slot.note.take()
        last = trace.strip().splitlines()[-1] if trace.strip() else ""
        if what == "failed":
            what = f"raised {last}" if trace else _FAILED_EARLY
        self.failures.append(Failure(number, slot.life, what, trace))
        line = self._status.words[number]
        if int(line[STEPS]) > slot.steps_before:
            slot.failures_without_step = 0
        elif line[PHASE] not in (WAITING_FOR_LEARNER, WAITING_FOR_LOCK):  # else it was healthy
            slot.failures_without_step += 1
        if slot.failures_without_step >= self._setup.max_failures:
            slot.process = None
            raise CollectionFailed(
                f"Collector {number} ended {slot.failures_without_step} times in a row without a step; "
                f"the last time it {what}.\n{trace or '(It left no traceback.)'}"
            )
        self.restarts += 1
        self._log(
            f"collector {number} {what}; restarted with a new seed (life {slot.life + 1})"
            + (f"\n{trace.rstrip()}" if trace else "")
        )
        self._begin_life(number)

    def _log(self, text: str) -> None:
        if self._setup.log is not None:
            self._setup.log(text)
        else:
            print(f"hotloop: {text}", file=sys.stderr, flush=True)

    def _end_all(self) -> None:
        self._channel.stop()
        for link in self._links:
            link.wake()
        running = [slot.process for slot in self._slots if slot.process is not None]
        end = time.monotonic() + STOP_TIMEOUT_S
        for process in running:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for slot in self._slots:
            slot.process = slot.pid = None


def _describe_exit(exitcode: int) -> str:
    if exitcode == 0:
        return "exited with code 0 (did something call sys.exit?)"
    if exitcode > 0:
        return "failed"
    name = signal.Signals(-exitcode).name
    if name == "SIGKILL":
        return "was killed by SIGKILL (probably out of memory: use fewer collectors)"
    return f"was killed by {name}"
