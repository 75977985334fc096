"""Collection in this process, one environment after the other: the reference the others are held to."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.collect.groups import probe
from hotloop.rl.collect.post import Post
from hotloop.rl.collect.protocol import (
    CollectorState,
    Rows,
    Setup,
    Spaces,
    Tally,
    Task,
    experience_dtype,
)
from hotloop.rl.collect.ring import RecordRing
from hotloop.rl.collect.roll import Roller
from hotloop.rl.collect.sink import RingSink
from hotloop.rl.collect.status import StatusTable


class SerialCollector:
    """`setup.collectors` rolling loops that take turns, one step each, while `take` is called."""

    def __init__(self, task: Task, setup: Setup | None = None):
        self.task = task
        self.setup = setup = setup or Setup()
        self.spaces: Spaces = probe(task)
        self.dtype: np.dtype[Any] = experience_dtype(self.spaces, task.infos)
        self._post = Post(task.weights, task.control)
        self._status = StatusTable(setup.collectors)
        # a step is 2 rows for each environment where an episode ends
        rows = max(setup.rows_for(self.dtype), 2 * self.spaces.envs)
        self._rings = [RecordRing(self.dtype, rows) for _ in range(setup.collectors)]
        self._rollers: list[Roller] = []
        self._sinks: list[RingSink] = []
        self._tally = Tally()
        self._taken = [0] * setup.collectors
        self._turn = 0
        self._closed = False

    def start(self) -> None:
        """Make the environments and actors."""
        if self._rollers or self._closed:
            raise HotloopError("this collector was started before; make a new one.")
        for number, ring in enumerate(self._rings):
            self._status.begin_life(number)
            self._rollers.append(Roller(self.task, number, 0, self._post))
            self._sinks.append(RingSink(ring, self._post, self._status, number, "wait"))

    def take(self, most: int, timeout_s: float = 1.0, least: int = 1) -> list[Rows]:
        """Collect up to `most` rows here and now; see `Collector.take`.

        Goes on until `most` are there or the time is up, but never ends with nothing.
        """
        self.done()
        if not self._rollers:
            raise HotloopError("take() before start(): call start() first, or use `with`.")
        if self._post.size and not self._post.version:
            raise HotloopError("take() before publish(): the actors have no weights; publish some first.")
        end = time.monotonic() + timeout_s
        while self._pending() < most:
            if not self._advance() or (time.monotonic() >= end and self._pending()):
                break
        blocks: list[Rows] = []
        for number, ring in enumerate(self._rings):
            found = ring.blocks(most - sum(map(len, blocks)))
            self._taken[number] = sum(map(len, found))
            blocks += found
        self._tally.count(blocks, self._post.version)
        return blocks

    def _advance(self) -> bool:
        """One turn of the next collector that has room for a step; False when none has."""
        for _ in self._rollers:
            number = self._turn
            self._turn = (number + 1) % len(self._rollers)
            ring, roller = self._rings[number], self._rollers[number]
            if ring.capacity - ring.pending() >= 2 * self.spaces.envs:
                if ring.state()["handed_over"] == 0:
                    roller.begin(self._sinks[number])
                else:
                    roller.step(self._sinks[number])
                return True
        return False

    def _pending(self) -> int:
        return sum(ring.pending() for ring in self._rings)

    def done(self) -> None:
        """Give the blocks of the last `take` back."""
        for number, ring in enumerate(self._rings):
            if self._taken[number]:
                ring.give_back(self._taken[number])
                self._taken[number] = 0

    def publish(
        self,
        weights: NDArray[np.float32] | None = None,
        *,
        version: int | None = None,
        control: float | None = None,
    ) -> int:
        """See `Collector.publish`."""
        if control is not None:
            self._post.control = control
        if weights is not None:
            self._post.publish(weights, version)
        return self._post.version

    def state(self) -> CollectorState:
        """Figures so far; nobody waits for anybody here."""
        tally, queued = self._tally, 0 if self._closed else self._pending() - sum(self._taken)
        return CollectorState(
            rows=tally.rows,
            env_steps=tally.env_steps,
            episodes=tally.episodes,
            dropped=0,
            queued=queued,
            queue_fraction=queued / sum(ring.capacity for ring in self._rings),
            lock_wait_s=0.0,
            collector_wait_s=0.0,
            learner_wait_s=0.0,
            published_version=self._post.version,
            versions_behind=tally.versions_behind,
            collector_busy_fractions=tuple(1.0 if self._rollers else None for _ in self._rings),
            alive=len(self._rollers),
            restarts=0,
            failures=(),
        )

    def close(self) -> None:
        """Close the environments."""
        if self._closed:
            return
        self._closed = True
        for roller in self._rollers:
            roller.close()
        self._rollers = []
        self._sinks = []
        for ring in self._rings:
            ring.free()
        self._post.free()
        self._status.free()

    def __enter__(self) -> Self:
        if not self._rollers:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
