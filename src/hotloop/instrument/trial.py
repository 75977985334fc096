"""Inside the script of `hotloop try`: applies and undoes patches while it trains, and times each stretch.

A stretch with one patch set (a tuple of patch names; empty for the baseline) is a segment. Patch sets take
turns in blocks: each one once, in random order. Segments are cut so that they contain similar work:

- Where collecting and learning alternate quickly (a cycle takes less than 0.6 s), a segment is a number of
  whole cycles, each from the first env step after learning to the next such step.
- Where they alternate slowly, collecting and learning are cut separately, each with its own turns; the time
  between them belongs to no segment and is summed up.

Segments are short because the load of a machine changes within tenths of a second (docs/try.md has the
numbers). Scripts that work in bursts (a garbage collection every few steps) get longer segments, so that each
contains some of everything.

This module does not judge, and does not know where ticks come from or rows go: see `trial_script.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hotloop._util.interrupts import is_users, suppress_own
from hotloop.instrument.trial_patch import TrialPatch

SEGMENT_S = 0.02
MAX_SEGMENT_S = 0.5
BURST_FACTOR = 4  # work between two ticks that takes this many times the mean is a burst
BURSTS_PER_SEGMENT = 2  # a segment is at least this many times as long as a burst
BURSTS_NEEDED = 3  # a burst must occur this often; a single delay is not one
BURST_DECAY = 0.98  # of the longest bursts, per segment
SETTLE_SHARE = 0.1  # of a segment, dropped after a switch
LONG_CYCLE_S, LONGER_CYCLE_S = 0.6, 0.9  # with hysteresis: longer cycles are cut into phases
START_ANYWAY_S = 3.0  # with env steps but no update

PatchSet = tuple[str, ...]
Kind = Literal["steps", "updates", "cycles"]
Row = dict[str, Any]
_KINDS: tuple[Kind, ...] = ("steps", "updates", "cycles")


class Orders(NamedTuple):
    """What the parent process wants measured."""

    patch_sets: Sequence[PatchSet] | None = None  # besides the baseline; None: each patch alone; (): stop
    kept: PatchSet = ()  # found to be faster: applied in all segments, the baseline included


class Rotation:
    """The order of patch sets, for one kind of segment."""

    def __init__(self, kind: Kind, seed: int, patch_sets: Callable[[Kind], Sequence[PatchSet]]):
        self._kind = kind
        self._seed = seed
        self._patch_sets = patch_sets
        self._remaining: list[PatchSet] = []
        self.block = -1

    def current(self) -> PatchSet | None:
        """The patch set of the next segment, the same until `complete`; None when there are no more."""
        if not self._remaining:
            self.block += 1
            self._remaining = list(self._patch_sets(self._kind))
            random.Random(f"{self._seed}/{self._kind}/{self.block}").shuffle(self._remaining)
        return self._remaining[-1] if self._remaining else None

    def complete(self) -> None:
        """The segment is complete."""
        self._remaining.pop()

    def restart(self) -> None:
        """Begin a new block: the patch sets have changed."""
        self._remaining.clear()


class _TickIntervals:
    """Time between ticks for one kind of work: the mean and the longest."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.mean_cpu_s = 0.0
        self.longest_s = [0.0] * BURSTS_NEEDED  # CPU time: a thread that only waits has no bursts

    def add(self, wall_s: float, cpu_s: float) -> None:
        if not self.mean_s:
            self.mean_s, self.mean_cpu_s = wall_s, cpu_s
        self.mean_s += 0.02 * (wall_s - self.mean_s)
        self.mean_cpu_s += 0.02 * (cpu_s - self.mean_cpu_s)
        if cpu_s > self.longest_s[-1]:
            self.longest_s = sorted((*self.longest_s[:-1], cpu_s), reverse=True)

    def burst_s(self) -> float:
        """Length of the bursts; 0 if there are none."""
        length_s = self.longest_s[-1]
        return length_s if length_s > BURST_FACTOR * self.mean_cpu_s else 0.0

    def decay(self) -> None:
        """Called at the end of each segment, so that old bursts count less."""
        self.longest_s = [BURST_DECAY * length_s for length_s in self.longest_s]


class Trial:
    """Turns the ticks of a training loop (env steps, updates) into segments."""

    def __init__(
        self,
        plan: Callable[[], tuple[Mapping[str, TrialPatch], Row]],
        orders: Callable[[], Orders],
        write: Callable[[Row], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
        process_clock: Callable[[], float] = time.process_time,
        segment_s: float = SEGMENT_S,
        seed: int = 0,
        ask: Callable[[], None] = lambda: None,
        show: Callable[[PatchSet | None], None] = lambda applied: None,
    ):
        """`plan` is called once, when training has begun; it returns the patches by name and a row on them.

        `orders` is called at each switch. `ask` is called at the first tick, `show` at each switch with all
        applied patches, and with None at the end.
        """
        self.running = True
        self._planning = False
        self._plan, self._orders, self._write, self._clock = plan, orders, write, clock
        self._ask, self._show = ask, show
        self._cpu_clock, self._cpu_s = cpu_clock, 0.0
        self._process_clock, self._process_s = process_clock, 0.0  # CPU time of all threads
        self._intervals = {kind: _TickIntervals() for kind in _KINDS}
        self._segment_s = segment_s
        self._patches: Mapping[str, TrialPatch] | None = None  # None until training has begun
        self._rotations = {kind: Rotation(kind, seed, self._patch_sets) for kind in _KINDS}
        self._patch_set: PatchSet = ()
        self._applied: PatchSet = ()  # the kept patches and the patch set
        self._broken: set[str] = set()
        self._kind: Kind = "steps"
        self._last_kind: Kind | None = None
        self._first_s = self._last_s = self._cycle_began_s = 0.0
        self._cycle_s: float | None = None
        self._whole_cycles = False
        self._waiting = False  # for cycles short enough to be measured as wholes
        self._began_s: float | None = None  # None while settling after a switch
        self._switched_s = 0.0
        self._steps = self._updates = 0
        self._all_steps = self._all_updates = 0
        self._between_s = 0.0
        self._spent_s: dict[Kind, float] = dict.fromkeys(_KINDS, 0.0)  # in and out of segments
        self._current_orders = Orders()

    # -- ticks -----------------------------------------------------------------------------------

    def tick(self, env_steps: int, updates: int) -> None:
        """Called after env steps or updates."""
        if not self.running or self._planning:
            return
        now_s = self._clock()
        kind: Kind = "steps" if env_steps else "updates"
        turned = self._last_kind is not None and kind != self._last_kind
        cycle_ended = turned and kind == "steps"
        if self._last_kind is None:
            self._first_s = self._cycle_began_s = now_s
            self._ask()
        before_s, self._cpu_s = self._cpu_s, self._cpu_clock()
        if cycle_ended:
            self._note_cycle(now_s)
        if self._patches is None:
            if cycle_ended or now_s - self._first_s >= START_ANYWAY_S:
                self._start(kind)
        else:
            self._all_steps += env_steps
            self._all_updates += updates
            self._steps += env_steps
            self._updates += updates
            if self._whole_cycles:
                if cycle_ended:
                    self._at_boundary(now_s)
            elif turned:
                self._between_s += now_s - self._last_s
                self._switch_to(kind)
            else:
                self._spent_s[kind] += now_s - self._last_s
                self._intervals[kind].add(now_s - self._last_s, self._cpu_s - before_s)
                self._at_boundary(now_s)
        self._last_kind, self._last_s = kind, now_s
        if self._switched_s > now_s:  # the switch itself (`gc` walks all objects) is not part of the work
            self._last_s, self._cpu_s = self._switched_s, self._cpu_clock()

    def _note_cycle(self, now_s: float) -> None:
        self._cycle_s = now_s - self._cycle_began_s
        self._cycle_began_s = now_s
        whole = self._cycle_s <= (LONGER_CYCLE_S if self._whole_cycles else LONG_CYCLE_S)
        if whole != self._whole_cycles:
            self._whole_cycles = whole
            if self._patches is not None:
                self._switch_to("cycles" if whole else "steps")

    def _at_boundary(self, now_s: float) -> None:
        """A segment may begin or end here."""
        if self._waiting:
            return
        if self._began_s is None:
            if now_s - self._switched_s >= SETTLE_SHARE * self._segment_s:
                self._begin(now_s)
        elif now_s - self._began_s >= self._length_s():
            self._intervals[self._kind].decay()
            rotation = self._rotations[self._kind]
            self._write(
                {
                    "at_s": now_s - self._first_s,
                    "kind": self._kind,
                    "block": rotation.block,
                    "patches": list(self._patch_set),
                    "kept": list(self._current_orders.kept),
                    "seconds": now_s - self._began_s,
                    "cpu_s": self._process_clock() - self._process_s,
                    "env_steps": self._steps,
                    "updates": self._updates,
                    "all_steps": self._all_steps,
                    "all_updates": self._all_updates,
                    "between_s": self._between_s,
                    "steps_s": self._spent_s["steps"],
                    "updates_s": self._spent_s["updates"],
                }
            )
            rotation.complete()
            self._switch_to(self._kind)

    def _length_s(self) -> float:
        burst_s = self._intervals[self._kind].burst_s()
        return max(self._segment_s, min(burst_s * BURSTS_PER_SEGMENT, MAX_SEGMENT_S))

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._process_s = self._process_clock()
        self._steps = self._updates = 0

    # -- switching -------------------------------------------------------------------------------

    def _start(self, kind: Kind) -> None:
        self._planning = True
        try:
            self._patches, row = self._plan()
        finally:
            self._planning = False
        self._write(row)
        self._switch_to("cycles" if self._whole_cycles else kind)

    def _patch_sets(self, kind: Kind) -> Sequence[PatchSet]:
        """The baseline and every patch set still to be measured that can take effect in such segments."""
        patches, wanted = self._patches or {}, self._current_orders.patch_sets
        if wanted is None:
            wanted = [(name,) for name in patches]
        useless = self._broken | {
            n for n, patch in patches.items() if patch.between_phases and kind != "cycles"
        }
        usable = [names for names in wanted if not self._broken & set(names) and set(names) - useless]
        return [(), *usable] if usable else []

    def _switch_to(self, kind: Kind) -> None:
        """Apply the next patch set of that kind; the time this takes belongs to no segment."""
        self._kind = kind
        orders = self._orders()
        if orders != self._current_orders:
            self._current_orders = orders
            for rotation in self._rotations.values():
                rotation.restart()
        patch_set = self._rotations[kind].current()
        self._waiting = patch_set is None and bool(self._patch_sets("cycles"))
        if self._waiting:  # all that is left takes effect between phases: perhaps cycles get shorter
            patch_set = ()
        if patch_set is None:
            self.stop()
            return
        self._patch_set = patch_set
        kept = tuple(name for name in orders.kept if name not in patch_set and name not in self._broken)
        self._apply((*kept, *patch_set))
        self._began_s = None
        self._switched_s = self._clock()
        usual_s = (self._cycle_s or 0.0) if kind == "cycles" else self._intervals[kind].mean_s
        if usual_s > self._segment_s / 4:
            self._begin(self._switched_s)  # settling for a whole cycle or update would cost too much

    def _apply(self, wanted: PatchSet) -> None:
        """Undo and apply patches until exactly `wanted` is applied."""
        patches = self._patches or {}
        for name in [name for name in reversed(self._applied) if name not in wanted]:
            patches[name].undo()
        before, self._applied = self._applied, wanted
        for name in [name for name in wanted if name not in before]:
            try:
                patches[name].apply()
            except Exception as error:  # a library that has changed: the script must run all the same
                if is_users(error):
                    raise
                with suppress_own(Exception):
                    patches[name].undo()
                self._applied = tuple(other for other in self._applied if other != name)
                self._broken.add(name)
                self._write({"broken": name, "error": repr(error)})
        self._show(self._applied)

    def stop(self) -> None:
        """Undo everything, for good."""
        if self.running:
            self.running = False
            self._apply(())
            self._show(None)
            self._write({"stopped": True})

    def leave(self) -> None:
        """Called in a forked child, which is not timed: undo everything here without a trace."""
        self._write = lambda row: None
        self._show = lambda applied: None
        with suppress_own(Exception):
            self.stop()
