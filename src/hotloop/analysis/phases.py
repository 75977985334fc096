"""The phases of a run (start-up, warm-up, training, last round, shutdown), and a capture cut to its training.

Phases are found from progress and windows, once, for every report and comparison:

- start-up ends with the last window before any env step or update;
- warm-up ends where the time per unit of work has settled: leading cycles (windows, or rounds of collecting
  and learning) are dropped while they are slower than the spread of the cycles after them, and so are
  leading windows in which code was compiled or imported;
- training ends with the last whole round of collecting and learning; what is left of it is the last round;
- shutdown begins after the last window with work, or with a window in which a trainer has ended: what then
  evaluates the agent is no training.

At least half of the time with work counts as training. In a run that reports no work, training is the time
in which the lines that dominate its second half, after the imports at the top of the script, were seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.findings import Phases
from hotloop.analysis.standstills import without_standstills
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.whatif import LEAST_WINDOWS
from hotloop.analysis.windows import WHOLE as ENDING
from hotloop.analysis.windows import Spans, clock_shift_ns, nodes_by_path, spans_by_name, work_done
from hotloop.capture.model import Capture, Node, Process, Progress, Thread, Windows
from hotloop.capture.samples import SampledPath

LEAST_CYCLES = 3  # of collecting and learning, before training is cut at whole cycles
SPREADS = 3.0  # robust standard deviations (scaled MAD) that count as within the spread
PREPARING = ("import", "compile")  # regions that belong to start-up or warm-up
DOMINANT = 0.8  # share of the second half of a run whose lines stand for training
LEAST_SAMPLES = 10  # in the second half
FEW = 0.02  # share of the work after which nothing but shutdown is left
NOTABLE = 0.1  # share of a window spent preparing, or ending, that makes it part of warm-up, or shutdown
FEW_STEPS = 0.2  # times the mean of windows since learning began

Floats = NDArray[np.float64]


def find_phases(capture: Capture) -> Phases | None:
    """The phases of a run; None if no thread recorded anything."""
    driving = driving_thread(capture)
    if driving is None:
        return None
    process, thread = driving
    spans = spans_by_name(thread)
    wall_ns = thread.wall_ns
    done = cumulative_work(capture, process, thread, spans.end_ns) if len(spans) else {}
    if not done:
        return _phases_by_lines(process, thread, len(spans))
    ends = np.concatenate([[0.0], spans.end_ns])  # ends[i] is where window i begins
    unit = "env_steps" if "env_steps" in done else "updates"
    first, start, last = training_windows(spans, done)
    ended = max(working_windows(spans, done)[1], last)
    return _phases(ends, first, start, last, ended, wall_ns, unit)


def _phases_by_lines(process: Process, thread: Thread, windows: int) -> Phases:
    """Phases of a run that reports no work, from the sampled lines of its driving thread."""
    wall_ns = thread.wall_ns
    samples = process.samples[process.samples["native_id"] == thread.native_id]
    # A script that ends while it imports has no training.
    prepares = np.array([bool(path) and path[0] in PREPARING for path in thread.paths])
    known = len(samples) and len(prepares)  # a damaged recording may have lost its nodes
    if known and prepares[np.minimum(samples["node"], len(prepares) - 1)].mean() > DOMINANT:
        return Phases(wall_ns, 0, 0, 0, 0, 0, "", _too_short(0, wall_ns, wall_ns))
    at_ns = samples["time_ns"].astype(np.int64) - thread.start_ns
    # Training begins after the imports at the top of the script, however long they take.
    importing = [number for number, path in enumerate(process.paths) if _imports_at_the_top(path)]
    imports = at_ns[np.isin(samples["path"], importing)]
    imported_ns = min(max(int(imports[-1]), 0), wall_ns) if len(imports) else 0
    late = samples[at_ns > max(imported_ns, wall_ns // 2)]
    if len(late) < LEAST_SAMPLES or not late["weight_ns"].any():
        return Phases(0, 0, wall_ns, 0, 0, windows, "", _too_short(0, wall_ns, wall_ns))
    weight = np.bincount(late["path"], weights=late["weight_ns"])
    most_first = np.argsort(-weight, kind="stable")
    needed = int(np.searchsorted(np.cumsum(weight[most_first]), DOMINANT * weight.sum())) + 1
    seen = at_ns[np.isin(samples["path"], most_first[:needed])]
    begin_ns, end_ns = max(int(seen[0]), imported_ns), min(int(seen[-1]), wall_ns)
    return Phases(begin_ns, 0, end_ns - begin_ns, 0, wall_ns - end_ns, windows, "")


def _imports_at_the_top(path: SampledPath) -> bool:
    """An import statement of the script itself, not one inside a function."""
    return (
        len(path.frames) == 1
        and path.frames[0].function == "<module>"
        and path.called.startswith("importlib._bootstrap")
    )


def _phases(ends: Floats, first: int, start: int, last: int, ended: int, wall_ns: int, unit: str) -> Phases:
    """Windows [first, ended) have work; windows [start, last) are training."""
    whole_end = wall_ns if last == len(ends) - 1 else int(ends[last])
    work_end = wall_ns if ended == len(ends) - 1 else int(ends[ended])
    count = last - start
    training_ns = max(whole_end - int(ends[start]), 0)
    why = "" if count >= LEAST_WINDOWS else _too_short(count, training_ns, wall_ns)
    start_up_ns = int(ends[first])
    return Phases(
        start_up_ns=start_up_ns,
        warm_up_ns=int(ends[start]) - start_up_ns,
        training_ns=training_ns,
        last_round_ns=work_end - whole_end,
        shutdown_ns=wall_ns - work_end,
        windows=count,
        unit=unit,
        why_no_gains=why,
    )


def _too_short(windows: int, training_ns: int, wall_ns: int) -> str:
    """How long to run for gains with intervals."""
    if windows:
        # Windows are as long as one round of work at least, so more of them need more rounds.
        needed_s = (wall_ns - training_ns + training_ns * (LEAST_WINDOWS + 2) / windows) / 1e9
    else:
        needed_s = 2 * wall_ns / 1e9 + 1
    return (
        f"training was too short for gains: {windows} of the {LEAST_WINDOWS} windows that an interval needs; "
        f"run for {max(round(needed_s), 2):,} s or longer"
    )


def cumulative_work(capture: Capture, process: Process, thread: Thread, end_ns: Floats) -> dict[str, Floats]:
    """Env steps and updates of all threads at times `end_ns` after the start of `thread`, if reported."""
    return {
        counter: work_done(capture, process, thread, end_ns, counter)
        for counter in ("env_steps", "updates")
        if getattr(capture.progress, counter)
    }


def working_windows(spans: Spans, done: dict[str, Floats]) -> tuple[int, int]:
    """The range of windows with env steps or updates, until processes are shut down; (0, 0) without any."""
    rose = sum(np.diff(values, prepend=0.0) for values in done.values()) > 0
    worked = np.flatnonzero(rose)
    if not len(worked):
        return 0, 0
    first, last = int(worked[0]), int(worked[-1]) + 1
    last = len(spans) if len(done) < 2 else last  # with one counter, a pause is no shutdown
    return first, max(min(last, ending_window(spans, done)), first + 1)


def training_windows(spans: Spans, done: dict[str, Floats]) -> tuple[int, int, int]:
    """The first window with work, and the range [start, last) of windows that are training."""
    first, last = working_windows(spans, done)
    if first == last:
        return 0, 0, len(spans)
    bounds = cycle_bounds(done, first, last)
    unit = "env_steps" if "env_steps" in done else "updates"
    start, end = _settled(bounds, spans, done[unit])
    latest = first + (last - first) // 2
    prepared = min(preparing_windows(spans, last), latest)
    return first, max(start, min(prepared, end - 1), first), end


def _settled(bounds: list[int], spans: Spans, done: Floats) -> tuple[int, int]:
    """Where cycles begin to take their usual time, and where the last whole one ends."""
    before = np.concatenate([[0.0], done])
    ends = np.concatenate([[0.0], spans.end_ns])
    work = np.diff(before[bounds])
    time_ns = np.diff(ends[bounds])
    cost = np.divide(time_ns, work, out=np.full(len(work), np.inf), where=work > 0)
    return bounds[min(warm_up_windows(cost), len(bounds) - 1)], bounds[-1]


def cycle_bounds(done: dict[str, Floats], first: int, last: int) -> list[int]:
    """Indices of windows at which cycles of collecting and learning begin; the last one ends the last cycle.

    If most windows with updates also have env steps, collecting and learning alternate faster than windows
    are taken, and every window is a cycle. A run that collects for seconds and then learns for seconds is
    cut where rounds of learning begin. What comes before the first update (filling a replay buffer) is
    no cycle.
    """
    windows = list(range(first, last + 1))
    learned = np.diff(done["updates"], prepend=0.0) > 0 if len(done) == 2 else np.zeros(0, bool)
    if not learned.any():
        return windows
    bounds = long_rounds(done["env_steps"], done["updates"])
    if bounds is None:
        began = int(np.argmax(learned))
        return [window for window in windows if window >= began]
    return bounds if len(bounds) > LEAST_CYCLES else windows


def long_rounds(env_steps: Floats, updates: Floats) -> list[int] | None:
    """Windows at which rounds of learning begin, for a run that collects for long and then learns for long.

    None if most windows with updates also have env steps, or there are no updates. Windows with far fewer
    than the others collect nothing: steps of other processes are spread evenly over windows of theirs, which
    may reach into the learning.
    """
    steps, learned = np.diff(env_steps, prepend=0.0), np.diff(updates, prepend=0.0) > 0
    since = int(np.argmax(learned))  # random steps come before
    collected = steps > FEW_STEPS * float(np.mean(steps[since:]))
    if not learned.any() or float(np.mean(collected[learned])) > 0.5:
        return None
    # An update may take longer than a window, so a window without one is no sign of another round.
    begins, collected_since = [], True
    for window, (steps, update) in enumerate(zip(collected.tolist(), learned.tolist(), strict=True)):
        if update and collected_since:
            begins.append(window)
            collected_since = False  # env steps in this window came before
        else:
            collected_since |= steps
    return begins


def warm_up_windows(cost: Floats) -> int:
    """How many leading windows (or cycles) to drop, given the time per unit of work in each (inf: no work).

    With few windows, the first one with work goes as well: it includes the end of start-up.
    """
    worked = np.flatnonzero(np.isfinite(cost))
    if len(worked) < LEAST_WINDOWS:
        return 0 if not len(worked) else int(worked[0]) + (1 if len(worked) >= 3 else 0)
    for place, window in enumerate(worked[: len(worked) // 2]):
        later = cost[worked[place + 1 :]]
        middle = float(np.median(later))
        spread = 1.4826 * float(np.median(np.abs(later - middle)))
        if cost[window] <= middle + SPREADS * max(spread, 0.01 * middle):
            return int(worked[place - 1]) + 1 if place else int(worked[0])
    return int(worked[len(worked) // 2 - 1]) + 1


def preparing_windows(spans: Spans, until: int) -> int:
    """How many leading windows, of the first half, end with one in which code was compiled or imported."""
    columns = [i for i, name in enumerate(spans.names) if name in PREPARING]
    if not columns:
        return 0
    share = spans.own_ns[:, columns].sum(axis=1) / spans.span_ns
    preparing = np.flatnonzero(share[: until // 2] > NOTABLE)
    return int(preparing[-1]) + 1 if len(preparing) else 0


def ending_window(spans: Spans, done: dict[str, Floats]) -> int:
    """The first window in which a trainer has ended, with hardly any work left; else their number."""
    columns = [i for i, name in enumerate(spans.names) if name in ENDING]
    share = spans.own_ns[:, columns].sum(axis=1) / np.maximum(spans.span_ns, 1)
    left = np.max([1 - values / max(values[-1], 1) for values in done.values()], axis=0)
    ending = np.flatnonzero((share > NOTABLE) & (left < FEW))
    return int(ending[0]) if len(ending) else len(spans)


# -- a capture cut to its training -----------------------------------------------------------------


def training_of(capture: Capture) -> Capture:
    """The capture cut to its training; uncut if training was too short to be told apart."""
    capture, _ = without_standstills(capture)
    phases = find_phases(capture)
    return capture if phases is None or not phases.steady else cut_to_training(capture, phases)


def cut_to_training(capture: Capture, phases: Phases) -> Capture:
    """The capture as if recording had begun when training did and ended with it, for all threads.

    Calls and times come from the windows, so they are exact to one window. Minimum, maximum, percentiles and
    memory of a region stay those of the whole run, since windows do not have them.
    """
    driving = driving_thread(capture)
    if driving is None or phases.whole_run or not phases.training_ns:
        return capture
    process, thread = driving
    begin_ns = thread.start_ns + phases.start_up_ns + phases.warm_up_ns
    end_ns = begin_ns + phases.training_ns
    kept = []
    for other in capture.processes:
        shift = clock_shift_ns(capture, process, other)
        kept.append(_cut_process(other, begin_ns - shift, end_ns - shift))
    begin_real_ns = process.start_real_ns + begin_ns - process.start_ns
    return replace(
        capture,
        processes=tuple(process for process in kept if process is not None),
        folded=tuple(
            role.between(begin_real_ns, begin_real_ns + end_ns - begin_ns) for role in capture.folded
        ),
    )


def _cut_process(process: Process, begin_ns: int, end_ns: int) -> Process | None:
    """The process between two moments; None if it did not live then."""
    begin_ns, end_ns = max(begin_ns, process.start_ns), min(end_ns, process.end_ns)
    if end_ns <= begin_ns:
        return None
    threads = [_cut_thread(thread, begin_ns, end_ns) for thread in process.threads]
    number = np.array([*np.cumsum([thread is not None for thread in threads]) - 1, -1])
    number[:-1][[thread is None for thread in threads]] = -1  # the last entry stands for no thread
    samples = process.samples
    samples = samples[(samples["time_ns"] >= begin_ns) & (samples["time_ns"] < end_ns)].copy()
    samples["thread"] = number[samples["thread"]]
    return replace(
        process,
        start_ns=begin_ns,
        start_real_ns=process.start_real_ns + begin_ns - process.start_ns,
        end_ns=end_ns,
        threads=tuple(thread for thread in threads if thread is not None),
        samples=samples,
    )


def _cut_thread(thread: Thread, begin_ns: int, end_ns: int) -> Thread | None:
    """The thread between two moments; None if it did not live then.

    Threads without windows (too short, or folded together) are kept whole if they lived during training.
    """
    begin_ns, end_ns = max(begin_ns, thread.start_ns), min(end_ns, thread.end_ns)
    if end_ns <= begin_ns:
        return None
    windows = thread.windows
    if thread.folded_threads or (not len(windows) and thread.root.children):
        return thread
    if not len(windows):
        wall_ns = end_ns - begin_ns
        root = replace(thread.root, total_ns=wall_ns, own_ns=wall_ns)
        return replace(thread, start_ns=begin_ns, end_ns=end_ns, wall_ns=wall_ns, root=root)
    before, after = _Moment.of(thread, begin_ns), _Moment.of(thread, end_ns)
    calls, total_ns, own_ns = (
        np.maximum(late - early, 0.0).round().astype(np.int64)
        for early, late in zip(before.figures, after.figures, strict=True)
    )
    wall_ns = end_ns - begin_ns
    found = nodes_by_path(thread)
    number = {id(node): i for i, node in enumerate(found) if node is not None}

    def cut(node: Node) -> Node:
        i = number[id(node)]
        part = calls[i] / node.calls if node.calls else 0.0
        children = [cut(child) for child in node.children if id(child) in number]
        return replace(
            node,
            calls=int(calls[i]),
            total_ns=int(total_ns[i]),
            own_ns=int(own_ns[i]),
            open_calls=0,
            open_ns=0,
            squares=node.squares * part,
            bytes_moved=node.bytes_moved * part,
            flops=node.flops * part,
            device_ns=None if node.device_ns is None else round(node.device_ns * part),
            children=[child for child in children if child.calls or child.total_ns],
        )

    regions = [cut(child) for child in thread.root.children if id(child) in number]
    regions = [node for node in regions if node.calls or node.total_ns]
    inside_ns = sum(node.total_ns for node in regions)
    root = replace(thread.root, total_ns=wall_ns, own_ns=max(wall_ns - inside_ns, 0), children=regions)
    return replace(
        thread,
        start_ns=begin_ns,
        end_ns=end_ns,
        wall_ns=wall_ns,
        cpu_ns=None if thread.cpu_ns is None else max(round(after.cpu_ns - before.cpu_ns), 0),
        progress=Progress(
            **{
                name: type(getattr(thread.progress, name))(late - before.progress[name])
                for name, late in after.progress.items()
            }
        ),
        root=root,
        windows=_cut_windows(windows, begin_ns, end_ns, before),
        open=thread.open if end_ns == thread.end_ns else (),
    )


@dataclass(frozen=True, slots=True)
class _Moment:
    """Cumulative figures of a thread at one moment, interpolated between its windows."""

    figures: tuple[Floats, Floats, Floats]  # calls, total_ns and own_ns by node
    progress: dict[str, float]
    cpu_ns: float

    @staticmethod
    def of(thread: Thread, time_ns: int) -> _Moment:
        windows = thread.windows
        times = [thread.start_ns, *windows.time_ns.tolist(), max(thread.end_ns, int(windows.time_ns[-1]))]
        late = int(np.searchsorted(times, time_ns, side="left"))
        late = min(max(late, 1), len(times) - 1)
        gap = times[late] - times[late - 1]
        weight = (time_ns - times[late - 1]) / gap if gap else 1.0

        def at(values: Floats, final: Floats) -> Floats:
            """`values` by window; before the first window they are 0, after the last one `final`."""
            early = values[late - 2] if late >= 2 else np.zeros_like(final)
            later = values[late - 1] if late - 1 < len(values) else final
            return np.asarray(early + weight * (later - early), dtype=np.float64)

        nodes = nodes_by_path(thread)
        final = [
            np.array([0 if node is None else getattr(node, name) for node in nodes], dtype=np.float64)
            for name in ("calls", "total_ns", "own_ns")
        ]
        recorded = (windows.calls, windows.total_ns, windows.own_ns)
        calls, total_ns, own_ns = (
            at(values.astype(np.float64), last) for values, last in zip(recorded, final, strict=True)
        )
        progress = {
            name: float(at(windows.progress[name].astype(np.float64), np.asarray(value, dtype=np.float64)))
            if name in windows.progress
            else float(value)
            for name, value in ((field, getattr(thread.progress, field)) for field in Progress.__slots__)
        }
        cpu_ns = at(windows.cpu_ns.astype(np.float64), np.asarray(thread.cpu_ns or 0, dtype=np.float64))
        return _Moment((calls, total_ns, own_ns), progress, float(cpu_ns))


def _cut_windows(windows: Windows, begin_ns: int, end_ns: int, before: _Moment) -> Windows:
    """The windows between two moments, cumulative since the first of them."""
    keep = (windows.time_ns > begin_ns) & (windows.time_ns <= end_ns)

    def since(values: NDArray[np.uint64], start: Floats) -> NDArray[np.uint64]:
        return np.maximum(values[keep].astype(np.int64) - np.round(start).astype(np.int64), 0).astype(
            np.uint64
        )

    calls, total_ns, own_ns = before.figures
    return Windows(
        time_ns=windows.time_ns[keep],
        real_ns=windows.real_ns[keep],
        cpu_ns=since(windows.cpu_ns, np.asarray(before.cpu_ns)),
        rss_bytes=windows.rss_bytes[keep],
        progress={
            name: values[keep] - values.dtype.type(before.progress.get(name, 0))
            for name, values in windows.progress.items()
        },
        calls=since(windows.calls, calls),
        total_ns=since(windows.total_ns, total_ns),
        own_ns=since(windows.own_ns, own_ns),
    )
