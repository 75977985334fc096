"""Stretches in which a process stood still: a paused virtual machine, a suspended laptop, SIGSTOP.

The native sampler wakes up every few milliseconds, twice a second in a process that waits, and needs neither
the GIL nor a free core for long. When it was silent for much longer than that, and no thread of the process
recorded anything either, nothing ran.
Whatever region was open then is not to blame, so that time is taken out of all figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.tree import driving_thread
from hotloop.analysis.windows import nodes_by_path
from hotloop.capture.channels import ChannelUse
from hotloop.capture.messages import MessageLog
from hotloop.capture.model import Capture, Event, Node, Process, Rounds, Thread, Windows

LEAST_NS = 1_000_000_000  # a shorter silence may be a busy machine
TIMES_USUAL = 20.0  # the silence is longer than this many usual distances of the sampler's moments
TIMES_LAST = 5.0  # and than this many times the time for which the sample before it stands
WORKED = 0.5  # CPU time of the process in the silence: it worked, and only the sampler was held up
CERTAIN_NS = 5_000_000_000  # a paused machine may count as CPU time; the sampler is never held up that long

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Standstill:
    """Between two moments of a process's clock, nothing ran."""

    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


def standstills(process: Process) -> tuple[Standstill, ...]:
    """When a process stood still; empty if lines were not sampled natively."""
    if process.sampling is None or process.sampling.method != "native":
        return ()
    rows = process.scheduling.time_ns if process.scheduling is not None else ()
    seen = np.unique(
        np.concatenate([process.samples["time_ns"].astype(np.int64), np.asarray(rows, np.int64)])
    )
    if len(seen) < 3:
        return ()
    gaps = np.diff(seen)
    least = np.maximum(
        max(LEAST_NS, TIMES_USUAL * float(np.median(gaps))), TIMES_LAST * _weights_at(process, seen[:-1])
    )
    found = [Standstill(int(seen[i]), int(seen[i + 1])) for i in np.flatnonzero(gaps >= least)]
    return tuple(still for still in found if not _recorded(process, still) and not _worked(process, still))


def _weights_at(process: Process, times_ns: Ints) -> NDArray[np.float64]:
    """For how long the last sample up to each of these times stands; 0 before the first."""
    sampled, weights = process.samples["time_ns"].astype(np.int64), process.samples["weight_ns"]
    last = np.searchsorted(sampled, times_ns, side="right")
    return np.concatenate([[0.0], weights.astype(np.float64)])[last]


def _recorded(process: Process, still: Standstill) -> bool:
    """Whether a thread wrote a window meanwhile."""
    for thread in process.threads:
        times = thread.windows.time_ns.astype(np.int64)
        if np.any((times > still.begin_ns) & (times < still.end_ns)):
            return True
    return False


def _worked(process: Process, still: Standstill) -> bool:
    rows = process.scheduling
    if rows is None or still.length_ns >= CERTAIN_NS:
        return False
    time_ns, cpu_ns = rows.time_ns.astype(np.int64), rows.cpu_ns.astype(np.int64)
    before = int(np.searchsorted(time_ns, still.begin_ns, side="right")) - 1
    after = int(np.searchsorted(time_ns, still.end_ns, side="left"))
    if before < 0 or after >= len(time_ns):
        return False
    used_ns = int(cpu_ns[after] - cpu_ns[before])
    span_ns = int(time_ns[after] - time_ns[before])
    elsewhere_ns = int(time_ns[-1] - time_ns[0]) - span_ns
    rate = (int(cpu_ns[-1] - cpu_ns[0]) - used_ns) / elsewhere_ns if elsewhere_ns > 0 else 0.0
    return used_ns - rate * (span_ns - still.length_ns) > WORKED * still.length_ns


def without_standstills(capture: Capture) -> tuple[Capture, int]:
    """The capture without the stretches in which its driving process stood still, and their length in ns.

    Other processes of the same host are cut where they stood still at the same time.
    """
    driving = driving_thread(capture)
    found = standstills(driving[0]) if driving is not None else ()
    if driving is None or not found:
        return capture, 0
    processes, messages = [], list(capture.messages)
    for process in capture.processes:
        if process is driving[0]:
            cut = found
        elif process.host == driving[0].host:  # one host, one clock
            cut = tuple(s for one in standstills(process) for s in found if _overlap(one, s))
        else:
            cut = ()
        for still in reversed(cut):  # the last one first, so that earlier times stay as they are
            process = _cut(process, still)
            messages = [_cut_messages(log, still) if log.pid == process.pid else log for log in messages]
        processes.append(process)
    cut_capture = replace(capture, processes=tuple(processes), messages=tuple(messages))
    return cut_capture, sum(still.length_ns for still in found)


def _overlap(one: Standstill, other: Standstill) -> bool:
    return one.begin_ns < other.end_ns and other.begin_ns < one.end_ns


def _cut(process: Process, still: Standstill) -> Process:
    samples = process.samples.copy()
    after = samples["time_ns"] >= still.end_ns
    first = samples["time_ns"] == still.end_ns  # the first moment afterwards stands for the whole stretch
    if first.any():
        usual = process.sampling.interval_ns if process.sampling is not None else 0
        samples["weight_ns"][first] = np.minimum(samples["weight_ns"][first], usual)
    samples["time_ns"][after] -= np.uint64(still.length_ns)
    rows = process.scheduling
    return replace(
        process,
        end_ns=_moved(process.end_ns, still),
        threads=tuple(_cut_thread(thread, still) for thread in process.threads),
        samples=samples,
        scheduling=None if rows is None else replace(rows, time_ns=_all_moved(rows.time_ns, still)),
        thread_settings=tuple(
            replace(setting, time_ns=_moved(setting.time_ns, still)) for setting in process.thread_settings
        ),
    )


def _moved(time_ns: int, still: Standstill) -> int:
    return time_ns - min(max(time_ns - still.begin_ns, 0), still.length_ns)


def _all_moved(time_ns: NDArray[np.uint64], still: Standstill) -> NDArray[np.uint64]:
    times = time_ns.astype(np.int64)
    moved: Ints = times - np.clip(times - still.begin_ns, 0, still.length_ns)
    return moved.astype(np.uint64)


def _signed_moved(time_ns: Ints, still: Standstill) -> Ints:
    moved: Ints = time_ns - np.clip(time_ns - still.begin_ns, 0, still.length_ns)
    return moved


def _cut_messages(log: MessageLog, still: Standstill) -> MessageLog:
    records = log.records.copy()
    for name in ("begin_ns", "end_ns"):
        records[name] = _signed_moved(records[name], still)
    return replace(log, records=records)


def _cut_rounds(rounds: Rounds, still: Standstill) -> Rounds:
    """Calls with their moments: one that was open during the standstill gets shorter."""
    start = rounds["start_ns"].astype(np.int64)
    end = start + rounds["duration_ns"].astype(np.int64)
    cut = rounds.copy()
    cut["start_ns"] = _signed_moved(start, still)
    cut["duration_ns"] = _signed_moved(end, still) - _signed_moved(start, still)
    return cut


def _cut_event(event: Event, still: Standstill) -> Event:
    start_ns = _moved(event.start_ns, still)
    end_ns = _moved(event.start_ns + event.duration_ns, still)
    return replace(event, start_ns=start_ns, duration_ns=end_ns - start_ns)


def _cut_use(use: ChannelUse, still: Standstill) -> ChannelUse:
    """A channel over time; a message that was waited for during the standstill was not late."""
    times, total_ns = use.time_ns.astype(np.int64), use.total_ns.astype(np.int64)
    at = int(np.searchsorted(times, still.end_ns, side="left"))
    if 0 < at < len(times):
        usual = int(times[at] - times[at - 1]) - still.length_ns  # what is left of the stretch around it
        grown = int(total_ns[at] - total_ns[at - 1])
        total_ns[at:] -= max(min(grown - max(usual, 0), still.length_ns), 0)
    return replace(use, time_ns=_all_moved(use.time_ns, still), total_ns=total_ns.astype(np.uint64))


def _cut_thread(thread: Thread, still: Standstill) -> Thread:
    start_ns, end_ns = _moved(thread.start_ns, still), _moved(thread.end_ns, still)
    gone_ns = (thread.end_ns - thread.start_ns) - (end_ns - start_ns)
    if not gone_ns or thread.folded_threads:
        return thread
    windows = thread.windows
    at = int(np.searchsorted(windows.time_ns.astype(np.int64), still.end_ns, side="left"))
    nodes = nodes_by_path(thread)
    final = np.array([0 if node is None else node.own_ns for node in nodes], dtype=np.int64)
    own = windows.own_ns.astype(np.int64)
    late = own[at] if at < len(windows) else final
    early = own[at - 1] if at else np.zeros_like(final)
    open_then = [int(np.argmax(late - early))] if len(final) else []  # none: a thread without regions
    path = thread.paths[open_then[0]] if open_then else ()
    around = [i for i, other in enumerate(thread.paths) if other == path[: len(other)] and i not in open_then]
    root = _shortened(thread.root, path, gone_ns)
    scheduling = thread.scheduling
    return replace(
        thread,
        start_ns=start_ns,
        end_ns=end_ns,
        wall_ns=thread.wall_ns - gone_ns,
        root=root,
        windows=_cut_windows(windows, at, open_then, around, still, gone_ns),
        open=tuple(replace(one, since_ns=_moved(one.since_ns, still)) for one in thread.open),
        events=tuple(_cut_event(event, still) for event in thread.events),
        rounds=_cut_rounds(thread.rounds, still),
        channels=tuple(_cut_use(use, still) for use in thread.channels),
        scheduling=None
        if scheduling is None
        else replace(scheduling, time_ns=_all_moved(scheduling.time_ns, still)),
    )


def _shortened(node: Node, path: tuple[str, ...], gone_ns: int) -> Node:
    """A copy of the tree without that much of the time of the region at `path`."""
    total_ns = max(node.total_ns - gone_ns, 0)
    if not path:
        return replace(node, total_ns=total_ns, own_ns=max(node.own_ns - gone_ns, 0))
    children = list(node.children)
    for at, child in enumerate(children):
        if child.name == path[0]:
            children[at] = _shortened(child, path[1:], gone_ns)
            break
    return replace(node, total_ns=total_ns, children=children)


def _cut_windows(
    windows: Windows, at: int, open_then: list[int], around: list[int], still: Standstill, gone_ns: int
) -> Windows:
    """`at`: the first window after the standstill; `open_then` and `around`: columns of open regions."""
    if not len(windows):
        return windows

    def less(values: NDArray[np.uint64], columns: list[int]) -> NDArray[np.uint64]:
        result = values.astype(np.int64)
        result[at:, columns] = np.maximum(result[at:, columns] - gone_ns, 0)
        return result.astype(np.uint64)

    real_ns = windows.real_ns.astype(np.int64)
    real_ns[at:] -= gone_ns
    return replace(
        windows,
        time_ns=_all_moved(windows.time_ns, still),
        real_ns=real_ns.astype(np.uint64),
        total_ns=less(windows.total_ns, [*open_then, *around]),
        own_ns=less(windows.own_ns, open_then),
    )
