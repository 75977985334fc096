"""Builds a `Capture` in memory from a short description, so that a test shows at a glance what is in it.

    capture = make_capture(
        {"act": Spec(calls=1000, own_ns=20_000, category="policy"),
         "memory_store": Spec(calls=1000, own_ns=80_000, growth=0.8)},   # calls get slower and slower
        env_steps=1000, episodes=10,
    )

The result is as consistent as a recording: own times of a thread's regions and its unattributed time add up
to its wall time, windows are cumulative and end at the totals, and histograms have as many entries as there
were calls. The same description gives the same capture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.capture import layout
from hotloop.capture.model import Capture, Node, OpenRegion, Process, Progress, Thread, Windows

Floats = NDArray[np.float64]
_EDGES = np.array(layout.bucket_edges_ns(), dtype=np.float64)

START_NS = 1_000_000_000  # every run starts at this monotonic time ...
START_REAL_NS = 1_700_000_000_000_000_000  # ... and this real time
FINE = 8  # steps of work per window, so that windows can be cut at equal times

DEFAULT_FACTS: dict[str, Any] = {
    "format_version": 1,
    "hotloop_version": "0.1.0",
    "command": ["python", "train.py"],
    "working_folder": "/project",
    "config": {},
    "seeds": {},
    "exit_status": "finished",
    "machine": {
        "host": "made-up",
        "system": "Linux",
        "cpu": "made-up CPU",
        "cores_granted": 8.0,
        "cores_present": 8,
        "memory_bytes": 16 << 30,
        "load_1min": 0.5,
        "threads_env": {},
    },
    "versions": {"python": "3.12.0", "numpy": "2.0.0"},
    "git_hash": None,
    "clock": "injected",
    "core": "compiled",
    "region_cost_ns": 50.0,
    "device": None,
    "device_policy": None,
}


@dataclass(frozen=True)
class Spec:
    """One region: how often it ran and what a call cost without its children."""

    calls: int
    own_ns: float = 0.0  # mean own time of a call
    children: Mapping[str, Spec] = field(default_factory=dict)
    category: str = ""
    site: str = ""  # file:line
    growth: float = 0.0  # own time of a call ~ work done ** growth
    calls_growth: float = 0.0  # calls per unit of work ~ work done ** calls_growth
    spread: float = 0.2  # standard deviation of ln(duration of a call)
    pauses: tuple[int, float] = (0, 0.0)  # (calls, ns): this many calls took this much longer
    bytes_moved: float = 0.0  # per call
    flops: float = 0.0  # per call
    device_ns: float | None = None  # per call
    rss_growth_bytes: int | None = None  # of all calls
    open_for_ns: int | None = None  # one more call is still open at the end, for this long

    @property
    def own_total_ns(self) -> int:
        """Own time of all calls."""
        open_ns = self.open_for_ns or 0
        inner = sum(child.open_for_ns or 0 for child in self.children.values())
        return round(self.calls * self.own_ns + self.pauses[0] * self.pauses[1] + max(open_ns - inner, 0))


@dataclass(frozen=True)
class ThreadSpec:
    """One thread: its regions and its progress."""

    regions: Mapping[str, Spec]
    name: str = "MainThread"
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    length_growth: float = 0.0  # steps per episode ~ episodes done ** length_growth
    mean_return: float | None = None
    # Share of time in no region; larger if needed to last as long as the first thread.
    unattributed: float = 0.05
    cpu: float | None = 1.0  # CPU time / wall time; None: not measured
    ended: bool = False


@dataclass(frozen=True)
class ProcessSpec:
    """One process: its threads, the most important one first, and its memory."""

    threads: Sequence[ThreadSpec]
    label: str = "worker"
    rss: tuple[int, int] | int | None = None  # bytes at the start and the end, or constant
    alive: bool = False


def make_capture(
    regions: Mapping[str, Spec],
    *,
    env_steps: int = 0,
    updates: int = 0,
    episodes: int = 0,
    extra_threads: Sequence[ThreadSpec] = (),
    processes: Sequence[ProcessSpec] = (),
    facts: Mapping[str, Any] | None = None,
    rss: tuple[int, int] | int | None = None,
    windows: int = 40,
    noise: float = 0.05,
    seed: int = 0,
    alive: bool = False,
    **main: Any,
) -> Capture:
    """A capture of one process with one thread, plus `extra_threads` and `processes`.

    `regions` are the outermost regions of the main thread. `facts` override those of a made-up machine with
    8 cores and 16 GiB (`machine` key by key). `noise` is the standard deviation of ln(cost) between windows.
    Further keywords are fields of `ThreadSpec` for the main thread, such as `unattributed=0.2`.
    """
    unknown = set(main) - {f.name for f in fields(ThreadSpec)}
    if unknown:
        known = ", ".join(f.name for f in fields(ThreadSpec))
        raise TypeError(f"make_capture does not know {', '.join(sorted(unknown))}; a thread has {known}")
    first = ThreadSpec(regions, env_steps=env_steps, updates=updates, episodes=episodes, **main)
    rng = np.random.default_rng(seed)
    made: list[Process] = []
    wall_ns = 0
    main_process = ProcessSpec([first, *extra_threads], label="train.py", rss=rss, alive=alive)
    for number, process in enumerate([main_process, *processes]):
        threads: list[Thread] = []
        for thread in process.threads:
            threads.append(_thread(thread, 1000 + len(threads), wall_ns, windows, noise, process.rss, rng))
            wall_ns = wall_ns or threads[0].wall_ns
        made.append(_process(process, 4000 + number, threads))
    return Capture(None, _facts(facts or {}), tuple(made))


def _facts(changes: Mapping[str, Any]) -> dict[str, Any]:
    machine = DEFAULT_FACTS["machine"] | changes.get("machine", {})
    versions = DEFAULT_FACTS["versions"] | changes.get("versions", {})
    ended: dict[str, Any] = {"started_at_ns": START_REAL_NS}
    return DEFAULT_FACTS | ended | dict(changes) | {"machine": machine, "versions": versions}


def _process(spec: ProcessSpec, pid: int, threads: list[Thread]) -> Process:
    rss = _ends(spec.rss)
    return Process(
        host="made-up",
        pid=pid,
        parent_pid=4000 if pid != 4000 else 1,
        label=spec.label,
        core="compiled",
        start_ns=START_NS,
        start_real_ns=START_REAL_NS,
        end_ns=max(t.end_ns for t in threads),
        closed=not spec.alive,
        alive=spec.alive,
        rss_bytes=rss[1] if rss else None,
        rss_peak_bytes=max(rss) if rss else None,
        threads=tuple(threads),
    )


def _ends(rss: tuple[int, int] | int | None) -> tuple[int, int] | None:
    return (rss, rss) if isinstance(rss, int) else rss


# -- one thread ----------------------------------------------------------------------------------


def _thread(
    spec: ThreadSpec,
    native_id: int,
    at_least_ns: int,
    windows: int,
    noise: float,
    rss: tuple[int, int] | int | None,
    rng: np.random.Generator,
) -> Thread:
    nodes: list[tuple[Node, Spec]] = []
    paths: list[tuple[str, ...]] = [()]
    root = Node("")
    for name, region in spec.regions.items():
        _grow_tree(root, name, region, (), nodes, paths)
    attributed = sum(node.own_ns for node, _ in nodes)
    root.own_ns = max(
        round(attributed * spec.unattributed / (1 - spec.unattributed)), at_least_ns - attributed
    )
    root.total_ns = wall_ns = attributed + root.own_ns
    return Thread(
        name=spec.name,
        native_id=native_id,
        start_ns=START_NS,
        end_ns=START_NS + wall_ns,
        wall_ns=wall_ns,
        cpu_ns=None if spec.cpu is None else round(wall_ns * spec.cpu),
        folded_threads=0,
        ended=spec.ended,
        progress=_progress(spec),
        open=_open(spec.regions, START_NS + wall_ns),
        paths=tuple(paths),
        root=root,
        windows=_windows(spec, root, nodes, paths, windows, noise, _ends(rss), rng),
    )


def _grow_tree(
    parent: Node,
    name: str,
    spec: Spec,
    above: tuple[str, ...],
    nodes: list[tuple[Node, Spec]],
    paths: list[tuple[str, ...]],
) -> None:
    node = Node(name, spec.category, spec.site, calls=spec.calls, own_ns=spec.own_total_ns)
    parent.children.append(node)
    nodes.append((node, spec))
    paths.append((*above, name))
    for child, region in spec.children.items():
        _grow_tree(node, child, region, (*above, name), nodes, paths)
    node.total_ns = node.own_ns + sum(child.total_ns for child in node.children)
    node.open_calls = int(spec.open_for_ns is not None)
    node.open_ns = spec.open_for_ns or 0
    node.bytes_moved = spec.calls * spec.bytes_moved
    node.flops = spec.calls * spec.flops
    node.device_ns = None if spec.device_ns is None else round(spec.calls * spec.device_ns)
    node.rss_growth_bytes = spec.rss_growth_bytes
    if spec.calls:
        _fill_histogram(node, spec)


def _open(regions: Mapping[str, Spec], end_ns: int) -> tuple[OpenRegion, ...]:
    for name, region in regions.items():
        if region.open_for_ns is not None:
            return (OpenRegion(name, end_ns - region.open_for_ns), *_open(region.children, end_ns))
    return ()


def _fill_histogram(node: Node, spec: Spec) -> None:
    """Durations of the completed calls: log-normal, growing as specified, plus the pauses."""
    paused = min(spec.pauses[0], spec.calls)
    kinds = min(spec.calls, 500)
    work = (np.arange(kinds) + 0.5) / kinds
    shape = np.exp(spec.spread * _normal_quantiles(kinds)) * work**spec.growth
    mean_ns = max(node.closed_ns - paused * spec.pauses[1], 0.0) / spec.calls
    durations = np.maximum(shape / shape.mean() * mean_ns, 1.0)
    weights = np.diff(np.round(np.linspace(0, spec.calls, kinds + 1)))
    if paused:
        longest = np.sort(durations)[len(durations) // 2] + spec.pauses[1]
        durations, weights = np.append(durations, longest), np.append(weights, paused)
        weights[:kinds] *= (spec.calls - paused) / spec.calls
        weights = np.diff(np.round(np.concatenate([[0.0], np.cumsum(weights)])))
    place = np.clip(np.searchsorted(_EDGES, np.floor(durations), side="right") - 1, 0, layout.BUCKETS - 1)
    buckets = np.bincount(place, weights=weights, minlength=layout.BUCKETS).astype(np.uint64)
    node.buckets = buckets
    node.min_ns, node.max_ns = int(durations.min()), int(durations.max())
    node.squares = float((weights * (durations - np.average(durations, weights=weights)) ** 2).sum())


@lru_cache(maxsize=256)
def _normal_quantiles(count: int) -> Floats:
    """Quantiles of the normal distribution in an even mix over the run, without random numbers."""
    mixed = np.modf((np.arange(count) + 0.5) * 0.6180339887498949)[0]  # golden-ratio order
    standard = NormalDist()
    return np.array([standard.inv_cdf(q) for q in mixed])


# -- its windows ---------------------------------------------------------------------------------


def _progress(spec: ThreadSpec) -> Progress:
    return Progress(
        env_steps=spec.env_steps,
        updates=spec.updates,
        episodes=spec.episodes,
        length_sum=float(spec.env_steps) if spec.episodes else 0.0,
        length_count=spec.episodes,
        return_sum=(spec.mean_return or 0.0) * spec.episodes if spec.mean_return is not None else 0.0,
        return_count=spec.episodes if spec.mean_return is not None else 0,
    )


def _windows(
    spec: ThreadSpec,
    root: Node,
    nodes: list[tuple[Node, Spec]],
    paths: list[tuple[str, ...]],
    count: int,
    noise: float,
    rss: tuple[int, int] | None,
    rng: np.random.Generator,
) -> Windows:
    work = np.linspace(0.0, 1.0, count * FINE + 1)
    calls = np.stack(
        [
            _cumulative_calls(0, work, 0.0),
            *(_cumulative_calls(s.calls, work, s.calls_growth) for _, s in nodes),
        ]
    )
    own = np.stack(
        [
            _cumulative_own_ns(root.own_ns, work, 1.0, noise, rng),
            *(
                _cumulative_own_ns(n.own_ns, work, 1.0 + s.growth + s.calls_growth, noise, rng)
                if n.children or s.calls > count or s.calls == 0
                else n.own_ns * c / max(s.calls, 1)  # few calls: time comes in lumps
                for (n, s), c in zip(nodes, calls[1:], strict=True)
            ),
        ]
    )
    elapsed = own.sum(axis=0)
    cut = np.searchsorted(elapsed, np.linspace(0.0, elapsed[-1], count + 1)[1:] * (1 - 1e-12))
    cut = np.unique(np.minimum(np.append(cut, len(work) - 1), len(work) - 1))
    cut = cut[np.append(np.diff(np.round(elapsed[cut])) > 0, True)]  # no two windows at the same time
    own, calls, work, elapsed = own[:, cut].T, calls[:, cut].T, work[cut], elapsed[cut]
    total = own.copy()
    row = {path: number for number, path in enumerate(paths)}
    for path in sorted(paths, key=len, reverse=True):
        if path:
            total[:, row[path[:-1]]] += total[:, row[path]]
    total[:, 0] = 0.0  # as in a recording: the root is not a region, so no call of it ever ends
    start, end = rss or (0, 0)
    return Windows(
        time_ns=_whole(START_NS + elapsed),
        real_ns=_whole(elapsed) + np.uint64(START_REAL_NS),
        cpu_ns=_whole(elapsed * (spec.cpu or 0.0)),
        rss_bytes=_whole(start + (end - start) * work),
        progress=_cumulative_progress(spec, work),
        calls=_whole(calls),
        total_ns=_whole(total),
        own_ns=_whole(own),
    )


def _whole(values: Floats) -> NDArray[np.uint64]:
    return np.round(values).astype(np.uint64)


def _cumulative_calls(calls: int, work: Floats, growth: float) -> Floats:
    """Completed calls at each point of the work."""
    found: Floats = np.floor(calls * work ** (1.0 + growth) + 1e-9)
    return found


def _cumulative_own_ns(
    own_ns: int, work: Floats, exponent: float, noise: float, rng: np.random.Generator
) -> Floats:
    """Own time at each point of the work; noise is constant within a window, and the total is exact."""
    steps = np.diff(work**exponent)
    if noise:
        steps = steps * np.repeat(rng.lognormal(0.0, noise, math.ceil(len(steps) / FINE)), FINE)
    total = steps.sum()
    cumulative = np.concatenate([[0.0], np.cumsum(steps)]) / (total or 1.0) * own_ns
    found: Floats = np.asarray(cumulative, dtype=np.float64)
    return found


def _cumulative_progress(spec: ThreadSpec, work: Floats) -> dict[str, NDArray[Any]]:
    done = _progress(spec)
    # length ~ episodes ** g, so the steps so far ~ episodes ** (1 + g)
    episodes = np.floor(spec.episodes * work ** (1.0 / (1.0 + spec.length_growth)) + 1e-9)
    share = episodes / spec.episodes if spec.episodes else work
    cumulative: dict[str, NDArray[Any]] = {
        "env_steps": np.floor(spec.env_steps * work + 1e-9).astype(np.uint64),
        "updates": np.floor(spec.updates * work + 1e-9).astype(np.uint64),
        "episodes": episodes.astype(np.uint64),
    }
    for name in ("length_sum", "return_sum", "loss_sum"):
        cumulative[name] = getattr(done, name) * (work if name == "length_sum" else share)
    for name in ("length_count", "return_count", "loss_count"):
        cumulative[name] = np.floor(getattr(done, name) * share + 1e-9).astype(np.uint64)
    return cumulative
