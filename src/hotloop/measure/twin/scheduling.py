"""What the kernel did with each thread, for the Python twin; `compiled/scheduling.h` is the same in C."""

from __future__ import annotations

import os
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotloop._util.interrupts import is_users
from hotloop.capture import layout

if TYPE_CHECKING:
    from hotloop.measure.twin.arena import Arena
    from hotloop.measure.twin.recorder import Recorder

_ROW = struct.Struct("<5Q")
_PROCESS_ROW = struct.Struct("<QII4Q")
_HEAD = struct.Struct("<IIQ")  # count, known, native_id or interval_ns
_ROWS_AT = layout.offsets("SCHEDULING")["rows"]
_PROCESS_ROWS_AT = layout.offsets("PROCESS_SCHEDULING")["rows"]


@dataclass
class _Task:
    """A thread of the process, as far as the kernel knows it."""

    on_core_ns: int = 0
    run_queue_ns: int = 0
    python: bool = False  # runs Python, or has run it


class Rows:
    """Rows of one section: appended, and thinned to the later one of each pair when they are full."""

    def __init__(self, section: memoryview, rows_at: int, row_bytes: int):
        self.section = section
        self._rows_at = rows_at
        self._row_bytes = row_bytes
        self.count = 0

    def add(self, row: bytes, known: int, word: int) -> bool:
        """Append a row; `word` is the third field of the head. Returns whether rows were thinned before."""
        thinned = self.count == layout.MAX_SCHEDULING
        seq = int.from_bytes(self.section[:8], "little")
        self.section[:8] = (seq + 1).to_bytes(8, "little")
        if thinned:
            self.count //= 2
            for to in range(self.count):
                self.section[self._row(to)] = self.section[self._row(2 * to + 1)]
        self.section[self._row(self.count)] = row
        self.count += 1
        self.section[8 : 8 + _HEAD.size] = _HEAD.pack(self.count, known, word)
        self.section[:8] = (seq + 2).to_bytes(8, "little")
        return thinned

    def _row(self, number: int) -> slice:
        at = self._rows_at + number * self._row_bytes
        return slice(at, at + self._row_bytes)


class ScheduleSampler:
    """Adds a row for the process and one for each recorded thread whenever one is due."""

    def __init__(self, recorder: Recorder):
        assert recorder.part is not None
        self._recorder = recorder
        section = recorder.part.add_section("process_scheduling")
        self._process = Rows(section, _PROCESS_ROWS_AT, _PROCESS_ROW.size)
        self._threads: dict[int, tuple[int, Rows]] = {}  # number of the arena -> native id, rows
        self._tasks: dict[int, _Task] = {}
        self._ended = _Task()  # native threads that are gone
        self._interval_ns = layout.FIRST_SCHEDULING_NS
        self._due_ns = 0

    def take_if_due(self, now: int, arenas: list[Arena]) -> None:
        """Take the rows; `now` is the recorder's time."""
        if now < self._due_ns:
            return
        began = time.thread_time_ns()
        known = self._read_tasks()
        python = {thread.native_id or 0 for thread in threading.enumerate()}
        for tid in python:
            if tid in self._tasks:
                self._tasks[tid].python = True
        native = [task for task in self._tasks.values() if not task.python]
        row = _PROCESS_ROW.pack(
            now,
            len(self._tasks),
            len(python),
            time.process_time_ns(),
            self._ended.on_core_ns + sum(task.on_core_ns for task in native),
            self._ended.run_queue_ns + sum(task.run_queue_ns for task in native),
            time.thread_time_ns() if self._recorder.clock is None else 0,
        )
        bits = (layout.KNOWN_SCHEDSTAT if known else 0) | layout.KNOWN_PYTHON_THREADS
        if self._process.add(row, bits, self._interval_ns):
            self._interval_ns *= 2
        for arena in arenas:
            if arena.state == layout.ARENA_LIVE and arena.scheduling is not None:
                self._add_thread(arena, now)
        cost = time.thread_time_ns() - began if self._recorder.clock is None else 0
        self._due_ns = now + max(self._interval_ns, 2000 * cost)

    def _add_thread(self, arena: Arena, now: int) -> None:
        tid = arena.native_id
        task = self._tasks.get(tid)
        if task is None or arena.scheduling is None:
            return  # it has ended, or there is no /proc
        kept = self._threads.get(arena.number)
        if kept is None or kept[0] != tid:
            kept = self._threads[arena.number] = (tid, Rows(arena.scheduling, _ROWS_AT, _ROW.size))
        switches = read_switches(tid)
        known = layout.KNOWN_SCHEDSTAT if task.on_core_ns or task.run_queue_ns else 0
        known |= layout.KNOWN_SWITCHES if switches else 0
        row = _ROW.pack(now, task.on_core_ns, task.run_queue_ns, *(switches or (0, 0)))
        kept[1].add(row, known, tid)

    def _read_tasks(self) -> bool:
        """Update the figures of all threads; returns whether the system reports them."""
        known = False
        try:
            names = os.listdir("/proc/self/task")
        except OSError as error:
            if is_users(error):
                raise
            return False
        for tid in map(int, names):
            task = self._tasks.setdefault(tid, _Task())
            times = read_schedstat(tid)
            if times is not None:
                known = True
                if times[0] < task.on_core_ns:  # another thread got the same number
                    self._keep_ended(task)
                    task = self._tasks[tid] = _Task()
                task.on_core_ns, task.run_queue_ns = times
        for tid in self._tasks.keys() - set(map(int, names)):
            self._keep_ended(self._tasks.pop(tid))
        return known

    def _keep_ended(self, task: _Task) -> None:
        if not task.python:
            self._ended.on_core_ns += task.on_core_ns
            self._ended.run_queue_ns += task.run_queue_ns


def read_schedstat(tid: int) -> tuple[int, int] | None:
    """Time on a core and time in the run queue of a thread, in nanoseconds; None where not reported."""
    try:
        with open(f"/proc/self/task/{tid}/schedstat", "rb") as file:
            on_core, run_queue, *_ = file.read().split()
    except (OSError, ValueError) as error:
        if is_users(error):
            raise
        return None
    return int(on_core), int(run_queue)


def read_switches(tid: int) -> tuple[int, int] | None:
    """Voluntary and involuntary context switches of a thread; None where not reported."""
    try:
        with open(f"/proc/self/task/{tid}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        return int(lines[b"voluntary_ctxt_switches"]), int(lines[b"nonvoluntary_ctxt_switches"])
    except (OSError, ValueError, KeyError) as error:
        if is_users(error):
            raise
        return None
