"""Keeps collectors alive: starts their processes, notices deaths and hangs, reports, starts them anew.

One thread does all of it. It sleeps until a process ends or a sign of life is overdue. All processes are
started by this thread, for two reasons: Linux ties a child's death signal to the thread that started it,
and this one blocks SIGINT, which children inherit, so that Ctrl-C reaches the learner only.
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

from hotloop.rl.collect import child
from hotloop.rl.collect.post import Post
from hotloop.rl.collect.protocol import CollectionFailed, Failure, Setup
from hotloop.rl.collect.shared import SharedNote
from hotloop.rl.collect.status import BEAT, LOCKING, PHASE, STARTING, STEPS, StatusTable

if TYPE_CHECKING:
    from hotloop.rl.collect.sink import Sink

LOOK_EVERY_S = 0.25
GRACE_S = 2.0
KEPT_FAILURES = 100
_NO_WORDS = (
    "failed while its process was being set up (what it printed on stderr says why: a script without "
    "`if __name__ == '__main__':`, or a module that a new process cannot import)"
)


class Link(Protocol):
    """One collector's end of a transport; can be sent to its process."""

    def open(self, parcel: Parcel) -> Sink:
        """In the collector's process: where its rows go."""

    def wake(self) -> None:
        """In the learner's process: end the waits of that collector."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Everything a collector's process is given."""

    task: bytes
    collector: int
    life: int
    post: Post
    status: StatusTable
    note: SharedNote
    link: Link
    method: str
    parent_pid: int


class _Place:
    """One collector's place: the process that lives there now."""

    def __init__(self) -> None:
        self.note = SharedNote()
        self.life = -1
        self.process: Any = None
        self.pid: int | None = None
        self.fruitless = 0  # ends in a row without a step
        self.steps_before = 0


class Watch:
    """`setup.collectors` processes, kept alive from `start` to `stop`."""

    def __init__(
        self,
        setup: Setup,
        task: bytes,
        post: Post,
        status: StatusTable,
        links: Sequence[Link],
        before_life: Callable[[int], None],
    ):
        self._setup, self._task, self._post, self._status = setup, task, post, status
        self._links, self._before_life = links, before_life
        self._context: Any = multiprocessing.get_context(setup.method)
        self._places = [_Place() for _ in range(setup.collectors)]
        self._wake, self._woken = self._context.Pipe(duplex=False)
        self._stopping = False
        self._begun = threading.Event()
        self.failures: deque[Failure] = deque(maxlen=KEPT_FAILURES)
        self.restarts = 0
        self.error: CollectionFailed | None = None
        """Why collection cannot go on; set once, and the learner's bell is rung."""
        self._thread = threading.Thread(target=self._main, name="hotloop-watch", daemon=True)

    def start(self) -> None:
        """Start all processes; raises what stopped one of them from being started."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise CollectionFailed(
                "collectors are being started while this process is itself being started by one: the script "
                "starts them when it is imported; put its main part under `if __name__ == '__main__':`."
            )
        self._thread.start()
        self._begun.wait()
        if self.error is not None:
            self.stop()
            raise self.error

    def stop(self) -> None:
        """End all processes: ask, wait a little, kill."""
        self._stopping = True
        if self._thread.is_alive():
            self._woken.send_bytes(b"x")
            self._thread.join()
        for place in self._places:
            place.note.close()
        self._wake.close()
        self._woken.close()

    @property
    def alive(self) -> int:
        """Processes that run now."""
        return sum(place.pid is not None for place in self._places)

    def pid(self, collector: int) -> int | None:
        """Process id of a collector's present life; None between two."""
        return self._places[collector].pid

    # ---- the thread

    def _main(self) -> None:
        if self._setup.method != "forkserver":  # whose server may start processes for others, too
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for number in range(len(self._places)):
                if not self._stopping:
                    self._begin_life(number)
            self._begun.set()
            while not self._stopping and self.error is None:
                running = [place.process.sentinel for place in self._places]
                connection.wait([self._wake, *running], timeout=LOOK_EVERY_S)
                for number in range(len(self._places)):
                    if not self._stopping and self.error is None:
                        self._look_at(number)
        except CollectionFailed as error:
            self._give_up(error)
        except Exception as error:  # a learner that waits for rows must not wait for ever
            self._give_up(CollectionFailed(f"the thread that keeps collectors alive failed: {error!r}"))
        finally:
            self._begun.set()
            self._end_all()

    def _give_up(self, error: CollectionFailed) -> None:
        self.error = error
        self._post.rows.ring()

    def _begin_life(self, number: int) -> None:
        place = self._places[number]
        place.life += 1
        place.note.take()
        self._status.begin_life(number)
        self._before_life(number)
        place.steps_before = int(self._status.words[number, STEPS])
        parcel = Parcel(
            self._task, number, place.life, self._post, self._status, place.note, self._links[number],
            self._setup.method, os.getpid(),
        )  # fmt: skip
        place.process = self._context.Process(
            target=child.run, args=(child.OneThread(), parcel), name=f"hotloop-collector-{number}"
        )
        try:
            place.process.start()
        except Exception as error:
            place.process = None
            raise CollectionFailed(
                f"the process of collector {number} (of {len(self._places)}) could not be started by "
                f"{self._setup.method} ({type(error).__name__}: {error}); use fewer collectors, raise the "
                "limit on processes (ulimit -u) and memory, or try another method ('spawn', 'fork')."
            ) from error
        place.pid = place.process.pid

    def _look_at(self, number: int) -> None:
        place = self._places[number]
        if place.process.exitcode is not None:
            self._replace(number, _how_it_ended(place.process.exitcode))
            return
        line = self._status.words[number]
        limit_s = self._setup.start_timeout_s if line[PHASE] == STARTING else self._setup.hang_timeout_s
        silent_s = (time.monotonic_ns() - int(line[BEAT])) / 1e9
        if silent_s > limit_s and line[PHASE] != LOCKING:
            self._ask_where(place)
            place.process.kill()
            place.process.join()
            self._replace(number, f"gave no sign of life for {silent_s:.1f} s and was killed")

    def _ask_where(self, place: _Place) -> None:
        """Let a hung process write down where it stands."""
        try:
            os.kill(place.process.pid, signal.SIGUSR1)
        except ProcessLookupError:
            return
        end = time.monotonic() + 0.5
        while time.monotonic() < end and not os.fstat(place.note.fileno()).st_size:
            time.sleep(0.01)
        time.sleep(0.02)  # for the rest of its words

    def _replace(self, number: int, what: str) -> None:
        place = self._places[number]
        place.pid = None
        place.process.join()
        place.process.close()
        trace = place.note.take()
        last = trace.strip().splitlines()[-1] if trace.strip() else ""
        if what == "failed":
            what = f"raised {last}" if trace else _NO_WORDS
        self.failures.append(Failure(number, place.life, what, trace))
        fruitless = int(self._status.words[number, STEPS]) == place.steps_before
        place.fruitless = place.fruitless + 1 if fruitless else 0
        if place.fruitless >= self._setup.most_failures:
            place.process = None
            raise CollectionFailed(
                f"collector {number} ended {place.fruitless} times in a row without a single step; the last "
                f"time it {what}. Its own words:\n{trace or '(none were left)'}"
            )
        self.restarts += 1
        self._say(
            f"collector {number} {what}; started anew with a fresh seed (life {place.life + 1})"
            + (f"\n{trace.rstrip()}" if trace else "")
        )
        self._begin_life(number)

    def _say(self, text: str) -> None:
        if self._setup.note is not None:
            self._setup.note(text)
        else:
            print(f"hotloop: {text}", file=sys.stderr, flush=True)

    def _end_all(self) -> None:
        self._post.stop()
        for link in self._links:
            link.wake()
        running = [place.process for place in self._places if place.process is not None]
        end = time.monotonic() + GRACE_S
        for process in running:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for place in self._places:
            place.process = place.pid = None


def _how_it_ended(exitcode: int) -> str:
    if exitcode == 0:
        return "ended by itself (something in it called sys.exit?)"
    if exitcode > 0:
        return "failed"
    name = signal.Signals(-exitcode).name
    if name == "SIGKILL":
        return "was killed by SIGKILL (if nobody did that, memory ran out: use fewer collectors)"
    return f"was killed by {name}"
