"""Collection in this process, one environment after the other: the reference for the other collectors."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.collect.actor_loop import ActorLoop
from hotloop.rl.collect.env_groups import find_spaces
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
from hotloop.rl.collect.row_writers import RingWriter
from hotloop.rl.collect.status import StatusTable
from hotloop.rl.collect.weight_channel import WeightChannel
from hotloop.rl.nonfinite import NonFiniteCheck


class SerialCollector:
    """`setup.collectors` actor loops that take turns, one step each, inside `take`."""

    def __init__(self, task: Task, setup: Setup | None = None):
        self.task = task
        self.setup = setup = setup or Setup()
        self.spaces: Spaces = find_spaces(task)
        self.dtype: np.dtype[Any] = experience_dtype(self.spaces, task.infos)
        self._channel = WeightChannel(task.n_weights, task.control)
        self._status = StatusTable(setup.collectors)
        # a step writes 2 rows for each environment whose episode ends
        rows = max(setup.rows_for(self.dtype), 2 * self.spaces.n_envs)
        self._rings = [RecordRing(self.dtype, rows) for _ in range(setup.collectors)]
        self._loops: list[ActorLoop] = []
        self._writers: list[RingWriter] = []
        self._tally = Tally(NonFiniteCheck(setup.allow_nonfinite))
        self._taken = [0] * setup.collectors
        self._turn = 0
        self._closed = False

    def start(self) -> None:
        """Create the environments and actors."""
        if self._loops or self._closed:
            raise HotloopError("This collector was started before; create a new one.")
        for number, ring in enumerate(self._rings):
            self._status.begin_life(number)
            self._loops.append(ActorLoop(self.task, number, 0, self._channel))
            self._writers.append(RingWriter(ring, self._channel, self._status, number, "wait"))

    def take(self, max_rows: int, timeout_s: float = 1.0, min_rows: int = 1) -> list[Rows]:
        """Collect until there are `max_rows` rows or the time is up; at least one row."""
        self.release()
        if not self._loops:
            raise HotloopError("take() was called before start(); call start() first, or use `with`.")
        if self._channel.size and not self._channel.version:
            raise HotloopError("take() was called before publish(); the actors need weights first.")
        end = time.monotonic() + timeout_s
        while self._pending() < max_rows:
            if not self._advance() or (time.monotonic() >= end and self._pending()):
                break
        blocks: list[Rows] = []
        for number, ring in enumerate(self._rings):
            found = ring.blocks(max_rows - sum(map(len, blocks)))
            self._taken[number] = sum(map(len, found))
            blocks += found
        self._tally.count(blocks, self._channel.version)
        return blocks

    def _advance(self) -> bool:
        """Step the next collector that has room; return False if none has."""
        for _ in self._loops:
            number = self._turn
            self._turn = (number + 1) % len(self._loops)
            ring, loop = self._rings[number], self._loops[number]
            if ring.capacity - ring.pending() >= 2 * self.spaces.n_envs:
                if ring.state()["handed_over"] == 0:
                    loop.begin(self._writers[number])
                else:
                    loop.step(self._writers[number])
                return True
        return False

    def _pending(self) -> int:
        return sum(ring.pending() for ring in self._rings)

    def release(self) -> None:
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
        return self._channel.send(weights, version, control)

    def state(self) -> CollectorState:
        """Return counters so far; all waits are 0."""
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
            published_version=self._channel.version,
            versions_behind=tally.versions_behind,
            collector_busy_fractions=tuple(1.0 if self._loops else None for _ in self._rings),
            alive=len(self._loops),
            restarts=0,
            failures=(),
            nonfinite=tally.nonfinite.found,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for loop in self._loops:
            loop.close()
        self._loops = []
        self._writers = []
        for ring in self._rings:
            ring.free()
        self._channel.free()
        self._status.free()

    def __enter__(self) -> Self:
        if not self._loops:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
