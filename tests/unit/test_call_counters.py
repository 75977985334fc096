"""Counters that follow wrapped calls: both cores agree, and Python is called only when it is due."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop import Profiler
from hotloop.measure import core_choice
from hotloop.measure.twin.call_counters import TELL_EVERY


class Optimizer:
    pass


class Slotted:
    __slots__ = ()


def test_a_call_counter_calls_python_from_the_call_on_that_is_due(profiler: Profiler) -> None:
    told: list[tuple[int, Any, Any]] = []

    def callback(first: Any, result: Any) -> None:
        told.append((counter.calls, first, result))
        counter.due = counter.calls + 3

    counter = profiler.call_counter(callback)
    step = profiler.profile("step").wrap(lambda one: -one, after=counter)
    for number in range(8):
        assert step(number) == -number
    assert told == [(1, 0, 0), (4, 3, -3), (7, 6, -6)]
    counter.due = 0
    counter("a", "b")
    assert told[-1] == (9, "a", "b") and counter.calls == 9
    stats = profiler.stats()
    assert stats["step"].calls == 8
    assert stats["hotloop_hooks"].calls == 3  # only where Python was called


def test_an_error_in_the_callback_is_reported_and_not_raised(
    profiler: Profiler, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop._util.interrupts._reported", set())

    def callback(first: Any, result: Any) -> None:
        raise RuntimeError("no")

    step = profiler.profile("step").wrap(lambda: "result", after=profiler.call_counter(callback))
    assert step() == "result"
    assert "RuntimeError: no" in capsys.readouterr().err


def test_an_update_counter_follows_the_optimizer_with_most_steps(profiler: Profiler) -> None:
    new: list[Any] = []
    many: list[int] = []
    env_steps = profiler.step_counter(1, (2, 3))
    counters: list[Any] = []
    updates = profiler.update_counter(counters, on_new=new.append, on_many=lambda: many.append(1))
    counters.append(env_steps)  # the list may grow
    step = profiler.profile("step").wrap(lambda one: None, after=updates)
    critic, actor = Optimizer(), Optimizer()
    for _ in range(TELL_EVERY):
        step(critic)
        step(actor)
        env_steps(profiler, ("observation", 1.0, False, False, {}))
    assert new == [critic, actor] and len(many) == 2
    assert profiler.capture().progress.updates == updates.most == TELL_EVERY
    assert [updates.steps(id(one)) for one in (critic, actor, new)] == [TELL_EVERY, TELL_EVERY, 0]
    assert profiler.stats()["hotloop_hooks"].calls == 4
    updates.paused = True
    step(critic)
    assert updates.most == TELL_EVERY
    updates.paused = False
    updates.begin()
    step(actor)
    assert updates.most == 1 and profiler.capture().progress.updates == TELL_EVERY + 1
    updates.forget()
    step(critic)
    assert new == [critic, actor, critic] and updates.steps(id(critic)) == 1


def test_another_object_in_the_same_place_is_new(profiler: Profiler) -> None:
    new: list[int] = []
    updates = profiler.update_counter([], on_new=lambda one: new.append(id(one)), on_many=lambda: None)
    for _ in range(20):
        updates(Optimizer(), None)
        gc.collect()
    assert len(new) == 20
    one = Slotted()  # cannot be told from another in its place
    updates(one, None)
    updates(one, None)
    assert len(new) == 22


def test_an_update_counter_that_forgets_while_it_meets_an_object(profiler: Profiler) -> None:
    updates: Any = None
    updates = profiler.update_counter([], on_new=lambda one: updates.forget(), on_many=lambda: None)
    one = Optimizer()
    updates(one, None)
    assert updates.steps(id(one)) == updates.most == 1


ONES = {name: Optimizer() for name in "qaxb"}


def outcome(core: core_choice.CoreName, events: str) -> list[Any]:
    profiler = Profiler(core_name=core)
    new: list[Any] = []
    env_steps = profiler.step_counter(1, (2,))
    updates = profiler.update_counter([env_steps], on_new=new.append, on_many=lambda: new.append("many"))
    profiler.start()
    seen = []
    for event in events:
        if event == ".":
            env_steps(ONES, (0, 1.0, False))
        elif event == "!":
            updates.begin()
        else:
            updates(ONES[event], None)
        seen.append(updates.most)
    profiler.stop()
    return [seen, profiler.capture().progress.updates, new, [updates.steps(id(one)) for one in ONES.values()]]


@pytest.mark.skipif(core_choice.compiled is None, reason="the compiled core is not available")
@given(st.text(alphabet="qaxb.!", max_size=40))
def test_both_cores_count_the_same_updates(events: str) -> None:
    assert outcome("compiled", events) == outcome("python", events)
