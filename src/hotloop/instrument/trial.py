"""Inside the script of `hotloop try`: switches toggles while it trains and times each stretch.

A stretch under one arm (a set of toggles; none for the baseline) is a segment. Arms take turns in
blocks: every arm once, in random order. Segments are cut so that their work is alike:

- Where collecting and learning alternate quickly (less than four segments for a cycle), a segment is
  some whole cycles, from one first step after learning to another.
- Where they alternate slowly, collecting and learning are cut apart, each with turns of its own; what
  happens between them is in no segment and is summed up.

What is told to the parent lies in `trial.jsonl`; its orders (which arms to go on with) come back in
`trial-orders.json`, read at each switch. Nothing here judges.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hotloop.instrument import counting
from hotloop.instrument.toggles import Toggle, all_toggles
from hotloop.measure.profiler import default

FILE, ORDERS = "trial.jsonl", "trial-orders.json"
SEGMENT_S = 0.15
SETTLE_SHARE = 0.1  # of a segment: dropped after a switch
LONG_CYCLE, LONGER_CYCLE = 4, 6  # in segments: above, phases are cut apart; in between, it stays as it is
START_ANYWAY_S = 3.0  # with env steps but no update

Arm = tuple[str, ...]
Kind = Literal["steps", "updates", "cycles"]
Row = dict[str, Any]


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


class Trial:
    """Takes the ticks of a training loop (env steps, updates) and gives segments."""

    def __init__(
        self,
        plan: Callable[[], tuple[Mapping[str, Toggle], Row]],
        orders: Callable[[], Sequence[Arm] | None],
        write: Callable[[Row], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
        segment_s: float = SEGMENT_S,
        seed: int = 0,
    ):
        """`plan` is asked once, when training has begun: the toggles by name, and a row that says so.

        `orders` gives the arms beside the baseline, None for all toggles by themselves, () to stop.
        """
        self.running = True
        self._planning = False
        self._plan, self._orders, self._write, self._clock = plan, orders, write, clock
        self._segment_s = segment_s
        self._toggles: Mapping[str, Toggle] | None = None  # None until training has begun
        kinds: tuple[Kind, ...] = ("steps", "updates", "cycles")
        self._turns = {kind: Turns(kind, seed, self._arms) for kind in kinds}
        self._active: Arm = ()
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
        self._spent_s: dict[Kind, float] = dict.fromkeys(kinds, 0.0)  # in and out of segments
        self._ordered: Sequence[Arm] | None = None

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
        if cycle_ended:
            self._note_cycle(now_s)
        if self._toggles is None:
            if cycle_ended or now_s - self._first_s >= START_ANYWAY_S:
                self._start(kind)
                now_s = self._clock()  # looking for what applies takes a while
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
                self._at_boundary(now_s)
        self._last_kind, self._last_s = kind, now_s

    def _note_cycle(self, now_s: float) -> None:
        self._cycle_s = now_s - self._cycle_began_s
        self._cycle_began_s = now_s
        limit = LONGER_CYCLE if self._whole_cycles else LONG_CYCLE
        whole = self._cycle_s <= limit * self._segment_s
        if whole != self._whole_cycles:
            self._whole_cycles = whole
            if self._toggles is not None:
                self._switch_to("cycles" if whole else "steps")

    def _at_boundary(self, now_s: float) -> None:
        """A place where a segment may begin or end."""
        if self._began_s is None:
            if now_s - self._switched_s >= SETTLE_SHARE * self._segment_s:
                self._begin(now_s)
        elif now_s - self._began_s >= self._segment_s:
            turns = self._turns[self._kind]
            self._write(
                {
                    "at_s": now_s - self._first_s,
                    "kind": self._kind,
                    "block": turns.block,
                    "arm": list(self._active),
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
        toggles, ordered = self._toggles or {}, self._ordered
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
        self._set(arm)
        self._began_s = None
        self._switched_s = self._clock()
        if kind == "cycles" and (self._cycle_s or 0.0) > self._segment_s / 4:
            self._begin(self._switched_s)  # a whole cycle to settle in would cost too much

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

    def stop(self) -> None:
        """Everything off, for good."""
        if self.running:
            self.running = False
            self._set(())
            self._write({"stopped": True})


# -- in the script's process -------------------------------------------------------------------------


def plan_of(only: Sequence[str] = ()) -> tuple[Mapping[str, Toggle], Row]:
    """The toggles that apply now, and the row that tells of all of them."""
    usable: dict[str, Toggle] = {}
    told, left_out = [], {}
    for toggle in all_toggles():
        if only and toggle.name not in only:
            continue
        reason = toggle.why_not()
        if reason is not None:
            left_out[toggle.name] = reason
            continue
        usable[toggle.name] = toggle
        fields = ("name", "line", "why", "needs", "place", "between", "conflicts")
        told.append({field: getattr(toggle, field) for field in fields})
    return usable, {"toggles": told, "left_out": left_out}


def begin_trial(options: dict[str, Any], folder: Path) -> Callable[[], None]:
    """Begin; returns what ends it. Called in the script's own process, before the script."""
    file = open(folder / FILE, "a", encoding="utf-8")  # noqa: SIM115
    orders_file = folder / ORDERS

    def write(row: Row) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk
            file.write(json.dumps(row) + "\n")
            file.flush()

    def orders() -> Sequence[Arm] | None:
        try:
            ordered = json.loads(orders_file.read_text(encoding="utf-8"))["arms"]
        except (OSError, ValueError, KeyError):
            return None
        return [tuple(arm) for arm in ordered]

    trial = Trial(
        lambda: plan_of(options.get("only", ())),
        orders,
        write,
        segment_s=options.get("segment_s", SEGMENT_S),
        seed=options.get("seed", 0),
    )
    end = _listen(trial, write)
    atexit.register(end)
    return end


def _listen(trial: Trial, write: Callable[[Row], None]) -> Callable[[], None]:
    """Hear of every env step and update by way of `progress`; returns what ends that."""
    plain = default.progress
    hotloop: Any = sys.modules["hotloop"]
    owner: int | None = None

    def progress(*, env_steps: int = 0, updates: int = 0, **words: Any) -> None:
        nonlocal owner
        plain(env_steps=env_steps, updates=updates, **words)
        if not (env_steps or updates):
            return
        thread = threading.get_ident()
        if owner is None:
            owner = thread
        if thread == owner:  # the thread that trains; a second one would cut the segments to pieces
            try:
                trial.tick(env_steps, updates)
            except Exception as error:
                write({"failed": repr(error)})
                end()

    def end() -> None:
        with contextlib.suppress(Exception):
            trial.stop()
        default.progress = counting._progress = hotloop.progress = plain

    default.progress = counting._progress = hotloop.progress = progress
    os.register_at_fork(after_in_child=lambda: _leave(trial))
    return end


def _leave(trial: Trial) -> None:
    """In a forked child: it is not the one that is timed, and writes nothing."""
    if trial.running:
        trial._write = lambda row: None
        with contextlib.suppress(Exception):
            trial.stop()
