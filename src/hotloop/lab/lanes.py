"""Several runs at once: lanes of cores that no other run has, and the threads that work through them.

A lane takes a whole block (or a round of sizes) and makes its runs one after the other on its own cores.
So both runs of a pair see the same place, whatever the other lanes do; those run pairs of their own, whose
order a coin decides, so that no variant has the worse neighbours. The two runs of one pair are never
started together: a variant that is hungry for memory would slow down exactly the one it is compared with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hotloop._util.errors import HotloopError
from hotloop.machine.cores import AvailableCores

SLACK = 0.25  # of a core: what a computer does at any time
Cores = tuple[int, ...]
ONE_LANE: tuple[Cores, ...] = ((),)  # one run at a time, on whatever cores there are


def lanes_of(jobs: int, look: Callable[[], AvailableCores]) -> tuple[Cores, ...]:
    """Cores for so many runs at once, none in two lanes; raises HotloopError when there are too few."""
    if jobs < 1:
        raise HotloopError(f"--jobs is {jobs}; it must be a whole number from 1.")
    return ONE_LANE if jobs == 1 else share_out(jobs, look())


def share_out(jobs: int, room: AvailableCores) -> tuple[Cores, ...]:
    """The idlest cores, split evenly; threads of one physical core stay together where that is possible."""
    if not room.cores:
        raise HotloopError("--jobs needs a system that can give a process cores of its own, such as Linux.")
    in_use = sum(room.busy.get(core, 0.0) for core in room.cores)
    granted = min(float(len(room.cores)), room.quota or len(room.cores))
    free = min(granted, len(room.cores) - in_use)
    each = int((free + SLACK) // jobs)
    if each < 1:
        raise HotloopError(
            f"--jobs {jobs} needs {jobs} free cores; this process is granted {granted:g}"
            + (f", and other programs keep {in_use:.1f} cores busy" if in_use > SLACK else "")
            + "; run fewer at once, or one after the other without --jobs."
        )
    idlest = sorted(room.cores, key=lambda core: room.busy.get(core, 0.0))[: jobs * each]
    chosen = [core for core in room.cores if core in idlest]
    return tuple(tuple(chosen[at * each : (at + 1) * each]) for at in range(jobs))


def work_through(
    tasks: Sequence[int],
    lanes: Sequence[Cores],
    do: Callable[[int, Cores], bool],
    end: Callable[[bool], None],
    grace_s: float,
) -> None:
    """Do every task in some lane, in order, until one returns False or raises; the first error is raised.

    `end(insist)` is called when what is under way is to be cut short, again and again until it has ended,
    with `insist` after `grace_s`.
    """
    crew = _Crew(list(tasks), do)
    threads = [
        threading.Thread(target=crew.work, args=(cores,), name=f"hotloop lane {at}", daemon=True)
        for at, cores in enumerate(lanes)
    ]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            crew.trouble.wait(0.05)
            if isinstance(crew.error, KeyboardInterrupt):
                break
            for thread in threads:
                thread.join(0.05)
    except BaseException as error:
        crew.fail(error)
    if isinstance(crew.error, KeyboardInterrupt):
        _cut_short(threads, end, grace_s)
    for thread in threads:
        thread.join()
    if crew.error is not None:
        raise crew.error


def _cut_short(threads: Sequence[threading.Thread], end: Callable[[bool], None], grace_s: float) -> None:
    waited_s = 0.0
    while any(thread.is_alive() for thread in threads):
        end(waited_s >= grace_s)
        for thread in threads:
            thread.join(0.05)
            waited_s += 0.05


class _Crew:
    """The tasks that are left, and the first thing that went wrong."""

    def __init__(self, tasks: list[int], do: Callable[[int, Cores], bool]):
        self._left = tasks
        self._do = do
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self.trouble = threading.Event()

    def work(self, cores: Cores) -> None:
        while True:
            with self._lock:
                if self.error is not None or not self._left:
                    return
                task = self._left.pop(0)
            try:
                if not self._do(task, cores):
                    with self._lock:
                        self._left.clear()
            except BaseException as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None or isinstance(error, KeyboardInterrupt):
                self.error = error
            self._left.clear()
        self.trouble.set()
