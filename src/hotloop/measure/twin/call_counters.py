"""What follows wrapped calls and mostly only counts; `compiled/call_counters.h` is the same in C."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotloop._util.interrupts import is_users

if TYPE_CHECKING:
    from hotloop.measure.twin.recorder import Recorder
    from hotloop.measure.twin.step_counter import StepCounter

TELL_EVERY = 256  # steps
RETIRED_AFTER = 4  # env steps between which others step, but not the one that counts


class CallCounter:
    """Counts calls; from the call `due` on, it calls `callback(object, result)`, which sets `due` again."""

    def __init__(self, callback: Callable[[Any, Any], object], due: int = 1):
        self.calls = 0
        self.due = due
        self.called_out = False
        self._callback = callback

    def __call__(self, first: Any, result: Any) -> None:
        """Count a call."""
        self.calls += 1
        self.called_out = self.calls >= self.due
        if self.called_out:
            self._callback(first, result)


def _nothing() -> None:
    """What a weak reference to an object that is gone returns."""


@dataclass(slots=True)
class Stepped:
    """An optimizer, say."""

    weak: Callable[[], Any] = _nothing  # the object, as long as it lives
    total: int = 0
    steps: int = 0  # in this training
    since: int = 0  # since the last step of the one that counts


class UpdateCounter:
    """Counts updates from the steps of several optimizers.

    The one that has made the most steps counts, and the others follow it. When it rests while others go on
    through several env steps, a new training has begun (another algorithm in the same script), and the
    counts start anew.

    `on_new(object)` is called before the first step of each, `on_many()` after every 256th step of any.
    `step_counters` is a list of all that count env steps, which may grow.
    """

    def __init__(
        self,
        recorder: Recorder,
        step_counters: list[StepCounter],
        on_new: Callable[[Any], object],
        on_many: Callable[[], object],
    ):
        self.paused = False
        self.most = 0  # steps of the one that counts, in this training
        self.called_out = False
        self._recorder = recorder
        self._step_counters = step_counters
        self._on_new = on_new
        self._on_many = on_many
        self._known: dict[int, Stepped] = {}
        self._others = False  # stepped since the last step of the one that counts
        self._rested = 0  # different numbers of env steps seen since then
        self._rested_at = -1
        self._until_told = 0

    def __call__(self, one: Any, result: Any) -> None:
        """`one` made a step."""
        self.called_out = False
        if self.paused:
            return
        known = self._known.setdefault(id(one), Stepped())
        if known.weak() is not one:
            self._meet(known, one)
            known = self._known.setdefault(id(one), known)  # that may have forgotten all
        known.total += 1
        known.steps += 1
        updates = 0
        if known.steps > self.most:
            self.most = known.steps
            if self._others:
                for other in self._known.values():
                    other.since = 0
                self._rested, self._others = 0, False
            updates = 1
        else:
            known.since += 1
            self._others = True
            now = sum(counter.calls for counter in self._step_counters)
            if now != self._rested_at:
                self._rested_at = now
                self._rested += 1
                if self._rested > RETIRED_AFTER:
                    updates = self._retire()
        if updates:
            self._recorder.progress(updates=updates)
        self._until_told += 1
        if self._until_told >= TELL_EVERY:
            self._until_told, self.called_out = 0, True
            self._on_many()

    def _meet(self, known: Stepped, one: Any) -> None:
        try:
            known.weak = weakref.ref(one)
        except TypeError as error:  # its class may forbid weak references
            if is_users(error):
                raise
            known.weak = _nothing
        self.called_out = True
        self._on_new(one)

    def _retire(self) -> int:
        """Let those that still step count, from the last step of the one that counted so far."""
        for known in self._known.values():
            known.steps, known.since = known.since, 0
        self.most = max(known.steps for known in self._known.values())
        self._rested, self._others = 0, False
        return self.most

    def begin(self) -> None:
        """A new training begins: its first step is an update, whatever came before."""
        for known in self._known.values():
            known.steps = known.since = 0
        self.most = self._rested = 0
        self._others = False

    def forget(self) -> None:
        """Forget every object; each is new again."""
        self.begin()
        self._known.clear()

    def steps(self, key: int) -> int:
        """All steps of the object with that id."""
        known = self._known.get(key)
        return known.total if known is not None else 0
