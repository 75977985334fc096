"""Collection on the nodes of a Ray cluster: rings inside a node, batches of a few MB between nodes.

Each node has one actor with the collectors of that node (`ray_group.py`). The learner's process keeps a few
requests for a batch under way at each; a batch goes through Ray's object store and is read in place. A node
makes no batch that nobody asked for: its rings fill up, and its collectors wait. Every batch is handed over
at most once. When a node is lost, its collectors begin a new life on another one, and the rows that it had
made and that never came are counted.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util import HOTLOOP_VERSION
from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop._util.ray_cluster import address_of, connected, first_line, last_line, node_actor
from hotloop.rl.collect.env_groups import find_spaces
from hotloop.rl.collect.multiprocess import pickle_task
from hotloop.rl.collect.protocol import (
    CollectionFailed,
    CollectorState,
    Failure,
    Rows,
    Setup,
    Spaces,
    Tally,
    Task,
    experience_dtype,
)
from hotloop.rl.collect.supervisor import KEPT_FAILURES
from hotloop.rl.collect.weight_channel import check_weights
from hotloop.rl.nonfinite import NonFiniteCheck

BATCH_BYTES = 4 << 20  # of one batch
UNDER_WAY = 2  # batches of a node that are asked for or not yet taken
START_S = 180.0  # for a node to become free and to start our actor
CLOSE_S = 10.0
_POLL_S = 0.5
_wait = profile("ipc_wait")


def spread(collectors: int, cpus: Mapping[str, float]) -> dict[str, int]:
    """How many collectors each node gets: as even as possible for each CPU, in a stable order."""
    counts = dict.fromkeys(cpus, 0)
    for _ in range(collectors):
        least = min(counts, key=lambda node: ((counts[node] + 1) / cpus[node], node))
        counts[least] += 1
    return {node: count for node, count in counts.items() if count}


@dataclass
class _Group:
    """The collectors of one node, as the learner's side knows them."""

    first: int
    count: int
    node: str
    actor: Any = None
    life: int = 0
    sequences: list[int] = field(default_factory=list)  # rows of earlier lives on other nodes
    arrived: list[int] = field(default_factory=list)  # rows of this life on this node
    asked: deque[Any] = field(default_factory=deque)  # requests under way, oldest first
    waiting: deque[Rows] = field(default_factory=deque)  # batches that came and are not taken yet
    publishing: Any = None  # the request that sends weights
    published: tuple[int, float | None] = (-1, None)  # what it was last sent
    state: CollectorState | None = None
    produced: tuple[int, ...] = ()
    restarts: int = 0  # of its collectors' processes on nodes that are gone
    dropped: int = 0  # there, too
    lost_in_a_row: int = 0  # times it was lost without a row


class RayCollector:
    """See `Collector`; `on` names the cluster: `ray`, or `ray://HOST:PORT`."""

    def __init__(self, task: Task, setup: Setup | None = None, on: str = "ray"):
        self.task, self.setup, self._on = task, setup or Setup(), on
        address_of(on)
        self._ray: Any = require_extra("ray", "ray")
        self._task_bytes = pickle_task(task)
        self.spaces: Spaces = find_spaces(task)
        self.dtype: np.dtype[Any] = experience_dtype(self.spaces, task.infos)
        self._tally = Tally(NonFiniteCheck(self.setup.allow_nonfinite))
        rows = self.setup.rows_for(self.dtype)
        self._batch_rows = max(1, min(rows, BATCH_BYTES // self.dtype.itemsize))
        self._groups: list[_Group] = []
        self._stack = contextlib.ExitStack()
        self._weights: Any = None  # the newest, in the object store
        self._version, self._control = 0, task.control
        self._failures: deque[Failure] = deque(maxlen=KEPT_FAILURES)
        self._restarts = self._lost = 0
        self._error: CollectionFailed | None = None
        self._taken: list[Rows] = []
        self._turn = 0
        self._started = self._closed = False
        self._last: CollectorState | None = None

    # ---- the protocol

    def start(self) -> None:
        """Start the collectors; returns when every node has begun to start its own."""
        if self._started or self._closed:
            raise HotloopError("This collector was started before; create a new one.")
        self._started = True
        try:
            self._stack.enter_context(connected(self._ray, self._on))
            self._class = self._ray.remote(concurrency_groups={"weights": 1})(
                node_actor("HotloopCollectors", "hotloop.rl.collect.ray_group:CollectorGroup")
            )
            self._start_groups()
        except BaseException:
            self.close()
            raise

    def take(self, max_rows: int, timeout_s: float = 1.0, min_rows: int = 1) -> list[Rows]:
        """See `Collector.take`. Blocks are read-only: they are in the memory of Ray's object store."""
        self._check_open()
        self.release()
        self._wait_for(min(min_rows, max_rows), timeout_s)
        blocks: list[Rows] = []
        left = max_rows
        for turn in range(len(self._groups)):
            group = self._groups[(self._turn + turn) % len(self._groups)]
            while group.waiting and left:
                batch = group.waiting.popleft()
                if len(batch) > left:
                    group.waiting.appendleft(batch[left:])
                    batch = batch[:left]
                blocks.append(batch)
                left -= len(batch)
        self._turn += 1
        for group in self._groups:
            self._request(group)
        if not blocks and self._error is not None:
            raise self._error
        self._taken = blocks
        self._tally.count(blocks, self._version)
        return blocks

    def release(self) -> None:
        self._taken = []

    def publish(
        self,
        weights: NDArray[np.float32] | None = None,
        *,
        version: int | None = None,
        control: float | None = None,
    ) -> int:
        self._check_open()
        if control is not None:
            self._control = control
        if weights is not None:
            self._version = check_weights(weights, self.task.n_weights, version, self._version)
            self._weights = self._ray.put(np.array(weights, dtype=np.float32))
        for group in self._groups:
            self._send_weights(group)
        return self._version

    def state(self) -> CollectorState:
        """Counters and times so far, as the nodes last reported them; after `close`, the final ones."""
        if self._last is not None:
            return self._last
        groups, tally = self._groups, self._tally
        states = [group.state for group in groups if group.state is not None]
        here = sum(len(batch) for group in groups for batch in group.waiting)
        queued = here + sum(state.queued for state in states)
        room = self.setup.rows_for(self.dtype) * self.setup.collectors
        busy: list[float | None] = []
        for group in groups:
            busy += [None] * group.count if group.state is None else group.state.collector_busy_fractions
        failures = [*self._failures, *(failure for state in states for failure in state.failures)]
        return CollectorState(
            rows=tally.rows,
            env_steps=tally.env_steps,
            episodes=tally.episodes,
            dropped=sum(group.dropped for group in groups) + sum(state.dropped for state in states),
            queued=queued,
            queue_fraction=min(queued / room, 1.0),
            lock_wait_s=0.0,
            collector_wait_s=sum(state.collector_wait_s for state in states),
            learner_wait_s=tally.learner_wait_ns / 1e9,
            published_version=self._version,
            versions_behind=tally.versions_behind,
            collector_busy_fractions=tuple(busy),
            alive=sum(state.alive for state in states),
            restarts=self._restarts + sum(g.restarts for g in groups) + sum(s.restarts for s in states),
            failures=tuple(failures[-KEPT_FAILURES:]),
            nonfinite=tally.nonfinite.found,
            lost=self._lost,
        )

    def close(self) -> None:
        """Stop every collector; rows not yet taken are lost. `state` keeps working."""
        if self._closed:
            return
        self._closed = True
        self._last = replace(self.state(), alive=0)
        actors = [group.actor for group in self._groups if group.actor is not None]
        if actors:  # without one, `ray.wait` would start a cluster where none was reached
            with contextlib.suppress(Exception):  # nodes may be gone
                refs = [actor.ask.remote("close") for actor in actors]
                self._ray.wait(refs, num_returns=len(refs), timeout=CLOSE_S)
        for actor in actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._taken = []
        for group in self._groups:
            group.waiting.clear()
            group.asked.clear()
        self._stack.close()

    def __enter__(self) -> Self:
        if not self._started:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- nodes

    def nodes(self) -> dict[int, str]:
        """The node of each collector, by its number."""
        return {
            n: group.node for group in self._groups for n in range(group.first, group.first + group.count)
        }

    def _start_groups(self) -> None:
        cpus = self._cpus()
        if not cpus:
            raise HotloopError("No node of the Ray cluster has a CPU; start one with `ray start --num-cpus`.")
        first = 0
        for node, count in sorted(spread(self.setup.collectors, cpus).items()):
            group = _Group(first, count, node, sequences=[0] * count)
            self._groups.append(group)
            self._start_actor(group, min(float(count), cpus[node]))
            first += count
        asked = {group.actor.ask.remote("hello"): group for group in self._groups}
        ready, late = self._ray.wait(list(asked), num_returns=len(asked), timeout=START_S)
        for ref in ready:
            try:
                problem, _ = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                raise CollectionFailed(
                    f"Node {asked[ref].node[:6]} cannot run collectors: {last_line(error)}."
                ) from None
            if problem:
                raise HotloopError(
                    f"Node {asked[ref].node[:6]} {problem}; install hotloop {HOTLOOP_VERSION} there."
                )
        if late:
            raise CollectionFailed(
                f"Node {asked[late[0]].node[:6]} had no free CPUs for {START_S:.0f} s; use fewer collectors."
            )

    def _cpus(self) -> dict[str, float]:
        alive = (node for node in self._ray.nodes() if node.get("Alive"))
        return {
            node["NodeID"]: node["Resources"].get("CPU", 0.0)
            for node in alive
            if node["Resources"].get("CPU")
        }

    def _start_actor(self, group: _Group, cpus: float) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # Ray is loaded here

        where = NodeAffinitySchedulingStrategy(group.node, soft=False)
        setup = replace(self.setup, log=None)
        group.actor = self._class.options(num_cpus=cpus, scheduling_strategy=where).remote(
            str(Path(__file__).parents[3]), HOTLOOP_VERSION,
            self._task_bytes, setup, group.first, group.count, group.life, group.sequences,
        )  # fmt: skip
        group.arrived = [0] * group.count
        group.state, group.produced, group.published = None, (), (-1, None)
        group.publishing = None
        group.asked.clear()
        self._send_weights(group)
        self._request(group)

    def _request(self, group: _Group) -> None:
        """Ask for as many batches as may be under way."""
        while len(group.asked) + len(group.waiting) < UNDER_WAY and self._error is None:
            group.asked.append(group.actor.ask.remote("take", self._batch_rows))

    def _send_weights(self, group: _Group) -> None:
        """Send the newest weights and control, unless the last ones are still on their way."""
        news = (self._version, self._control)
        if group.published == news or (self._version == 0 and group.published[1] == self._control):
            return
        if group.publishing is not None and not self._ray.wait([group.publishing], timeout=0)[0]:
            return  # `take` tries again
        weights = self._weights if group.published[0] != self._version else None
        group.publishing = group.actor.ask.options(concurrency_group="weights").remote(
            "publish", weights, self._version, self._control
        )
        group.published = news

    # ---- rows

    def _wait_for(self, min_rows: int, timeout_s: float) -> None:
        began_ns = time.monotonic_ns()
        self._receive(0.0)
        if self._rows_here() >= min_rows:
            return
        end_ns = began_ns + int(timeout_s * 1e9)
        with _wait:
            while self._rows_here() < min_rows and self._error is None:
                left_s = (end_ns - time.monotonic_ns()) / 1e9
                if left_s <= 0 or self._all_full():
                    break
                self._receive(min(left_s, _POLL_S))
        self._tally.learner_wait_ns += time.monotonic_ns() - began_ns

    def _rows_here(self) -> int:
        return sum(len(batch) for group in self._groups for batch in group.waiting)

    def _all_full(self) -> bool:
        """Whether no more can come before something is taken."""
        return all(not group.asked for group in self._groups)

    def _receive(self, timeout_s: float) -> None:
        """Take in the batches that have come, those of a node in order."""
        for group in self._groups:
            self._send_weights(group)
        heads = {group.asked[0]: group for group in self._groups if group.asked}
        if not heads:
            return
        ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=timeout_s)
        if ready and len(heads) > 1:
            ready, _ = self._ray.wait(list(heads), num_returns=len(heads), timeout=0)
        for ref in ready:
            group = heads[ref]
            try:
                problem, answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                self._lose(group, error)
                continue
            group.asked.popleft()
            if problem:
                self._error = CollectionFailed(f"Node {group.node[:6]} {problem}.")
                return
            self._arrived(group, *answer)

    def _arrived(self, group: _Group, rows: Rows, report: Any) -> None:
        group.state, group.produced = report.state, report.produced
        for line in report.logged:
            self._log(f"node {group.node[:6]}: {line}")
        if report.failed and self._error is None:
            self._error = CollectionFailed(report.failed)
        if len(rows):
            group.lost_in_a_row = 0
            group.waiting.append(rows)
            ends = np.zeros(group.count, dtype=np.uint64)
            np.maximum.at(ends, rows["collector"] - group.first, rows["sequence"] + np.uint64(1))
            for number, end in enumerate(ends.tolist()):
                if end:
                    group.arrived[number] = end - group.sequences[number]
        self._request(group)

    def _lose(self, group: _Group, error: BaseException) -> None:
        """A node or our actor on it is gone: count what is missing and begin a new life elsewhere."""
        missing = [max(made - came, 0) for made, came in zip(group.produced, group.arrived, strict=False)]
        self._lost += sum(missing)
        what = f"was lost with node {group.node[:6]} ({first_line(error)})"
        numbers = range(group.first, group.first + group.count)
        self._failures += [Failure(number, group.life, what, "") for number in numbers]
        self._restarts += group.count
        if group.state is not None:
            group.restarts += group.state.restarts
            group.dropped += group.state.dropped
            self._failures += group.state.failures
            group.life += group.state.restarts
        group.life += 1
        group.lost_in_a_row += 1
        made = [max(n, came) for n, came in zip(group.produced or group.arrived, group.arrived, strict=True)]
        group.sequences = [before + n for before, n in zip(group.sequences, made, strict=True)]
        cpus = self._cpus()
        if not cpus or group.lost_in_a_row >= self.setup.max_failures:
            self._error = CollectionFailed(
                f"Collectors {numbers[0]} to {numbers[-1]} {what}, and "
                + ("no node is left." if not cpus else f"{group.lost_in_a_row} times without a row.")
            )
            group.asked.clear()
            return
        before, held = group.node, spread_now(self._groups)
        # Another node, if there is one: Ray notices the end of an actor before that of its node.
        others = {node: n for node, n in cpus.items() if node != before} or cpus
        group.node = min(others, key=lambda node: ((held.get(node, 0) + 1) / others[node], node))
        self._log(
            f"collectors {numbers[0]} to {numbers[-1]} were lost with node {before[:6]}, "
            f"with at least {sum(missing)} rows; they begin a new life on node {group.node[:6]}"
        )
        with contextlib.suppress(Exception):
            self._ray.kill(group.actor)
        self._start_actor(group, 0.0)  # it may have to share the CPUs of others

    def _log(self, text: str) -> None:
        if self.setup.log is not None:
            self.setup.log(text)
        else:
            print(f"hotloop: {text}", file=sys.stderr, flush=True)

    def _check_open(self) -> None:
        if self._closed:
            raise HotloopError("This collector is closed; create a new one.")
        if not self._started:
            raise HotloopError("The collector was not started; call start() first, or use `with`.")


def spread_now(groups: Sequence[_Group]) -> dict[str, int]:
    """How many collectors each node has."""
    found: dict[str, int] = {}
    for group in groups:
        found[group.node] = found.get(group.node, 0) + group.count
    return found
