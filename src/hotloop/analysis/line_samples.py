"""Samples of a thread during training, by the line of the user's code that was running.

A sample knows the call path through the user's code, the region that was open and how much time it stands
for. Shares are of the driving thread's time during training. What a line took includes the library calls it
made, but not other functions of the user, which have their own lines.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.findings import Estimate
from hotloop.analysis.parsed_source import walk_source
from hotloop.analysis.whatif import block_counts
from hotloop.capture.model import Capture, Process, Thread
from hotloop.capture.region_names import OUR_OWN
from hotloop.capture.samples import (
    RUNNABLE,
    RUNNING,
    SLEEPING,
    FunctionSource,
    SampledFrame,
    SampledPath,
    Samples,
)

BLOCKS = 40  # of equal length, for intervals: samples of one moment are not independent
LEAST_SAMPLES = 20  # fewer say too little about anything
MOST_SHARE = 0.99  # of training that a gain may count as removed
WAITING = (  # ends of functions
    *(".wait", ".get", ".acquire", ".select", ".poll", ".sleep", ".accept", ".recv", "._recv", "._poll"),
    *(".recv_bytes", "._recv_bytes", "._wait_for_tstate_lock", ".join", ".result", ".readinto"),
)
BLOCKING = frozenset(
    {"read", "readline", "recv", "recv_bytes", "readinto", "recvfrom", "communicate", "waitpid"}
)
INNER_CODE = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LineSamples:
    """Samples of one thread during training."""

    thread: Thread
    paths: tuple[SampledPath, ...]
    sources: tuple[FunctionSource, ...]
    path: NDArray[np.int64]  # [samples], index into `paths`
    node: NDArray[np.int64]  # [samples], index into `thread.paths`
    weight_ns: Floats  # [samples]
    block: NDArray[np.int64]  # [samples], which of BLOCKS equal stretches of training
    biased: bool  # taken by a Python thread, which sees the moments when the GIL is free
    time_ns: NDArray[np.int64]  # [samples]
    state: NDArray[np.int64]  # [samples], RUNNING, RUNNABLE, SLEEPING or UNKNOWN
    others: Samples  # of the other threads of the process, taken at the same moments
    # [samples], whether a sample shows what a helper did while this thread waited; empty: none does
    helping: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    # [samples], path of this thread itself at that moment, also where a helper is shown; empty: none is
    origin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    helpers: dict[int, int] = field(default_factory=dict)  # by process id, where its `paths` begin

    @cached_property
    def total_ns(self) -> float:
        return float(self.weight_ns.sum())

    @cached_property
    def _by_block(self) -> Floats:
        """Weight of every path in every block, [blocks, paths]."""
        table = np.zeros((BLOCKS, len(self.paths)))
        np.add.at(table, (self.block, self.path), self.weight_ns)
        return table

    @cached_property
    def stacks(self) -> NDArray[np.int64]:
        """For every path, the first path with the same stack, whichever part of its line ran."""
        first: dict[SampledPath, int] = {}
        same = [first.setdefault(replace(path, expression=None), n) for n, path in enumerate(self.paths)]
        return np.array(same, dtype=np.int64)

    def weight_of(self, paths: Iterable[int]) -> float:
        """Time of the samples with these paths, in ns."""
        return float(self._by_block[:, sorted(set(paths))].sum())

    def share_of(self, paths: Iterable[int]) -> float:
        return self.weight_of(paths) / self.total_ns if self.total_ns else 0.0

    def gain(
        self,
        paths: Iterable[int],
        saved: tuple[float, float, float],
        also: Floats | None = None,
        rest_faster: Sequence[tuple[float, float]] = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ) -> Estimate:
        """Speed-up of training if a fraction of the time of these paths were saved.

        `saved` is the least, the most likely and the largest fraction. `also` is the part of every sample,
        [samples], that goes away too if it has another path; half of it up to half as much again.
        `rest_faster` says which fraction of all other time is saved besides, and which share of training that
        is at most; again least, most likely, largest. It is most likely not more than a third of what the
        paths took, and never more than that.
        """
        chosen = self._by_block[:, sorted(set(paths))].sum(axis=1)
        lost: Floats = np.zeros(len(self.path)) if also is None else also * ~self.among(paths)
        more: Floats = np.zeros(BLOCKS)
        np.add.at(more, self.block, lost * self.weight_ns)
        counts = block_counts(BLOCKS)
        whole = np.maximum(counts @ self._by_block.sum(axis=1), 1.0)
        drawn, drawn_more = (counts @ chosen) / whole, (counts @ more) / whole
        share, share_more = chosen.sum() / self.total_ns, more.sum() / self.total_ns

        def factor(own: Floats, waited: Floats, which: int) -> Floats:
            fraction, at_most = rest_faster[which]
            limit = np.minimum(own if which == 2 else own / 3, at_most)
            rest = np.minimum(fraction * (1 - own - waited), limit)
            gone = own * saved[which] + waited * (0.5, 1.0, 1.5)[which] + rest
            result: Floats = 1.0 / (1.0 - np.clip(gone, 0.0, MOST_SHARE))
            return result

        value = float(factor(share, share_more, 1))
        least = float(np.quantile(factor(drawn, drawn_more, 0), 0.025))
        most = float(np.quantile(factor(drawn, drawn_more, 2), 0.975))
        return Estimate(value, min(least, value), max(most, value))

    def among(self, paths: Iterable[int]) -> NDArray[np.bool_]:
        """Which samples have one of these paths."""
        return np.isin(self.path, np.fromiter(set(paths), dtype=np.int64))

    def bursts(self, paths: Iterable[int]) -> int:
        """How often these paths began anew, after others had been seen three times in a row."""
        seen = self.among(paths)[np.argsort(self.time_ns, kind="stable")].astype(np.int64)
        starts = np.flatnonzero(np.diff(seen, prepend=0) == 1)
        return sum(not seen[max(start - 3, 0) : start].any() for start in starts)

    def in_both_halves(self, paths: Iterable[int]) -> bool:
        """Whether these samples lie in both halves of training; workers are joined once, at the end."""
        blocks = np.unique(self.block[self.among(paths)])
        return bool((blocks < BLOCKS // 2).any() and (blocks >= BLOCKS // 2).any())

    def asleep(self, paths: Iterable[int]) -> float:
        """Part of the time of these paths in which the thread slept."""
        among = self.among(paths)
        whole = float(self.weight_ns[among].sum())
        return float(self.weight_ns[among & (self.state == SLEEPING)].sum()) / whole if whole else 0.0

    def busy_threads(self) -> dict[str, NDArray[np.bool_]]:
        """Lines of the user's code in other threads, with the samples in which they kept this thread asleep.

        Only samples in which this thread had something to run: it waited for the GIL, not for a message.
        """
        ready = (self.state == SLEEPING) & ~np.isin(self.path, self.paths_where(waits))
        if len(self.helping):
            ready &= ~self.helping
        found: dict[str, NDArray[np.bool_]] = {}
        running = self.others[np.isin(self.others["state"], (RUNNING, RUNNABLE))]
        for number in np.unique(running["path"]):
            frame = line_of(self.paths[number])
            if frame is None or waits(self.paths[number]):
                continue
            moments = running["time_ns"][running["path"] == number].astype(np.int64)
            mask = ready & np.isin(self.time_ns, moments)
            found[frame.site] = found.get(frame.site, np.zeros(len(mask), dtype=np.bool_)) | mask
        return found

    def held_up_by(self, libraries: Sequence[str]) -> Floats:
        """Part of every sample, [samples], that another thread took which worked inside these libraries.

        Python code of one thread keeps the others from running: they need the GIL. A thread that leaves it
        at every operation, as torch does, waits for it again each time.
        """
        busy = [
            number
            for number, path in enumerate(self.paths)
            if any(name in path.innermost or name in path.called for name in libraries) and not waits(path)
        ]
        active = np.isin(self.others["path"], busy) & np.isin(self.others["state"], (RUNNING, RUNNABLE))
        at_once = np.isin(self.time_ns, self.others["time_ns"][active].astype(np.int64))
        # A thread that was ready to run, but without a core, may not have got the GIL, either.
        lost = np.where(self.state == SLEEPING, 1.0, np.where(self.state == RUNNABLE, 0.5, 0.0))
        return np.where(at_once, lost, 0.0)

    def helped(self, paths: Iterable[int]) -> float:
        """Part of the time of these paths that helpers took while this thread waited for them."""
        among = self.among(paths)
        whole = float(self.weight_ns[among].sum())
        if not len(self.helping) or not whole:
            return 0.0
        return float(self.weight_ns[among & self.helping].sum()) / whole

    def helping_at(self, paths: Iterable[int]) -> set[int]:
        """Paths of helpers while this thread waited in one of these."""
        if not len(self.origin):
            return set()
        at = np.isin(self.origin, np.fromiter(set(paths), dtype=np.int64)) & self.helping
        return set(np.unique(self.path[at]).tolist())

    def paths_where(self, wanted: Callable[[SampledPath], bool]) -> list[int]:
        return [number for number, path in enumerate(self.paths) if wanted(path)]

    def region_paths_of(self, paths: Iterable[int]) -> dict[tuple[str, ...], float]:
        """Share of the time of these paths by open regions, outermost first; () for none."""
        among = self.among(paths)
        whole = float(self.weight_ns[among].sum())
        found: dict[tuple[str, ...], float] = {}
        for node in np.unique(self.node[among]):
            names = self.thread.paths[node] if node < len(self.thread.paths) else ()
            time_ns = float(self.weight_ns[among & (self.node == node)].sum())
            found[names] = found.get(names, 0.0) + time_ns / max(whole, 1.0)
        return found


def waits(path: SampledPath) -> bool:
    """Whether a stack ends in a function that waits."""
    return path.innermost.lower().endswith(WAITING)


def line_of(path: SampledPath) -> SampledFrame | None:
    """The innermost line of the user's code; of a comprehension, the line of the function around it."""
    frames = list(path.frames)
    while len(frames) > 1 and frames[-1].function.endswith(INNER_CODE) and frames[-1].file == frames[-2].file:
        frames.pop()
    return frames[-1] if frames else None


def library_calls(lines: LineSamples, paths: Iterable[int]) -> tuple[str, ...]:
    """Library functions that these paths called, most time first."""
    weights: dict[str, float] = {}
    for number in paths:
        name = lines.paths[number].called
        if name:
            weights[name] = weights.get(name, 0.0) + lines.weight_of([number])
    return tuple(sorted(weights, key=lambda name: -weights[name]))


def line_samples(process: Process, thread: Thread, started_by: Capture | None = None) -> LineSamples | None:
    """The samples of `thread` between its start and end (cut it to training first); None: too few.

    With the capture given as `started_by`, a process that another one of it started loses the frames of that.
    """
    if process.sampling is None or thread.folded_threads:
        return None
    samples = process.samples
    mine = samples["native_id"] == thread.native_id
    during = (samples["time_ns"] >= thread.start_ns) & (samples["time_ns"] <= thread.end_ns)
    others, mine = during & ~mine, during & mine
    mine[mine] = ~np.isin(samples["node"][mine], _regions_of_ours(thread))
    if int(mine.sum()) < LEAST_SAMPLES or thread.wall_ns <= 0:
        return None
    chosen = samples[mine]
    offset = chosen["time_ns"].astype(np.float64) - thread.start_ns
    block = np.minimum((offset / thread.wall_ns * BLOCKS).astype(np.int64), BLOCKS - 1)
    paths: Sequence[SampledPath] = process.paths
    if started_by is not None and any(p.pid == process.parent_pid for p in started_by.processes):
        paths = _without_stack_of_parent(paths, chosen["path"])
    return LineSamples(
        thread=thread,
        paths=tuple(paths),
        sources=process.sources,
        path=chosen["path"].astype(np.int64),
        node=np.maximum(chosen["node"].astype(np.int64), 0),
        weight_ns=chosen["weight_ns"].astype(np.float64),
        block=block,
        biased=process.sampling.biased,
        time_ns=chosen["time_ns"].astype(np.int64),
        state=chosen["state"].astype(np.int64),
        others=samples[others],
    )


def _regions_of_ours(thread: Thread) -> list[int]:
    """Regions of hotloop's own work: the line of the user's that led to it is not slow for it."""
    return [at for at, names in enumerate(thread.paths) if any(name.startswith(OUR_OWN) for name in names)]


def with_helpers(lines: LineSamples, processes: Iterable[Process], driver: Process) -> LineSamples:
    """The same samples; where the thread waited for others, what they did at that moment.

    Time in which training waits for a queue or a pipe is not the fault of the line that waits. It goes to
    whatever the helpers (threads of the process, other processes) were doing then, in equal parts; a wait
    during which every helper waits too, or passes messages, stays what it is.
    """
    blocking = blocking_lines(lines.sources)
    blocked = lines.paths_where(lambda path: waits(path) or _blocks(path, blocking))
    waiting = np.isin(lines.path, blocked) & (lines.state == SLEEPING)
    if not waiting.any() or not len(lines.time_ns):
        return lines
    paths, sources = list(lines.paths), {(s.file, s.first_line): s for s in lines.sources}
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    helpers: dict[int, int] = {}
    for process in processes:
        rows, offset = lines.others, 0
        if process is not driver:
            if process.sampling is None or process.sampling.biased or process.host != driver.host:
                continue
            rows = process.samples[process.samples["native_id"] == process.pid]
            offset = helpers[process.pid] = len(paths)
            paths += _without_stack_of_parent(process.paths, rows["path"])
            sources = {(s.file, s.first_line): s for s in process.sources} | sources
        theirs = blocking_lines(process.sources)
        working = [
            n for n, p in enumerate(paths[offset:]) if p.frames and not waits(p) and not _blocks(p, theirs)
        ]
        at_work = np.isin(rows["path"], working)
        # A process that is awake in its machinery of messages reads, writes or unpickles one.
        passing = ~at_work & np.isin(rows["state"], (RUNNING, RUNNABLE)) & (process is not driver)
        kept_rows = rows[at_work | passing]
        found.append(
            (
                kept_rows["time_ns"].astype(np.int64),
                np.where(passing, -1, rows["path"].astype(np.int64) + offset)[at_work | passing],
                kept_rows["state"],
            )
        )
    time_ns, path, state = (np.concatenate(column) for column in zip(*found, strict=True))
    # The sample of this thread that is nearest in time; its weight says how far it reaches.
    nearest = np.clip(np.searchsorted(lines.time_ns, time_ns), 1, len(lines.time_ns) - 1)
    nearest -= time_ns - lines.time_ns[nearest - 1] < lines.time_ns[nearest] - time_ns
    near = np.abs(lines.time_ns[nearest] - time_ns) <= lines.weight_ns[nearest]
    kept = near & waiting[nearest]
    nearest, path, state = nearest[kept], path[kept], state[kept].astype(np.int64)
    if not len(nearest):
        return lines
    path = np.where(path < 0, lines.path[nearest], path)  # messages belong to the line that waits for them
    count = np.bincount(nearest, minlength=len(lines.path))
    own = count == 0
    helping = np.concatenate([np.zeros(int(own.sum()), dtype=np.bool_), path != lines.path[nearest]])
    return replace(
        lines,
        paths=tuple(paths),
        sources=tuple(sources.values()),
        path=np.concatenate([lines.path[own], path]),
        node=np.concatenate([lines.node[own], lines.node[nearest]]),
        weight_ns=np.concatenate([lines.weight_ns[own], lines.weight_ns[nearest] / count[nearest]]),
        block=np.concatenate([lines.block[own], lines.block[nearest]]),
        time_ns=np.concatenate([lines.time_ns[own], lines.time_ns[nearest]]),
        state=np.concatenate([lines.state[own], state]),
        helping=helping,
        origin=np.concatenate([lines.path[own], lines.path[nearest]]),
        helpers=helpers,
    )


def blocking_lines(sources: Iterable[FunctionSource]) -> frozenset[tuple[str, int]]:
    """Lines that read from a pipe, a socket or a file: C functions, which no stack shows."""
    found = set()
    for source in sources:
        for node in walk_source(source):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in BLOCKING
            ):
                found.add((source.file, node.lineno))
    return frozenset(found)


def _blocks(path: SampledPath, blocking: frozenset[tuple[str, int]]) -> bool:
    """Whether the innermost line is such a one, and no library function was called there."""
    frame = line_of(path)
    return frame is not None and not path.called and (frame.file, frame.line) in blocking


def _without_stack_of_parent(paths: Sequence[SampledPath], seen: NDArray[np.int64]) -> list[SampledPath]:
    """Paths without the frames that all of them share: a forked process begins inside its parent's stack."""
    stacks = [frames for number in np.unique(seen) if (frames := paths[number].frames)]
    shared = 0
    while longer := [stack for stack in stacks if len(stack) > shared]:
        if any(stack[shared] != longer[0][shared] for stack in longer):
            break
        shared += 1
    else:  # a worker that was only seen in one line keeps that
        shared = max(shared - 1, 0)
    return [
        # What such a line called is `Process.start`, in the parent.
        replace(path, frames=path.frames[shared:], called=path.innermost)
        if path.frames and len(path.frames) <= shared
        else replace(path, frames=path.frames[shared:])
        for path in paths
    ]
