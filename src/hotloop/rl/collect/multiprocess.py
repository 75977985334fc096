"""Common base of the collectors that run in processes, whatever their transport."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from multiprocessing import util
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.collect.env_groups import find_spaces
from hotloop.rl.collect.protocol import (
    CollectionFailed,
    CollectorState,
    Setup,
    Spaces,
    Tally,
    Task,
    experience_dtype,
)
from hotloop.rl.collect.status import DROPPED, LOCK_WAIT_NS, PAST_WAIT_NS, WAIT_NS, StatusTable
from hotloop.rl.collect.supervisor import Link, Supervisor
from hotloop.rl.collect.weight_channel import WeightChannel
from hotloop.rl.nonfinite import NonFiniteCheck

_wait = profile("ipc_wait")
_POLL_S = 0.5  # `take` looks for rows at least this often, even if no bell rings


class MultiprocessCollector(ABC):
    """Processes, weights, state and shutdown; subclasses add `take` and `release`."""

    def __init__(self, task: Task, setup: Setup | None = None):
        self.task = task
        self.setup = setup = setup or Setup()
        self._task_bytes = pickle_task(task)
        self.spaces: Spaces = find_spaces(task)
        self.dtype: np.dtype[Any] = experience_dtype(self.spaces, task.infos)
        self._channel = WeightChannel(task.n_weights, task.control)
        self._status = StatusTable(setup.collectors)
        self._tally = Tally(NonFiniteCheck(setup.allow_nonfinite))
        self._supervisor: Supervisor | None = None
        self._closed = False
        self._last: CollectorState | None = None

    # ---- supplied by subclasses

    @abstractmethod
    def _links(self) -> Sequence[Link]:
        """One link per collector."""

    @abstractmethod
    def _queued(self) -> tuple[int, int]:
        """Rows waiting to be taken, and the capacity."""

    def _before_life(self, collector: int) -> None:  # noqa: B027 - optional
        """Called before a process for this collector starts, after its predecessor is gone."""

    def _own_lock_wait_ns(self) -> int:
        return 0

    @abstractmethod
    def _free(self) -> None:
        """Free the transport's memory."""

    # ---- the protocol

    def start(self) -> None:
        """Start the processes, without waiting until they are ready."""
        if self._supervisor is not None or self._closed:
            raise HotloopError("This collector was started before; create a new one.")
        supervisor = self._supervisor = Supervisor(
            self.setup, self._task_bytes, self._channel, self._status, self._links(), self._before_life
        )
        # At exit multiprocessing joins its children, so a collector left open must be closed before that.
        self._at_exit = util.Finalize(None, _close_if_alive, args=(weakref.ref(self),), exitpriority=10)
        try:
            supervisor.start()
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
        self._check_open()
        return self._channel.send(weights, version, control)

    def state(self) -> CollectorState:
        """Return counters and times so far; after `close`, the final ones."""
        if self._last is not None:
            return self._last
        tally, supervisor, status = self._tally, self._supervisor, self._status
        queued, room = self._queued()
        return CollectorState(
            rows=tally.rows,
            env_steps=tally.env_steps,
            episodes=tally.episodes,
            dropped=status.total(DROPPED),
            queued=queued,
            queue_fraction=queued / room,
            lock_wait_s=(status.total(LOCK_WAIT_NS) + self._own_lock_wait_ns()) / 1e9,
            collector_wait_s=status.total(WAIT_NS, PAST_WAIT_NS) / 1e9,
            learner_wait_s=tally.learner_wait_ns / 1e9,
            published_version=self._channel.version,
            versions_behind=tally.versions_behind,
            collector_busy_fractions=tuple(map(status.busy_fraction, range(status.collectors))),
            alive=supervisor.alive if supervisor else 0,
            restarts=supervisor.restarts if supervisor else 0,
            failures=tuple(supervisor.failures) if supervisor else (),
            nonfinite=tally.nonfinite.found,
        )

    def pid(self, collector: int) -> int | None:
        """Process id of a collector; None before its first life and between two."""
        return self._supervisor.pid(collector) if self._supervisor else None

    def close(self) -> None:
        """Stop the processes and free the memory; `state` keeps working."""
        if self._closed:
            return
        self._closed = True
        if self._supervisor is not None:
            self._at_exit.cancel()
            self._supervisor.stop()
        self._last = self.state()
        self._free()
        self._channel.free()
        self._status.free()

    def __enter__(self) -> Self:
        if self._supervisor is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- for subclasses

    def _wait_for_rows(self, has_enough: Callable[[], bool], wake_every: int, timeout_s: float) -> None:
        """Sleep until there are enough rows, collection has failed or the time is up."""
        if has_enough():
            return
        supervisor, bell = self._check_take(), self._channel.rows
        began_ns = time.monotonic_ns()
        end_ns = began_ns + int(timeout_s * 1e9)
        with _wait:
            self._channel.wake_every = wake_every
            while True:
                seen = bell.count()
                left_s = (end_ns - time.monotonic_ns()) / 1e9
                if has_enough() or left_s <= 0 or supervisor.error is not None:
                    break
                bell.wait(seen, min(left_s, _POLL_S))
        self._tally.learner_wait_ns += time.monotonic_ns() - began_ns

    def _check_open(self) -> None:
        if self._closed:
            raise HotloopError("This collector is closed; create a new one.")

    def _check_take(self) -> Supervisor:
        self._check_open()
        if self._supervisor is None:
            raise HotloopError("take() was called before start(); call start() first, or use `with`.")
        return self._supervisor


def pickle_task(task: Task) -> bytes:
    cloudpickle = require_extra("cloudpickle", "rl")
    try:
        found: bytes = cloudpickle.dumps(task)
    except Exception as error:
        raise CollectionFailed(
            f"The task cannot be pickled ({type(error).__name__}: {error}); let make_env and make_actor "
            "create what they need (environments, locks, files) instead of holding it."
        ) from error
    return found


def _close_if_alive(collector: weakref.ref[MultiprocessCollector]) -> None:
    found = collector()
    if found is not None:
        found.close()
