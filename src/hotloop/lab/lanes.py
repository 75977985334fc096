"""Several runs at once: each lane has its own cores, or its own node, and a thread that makes its runs.

A lane makes all runs of a block (or of a round of sizes), one after the other, in the same place. So both
runs of a pair have the same conditions. The other lanes run other pairs in random order, so no variant
systematically has worse neighbours. The two runs of a pair never run at the same time: a variant that
needs much memory bandwidth would slow down exactly the variant it is compared with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotloop._util.errors import HotloopError
from hotloop.machine.cores import AvailableCores

SLACK = 0.25  # cores that other programs may use before they count as busy
Cores = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A lane that makes its runs on a node of a cluster."""

    name: str


Lane = Cores | Node
ONE_LANE: tuple[Lane, ...] = ((),)  # one run at a time, on any cores


class NodeLost(Exception):
    """A node ended, and with it the run it was making; the message says how, as in `node X was lost`."""


def lanes_of(jobs: int, look: Callable[[], AvailableCores]) -> tuple[Lane, ...]:
    """Disjoint sets of cores for `jobs` simultaneous runs; raises HotloopError when too few are free."""
    if jobs < 1:
        raise HotloopError(f"--jobs is {jobs}; it must be at least 1.")
    return ONE_LANE if jobs == 1 else share_out(jobs, look())


def share_out(jobs: int, room: AvailableCores) -> tuple[Cores, ...]:
    """The idlest cores, split evenly; hyperthreads of a physical core stay together where possible."""
    if not room.cores:
        raise HotloopError("--jobs needs a system that can pin processes to cores, such as Linux; remove it.")
    in_use = sum(room.busy.get(core, 0.0) for core in room.cores)
    granted = min(float(len(room.cores)), room.quota or len(room.cores))
    free = min(granted, len(room.cores) - in_use)
    each = int((free + SLACK) // jobs)
    if each < 1:
        raise HotloopError(
            f"--jobs {jobs} needs {jobs} free cores; this process may use {granted:g}"
            + (f", and other programs use {in_use:.1f} of them" if in_use > SLACK else "")
            + "; use fewer jobs."
        )
    idlest = sorted(room.cores, key=lambda core: room.busy.get(core, 0.0))[: jobs * each]
    chosen = [core for core in room.cores if core in idlest]
    return tuple(tuple(chosen[at * each : (at + 1) * each]) for at in range(jobs))


def work_through(
    tasks: Sequence[int],
    lanes: Sequence[Lane],
    do: Callable[[int, Lane], bool],
    end: Callable[[bool], None],
    grace_s: float,
) -> None:
    """Do all tasks, in order, in any lane, until one returns False or raises; raises the first error.

    A lane whose task raises `NodeLost` gets no more tasks; that task is not done again here.
    On a KeyboardInterrupt, `end(insist)` is called repeatedly until the tasks under way have ended; after
    `grace_s`, `insist` is True.
    """
    queue = _TaskQueue(list(tasks), do)
    threads = [
        threading.Thread(target=queue.work_off, args=(lane,), name=f"hotloop lane {at}", daemon=True)
        for at, lane in enumerate(lanes)
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            queue.failed.wait(0.05)
            if isinstance(queue.error, KeyboardInterrupt):
                break
            for thread in threads:
                thread.join(0.05)
    except BaseException as error:
        queue.fail(error)
    if isinstance(queue.error, KeyboardInterrupt):
        _cut_short(threads, end, grace_s)
    for thread in threads:
        thread.join()
    if queue.error is not None:
        raise queue.error


def _cut_short(threads: Sequence[threading.Thread], end: Callable[[bool], None], grace_s: float) -> None:
    waited_s = 0.0
    while any(thread.is_alive() for thread in threads):
        end(waited_s >= grace_s)
        for thread in threads:
            thread.join(0.05)
            waited_s += 0.05


class _TaskQueue:
    """The remaining tasks, shared by the lanes, and the first error."""

    def __init__(self, tasks: list[int], do: Callable[[int, Lane], bool]):
        self._remaining = tasks
        self._do = do
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self.failed = threading.Event()

    def work_off(self, lane: Lane) -> None:
        while True:
            with self._lock:
                if self.error is not None or not self._remaining:
                    return
                task = self._remaining.pop(0)
            try:
                if not self._do(task, lane):
                    with self._lock:
                        self._remaining.clear()
            except NodeLost:
                return
            except BaseException as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None or isinstance(error, KeyboardInterrupt):
                self.error = error
            self._remaining.clear()
        self.failed.set()
