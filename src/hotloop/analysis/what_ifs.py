"""What would a change give? Answers from one capture: a replay of the run, or Amdahl's law.

A run whose threads and processes exchange messages is replayed with the changed work (`replay.py`). A run
that does one thing after the other follows Amdahl's law on the thread that drives training. What one capture
cannot tell is not guessed: the answer names the run that would.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hotloop._util.errors import HotloopError
from hotloop.analysis import whatif
from hotloop.analysis.categories import Resolver
from hotloop.analysis.findings import Estimate
from hotloop.analysis.message_trace import NOBODY, find_trace
from hotloop.analysis.phases import cut_to_training, find_phases
from hotloop.analysis.replay import (
    ALL_OR_NONE,
    Floats,
    Lane,
    Replayed,
    Trace,
    has_depth,
    own_work,
    pieces_under_way,
    progress_times,
    replay,
    scaled,
    with_capacity,
    with_less_work,
    with_pieces_under_way,
    with_workers,
    without_channels,
)
from hotloop.analysis.standstills import without_standstills
from hotloop.analysis.thread_states import samples_of
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.waiting_loops import polled_wait
from hotloop.analysis.windows import spans_by_name
from hotloop.capture import layout
from hotloop.capture.message_format import EMPTY, FOUND, MEET, RECEIVE
from hotloop.capture.model import Capture, Node, Thread
from hotloop.capture.samples import SLEEPING, Samples

WORKERS = ("workers", "n_envs", "num_envs", "num_workers")
DEPTH = ("depth", "queue_size", "prefetch")
BATCH = ("batch", "batch_size")
CORES = ("cores",)
KNOBS = (*WORKERS, *DEPTH, *BATCH, *CORES)
SATURATED = 0.93  # share of the cores in use from which on they are the limit
OFTEN_HELD = 0.7  # share of the time for which someone has the GIL, from which on it may be the limit
AS_MUCH = 0.5  # gain from a core for everyone over that from a role twice as fast: then cores are the limit
HOLDS_UP = 0.05  # gain from which on a slow member of a role is a straggler, and how much slower it is
FLOOR = 0.01  # of every interval of a replay: what a replay leaves out
KEPT = 0.03  # as an error of the replay: what leaving the number of other busy threads as it is, is worth
SLICES = (1, 4, 16)  # turns with the GIL in a stretch of mixed work: as many as fit the run best
FITS = 0.02  # error of the replay below which no other number of them is tried
COVERED = 0.8  # share of training that a trace covers, from which on it stands for all of it
# Share of the driver's operations; it is less if a thread works through its log without waiting.
LEAST_REPLAYED = 0.3
LEAST_OUTSIDE = 0.03  # of the replayed time; less is not worth adding
LEAST_DONE = 4  # env steps or updates in the replayed time, to base a rate on
IDLE = 0.02  # share of the time: whoever works or waits less does not count
CROWDED = 0.3  # busy threads of other programs from which on they are mentioned
UNSURE = 0.10  # predictors that differ by more are shown as a range
GAPS = ("between ", "before ", "after ")
BLOCKED = (layout.REASON_LOCK, layout.REASON_EVENT)  # by something that others change
# The same in a thread with recorded messages: a wait in a library's own poll, or in a call that has no name
# here (flock). A lock may be that of arithmetic threads, which wait for nobody else.
BLOCKED_BESIDE = (layout.REASON_EVENT, layout.REASON_UNKNOWN)
TAKES_TURNS = (layout.REASON_GIL, *BLOCKED)  # as BLOCKED, where nothing explains who has the GIL
NOT_WORK = ("wait", "hotloop")  # categories of regions that nobody makes faster
How = Literal["replay", "amdahl", "unknown"]
_CHANGE = re.compile(r"\s*([^=\s][^=]*?)\s*=\s*([0-9.]+)\s*(x|%|)\s*$")


@dataclass(frozen=True, slots=True)
class Change:
    """One change: a region whose work is multiplied by `factor`, or a knob that is set to `count`."""

    text: str
    name: str
    factor: float | None = None  # of the time: 0.5 for twice as fast
    count: float | None = None  # of workers, places in queues, or cores
    times: float | None = None  # a knob relative to what it is: batch=2x


@dataclass(frozen=True, slots=True)
class Saving:
    """Work that a change takes away: parts (0..1) of regions by name, and of the wall time of threads."""

    regions: Mapping[str, float]
    threads: Mapping[tuple[int, int], float]  # by process id and native id; 1: all that the thread does


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a change, or several at once, would give."""

    what_if: str
    speed_up: Estimate | None  # None: one capture cannot tell
    how: How
    limit: str  # what limits training then
    why: str  # one sentence: where the number comes from, or why there is none
    decide: str = ""  # the experiment that would tell, or tell better
    amdahl: float | None = None  # on the driving thread alone, for comparison


@dataclass(frozen=True, slots=True)
class LimitingRole:
    """What limits training now."""

    regime: Literal["cpu", "gil", "role", "serial", "unknown"]
    role: str  # "" unless a role limits
    region: str  # where that role works most
    sentence: str


def parse_change(text: str) -> Change:
    """`env_step=2x` (twice as fast), `env_step=50%` (half of its time), `workers=8`, `batch=2x`."""
    found = _CHANGE.match(text)
    if not found:
        raise HotloopError(
            f"{text!r} is not a what-if; write REGION=2x (twice as fast), REGION=50% (of its time), "
            "workers=8, depth=64, cores=4 or batch=2x."
        )
    name, unit = found[1], found[3]
    try:
        number = float(found[2])
    except ValueError:
        raise HotloopError(f"{found[2]!r} in {text!r} is not a number; write it as 2 or 1.5.") from None
    if not 0 < number < 1e6:
        raise HotloopError(f"{found[2]!r} in {text!r} must be above 0 and below a million.")
    if name in KNOBS:
        if unit == "%":
            raise HotloopError(f"{text!r} sets a number; write it as {name}=8 or {name}=2x.")
        if unit == "" and name not in CORES and number != int(number):
            raise HotloopError(f"{found[2]!r} in {text!r} must be a whole number.")
        return Change(text, name, count=number) if unit == "" else Change(text, name, times=number)
    if unit == "":
        raise HotloopError(
            f"{text!r} has no unit; write {name}=2x (twice as fast) or {name}=50% (of its time)."
        )
    return Change(text, name, factor=1 / number if unit == "x" else number / 100)


class WhatIfs:
    """The model of one capture, which answers what-ifs."""

    def __init__(self, capture: Capture, *, crowded: bool = False):
        """`crowded`: time without a core was lost to other programs, even if the run needs few cores."""
        self.crowded = crowded
        capture, _ = without_standstills(capture)
        self.recorded = capture
        phases = find_phases(capture)
        self.phases = phases
        self.training = cut_to_training(capture, phases) if phases is not None else capture
        self.driver = driving_thread(self.training)
        self.why_no_replay = ""

    @cached_property
    def trace(self) -> Trace | None:
        """The replayable trace, calibrated so that the unchanged run takes as long as it did."""
        if self.driver is None:
            self.why_no_replay = "nothing was recorded"
            return None
        process, thread = self.driver
        key = process.pid, thread.native_id
        whole = driving_thread(self.recorded)
        begin, end = 0, None
        if self.phases is not None and whole is not None and not self.phases.whole_run:
            begin = whole[1].start_ns + self.phases.start_up_ns + self.phases.warm_up_ns
            end = begin + self.phases.training_ns
        messages, cores = self.recorded.messages, self._cores()
        found, why = find_trace(self.recorded, messages, key, cores, begin, end, crowded=self.crowded)
        if found is not None:
            why = self._unrecorded_waits(found)
        if found is None or why:
            self.why_no_replay = why
            return None
        made = _calibrated(found)
        if any(lane.parts for lane in made.lanes) and _is_off(made) > UNSURE:
            # Samples of threads that hardly had a core do not tell; then sharing evenly may be nearer.
            found, _ = find_trace(
                self.recorded, messages, key, cores, begin, end, crowded=self.crowded, use_gil_samples=False
            )
            evenly = _calibrated(found) if found is not None else made
            made = min(made, evenly, key=_is_off)
        self.why_no_replay = self._unexplained_turns(made)
        return None if self.why_no_replay else _with_outside(made, thread)

    def _unrecorded_waits(self, trace: Trace) -> str:
        """Why the driving thread cannot be replayed: it waits for what was not recorded; "" if it can."""
        assert self.driver is not None
        process, thread = self.driver
        used = {trace.channels[o.channel].kind for o in trace.lanes[trace.driver].operations}
        looks = {o.kind for o in trace.lanes[trace.driver].operations} & {FOUND, EMPTY}
        if looks or "folder" in used:
            return ""  # its looks are recorded
        mine = samples_of(process, thread.native_id)
        mine = mine[(mine["time_ns"] >= thread.start_ns) & (mine["time_ns"] <= thread.end_ns)]
        share, place = polled_wait(process, thread, mine)
        if share > UNSURE:
            return (
                f"the driving thread waits {100 * share:.0f} % of the time in the loop at {place}, "
                "and for what was not recorded"
            )
        if used != {NOBODY}:
            share = self._blocked_beside(trace, trace.driver)
            return (
                f"the driving thread waits {100 * share:.0f} % of the time, and not for a recorded message"
                if share > UNSURE
                else ""
            )
        share = max(_share_blocked(mine, BLOCKED), self._waits)
        return (
            f"the driving thread waits {100 * share:.0f} % of the time, and not for a recorded message"
            if share > UNSURE
            else ""
        )

    def _unexplained_turns(self, trace: Trace) -> str:
        """Why the driving thread cannot be replayed: it waits for a GIL of which the replay knows nothing."""
        assert self.driver is not None
        process, thread = self.driver
        lane = trace.lanes[trace.driver]
        mine = samples_of(process, thread.native_id)
        mine = mine[(mine["time_ns"] >= thread.start_ns) & (mine["time_ns"] <= thread.end_ns)]
        share = _share_blocked(mine, (layout.REASON_GIL,))
        if lane.parts or lane.gil > 0 or share <= UNSURE:
            return ""
        waits = f"the driving thread waits {100 * share:.0f} % of the time for the GIL"
        return f"{waits}, and the replay does not tell why"

    def _blocked_beside(self, trace: Trace, number: int) -> float:
        """Share of its time in the trace that a lane was seen waiting for what was not recorded."""
        lane = trace.lanes[number]
        process = next((p for p in self.recorded.processes if p.pid == lane.thread[0]), None)
        if process is None or not (process.samples["reason"] != layout.REASON_UNKNOWN).any():
            return 0.0  # what threads wait for may not be read on this computer
        mine = samples_of(process, lane.thread[1])
        at = (mine["time_ns"].astype(np.float64) - trace.begin_ns) / 1e9
        mine, at = mine[(at > 0) & (at < trace.seconds)], at[(at > 0) & (at < trace.seconds)]
        begins = np.array([o.begin for o in lane.operations])
        ends = np.maximum.accumulate(np.array([o.end for o in lane.operations]))
        last = np.searchsorted(begins, at, side="right") - 1
        inside = (last >= 0) & (at <= ends[np.maximum(last, 0)]) if len(begins) else np.zeros(len(at), bool)
        whole = float(mine["weight_ns"].sum())
        return _share_blocked(mine[~inside], BLOCKED_BESIDE, whole)

    @cached_property
    def _waits_for_unknown(self) -> dict[int, float]:
        """Lanes that wait for what was not recorded, and for which share of the time.

        A replay takes such a wait for work. It may as well be for a lock, and grow when the rest is faster.
        """
        if self.trace is None:
            return {}
        found = {n: self._blocked_beside(self.trace, n) for n in range(len(self.trace.lanes))}
        return {number: share for number, share in found.items() if share > UNSURE}

    def _why_unsure(self, changes: Sequence[Change]) -> str:
        """Why a gain from these changes is not known: they are in threads that wait for unknown things."""
        assert self.trace is not None
        names = {change.name for change in changes if change.factor is not None}
        for number, share in self._waits_for_unknown.items():
            lane = self.trace.lanes[number]
            if names & (lane.regions.keys() | lane.unseen):
                return (
                    f"{lane.name} waits {100 * share:.0f} % of the time for something that was not recorded: "
                    "whether that wait would become shorter or longer is not known"
                )
        return ""

    def _cores(self) -> float:
        machine: dict[str, Any] = self.recorded.machine
        for name in ("cores_granted", "cores", "cpu_count"):
            value = machine.get(name)
            if isinstance(value, (int, float)) and value > 0:
                return float(value)
        return 1.0

    @cached_property
    def _only_shares(self) -> bool:
        """Whether no messages were recorded: the threads share cores and the GIL, and nothing else."""
        return self.trace is not None and all(
            self.trace.channels[o.channel].kind == NOBODY
            for lane in self.trace.lanes
            for o in lane.operations
        )

    @cached_property
    def base(self) -> Replayed | None:
        return replay(self.trace) if self.trace is not None else None

    @cached_property
    def error(self) -> float:
        """How far the replay of the unchanged run is off, as a logarithm."""
        return _is_off(self.trace) if self.trace is not None else 0.0

    @cached_property
    def roles(self) -> dict[str, tuple[int, ...]]:
        """Lanes by role: those that work most in the same region; the driving lane has its own role."""
        found: dict[str, list[int]] = {}
        if self.trace is None:
            return {}
        meets = {e for e, channel in enumerate(self.trace.channels) if channel.parties}
        for number, lane in enumerate(self.trace.lanes):
            alone = number == self.trace.driver and not any(o.channel in meets for o in lane.operations)
            alone &= number not in self._peers
            found.setdefault(("learner" if alone else "") + f"`{lane.main or lane.name}`", []).append(number)
        return {name: tuple(lanes) for name, lanes in found.items()}

    @cached_property
    def _peers(self) -> tuple[int, ...]:
        """The driver and the lanes that make the same progress as it does, each at its own pace; () if none.

        Training is as fast as all of them together.
        """
        if self.trace is None or self.driver is None:
            return ()
        meets = {e for e, channel in enumerate(self.trace.channels) if channel.parties}
        threads = {(p.pid, t.native_id): t for p in self.training.processes for t in p.threads}
        driver = self.trace.lanes[self.trace.driver]
        units = _units(threads.get(driver.thread))
        found = [
            number
            for number, lane in enumerate(self.trace.lanes)
            if lane.main == driver.main and units & _units(threads.get(lane.thread))
        ]
        if len(found) < 2 or any(o.channel in meets for m in found for o in self.trace.lanes[m].operations):
            return ()
        return (self.trace.driver, *(number for number in found if number != self.trace.driver))

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """Names of regions that can be changed, most time first."""
        total: dict[str, float] = {}
        if self.trace is not None:
            for lane in self.trace.lanes:
                for name, part in lane.regions.items():
                    total[name] = total.get(name, 0.0) + float(part.sum())
        for thread in self.training.threads:
            for node in _walk(thread.root):
                if node.name:
                    total.setdefault(node.name, 0.0)
                    total[node.name] += 1e-9 * node.own_ns / 1e9
        return tuple(sorted(total, key=lambda name: (-total[name], name)))

    @cached_property
    def worth_asking(self) -> tuple[str, ...]:
        """Regions to try when nothing was asked: they work, and are not mere hulls around waits."""
        lanes = () if self.trace is None else self.trace.lanes
        hulls = {name for lane in lanes for name in lane.waits_inside}
        hidden = hulls | {"import", "gc_pause", "hotloop_hooks"}
        for thread in self.training.threads:
            hidden |= {node.name for node, kind, _, _ in _RESOLVER.walk(thread.root) if kind in NOT_WORK}
        return tuple(name for name in self.regions if name not in hidden and not name.startswith(GAPS))

    # -- the limit ---------------------------------------------------------------------------------

    @cached_property
    def limit(self) -> LimitingRole:
        """What limits training now."""
        if self.trace is None or self.base is None:
            return self._serial_limit()
        return self._limit_of(self.trace)

    def _serial_limit(self) -> LimitingRole:
        if self.driver is None:
            return LimitingRole("unknown", "", "", "nothing was recorded")
        if self._waits > AS_MUCH:
            return LimitingRole("unknown", "", "", f"not known: {self._what_it_waits_for}")
        totals = _inclusive(self.driver[1].root)
        waits = {id(node) for node, kind, _, _ in _RESOLVER.walk(self.driver[1].root) if kind == "wait"}
        own: dict[str, int] = {}
        for node in _walk(self.driver[1].root):
            if node.name and id(node) not in waits:
                own[node.name] = own.get(node.name, 0) + node.own_ns
        region = max(own, key=lambda name: own[name], default="")
        share = totals.get(region, 0) / max(self.driver[1].wall_ns, 1)
        return LimitingRole(
            "serial",
            "learner",
            region,
            f"one thread does everything in turn; `{region}` takes {100 * share:.0f} % of it",
        )

    @cached_property
    def _waits(self) -> float:
        """Share of its time that the driving thread waits for others."""
        if self.driver is None:
            return 0.0
        thread = self.driver[1]
        waited = sum(node.own_ns for node, kind, _, _ in _RESOLVER.walk(thread.root) if kind == "wait")
        return waited / max(thread.wall_ns, 1)

    @cached_property
    def _takes_turns(self) -> float:
        """Share of its time that the driving thread was seen waiting for the GIL or for others."""
        if self.driver is None:
            return 0.0
        process, thread = self.driver
        mine = samples_of(process, thread.native_id)
        mine = mine[(mine["time_ns"] >= thread.start_ns) & (mine["time_ns"] <= thread.end_ns)]
        return _share_blocked(mine, TAKES_TURNS)

    @cached_property
    def is_alone(self) -> bool:
        """Whether the driving thread waits for nobody, and the others (log writers) do next to nothing."""
        if self.trace is None or self._waits > IDLE:
            return False
        others = [lane for number, lane in enumerate(self.trace.lanes) if number != self.trace.driver]
        return sum(float(lane.work.sum()) for lane in others) < IDLE * self.trace.seconds

    @property
    def _what_it_waits_for(self) -> str:
        return (
            f"the driving thread waits {100 * self._waits:.0f} % of the time, and not for a recorded message"
        )

    def _limit_of(self, trace: Trace) -> LimitingRole:
        """What limits a run: the GIL and the cores if it had the machine to itself, else a role as it was."""
        alone = replace(trace, others=0.0)
        base, idle = replay(trace), replay(alone)
        region = _most_with_gil([lane for lane in trace.lanes if lane.gil > 0])
        most = f", most of all in `{region}`" if region else ""
        gil = LimitingRole("gil", "", region, f"the GIL: threads of one process take turns in Python{most}")
        if idle.gil_load > SATURATED:
            return gil
        region = _most_on_core(trace.lanes)
        most = f", most of all by `{region}`" if region else ""
        in_use = f"the cores: {idle.core_load * trace.cores:.1f} of {trace.cores:.1f} are in use{most}"
        if idle.core_load > SATURATED:
            return LimitingRole("cpu", "", region, in_use)
        best, gain = "", 0.0
        for role, members in self.roles.items():
            changed = _faster(trace, [m for m in members if m < len(trace.lanes)], 0.5)
            value = _speed_up(base, replay(changed), (trace.outside_s, changed.outside_s))
            if value > gain:
                best, gain = role, value
        awaited = ""  # by tasks of an event loop
        for region in sorted({o.region for lane in trace.lanes for o in lane.operations} - {""}):
            changed = scaled(trace, {region: 0.5})
            value = _speed_up(base, replay(changed), (trace.outside_s, changed.outside_s))
            if value > gain:
                awaited, gain = region, value
        if idle.gil_load > OFTEN_HELD:
            free = replace(alone, lanes=tuple(replace(lane, parts=(), gil=0.0) for lane in trace.lanes))
            from_gil = _speed_up(idle, replay(free), (trace.outside_s, trace.outside_s))
            if from_gil > 1 + FLOOR and from_gil - 1 > AS_MUCH * (gain - 1):
                return gil
        enough = replay(replace(alone, cores=float(len(trace.lanes))))
        from_cores = _speed_up(idle, enough, (trace.outside_s, trace.outside_s))
        if from_cores > 1 + FLOOR and from_cores - 1 > AS_MUCH * (gain - 1):
            return LimitingRole("cpu", "", region, f"{in_use} on average, and all of them when it matters")
        if awaited:
            sentence = f"`{awaited}`, for which tasks of an event loop wait: twice as fast, it would give"
            return LimitingRole("role", "", awaited, f"{sentence} {gain:.2f}x")
        members = self.roles.get(best, ())
        if not members:
            return LimitingRole("unknown", "", "", "not known: the replay comes to a stop")
        region = self._region_that_limits(trace, base, members, gain)
        name = _named(best, [trace.lanes[m].name for m in members])
        sentence = f"{name}: twice as fast, {'they' if len(members) > 1 else 'it'} would give {gain:.2f}x"
        return LimitingRole("role", best, region, sentence)

    def _region_that_limits(self, trace: Trace, base: Replayed, members: Sequence[int], gain: float) -> str:
        """Where the limiting role works most; the region that gives most if that one gives little.

        Who waits for a lock does most of its work without it, and what it does under the lock is the limit.
        """
        lane = trace.lanes[members[0]]

        def gain_in(region: str) -> float:
            changed = scaled(trace, {region: 0.5})
            return _speed_up(base, replay(changed), (trace.outside_s, changed.outside_s))

        if not lane.main or gain_in(lane.main) - 1 > AS_MUCH * (gain - 1):
            return lane.main
        least = IDLE * float(lane.work.sum())
        others = [n for n, part in lane.regions.items() if n not in lane.waits_inside and part.sum() > least]
        best = max(others, key=gain_in, default=lane.main)
        return best if gain_in(best) - 1 > AS_MUCH * (gain - 1) else lane.main

    @cached_property
    def straggler(self) -> str:
        """The lane of a role that holds training up because it has more to do; "" if there is none.

        With no more to do than the others of its role, it would make training faster.
        """
        if self.trace is None or self.base is None or not self._covers:
            return ""
        best, most = "", 1 + HOLDS_UP
        for members in {*self.roles.values(), *self._who_meet}:
            if set(members) == set(self._peers):
                continue  # each at its own pace: nobody waits for it
            busy = [float(self.trace.lanes[m].work.sum()) for m in members]
            slowest = int(np.argmax(busy))
            rest = [b for i, b in enumerate(busy) if i != slowest]
            if not rest or busy[slowest] < (1 + HOLDS_UP) * max(rest) or self._share_work(members):
                continue
            usual = float(np.median(rest)) / busy[slowest]
            changed = _faster(self.trace, [members[slowest]], usual)
            gain = _speed_up(self.base, replay(changed), (self.trace.outside_s, changed.outside_s))
            if gain > most:
                best, most = self.trace.lanes[members[slowest]].name, gain
        return best

    @cached_property
    def _who_meet(self) -> tuple[tuple[int, ...], ...]:
        """Lanes that wait for each other at a barrier or collective, whatever else each of them does."""
        if self.trace is None:
            return ()
        meets: dict[int, set[int]] = {}
        for number, lane in enumerate(self.trace.lanes):
            for operation in lane.operations:
                if operation.kind == MEET:
                    meets.setdefault(operation.channel, set()).add(number)
        return tuple(tuple(sorted(members)) for members in meets.values() if len(members) > 1)

    def _share_work(self, members: Sequence[int]) -> bool:
        """Whether members take their work from one place: whoever is free does more of it."""
        assert self.trace is not None
        locks = {number for number, one in enumerate(self.trace.channels) if one.kind == "lock"}
        takes = [
            {o.channel for o in self.trace.lanes[m].operations if o.kind == RECEIVE} - locks for m in members
        ]
        return any(one & other for one, other in itertools.combinations(takes, 2))

    # -- predictions -------------------------------------------------------------------------------

    def predict(self, changes: Sequence[Change]) -> Prediction:
        """What the changes, made together, would give. Raises HotloopError for an unknown region."""
        text = " ".join(change.text for change in changes)
        for change in changes:
            if change.factor is not None and change.name not in self.regions:
                self._unknown(change.name)
        amdahl = self._amdahl(changes)
        batch = [change for change in changes if change.name in BATCH]
        if batch:
            return Prediction(
                text,
                None,
                "unknown",
                self.limit.sentence,
                "one capture cannot tell how the time of a batch grows with its size",
                "run your script once with the other batch size and compare: "
                "hotloop compare --set-b batch_size=... -- your command",
                None,
            )
        if self.trace is None or self.base is None:
            return self._by_amdahl(text, changes, amdahl)
        if not self.crowded and any(change.name in (*WORKERS, *CORES) for change in changes):
            return self._if_crowded.predict(changes)
        trace, rounds, notes = self._changed(self.trace, changes)
        if trace is None:
            return Prediction(text, None, "unknown", self.limit.sentence, notes[0], notes[1], amdahl)
        new = replay(trace)
        if new.stuck or not len(new.times) or not self._covers:
            return Prediction(
                text, None, "unknown", self.limit.sentence,
                "the replay came to a stop: the order of messages depends on more than was recorded",
                self._virtual(changes), amdahl,
            )  # fmt: skip
        estimate = self._estimate(new, trace, rounds)
        unsure = self._why_unsure(changes)
        if unsure and abs(math.log(estimate.value)) > math.log(1 + HOLDS_UP) / 2:
            decide = "run your script once with the change and compare: hotloop compare A B"
            return Prediction(text, None, "unknown", self.limit.sentence, unsure, decide, amdahl)
        after = self._limit_of(trace) if len(trace.lanes) == len(self.trace.lanes) else self.limit
        why = f"replayed {len(new.times):,} operations of the driving thread"
        if self.error > 0.05:
            why += (
                f"; the replay of the unchanged run is {100 * self.error:.0f} % off, so take this with care"
            )
        if self.trace.others > CROWDED:
            why += "; other programs took part of the cores meanwhile, and are taken to go on"
        if notes:
            why += "; " + "; ".join(notes)
        decide = self._virtual(changes) if self.error > UNSURE / 2 else ""
        if self._only_shares:
            why += (
                "; no messages were recorded: threads and processes are taken to share nothing but cores and "
                "the GIL, and progress is that of the driving thread"
            )
            decide = "run your script once with the change and compare: hotloop compare A B"
        return Prediction(text, estimate, "replay", after.sentence, why, decide, amdahl)

    @cached_property
    def _if_crowded(self) -> WhatIfs:
        """The model for more workers or cores: it matters then who else uses the cores."""
        return WhatIfs(self.recorded, crowded=True)

    @cached_property
    def replays(self) -> bool:
        """Whether the run can be replayed, near enough to trust gains that come from it."""
        return self._covers and self.error <= UNSURE

    @cached_property
    def _covers(self) -> bool:
        """Whether the replay of the unchanged run gets far enough to say something about it."""
        if self.trace is None or self.base is None:
            return False
        done = len(self.base.times) / max(len(progress_times(self.trace.lanes[self.trace.driver])), 1)
        return done > (COVERED if self.base.stuck else LEAST_REPLAYED)

    def gain_of_saving(self, least: Saving, usual: Saving, most: Saving) -> Estimate | None:
        """Speed-up of training if work is taken away, from the replay; None if there is none."""
        if self.trace is None or not self.replays:
            return None
        found: list[Estimate] = []
        for before, saving in zip((None, least, usual), (least, usual, most), strict=True):
            if saving == before:
                found.append(found[-1])
                continue
            changed = self._without(self.trace, saving)
            new = replay(changed)
            if new.stuck or not len(new.times):
                return None
            found.append(self._estimate(new, changed, 1.0))
        low, likely, high = found
        value = max(likely.value, 1.0)  # nothing takes longer with less to do
        return Estimate(value, min(low.low, value), max(high.high, value))

    def _without(self, trace: Trace, saving: Saving) -> Trace:
        trace = self._scaled(trace, {name: 1 - part for name, part in saving.regions.items() if part > 0})
        left = [
            max(1 - saving.threads.get(lane.thread, 0.0) * trace.seconds / max(lane.recorded_s, 1e-9), 0.0)
            for lane in trace.lanes
        ]
        lanes = [with_less_work(lane, factor) for lane, factor in zip(trace.lanes, left, strict=True)]
        return replace(trace, lanes=tuple(lanes), outside_s=trace.outside_s * left[trace.driver])

    def _scaled(self, trace: Trace, factors: Mapping[str, float]) -> Trace:
        """The trace with the work in regions multiplied by factors.

        Regions whose single calls were not recorded are taken evenly from all the work of their thread.
        """
        trace = scaled(trace, factors)
        lanes = []
        for lane in trace.lanes:
            left = {name: factor for name, factor in factors.items() if name in lane.unseen}
            lanes.append(with_less_work(lane, 1 - self._part_saved(lane.thread, left)))
        return replace(trace, lanes=tuple(lanes))

    def _part_saved(self, thread: tuple[int, int], factors: Mapping[str, float]) -> float:
        """The part of a thread's work in training that regions save, without waits; nested ones save once."""
        root = self._roots.get(thread)
        if root is None or not factors:
            return 0.0
        work = sum(node.own_ns for node, kind, _, _ in _RESOLVER.walk(root) if kind != "wait")
        totals = _inclusive(root)
        added = sum((1 - factor) * totals.get(name, 0) for name, factor in factors.items())
        most = (1 - min(factors.values())) * _inclusive(root, frozenset(factors)).get("", 0)
        return min(added, most) / work if work else 0.0

    @cached_property
    def _roots(self) -> dict[tuple[int, int], Node]:
        return {(p.pid, t.native_id): t.root for p in self.training.processes for t in p.threads}

    def gain_without_locks(self) -> Estimate | None:
        """Speed-up of training if nobody waited for locks between processes; None if it has none."""
        if self.trace is None or not self.replays:
            return None
        locks = {number for number, channel in enumerate(self.trace.channels) if channel.kind == "lock"}
        trace = without_channels(self.trace, locks)
        driver = trace.lanes[trace.driver].operations
        if len(driver) < 2 or trace is self.trace:
            return None
        new = replay(trace)
        return None if new.stuck or not len(new.times) else self._estimate(new, trace, 1.0)

    def replayed_gain(self, region: str) -> Estimate | None:
        """Speed-up of training if a region were twice as fast, from the replay; None if there is none."""
        if self.trace is None or not self.replays:
            return None
        if not any(region in lane.regions or region in lane.unseen for lane in self.trace.lanes):
            return None
        changed = self._scaled(self.trace, {region: 0.5})
        new = replay(changed)
        return None if new.stuck or not len(new.times) else self._estimate(new, changed, 1.0)

    def _changed(self, trace: Trace, changes: Sequence[Change]) -> tuple[Trace | None, float, list[str]]:
        rounds, notes = 1.0, []
        factors = {c.name: c.factor for c in changes if c.factor is not None}
        trace = self._scaled(trace, factors)
        for change in changes:
            if change.name in DEPTH:
                bounded = [one.capacity or 1 for one in trace.channels if has_depth(one)]
                pieces = None if bounded else pieces_under_way(trace, self._workers())
                now = bounded[0] if bounded else pieces
                if now is None:
                    return None, 1.0, ["no queue with a limit was recorded", ""]
                size = max(int(change.count if change.count is not None else now * (change.times or 1.0)), 1)
                if bounded:
                    trace = with_capacity(trace, size)
                else:
                    trace = with_pieces_under_way(trace, self._workers(), size) or trace
                    notes.append(f"{size} batches for each worker under way instead of {round(now)}")
            elif change.name in CORES:
                cores = change.count if change.count is not None else trace.cores * (change.times or 1.0)
                trace = replace(trace, cores=cores)
            elif change.name in WORKERS:
                workers = self._workers()
                if not workers:
                    return (
                        None,
                        1.0,
                        [
                            "no group of workers was recorded",
                            "run your script once with the other number of workers and compare",
                        ],
                    )
                if self._wait_for_events(workers):
                    return (
                        None,
                        1.0,
                        [
                            "who sets the events that more workers would wait for is not known",
                            "run your script once with the other number of workers and compare",
                        ],
                    )
                count = change.count if change.count is not None else len(workers) * (change.times or 1.0)
                trace, more = with_workers(trace, workers, max(int(count), 1))
                if workers == self._peers:
                    more = max(int(count), 1) / len(workers)
                    notes.append("all of them make progress, and count together")
                elif more != 1.0:
                    notes.append("assumes that the policy takes as long for more envs")
                rounds *= more
                wanted = sum(lane.core * _duty(self.base, i, trace) for i, lane in enumerate(trace.lanes))
                if count > len(workers) and wanted > trace.cores:
                    notes.append(f"{int(count)} workers contend for {trace.cores:.1f} cores")
        return trace, rounds, notes

    def _workers(self) -> tuple[int, ...]:
        """The largest role that does not drive training and does some work."""
        assert self.trace is not None
        if self._peers:
            return self._peers
        candidates = [
            members
            for members in self.roles.values()
            if self.trace.driver not in members and self.trace.lanes[members[0]].main
        ]
        return max(candidates, key=len, default=())

    def _wait_for_events(self, workers: Sequence[int]) -> bool:
        assert self.trace is not None
        events = {number for number, one in enumerate(self.trace.channels) if one.kind == "event"}
        return any(o.channel in events for m in workers for o in self.trace.lanes[m].operations)

    def _estimate(self, new: Replayed, trace: Trace, rounds: float) -> Estimate:
        assert self.base is not None and self.trace is not None
        before, after = self.base.times, new.times
        driver = self.trace.lanes[trace.driver]
        per_round = len(trace.lanes[trace.driver].operations) / len(driver.operations)
        if driver.chooses or driver.marks:
            per_round = 1.0
        count = min(len(before), int(len(after) / per_round))
        marks = np.unique(np.linspace(0, count - 1, min(max(count // 4, 2), 33)).astype(int))
        old = np.diff(np.concatenate([[0.0], before[marks]]))
        later = after[np.minimum(((marks + 1) * per_round).astype(int) - 1, len(after) - 1)]
        fresh = np.diff(np.concatenate([[0.0], later]))
        part = float(old.sum()) / max(self.trace.seconds, 1e-9)  # of the trace that both have replayed
        old, fresh = _with_rest(old, part * self.trace.outside_s), _with_rest(fresh, part * trace.outside_s)
        value = rounds * float(old.sum() / fresh.sum())
        if len(old) >= whatif.LEAST_WINDOWS:
            counts = whatif.block_counts(len(old))
            drawn = rounds * (counts @ old) / (counts @ fresh)
            low, high = (float(q) for q in np.quantile(drawn, [0.025, 0.975]))
        else:
            low, high = value * 0.9, value * 1.1
        slack = FLOOR + min(self.error, 0.5) * (0.25 + abs(math.log(max(value, 1e-9))))
        return Estimate(value, min(low, value) * math.exp(-slack), max(high, value) * math.exp(slack))

    def _amdahl(self, changes: Sequence[Change]) -> float | None:
        if self.driver is None or any(c.factor is None for c in changes):
            return None
        totals = _inclusive(self.driver[1].root)
        wall = max(self.driver[1].wall_ns, 1)
        saved = sum((1 - (c.factor or 1.0)) * totals.get(c.name, 0) / wall for c in changes)
        return 1 / max(1 - saved, 1e-6)

    def _by_amdahl(self, text: str, changes: Sequence[Change], amdahl: float | None) -> Prediction:
        limit = self.limit.sentence
        knobs = [c for c in changes if c.factor is None]
        if knobs or self.driver is None or amdahl is None:
            return Prediction(
                text, None, "unknown", limit,
                f"{self.why_no_replay}, so nothing is known about {knobs[0].name if knobs else 'it'}",
                "run your script once with the change and compare: hotloop compare A B", amdahl,
            )  # fmt: skip
        thread = self.driver[1]
        spans = spans_by_name(thread)
        names = {c.name: _names_inside(thread.root, c.name) for c in changes}
        if len(spans) < whatif.LEAST_WINDOWS:
            why = "the run is too short for an interval: record at least a few seconds of training"
            return Prediction(text, None, "unknown", limit, why, "", amdahl)
        elsewhere = [c.name for c in changes if not names[c.name]]
        if elsewhere:
            why = f"`{elsewhere[0]}` runs only in other threads, and {self.why_no_replay}"
            return Prediction(text, None, "unknown", limit, why, self._virtual(changes), amdahl)
        if self._waits > UNSURE:
            why = f"{self._what_it_waits_for}: what others do meanwhile is not known"
            return Prediction(text, None, "unknown", limit, why, self._virtual(changes), amdahl)
        if self._takes_turns > UNSURE:
            why = (
                f"the driving thread waits {100 * self._takes_turns:.0f} % of the time for other threads, "
                f"and {self.why_no_replay}"
            )
            return Prediction(text, None, "unknown", limit, why, self._virtual(changes), amdahl)
        column = {name: i for i, name in enumerate(spans.names)}
        counts = whatif.block_counts(len(spans))
        saved = np.zeros(len(spans))
        for change in changes:
            wanted = [column[n] for n in names[change.name] if n in column]
            saved += (1 - (change.factor or 1.0)) * spans.own_ns[:, wanted].sum(axis=1)
        drawn = 1 / np.maximum(1 - (counts @ saved) / (counts @ spans.span_ns), 1e-6)
        low, high = (float(q) for q in np.quantile(drawn, [0.025, 0.975]))
        estimate = Estimate(amdahl, min(low, amdahl), max(high, amdahl))
        why = "Amdahl's law on the driving thread: it does everything in turn"
        if len(self.training.threads) > 1:
            why = f"Amdahl's law on the driving thread ({self.why_no_replay})"
        return Prediction(text, estimate, "amdahl", limit, why, "", amdahl)

    def _virtual(self, changes: Sequence[Change]) -> str:
        regions = ",".join(c.name for c in changes if c.factor is not None)
        return f"hotloop run --what-if {regions} your_script.py" if regions else ""

    def _unknown(self, name: str) -> None:
        shown = ", ".join(self.regions[:12]) or "none was recorded"
        raise HotloopError(
            f"{name!r} is neither a region of this capture nor a setting; regions: {shown}; settings: "
            "workers, depth, cores, batch."
        )


def _share_blocked(mine: Samples, reasons: Sequence[int], whole_ns: float | None = None) -> float:
    """Share of the time of samples in which a thread slept for one of these reasons."""
    blocked = mine[(mine["state"] == SLEEPING) & np.isin(mine["reason"], reasons)]
    whole_ns = float(mine["weight_ns"].sum()) if whole_ns is None else whole_ns
    return float(blocked["weight_ns"].sum()) / max(whole_ns, 1.0)


def _calibrated(trace: Trace) -> Trace:
    """The trace with as many busy threads of other programs as explain how long the run took.

    Their number is known from the time that threads spent in the run queue, roughly: it is changed as far as
    that brings the replay nearer to the run.
    """
    trace = _with_slices(trace)
    best: tuple[float, Trace] | None = None
    for times in (1.0, 0.0, 0.5, 0.75, 1.25, 1.5) if trace.others > 0 else (1.0,):
        tried = replace(trace, others=times * trace.others)
        cost = _is_off(tried) + KEPT * abs(times - 1.0)
        if best is None or cost < best[0]:
            best = cost, tried
    assert best is not None
    return best[1]


def _with_slices(trace: Trace) -> Trace:
    """The trace with as many turns with the GIL within a stretch as explain how long the run took."""
    mixed = {
        number
        for number, lane in enumerate(trace.lanes)
        if any(ALL_OR_NONE < part.gil < 1 - ALL_OR_NONE for part in lane.parts) and not lane.repeats
    }
    if not mixed:
        return trace
    best, least = trace, math.inf
    for slices in SLICES:
        lanes = tuple(
            replace(lane, slices=slices) if number in mixed else lane
            for number, lane in enumerate(trace.lanes)
        )
        tried = replace(trace, lanes=lanes)
        off = _is_off(tried)
        if off < least:
            best, least = tried, off
        if least < FITS:
            break
    return best


def _is_off(trace: Trace) -> float:
    """How far the replay of the unchanged run is off, as a logarithm."""
    return abs(math.log(max(_ratio(trace), 1e-3)))


def _ratio(trace: Trace | None) -> float:
    """Time of the unchanged replay / time of the run."""
    if trace is None:
        return 1.0
    done = replay(trace).times
    if not len(done):
        return 1e-3
    made = progress_times(trace.lanes[trace.driver])
    recorded = made[min(len(done), len(made)) - 1]
    done = done[: len(made)]
    return float(done[-1]) / max(recorded, 1e-9)


def _with_rest(pieces: Floats, seconds: float) -> Floats:
    """Pieces of the replayed time, with the time of the driver that the trace lacks spread over them."""
    whole = float(pieces.sum())
    return pieces * max(1 + seconds / whole, 0.05) if whole > 0 else pieces


def _with_outside(trace: Trace, thread: Thread) -> Trace:
    """The trace with the time of the driving thread that it lacks for as many env steps as it has.

    The log holds the last messages only. If a rollout has more, the learning between two rollouts is missing.
    """
    windows = thread.windows
    if len(windows) < whatif.LEAST_WINDOWS or trace.seconds > COVERED * thread.wall_ns / 1e9:
        return trace
    times = np.concatenate([[thread.start_ns], windows.time_ns.astype(np.float64)])
    span = [trace.begin_ns, trace.begin_ns + trace.seconds * 1e9]
    for unit in ("env_steps", "updates"):
        counts = windows.progress.get(unit)
        if counts is None or not counts[-1]:
            continue
        done = np.diff(np.interp(span, times, np.concatenate([[0], counts.astype(np.float64)])))[0]
        if done < LEAST_DONE:
            continue
        times_as_much = float(counts[-1]) / done
        wall_s = float(times[-1] - times[0]) / 1e9
        outside_s = wall_s / times_as_much - trace.seconds
        if abs(outside_s) < LEAST_OUTSIDE * trace.seconds:
            return trace
        outside: dict[str, float] = {}
        for column, path in enumerate(thread.paths):
            own = np.concatenate([[0], windows.own_ns[:, column].astype(np.float64)])
            inside = float(np.diff(np.interp(span, times, own))[0])
            for name in set(path):
                outside[name] = outside.get(name, 0.0) + (float(own[-1]) / times_as_much - inside) / 1e9
        return replace(trace, outside_s=outside_s, outside=outside)
    return trace


def _speed_up(base: Replayed, new: Replayed, more: tuple[float, float]) -> float:
    """`more`: seconds outside of the traces."""
    count = min(len(base.times), len(new.times))
    if not count:
        return 0.0
    return float((base.times[count - 1] + more[0]) / max(new.times[count - 1] + more[1], 1e-9))


def _faster(trace: Trace, members: Iterable[int], factor: float) -> Trace:
    lanes = list(trace.lanes)
    outside_s = trace.outside_s
    for m in members:
        lanes[m] = replace(lanes[m], work=lanes[m].work * factor)
        outside_s *= factor if m == trace.driver else 1.0
    return replace(trace, lanes=tuple(lanes), outside_s=outside_s)


def _most_on_core(lanes: Sequence[Lane]) -> str:
    """The region that needs a core for the longest time, waits inside of it left out."""
    total: dict[str, float] = {}
    for lane in lanes:
        for name, part in lane.regions.items():
            if name not in lane.waits_inside:
                total[name] = total.get(name, 0.0) + lane.on_core.get(name, lane.core) * float(part.sum())
    return max(total, key=lambda name: total[name], default="")


def _most_with_gil(lanes: Sequence[Lane]) -> str:
    """The region that needs the GIL for the longest time; where that was not measured, a core."""
    total: dict[str, float] = {}
    for lane in lanes:
        for part, own in zip(lane.parts, own_work(lane) if lane.parts else (), strict=True):
            if part.name:
                total[part.name] = total.get(part.name, 0.0) + part.gil * float(own.sum())
    return max(total, key=lambda name: total[name]) if total else _most_on_core(lanes)


def _units(thread: Thread | None) -> set[str]:
    """In what a thread makes progress."""
    if thread is None or not len(thread.windows):
        return set()
    return {
        unit
        for unit in ("updates", "env_steps")
        if (counts := thread.windows.progress.get(unit)) is not None and len(counts) and counts[-1] > 0
    }


def _duty(base: Replayed | None, lane: int, trace: Trace) -> float:
    """Share of the time in which a lane worked; a copy is like the last one recorded."""
    if base is None:
        return 1.0
    return float(base.busy[min(lane, len(base.busy) - 1)])


def _named(role: str, lanes: Sequence[str]) -> str:
    where = f", in {role.removeprefix('learner')}" if role.endswith("`") and "(pid " not in role else ""
    if role.startswith("learner"):
        return f"the learner{where}"
    return f"{len(lanes)} threads or processes{where}" if len(lanes) > 1 else f"{lanes[0]}{where}"


def _walk(node: Node) -> Iterable[Node]:
    todo = [node]
    while todo:
        one = todo.pop()
        yield one
        todo += one.children


_RESOLVER = Resolver()


def _inclusive(root: Node, together: frozenset[str] = frozenset()) -> dict[str, int]:
    """Time of each name on a thread with what it calls, waits excluded; a name inside itself counts once.

    `together` are names to be counted as one, which is called "".
    """
    found: dict[str, int] = {}
    waits = {id(node) for node, kind, _, _ in _RESOLVER.walk(root) if kind == "wait"}

    def visit(node: Node, above: frozenset[str]) -> int:
        busy = 0 if id(node) in waits else node.own_ns
        names = {node.name} if node.name else set()
        if node.name in together:
            names.add("")
        busy += sum(visit(child, above | names) for child in node.children)
        for name in names - above:
            found[name] = found.get(name, 0) + busy
        return busy

    visit(root, frozenset())
    return found


def _names_inside(root: Node, name: str) -> set[str]:
    """The name and the names of what it calls, waits excluded; empty if the thread does not have it."""
    waits = {id(node) for node, kind, _, _ in _RESOLVER.walk(root) if kind == "wait"}
    found: set[str] = set()
    for node in _walk(root):
        if node.name == name:
            found |= {one.name for one in _walk(node) if id(one) not in waits}
    return found
