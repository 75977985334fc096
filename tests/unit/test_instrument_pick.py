"""`Region.wrap(pick=...)` and the observations a step counter keeps: both cores agree."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from hotloop import Profiler
from hotloop.measure.twin.region import ASK_EVERY


class Env:
    pass


class Asked:
    """A `pick` that notes what it was asked and answers with the regions it was given, in turn."""

    def __init__(self, *answers: Any):
        self.answers = list(answers)
        self.calls: list[tuple[int, int, tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, path: int, previous: int, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((path, previous, args, kwargs))
        return self.answers[len(self.calls) - 1] if len(self.calls) <= len(self.answers) else self.answers[-1]


def calls(profiler: Profiler) -> dict[str, int]:
    return {name: stats.calls for name, stats in profiler.stats().items() if stats.calls}


def test_the_region_is_the_one_that_pick_returns(profiler: Profiler) -> None:
    first, second = profiler.profile("first"), profiler.profile("second")
    pick = Asked(first, second, None, second)
    wrapped = first.wrap(lambda *args, **kwargs: (args, kwargs), pick=pick)
    for number in range(4):
        assert wrapped(number, word=number) == ((number,), {"word": number})
    assert calls(profiler) == {"first": 1, "second": 2}
    assert [call[2:] for call in pick.calls] == [((n,), {"word": n}) for n in range(4)]


def test_the_path_names_the_lines_that_led_to_the_call(profiler: Profiler) -> None:
    region = profiler.profile("region")
    pick = Asked(region)
    wrapped = region.wrap(lambda: None, pick=pick)

    def shared() -> None:
        wrapped()

    def acting() -> None:
        shared()

    def learning() -> None:
        shared()

    for _ in range(2):
        acting()
        learning()
        wrapped()
    paths = [call[0] for call in pick.calls]
    assert paths[:3] == paths[3:] and len(set(paths)) == 3 and 0 not in paths
    assert [call[1] for call in pick.calls[1:]] == paths[:-1]


def test_a_settled_path_is_checked_only_now_and_then(profiler: Profiler) -> None:
    first, second = profiler.profile("first"), profiler.profile("second")
    settled: dict[int, Any] = {}

    def pick(path: int, previous: int) -> Any:
        asked.append(path)
        settled[path] = second
        return first

    asked: list[int] = []
    wrapped = first.wrap(lambda: None, pick=pick, settled=settled)
    for _ in range(1000):
        wrapped()
    assert len(asked) == 1 + 1000 // ASK_EVERY
    assert calls(profiler) == {"first": 4, "second": 996}


def test_always_and_never_come_before_pick(profiler: Profiler) -> None:
    here, there, loop, train = (profiler.profile(name) for name in ("here", "there", "loop", "train"))
    wrapped = here.wrap(lambda: None, pick=Asked(there), always=(train,), never=(loop,), otherwise=there)
    with train:
        wrapped()
    with loop:
        wrapped()
    wrapped()
    assert calls(profiler) == {"here": 1, "there": 2, "loop": 1, "train": 1}


def test_an_error_in_pick_does_not_reach_the_caller(
    profiler: Profiler, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("hotloop._util.interrupts._reported", set())
    region = profiler.profile("region")

    def pick(path: int, previous: int) -> Any:
        raise RuntimeError("no")

    assert region.wrap(lambda: "result", pick=pick)() == "result"
    assert calls(profiler) == {"region": 1}
    assert "RuntimeError: no\n" in capsys.readouterr().err


def test_the_last_observation_of_each_env_is_kept(profiler: Profiler) -> None:
    counter = profiler.step_counter(1, (2, 3))
    envs = [Env() for _ in range(20)]
    counter.forget(envs[0], ("reset", {}))
    assert counter.recent() == [(id(envs[0]), "reset", 1)]
    for number, env in enumerate(envs):
        counter(env, (f"step {number}", 1.0, False, False, {}))
    counter(envs[7], ("once more", 1.0, False, False, {}))
    recent = counter.recent()
    assert [entry[:2] for entry in recent[:3]] == [
        (id(envs[7]), "once more"),
        (id(envs[19]), "step 19"),
        (id(envs[18]), "step 18"),
    ]
    assert len(recent) == 16 and [e[2] for e in recent] == sorted((e[2] for e in recent), reverse=True)
    assert counter.calls == 21
    counter.drop()
    assert counter.recent() == []


def test_a_step_tells_which_picked_call_came_before_it(profiler: Profiler) -> None:
    region = profiler.profile("region")
    pick = Asked(region)
    wrapped = region.wrap(lambda: None, pick=pick)
    counter = profiler.step_counter(1, (2, 3))
    step = profiler.profile("env_step").wrap(lambda env: (0, 1.0, False, False, {}), after=counter)
    env = Env()
    wrapped()
    wrapped()
    step(env)
    assert counter.path == pick.calls[-1][0] != pick.calls[0][0]
    wrapped()
    assert pick.calls[-1][1] == 0  # an env step came in between
    step(env)
    step(env)  # with the same action
    assert counter.path == pick.calls[-1][0]


def test_the_next_step_is_told_once_with_its_action(profiler: Profiler) -> None:
    told: list[Any] = []
    counter = profiler.step_counter(1, (2, 3))
    step = profiler.profile("env_step").wrap(lambda env, *action: (0, 1.0, False, False, {}), after=counter)
    env = Env()
    for action in range(3):
        step(env, action)
    counter.on_step = lambda *given: told.append(given)
    step(env, "action")
    assert told == [(env, "action")] and counter.on_step is None
    step(env, "next")
    counter.on_step = lambda *given: told.append(given)
    step(env)
    assert told[1:] == [(env, None)] and counter.calls == 6


def test_an_error_while_told_of_a_step_does_not_reach_the_caller(
    profiler: Profiler, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("hotloop._util.interrupts._reported", set())

    def told(env: Any, action: Any) -> None:
        raise RuntimeError("no")

    counter = profiler.step_counter(1, (2, 3))
    counter.on_step = told
    step = profiler.profile("env_step").wrap(lambda env: (0, 1.0, False, False, {}), after=counter)
    assert step(Env()) and counter.calls == 1
    assert "RuntimeError: no\n" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["one", "rows"])
def test_observations_are_kept_on_the_short_way_too(profiler: Profiler, kind: str) -> None:
    """The compiled core has a short way for the usual step of the same env as before."""

    class Observation:
        pass

    counter = profiler.step_counter(1, (2, 3))
    gained, over = (1.0, False) if kind == "one" else (np.ones(2), np.zeros(2, dtype=bool))
    step = profiler.profile("env_step").wrap(
        lambda env: (Observation(), gained, over, over, {}), after=counter
    )
    env = Env()
    gone: list[weakref.ref[Observation]] = []
    for number in range(1, 5):
        gone.append(weakref.ref(step(env)[0]))
        assert counter.recent() == [(id(env), gone[-1](), number)] and counter.calls == number
    gc.collect()
    assert [ref() is None for ref in gone] == [True, True, True, False]
