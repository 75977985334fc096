"""Virtual speed-up across threads and processes: making a region faster by delaying everything else.

While a region is chosen, each of its calls of length t adds f t to a shared amount of delay that every other
thread has to pay; the thread that ran it has paid already. Threads pay at their messages, before anyone
can wait for them. A thread that was blocked and woken by another has paid while it waited. Effective time is
wall time minus the delay paid: it passes as if the region had taken (1 - f) of its time. (After Coz,
Curtsinger and Berger, SOSP 2015.)

The shared amount is a sum of doubles in one mapped file, one for each thread, so that every double has one
writer and nothing has to be locked.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from hotloop._util.interrupts import suppress_own
from hotloop.capture import layout
from hotloop.capture.sections import DTYPES, consecutive, find_sections
from hotloop.capture.virtual import FOLDER, QUARTERS, VirtualPlan

SLOTS = 1024
LEAST_SLEEP_NS = 1_000_000  # less is owed until it adds up: a sleep costs some 20 us of CPU time
MOST_SLEEP_S = 0.25
WAITED_NS = 50_000
LOOK_AGAIN = 2048  # operations; and after 1, 2, 4, 8, ...
_NODE: Any = DTYPES["nodes", 1]["nodes"].base
_ARENA: Any = DTYPES["thread", 1]
_TOTAL = _NODE.fields["total_ns"][1] // 8
_NODE_WORDS = _NODE.itemsize // 8


class _State(threading.local):
    def __init__(self) -> None:
        self.slot = -1
        self.pid = 0
        self.paid_ns = 0.0
        self.operations = 0
        self.quarter = -1
        self.totals: list[RegionTotal] = []
        self.seen_ns: list[int] = []
        self.until_ns = 0  # end of the quarter of the last mark
        self.chosen = -1  # region that is virtually faster, until
        self.segment_until_ns = 0


class VirtualSpeedup:
    """The experiment in this process."""

    def __init__(self, plan: VirtualPlan, folder: Path, recorder: Any):
        self.plan = plan
        self._folder = folder / FOLDER
        self._recorder = recorder
        self._state = _State()
        self._memory: mmap.mmap | None = None
        self._slots: Any = None
        self._marks = -1
        self._pid = 0

    def _open(self) -> None:
        """Map the shared file; again in a forked child, which writes its own marks."""
        self._pid = os.getpid()
        size = 8 * (SLOTS + 1)
        descriptor = os.open(self._folder / "shared", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(descriptor).st_size < size:
                os.posix_fallocate(descriptor, 0, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._slots = memoryview(self._memory).cast("d")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._marks = os.open(self._folder / f"{self._pid}.marks", flags, 0o666)

    def _join(self, state: _State) -> None:
        """Give the calling thread a slot; it owes nothing for what was added before."""
        if self._pid != os.getpid():
            self._open()
        state.pid = self._pid
        descriptor = os.open(self._folder / "shared", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            state.slot = min(int(self._slots[0]) + 1, SLOTS)
            self._slots[0] = float(state.slot)
        finally:
            os.close(descriptor)
        state.paid_ns = self._delay()
        state.quarter, state.until_ns, state.segment_until_ns = -1, 0, 0
        state.operations = 0
        self._find(state)

    def _find(self, state: _State) -> None:
        state.totals = [RegionTotal(self._recorder, name) for name in self.plan.regions]
        state.seen_ns = [total.read() for total in state.totals]

    def _delay(self) -> float:
        """All the delay so far, in nanoseconds."""
        return sum(self._slots[1 : int(self._slots[0]) + 1], 0.0)

    def pay(self) -> float:
        """Before an operation: account for the chosen region and sleep what is owed; returns the delay."""
        state = self._state
        if state.pid != os.getpid():
            self._join(state)
        now = time.monotonic_ns()
        if now >= state.segment_until_ns:
            self._begin_segment(state, now)
        chosen = state.chosen
        if chosen >= 0:
            read = state.totals[chosen].read()
            if read > state.seen_ns[chosen]:
                more = self.plan.saved_fraction * (read - state.seen_ns[chosen])
                self._slots[state.slot] += more
                state.paid_ns += more
                state.seen_ns[chosen] = read
        delay = self._delay()
        owed = delay - state.paid_ns
        if owed > LEAST_SLEEP_NS:
            time.sleep(min(owed / 1e9, MOST_SLEEP_S))
            slept = time.monotonic_ns() - now
            state.paid_ns += slept  # what it slept too long is credited
            now += slept
        if now >= state.until_ns:
            self._mark(state, now)
        return delay

    def _begin_segment(self, state: _State, now: int) -> None:
        segment = self.plan.segment_at(now)
        state.chosen = self.plan.region_of(segment)
        state.segment_until_ns = self.plan.start_ns + (segment + 1) * self.plan.segment_ns
        state.seen_ns = [total.read() for total in state.totals]

    def woken(self, delay_before: float, begin_ns: int, end_ns: int) -> None:
        """After an operation: who was blocked has paid for what was added meanwhile."""
        state = self._state
        state.operations += 1
        if end_ns - begin_ns > WAITED_NS:
            state.paid_ns += max(self._delay() - delay_before, 0.0)

    def _mark(self, state: _State, now: int) -> None:
        quarter = max(now - self.plan.start_ns, 0) * QUARTERS // self.plan.segment_ns
        state.until_ns = self.plan.start_ns + (quarter + 1) * self.plan.segment_ns // QUARTERS
        if quarter != state.quarter:
            state.quarter = quarter
            line = (
                f"{state.pid} {threading.get_native_id()} {quarter} {now} {state.paid_ns:.0f} "
                f"{state.operations}\n"
            )
            with suppress_own(OSError):
                os.write(self._marks, line.encode())


class RegionTotal:
    """The time that the calling thread has spent in a region, read from its own part of the recording."""

    def __init__(self, recorder: Any, name: str):
        self._recorder = recorder
        self._name = name
        self._nodes = -1
        self._words: list[memoryview] = []  # of each node of the region: its time
        self._count: Any = None  # how many nodes the thread has, live
        self._part: Any = None
        self._misses = 0

    def read(self) -> int:
        """Nanoseconds in completed calls so far."""
        part = self._recorder.part
        if part is None:
            return 0
        if part is not self._part or (self._count is not None and self._count[0] != self._nodes):
            self._locate(part)
        elif self._count is None:  # the thread has opened no region yet: look again now and then
            self._misses += 1
            if self._misses & (self._misses - 1) == 0 or self._misses % LOOK_AGAIN == 0:
                self._locate(part)
        total = 0
        for words in self._words:
            total += words[0]
        return total

    def _locate(self, part: Any) -> None:
        self._part, self._words = part, []
        number, _ = self._recorder.open_node(threading.get_native_id())
        if number < 0:
            return
        pieces = [np.frombuffer(segment.memory, np.uint8) for segment in part.segments]
        sections = find_sections(pieces, part.total_bytes, layout.VERSION)
        arena = next((s for s in sections if s.name == "thread" and s.owner == number), None)
        if arena is None:
            return
        at = _ARENA.fields["node_count"][1]
        count: Any = arena.payload[at : at + 4].view(np.uint32)
        self._count = memoryview(count)  # faster to read than an array
        self._nodes = self._count[0]
        names = [
            row["name"][: row["name_bytes"]].tobytes().decode("utf-8", "replace")
            for section in consecutive(sections, "regions")
            for row in section["regions"]
        ]
        nodes = consecutive(sections, "nodes", number)
        parents: list[int] = []
        regions: list[int] = []
        for section in nodes:
            parents += section["nodes"]["parent"].tolist()
            regions += section["nodes"]["region"].tolist()
        for index in range(1, min(self._nodes, len(regions))):
            if self._is_outermost(index, parents, regions, names):
                per = layout.NODES_PER_SECTION
                words: Any = nodes[index // per]["nodes"].view(np.uint64).reshape(per, _NODE_WORDS)
                self._words.append(memoryview(words[index % per, _TOTAL : _TOTAL + 1]))

    def _is_outermost(self, index: int, parents: list[int], regions: list[int], names: list[str]) -> bool:
        """Whether a node is of the region, and not inside another call of it."""

        def is_it(one: int) -> bool:
            return regions[one] < len(names) and names[regions[one]] == self._name

        if not is_it(index):
            return False
        above = parents[index]
        while 0 < above < len(parents):
            if is_it(above):
                return False
            above = parents[above]
        return True
