"""A recorded run in memory: capture -> processes -> threads -> nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.capture import layout
from hotloop.capture.channels import Channel, ChannelUse
from hotloop.capture.messages import MessageLog
from hotloop.capture.nodes import NodeFacts
from hotloop.capture.origin import Origin
from hotloop.capture.samples import FunctionSource, SampledPath, Samples, Sampling, no_samples
from hotloop.capture.scheduling import ProcessScheduling, Scheduling, ThreadSettings

Counts = NDArray[np.uint64]


@dataclass(slots=True)
class Node:
    """A region at one place in the tree, or the sum of several such places."""

    name: str
    category: str = ""  # "" when the program gave none
    site: str = ""  # file:line where the region was created or first called
    calls: int = 0  # completed calls
    total_ns: int = 0  # time while open, including children and calls that are still open
    own_ns: int = 0  # time while innermost
    open_calls: int = 0  # calls that had not ended when the capture was read
    open_ns: int = 0  # their share of total_ns
    min_ns: int | None = None
    max_ns: int | None = None
    squares: float = 0.0  # sum of squared deviations from the mean, completed calls
    buckets: Counts | None = None  # histogram of durations, edges in layout.bucket_edges_ns
    bytes_moved: float = 0.0
    flops: float = 0.0
    device_ns: int | None = None
    device_growth_bytes: int | None = None
    device_peak_bytes: int | None = None
    rss_growth_bytes: int | None = None
    rss_peak_bytes: int | None = None
    out_of_order: bool = False
    children: list[Node] = field(default_factory=list)

    @property
    def closed_ns(self) -> int:
        """Total time of completed calls."""
        return self.total_ns - self.open_ns

    @property
    def mean_ns(self) -> float | None:
        """Mean duration of a completed call."""
        return self.closed_ns / self.calls if self.calls else None

    @property
    def sd_ns(self) -> float | None:
        """Sample standard deviation of a completed call's duration."""
        return (self.squares / (self.calls - 1)) ** 0.5 if self.calls > 1 else None

    def percentile_ns(self, fraction: float) -> float | None:
        """Duration below which `fraction` of the completed calls lie, to within a quarter of an octave."""
        if self.buckets is None or self.min_ns is None or self.max_ns is None:
            return None
        cumulative = np.cumsum(self.buckets.astype(np.float64))
        if cumulative[-1] == 0:
            return None
        target = fraction * cumulative[-1]
        bucket = int(np.searchsorted(cumulative, target))
        bucket = min(bucket, layout.BUCKETS - 1)
        before = cumulative[bucket - 1] if bucket else 0.0
        inside = (target - before) / max(float(self.buckets[bucket]), 1.0)
        low = max(_EDGES[bucket] if bucket else 0, self.min_ns)
        high = min(_EDGES[bucket + 1] if bucket < layout.BUCKETS - 1 else self.max_ns, self.max_ns)
        return float(min(max(low + inside * (high - low), self.min_ns), self.max_ns))

    def absorb(self, other: Node) -> None:
        """Add the figures of another node, without its children."""
        if other.calls:
            if self.calls:
                gap = other.closed_ns / other.calls - self.closed_ns / self.calls
                self.squares += gap * gap * self.calls * other.calls / (self.calls + other.calls)
            self.squares += other.squares
        self.calls += other.calls
        self.total_ns += other.total_ns
        self.own_ns += other.own_ns
        self.open_calls += other.open_calls
        self.open_ns += other.open_ns
        self.bytes_moved += other.bytes_moved
        self.flops += other.flops
        self.min_ns = _least(self.min_ns, other.min_ns)
        self.max_ns = _most(self.max_ns, other.max_ns)
        self.device_ns = _sum(self.device_ns, other.device_ns)
        self.device_growth_bytes = _sum(self.device_growth_bytes, other.device_growth_bytes)
        self.rss_growth_bytes = _sum(self.rss_growth_bytes, other.rss_growth_bytes)
        self.device_peak_bytes = _most(self.device_peak_bytes, other.device_peak_bytes)
        self.rss_peak_bytes = _most(self.rss_peak_bytes, other.rss_peak_bytes)
        if other.buckets is not None:  # shared, not copied: histograms are never changed in place
            self.buckets = other.buckets if self.buckets is None else self.buckets + other.buckets
        self.out_of_order |= other.out_of_order
        self.site = self.site or other.site

    def merge(self, other: Node) -> None:
        """Add another tree; nodes with the same path become one."""
        self.absorb(other)
        mine = {(child.name, child.category): child for child in self.children}
        for child in other.children:
            twin = mine.get((child.name, child.category))
            if twin is None:
                twin = mine[child.name, child.category] = Node(child.name, child.category, child.site)
                self.children.append(twin)
            twin.merge(child)


_EDGES = layout.bucket_edges_ns()


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the program has reported through `progress`, as totals up to one moment."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    length_sum: float = 0.0
    length_count: int = 0
    return_sum: float = 0.0
    return_count: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0

    def __add__(self, other: Progress) -> Progress:
        return Progress(*(getattr(self, f) + getattr(other, f) for f in self.__slots__))

    @property
    def mean_return(self) -> float | None:
        return self.return_sum / self.return_count if self.return_count else None

    @property
    def mean_length(self) -> float | None:
        return self.length_sum / self.length_count if self.length_count else None

    @property
    def mean_loss(self) -> float | None:
        return self.loss_sum / self.loss_count if self.loss_count else None


@dataclass(frozen=True, slots=True)
class Windows:
    """One thread over time: cumulative figures at increasing times.

    `calls`, `total_ns` and `own_ns` are [windows, nodes] in the order of `Thread.paths`; total_ns includes
    calls that were open at that time. `progress` maps the name of a counter to [windows].
    """

    time_ns: Counts
    real_ns: Counts
    cpu_ns: Counts
    rss_bytes: Counts
    progress: dict[str, NDArray[Any]]
    calls: Counts
    total_ns: Counts
    own_ns: Counts

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class OpenRegion:
    """A region that had not ended when the capture was read."""

    name: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class Event:
    """One completed call on the timeline."""

    path: int  # index into Thread.paths
    start_ns: int
    duration_ns: int


ROUND_DTYPE = np.dtype([("path", "<i4"), ("start_ns", "<u8"), ("duration_ns", "<u8")])
Rounds = NDArray[np.void]  # of ROUND_DTYPE: completed calls; path is an index into Thread.paths


def no_rounds() -> Rounds:
    return np.zeros(0, dtype=ROUND_DTYPE)


@dataclass(frozen=True)
class Thread:
    """The tree of one thread or, with folded_threads > 0, the sum of many short-lived threads."""

    name: str
    native_id: int
    start_ns: int
    end_ns: int  # the figures below are complete up to here
    wall_ns: int  # including folded threads
    cpu_ns: int | None  # read at windows, so slightly out of date
    folded_threads: int
    ended: bool
    progress: Progress
    open: tuple[OpenRegion, ...]  # outermost first
    paths: tuple[tuple[str, ...], ...]  # path of every node, root first as ()
    root: Node  # own_ns of the root is the unattributed time
    windows: Windows
    events: tuple[Event, ...] = ()
    scheduling: Scheduling | None = None  # None: the system does not report it, or hotloop 0.1 recorded it
    rounds: Rounds = field(default_factory=no_rounds)  # ROUND_DTYPE, in order of their ends
    calls: Rounds = field(default_factory=no_rounds)  # ROUND_DTYPE: a sample of the calls over the whole run
    channels: tuple[ChannelUse, ...] = ()  # pipes and queues that it used
    uncertain: bool = False  # read during an update: its latest events may be half counted

    @property
    def unattributed_ns(self) -> int:
        """Wall time outside all regions."""
        return self.root.own_ns


@dataclass(frozen=True)
class Process:
    """One process of the run."""

    host: str
    pid: int
    parent_pid: int
    label: str
    core: str  # "compiled" or "python"
    start_ns: int
    start_real_ns: int
    end_ns: int  # last sign of life
    closed: bool  # its recording ended properly
    alive: bool  # still running when the capture was read
    rss_bytes: int | None
    rss_peak_bytes: int | None
    threads: tuple[Thread, ...]
    warnings: tuple[str, ...] = ()
    scheduling: ProcessScheduling | None = None  # as in Thread
    thread_settings: tuple[ThreadSettings, ...] = ()  # a new one whenever a value changed
    sampling: Sampling | None = None  # None: lines were not sampled
    samples: Samples = field(default_factory=no_samples)  # SAMPLE_DTYPE, in order of time
    paths: tuple[SampledPath, ...] = ()
    sources: tuple[FunctionSource, ...] = ()
    channels: tuple[Channel, ...] = ()  # ends of pipes and queues that it used
    origin: Origin | None = None  # None: the version that recorded it did not write it

    @property
    def died(self) -> bool:
        """Whether it ended without closing its recording; Ray and PufferLib kill their workers anyway."""
        origin = self.origin
        killed = origin is not None and (origin.ray == "worker" or origin.target.startswith("pufferlib."))
        return not self.closed and not self.alive and not killed


@dataclass(frozen=True, slots=True)
class FoldedRole:
    """Processes that do the same, of nodes that sent a summary instead of their recordings."""

    name: str  # class of an actor, function, or program
    members: int
    nodes: int  # that they ran on
    running: float  # share of the time that its main thread was on a core, mean over members
    least: float  # the same of the least busy member
    most: float
    busiest: str  # the member with the most
    waiting: float  # share of the time in regions that are waits, mean over members
    progress: Progress
    moments_ns: tuple[int, ...] = ()  # real times of what follows
    env_steps: tuple[int, ...] = ()  # up to each moment
    updates: tuple[int, ...] = ()

    def between(self, begin_real_ns: int, end_real_ns: int) -> FoldedRole:
        """The same with the progress between two moments, interpolated; shares stay those of the run."""

        def made(counts: tuple[int, ...]) -> int:
            at = np.interp([begin_real_ns, end_real_ns], self.moments_ns, counts)
            return round(float(at[1] - at[0]))

        if not self.moments_ns:
            return self
        progress = Progress(env_steps=made(self.env_steps), updates=made(self.updates))
        return replace(self, progress=progress)


@dataclass(frozen=True)
class Capture:
    """One recorded run."""

    path: Path | None
    facts: dict[str, Any]  # capture.json: command, machine, versions, ...
    processes: tuple[Process, ...]
    warnings: tuple[str, ...] = ()
    messages: tuple[MessageLog, ...] = ()  # who sent what when; () in one-file exports
    nodes: tuple[NodeFacts, ...] = ()  # computers of a cluster, the driver's first; () for one computer
    folded: tuple[FoldedRole, ...] = ()  # processes that are not among `processes`, role by role

    @cached_property
    def threads(self) -> tuple[Thread, ...]:
        return tuple(t for p in self.processes for t in p.threads)

    @cached_property
    def tree(self) -> Node:
        """All threads of all processes merged into one tree."""
        return merged(self.threads)

    @cached_property
    def progress(self) -> Progress:
        folded = (role.progress for role in self.folded)
        return sum((t.progress for t in self.threads), sum(folded, Progress()))

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """Warnings about the capture and about each of its processes."""
        return (*self.warnings, *(warning for process in self.processes for warning in process.warnings))

    @property
    def wall_ns(self) -> int:
        """From the start of the first process to the last sign of life."""
        if not self.processes:
            return 0
        start = min(p.start_real_ns for p in self.processes)
        return max(p.start_real_ns - start + p.end_ns - p.start_ns for p in self.processes)

    @property
    def region_cost_ns(self) -> float | None:
        """Cost of one region on the machine that made the capture, measured when recording began."""
        cost = self.facts.get("region_cost_ns")
        return float(cost) if cost is not None and 0 <= cost < 1e12 else None

    @property
    def command(self) -> list[str]:
        return list(self.facts.get("command", []))

    @property
    def machine(self) -> dict[str, Any]:
        return dict(self.facts.get("machine", {}))


def merged(threads: tuple[Thread, ...] | list[Thread]) -> Node:
    """The trees of several threads merged into one; the total of the root is the sum of their wall times."""
    root = Node("")
    for thread in threads:
        root.merge(thread.root)
    return root
