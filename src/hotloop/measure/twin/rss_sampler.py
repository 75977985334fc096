"""Heartbeat, memory and scheduling samples of the Python twin; `compiled/sampler.h` is the same in C."""

from __future__ import annotations

import _thread
import os
import resource
import sys
from typing import TYPE_CHECKING

from hotloop._util.interrupts import is_users
from hotloop.measure.twin.scheduling import ScheduleSampler

if TYPE_CHECKING:
    from hotloop.measure.twin.recorder import Recorder

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RssSampler:
    """A thread that writes a heartbeat and credits memory to open regions several times a second."""

    def __init__(self, recorder: Recorder, interval_s: float, sample_memory: bool):
        self._recorder = recorder
        self._interval_s = interval_s
        self._sample_memory = sample_memory
        # Locks and `_thread`, because what a signal handler raises inside of `threading` may be swallowed or
        # leave a thread half registered.
        self._go_on = _thread.allocate_lock()  # held until the thread is to end
        self._go_on.acquire()
        self._running = _thread.allocate_lock()  # held by the thread
        self._ident: int | None = None
        self._pid = os.getpid()  # in a forked child there is no such thread
        self._schedule = ScheduleSampler(recorder)
        self._last: int | None = None
        self._last_peak = 0

    def start(self) -> None:
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """End, and wait until the last sample is written."""
        if self._go_on.locked():
            self._go_on.release()
        if self._ident != _thread.get_ident() and self._pid == os.getpid():
            with self._running:
                pass

    def _run(self) -> None:
        with self._running:
            self._ident = _thread.get_ident()
            while not self._go_on.acquire(timeout=self._interval_s):
                self.sample()

    def sample(self) -> None:
        part = self._recorder.part
        if part is None or part.pid != os.getpid():
            return
        now = self._recorder.now()
        part.set("alive_ns", now)
        self._schedule.take_if_due(now, self._recorder.arenas)
        level = rss_bytes() if self._sample_memory else None
        if level is None:
            return
        part.set("rss_bytes", level)
        peak = rss_peak_bytes()
        part.set("rss_peak_bytes", peak)
        growth = level - self._last if self._last is not None else 0
        highest = peak if self._last_peak and peak > self._last_peak else level
        self._last, self._last_peak = level, peak
        self._recorder.credit_memory(growth, highest)


def rss_bytes() -> int | None:
    """Resident memory of this process; None where the system does not report it."""
    # Not psutil: a recorded process does not load it, and a sampler should cost next to nothing.
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * PAGE_BYTES
    except OSError as error:
        if is_users(error):
            raise
        return None


def rss_peak_bytes() -> int:
    """Largest resident memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
