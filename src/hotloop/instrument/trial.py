"""Inside the script of `hotloop try`: switches toggles while it trains and times each stretch.

A stretch under one arm (a set of toggles; none for the baseline) is a segment. Arms take turns in
blocks: every arm once, in random order. Segments are cut so that their work is alike:

- Where collecting and learning alternate quickly (a cycle takes less than 0.6 s), a segment is some
  whole cycles, from one first step after learning to another.
- Where they alternate slowly, collecting and learning are cut apart, each with turns of its own; what
  happens between them is in no segment and is summed up.

Segments are short: how busy a machine is changes within tenths of a second, and what lies closer together
in time is more alike (docs/try.md has the figures). Where a script works in bursts (a garbage collection
every few steps), they are longer, so that there is something of everything in each.

Nothing here judges, and nothing knows where ticks come from or rows go: that is `trial_script.py`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hotloop.instrument.trial_patches import Toggle

SEGMENT_S = 0.02
MOST_SEGMENT_S = 0.5
BURST = 4  # times the mean: a piece of work between two ticks that is longer than most
BURSTS = 2  # a segment is at least so many times as long as the longest of them
OFTEN = 3  # so many times it has been that long: one hold-up is no burst
FORGET = 0.98  # the longest, from one segment to the next
SETTLE_SHARE = 0.1  # of a segment: dropped after a switch
LONG_CYCLE_S, LONGER_CYCLE_S = 0.6, 0.9  # above, phases are cut apart; in between, it stays as it is
START_ANYWAY_S = 3.0  # with env steps but no update

Arm = tuple[str, ...]
Kind = Literal["steps", "updates", "cycles"]
Row = dict[str, Any]
_KINDS: tuple[Kind, ...] = ("steps", "updates", "cycles")


class Ordered(NamedTuple):
    """What the parent wants."""

    arms: Sequence[Arm] | None = None  # beside the baseline; None: every toggle by itself; (): stop
    base: Arm = ()  # found to be faster: on in all arms, the baseline included


class Turns:
    """Whose turn it is, for one kind of segment."""

    def __init__(self, kind: Kind, seed: int, arms: Callable[[Kind], Sequence[Arm]]):
        self._kind = kind
        self._seed = seed
        self._arms = arms
        self._left: list[Arm] = []
        self.block = -1

    def now(self) -> Arm | None:
        """The arm of the segment that begins; the same again until it is `done`. None: no more."""
        if not self._left:
            self.block += 1
            self._left = list(self._arms(self._kind))
            random.Random(f"{self._seed}/{self._kind}/{self.block}").shuffle(self._left)
        return self._left[-1] if self._left else None

    def done(self) -> None:
        """The segment is complete."""
        self._left.pop()

    def break_off(self) -> None:
        """Begin a new block: the arms have changed."""
        self._left.clear()


class _Gaps:
    """From one tick to the next, for one kind of work: what is usual, and the longest."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.mean_cpu_s = 0.0
        self.longest_s = [0.0] * OFTEN  # CPU time: a thread that is only held up has no bursts

    def note(self, wall_s: float, cpu_s: float) -> None:
        """One more."""
        if not self.mean_s:
            self.mean_s, self.mean_cpu_s = wall_s, cpu_s
        self.mean_s += 0.02 * (wall_s - self.mean_s)
        self.mean_cpu_s += 0.02 * (cpu_s - self.mean_cpu_s)
        if cpu_s > self.longest_s[-1]:
            self.longest_s = sorted((*self.longest_s[:-1], cpu_s), reverse=True)

    def burst_s(self) -> float:
        """What the longest reach where they stand out; 0 where all are alike."""
        length_s = self.longest_s[-1]
        return length_s if length_s > BURST * self.mean_cpu_s else 0.0

    def forget(self) -> None:
        """A segment has ended: what was long once is less so."""
        self.longest_s = [FORGET * length_s for length_s in self.longest_s]


class Trial:
    """Takes the ticks of a training loop (env steps, updates) and gives segments."""

    def __init__(
        self,
        plan: Callable[[], tuple[Mapping[str, Toggle], Row]],
        orders: Callable[[], Ordered],
        write: Callable[[Row], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
        segment_s: float = SEGMENT_S,
        seed: int = 0,
        ask: Callable[[], None] = lambda: None,
        show: Callable[[Arm | None], None] = lambda arm: None,
    ):
        """`plan` is asked once, when training has begun: the toggles by name, and a row that says so.

        `ask` is called at the first tick, `show` at each switch, with all that is on, and at the end with
        None.
        """
        self.running = True
        self._planning = False
        self._plan, self._orders, self._write, self._clock = plan, orders, write, clock
        self._ask, self._show = ask, show
        self._cpu_clock, self._cpu_s = cpu_clock, 0.0
        self._gaps = {kind: _Gaps() for kind in _KINDS}
        self._segment_s = segment_s
        self._toggles: Mapping[str, Toggle] | None = None  # None until training has begun
        self._turns = {kind: Turns(kind, seed, self._arms) for kind in _KINDS}
        self._arm: Arm = ()
        self._active: Arm = ()  # all that is on: the base and the arm
        self._broken: set[str] = set()
        self._kind: Kind = "steps"
        self._last_kind: Kind | None = None
        self._first_s = self._last_s = self._cycle_began_s = 0.0
        self._cycle_s: float | None = None
        self._whole_cycles = False
        self._began_s: float | None = None  # None while settling after a switch
        self._switched_s = 0.0
        self._steps = self._updates = 0
        self._all_steps = self._all_updates = 0
        self._between_s = 0.0
        self._spent_s: dict[Kind, float] = dict.fromkeys(_KINDS, 0.0)  # in and out of segments
        self._ordered = Ordered()

    # -- ticks -----------------------------------------------------------------------------------

    def tick(self, env_steps: int, updates: int) -> None:
        """Some env steps or updates have just been done."""
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
        if self._toggles is None:
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
                self._gaps[kind].note(now_s - self._last_s, self._cpu_s - before_s)
                self._at_boundary(now_s)
        self._last_kind, self._last_s = kind, now_s
        if self._switched_s > now_s:  # what a switch takes (`gc` looks through all objects) is nobody's work
            self._last_s, self._cpu_s = self._switched_s, self._cpu_clock()

    def _note_cycle(self, now_s: float) -> None:
        self._cycle_s = now_s - self._cycle_began_s
        self._cycle_began_s = now_s
        whole = self._cycle_s <= (LONGER_CYCLE_S if self._whole_cycles else LONG_CYCLE_S)
        if whole != self._whole_cycles:
            self._whole_cycles = whole
            if self._toggles is not None:
                self._switch_to("cycles" if whole else "steps")

    def _at_boundary(self, now_s: float) -> None:
        """A place where a segment may begin or end."""
        if self._began_s is None:
            if now_s - self._switched_s >= SETTLE_SHARE * self._segment_s:
                self._begin(now_s)
        elif now_s - self._began_s >= self._length_s():
            self._gaps[self._kind].forget()
            turns = self._turns[self._kind]
            self._write(
                {
                    "at_s": now_s - self._first_s,
                    "kind": self._kind,
                    "block": turns.block,
                    "arm": list(self._arm),
                    "base": list(self._ordered.base),
                    "seconds": now_s - self._began_s,
                    "env_steps": self._steps,
                    "updates": self._updates,
                    "all_steps": self._all_steps,
                    "all_updates": self._all_updates,
                    "between_s": self._between_s,
                    "steps_s": self._spent_s["steps"],
                    "updates_s": self._spent_s["updates"],
                }
            )
            turns.done()
            self._switch_to(self._kind)

    def _length_s(self) -> float:
        return max(self._segment_s, min(self._gaps[self._kind].burst_s() * BURSTS, MOST_SEGMENT_S))

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._steps = self._updates = 0

    # -- switching -------------------------------------------------------------------------------

    def _start(self, kind: Kind) -> None:
        self._planning = True
        try:
            self._toggles, row = self._plan()
        finally:
            self._planning = False
        self._write(row)
        self._switch_to("cycles" if self._whole_cycles else kind)

    def _arms(self, kind: Kind) -> Sequence[Arm]:
        """The baseline and every arm that is to go on and can show in that kind of segment."""
        toggles, ordered = self._toggles or {}, self._ordered.arms
        if ordered is None:
            ordered = [(name,) for name in toggles]
        useless = self._broken | {name for name in toggles if toggles[name].between and kind != "cycles"}
        usable = [arm for arm in ordered if not self._broken & set(arm) and set(arm) - useless]
        return [(), *usable] if usable else []

    def _switch_to(self, kind: Kind) -> None:
        """The next arm of that kind; the time this takes is in no segment."""
        self._kind = kind
        ordered = self._orders()
        if ordered != self._ordered:
            self._ordered = ordered
            for turns in self._turns.values():
                turns.break_off()
        arm = self._turns[kind].now()
        if arm is None:
            self.stop()
            return
        self._arm = arm
        base = tuple(name for name in self._ordered.base if name not in arm and name not in self._broken)
        self._set((*base, *arm))
        self._began_s = None
        self._switched_s = self._clock()
        usual_s = (self._cycle_s or 0.0) if kind == "cycles" else self._gaps[kind].mean_s
        if usual_s > self._segment_s / 4:
            self._begin(self._switched_s)  # a whole cycle, or update, to settle in would cost too much

    def _set(self, arm: Arm) -> None:
        toggles = self._toggles or {}
        for name in [name for name in reversed(self._active) if name not in arm]:
            toggles[name].off()
        was, self._active = self._active, arm
        for name in [name for name in arm if name not in was]:
            try:
                toggles[name].on()
            except Exception as error:  # a library that has changed: the script must run all the same
                with contextlib.suppress(Exception):
                    toggles[name].off()
                self._active = tuple(other for other in self._active if other != name)
                self._broken.add(name)
                self._write({"broken": name, "error": repr(error)})
        self._show(self._active)

    def stop(self) -> None:
        """Everything off, for good."""
        if self.running:
            self.running = False
            self._set(())
            self._show(None)
            self._write({"stopped": True})

    def leave(self) -> None:
        """In a forked child, which is not timed: everything off here, and nobody is told."""
        self._write = lambda row: None
        self._show = lambda arm: None
        with contextlib.suppress(Exception):
            self.stop()
