"""What collectors in processes of their own share, whichever way their rows travel."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing import util
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.collect.groups import probe
from hotloop.rl.collect.post import Post
from hotloop.rl.collect.protocol import (
    CollectionFailed,
    CollectorState,
    Setup,
    Spaces,
    Tally,
    Task,
    experience_dtype,
)
from hotloop.rl.collect.status import DROPPED, LOCK_WAIT, PAST_WAIT, WAIT, StatusTable
from hotloop.rl.collect.watch import Link, Watch


class RemoteCollector(ABC):
    """Processes, weights, state and the end of it all; `take` and `done` belong to the transport."""

    def __init__(self, task: Task, setup: Setup | None = None):
        self.task = task
        self.setup = setup = setup or Setup()
        self._task_bytes = packed(task)
        self.spaces: Spaces = probe(task)
        self.dtype: np.dtype[Any] = experience_dtype(self.spaces, task.infos)
        self._post = Post(task.weights, task.control)
        self._status = StatusTable(setup.collectors)
        self._tally = Tally()
        self._watch: Watch | None = None
        self._closed = False
        self._last: CollectorState | None = None

    # ---- what a transport supplies

    @abstractmethod
    def _links(self) -> Sequence[Link]:
        """One for each collector."""

    @abstractmethod
    def _queued(self) -> tuple[int, int]:
        """Rows that wait to be taken, and room in all."""

    def _before_life(self, collector: int) -> None:  # noqa: B027 - a ring has nothing to do then
        """A process for this collector is about to be started; its predecessor, if any, is gone."""

    def _own_lock_wait_ns(self) -> int:
        return 0

    @abstractmethod
    def _free(self) -> None:
        """Give back what the transport holds."""

    # ---- the protocol

    def start(self) -> None:
        """Start the processes; returns when all are started, not when all are ready."""
        if self._watch is not None or self._closed:
            raise HotloopError("this collector was started before; make a new one.")
        watch = self._watch = Watch(
            self.setup, self._task_bytes, self._post, self._status, self._links(), self._before_life
        )
        # multiprocessing joins its children when a program ends; a collector nobody closed must end before
        self._at_exit = util.Finalize(None, _close_if_there, args=(weakref.ref(self),), exitpriority=10)
        try:
            watch.start()
        except BaseException:
            self.close()
            raise

    def publish(
        self,
        weights: NDArray[np.float32] | None = None,
        *,
        version: int | None = None,
        control: float | None = None,
    ) -> int:
        """See `Collector.publish`."""
        self._check_open()
        if control is not None:
            self._post.control = control
        if weights is not None:
            self._post.publish(weights, version)
        return self._post.version

    def state(self) -> CollectorState:
        """Figures so far; after `close` those of the end."""
        if self._last is not None:
            return self._last
        tally, watch, status = self._tally, self._watch, self._status
        queued, room = self._queued()
        return CollectorState(
            rows=tally.rows,
            env_steps=tally.env_steps,
            episodes=tally.episodes,
            dropped=status.total(DROPPED),
            queued=queued,
            queue_fraction=queued / room,
            lock_wait_s=(status.total(LOCK_WAIT) + self._own_lock_wait_ns()) / 1e9,
            collector_wait_s=status.total(WAIT, PAST_WAIT) / 1e9,
            learner_wait_s=tally.learner_wait_ns / 1e9,
            published_version=self._post.version,
            versions_behind=tally.versions_behind,
            collector_busy_fractions=tuple(map(status.busy_fraction, range(status.collectors))),
            alive=watch.alive if watch else 0,
            restarts=watch.restarts if watch else 0,
            failures=tuple(watch.failures) if watch else (),
        )

    def pid(self, collector: int) -> int | None:
        """Process id of a collector's present life; None before it, and between two."""
        return self._watch.pid(collector) if self._watch else None

    def close(self) -> None:
        """End the processes and free the memory; `state` still answers."""
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._at_exit.cancel()
            self._watch.stop()
        self._last = self.state()
        self._free()
        self._post.free()
        self._status.free()

    def __enter__(self) -> Self:
        if self._watch is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside

    def _check_open(self) -> None:
        if self._closed:
            raise HotloopError("this collector is closed; make a new one.")

    def _check_take(self) -> Watch:
        self._check_open()
        if self._watch is None:
            raise HotloopError("take() before start(): call start() first, or use `with`.")
        return self._watch


def packed(task: Task) -> bytes:
    """The task as bytes for another process."""
    cloudpickle = require_extra("cloudpickle", "rl")
    try:
        found: bytes = cloudpickle.dumps(task)
    except Exception as error:
        raise CollectionFailed(
            f"the task cannot be sent to another process ({type(error).__name__}: {error}); let make_env and "
            "make_actor make what they need instead of holding it (open environments, locks, files)."
        ) from error
    return found


def _close_if_there(collector: weakref.ref[RemoteCollector]) -> None:
    found = collector()
    if found is not None:
        found.close()
