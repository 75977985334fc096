"""Steps and episodes counted from what a step returns: both cores agree on every form it may have."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import Profiler
from hotloop.instrument.step_counting import plain_numbers
from hotloop.measure.core_choice import CoreName
from hotloop.measure.profiler import default
from hotloop.testing.fakes import FakeClock


class Env:
    num_envs = 3


def counted(profiler: Profiler) -> tuple[int, int, float, float]:
    """Env steps, episodes, sums of their returns and lengths."""
    p = profiler.capture().progress
    return p.env_steps, p.episodes, p.return_sum, p.length_sum


def gym(reward: Any, terminated: Any, truncated: Any = False) -> tuple[Any, ...]:
    return "observation", reward, terminated, truncated, {}


class Broken:
    """Offers a buffer of a kind nobody reads."""

    def __buffer__(self, flags: int) -> memoryview:
        raise BufferError("not today")


@pytest.mark.parametrize(
    "flag",
    [bool, int, float, np.bool_, np.uint8, lambda v: np.array(v), lambda v: np.array(v, dtype=np.int64)],
    ids=["bool", "int", "float", "numpy bool", "uint8", "0-d bool array", "0-d int array"],
)
@pytest.mark.parametrize(
    "number", [float, int, np.float64, np.float32, lambda v: np.array(v, dtype=np.float32)]
)
def test_one_env(profiler: Profiler, flag: Any, number: Any) -> None:
    count = profiler.step_counter(1, (2, 3))
    env = Env()
    for step in range(1, 8):
        count(env, gym(number(2), flag(step == 3), flag(step == 7)))
    assert counted(profiler) == (7, 2, 14.0, 7.0)


@pytest.mark.parametrize("dtype", ["?", "b", "u1", "i8", "f4"])
@pytest.mark.parametrize("rewards", ["f4", "f8", "i4"])
def test_rows_of_many(profiler: Profiler, dtype: str, rewards: str) -> None:
    count = profiler.step_counter(1, (2,))
    env = Env()
    gains = np.array([[1, 2, 3]] * 4, dtype=rewards)
    ends = np.zeros((4, 3), dtype=dtype)
    ends[1, 0] = ends[3, 2] = 1
    for step in range(4):
        result: tuple[Any, ...] = (None, gains[step], ends[:, :][step], [{}] * 3)
        count(env, result)
        gains[step] += 100  # what was returned is the caller's to change
    assert counted(profiler) == (12, 2, 2 * 1 + 4 * 3, 2 + 4)


def test_arrays_with_strides_are_read_where_they_are(profiler: Profiler) -> None:
    count = profiler.step_counter(1, (2,))
    table = np.zeros((3, 2))
    table[:, 0] = 1, 2, 3
    table[1, 1] = 1
    count(Env(), (None, table[::-1, 0], table[::-1, 1], None))
    assert counted(profiler) == (3, 1, 2.0, 1.0)


def test_a_row_that_is_only_reset_does_not_count_as_a_step(profiler: Profiler) -> None:
    asked = []

    def costs(env: Any) -> bool:
        asked.append(env)
        return True

    count = profiler.step_counter(1, (2, 3), resets_cost_a_step=costs)
    env, no = Env(), np.zeros(2, dtype=bool)
    count(env, gym(np.array([1.0, 1.0]), np.array([True, False]), no))
    count(env, gym(np.array([9.0, 1.0]), no, no))  # row 0 is reset
    count(env, gym(np.array([5.0, 1.0]), no, np.array([True, True])))
    assert counted(profiler) == (5, 3, 1.0 + 5.0 + 3.0, 1 + 1 + 3)
    assert asked == [env]


def test_an_env_may_be_left_out_until_its_next_reset(profiler: Profiler) -> None:
    answers: list[bool | None] = [False, None, False]
    count = profiler.step_counter(1, (2, 3), resets_cost_a_step=lambda env: answers.pop(0))
    step = profiler.profile("step").wrap(lambda env, result: result, after=count)
    env = Env()
    for _ in range(3):
        step(env, gym(1.0, False, False))
    count.forget(env, ("reset", {}))
    for _ in range(4):
        step(env, gym(1.0, False, False))
    step(env, gym(1.0, True, False))
    assert counted(profiler)[:2] == (3, 0) and count.calls == 8
    count.forget(env, ("reset", {}))
    step(env, gym(2.0, True, False))
    assert counted(profiler) == (4, 1, 2.0, 1.0)


def test_episode_sums_can_come_from_a_callback(profiler: Profiler) -> None:
    answers: list[Any] = [(50.0, 7.0), None]
    seen = []

    def told(env: Any, result: Any, rows: list[int]) -> Any:
        seen.append((result[3], rows))
        return answers.pop(0)

    count = profiler.step_counter(1, (2,), episode_sums=told)
    env, ends = Env(), np.array([True, False, True])
    count(env, (None, np.ones(3), np.zeros(3, dtype=bool), "infos"))
    count(env, (None, np.ones(3), ends, "infos"))
    assert counted(profiler) == (6, 2, 50.0, 7.0)
    count(env, (None, "not read any more", ends, "infos"))  # it does not know: then nobody knows the returns
    progress = profiler.capture().progress
    assert counted(profiler) == (9, 4, 50.0, 7.0 + 2.0) and progress.return_count == 2
    assert seen == [("infos", [0, 2])] * 2


def test_an_error_of_other_code_is_reported_and_the_step_is_counted(
    profiler: Profiler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop._util.interrupts._reported", set())

    def no_sums(*args: Any) -> Any:
        raise ZeroDivisionError("no sums")

    def no_answer(*args: Any) -> Any:
        raise ZeroDivisionError("no answer")

    count = profiler.step_counter(1, (2,), episode_sums=no_sums, resets_cost_a_step=no_answer)
    count(Env(), (None, 2.0, True, {}))
    count(Env(), (None, 2.0, True, {}))
    assert counted(profiler) == (2, 2, 4.0, 2.0)
    said = capsys.readouterr().err
    assert said.count("ZeroDivisionError: no sums\n") == said.count("ZeroDivisionError: no answer\n") == 1


ODD: list[Any] = [
    None,
    [None, 1.0, False, False, {}],
    ("observation", 1.0),
    ("observation", 1.0, False),
    gym(1.0, [False]),
    gym(1.0, None),
    gym("1", False),
    gym(10**400, False),
    gym(Broken(), False),
    gym(1.0, np.zeros(3, dtype=bool)),
    gym(np.ones(3), np.zeros(2, dtype=bool), np.zeros(3, dtype=bool)),
    gym(np.ones(3), np.zeros(3, dtype=bool), False),
    gym(np.ones((3, 1)), np.zeros((3, 1), dtype=bool), np.zeros((3, 1), dtype=bool)),
    gym(np.ones(3, dtype=complex), np.zeros(3, dtype=bool), np.zeros(3, dtype=bool)),
    gym(np.ones(3, dtype=">f8"), np.zeros(3, dtype=bool), np.zeros(3, dtype=bool)),
    gym(torch.ones(3), torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)),
]


@pytest.mark.parametrize("result", ODD, ids=range(len(ODD)))
def test_unknown_results_are_passed_to_on_unknown(profiler: Profiler, result: Any) -> None:
    seen = []
    count = profiler.step_counter(1, (2, 3), on_unknown=lambda env, result: seen.append((env, result)))
    env = Env()
    count(env, result)
    assert counted(profiler)[:2] == (0, 0)
    assert seen[0][0] is env and seen[0][1] is result
    profiler.step_counter(1, (2, 3))(env, result)  # nobody to ask: not counted, and no error
    assert counted(profiler)[0] == 0


def test_added_by_hand_it_is_the_same_episode(profiler: Profiler) -> None:
    count = profiler.step_counter(1, (2, 3))
    env = Env()
    count(env, gym(1.5, False))
    count.add(env, [2.5], [0])
    count.add(env, (1,), (True,))
    assert counted(profiler) == (3, 1, 5.0, 3.0)
    with pytest.raises(ValueError, match=r"as many rewards \(2\) as ends \(1\)"):
        count.add(env, [1, 2], [True])
    with pytest.raises((TypeError, ValueError)):
        count.add(env, ["a"], [True])
    count.add(env, [1.0], [True])
    assert counted(profiler)[1] == 2


def test_another_width_or_a_reset_starts_over(profiler: Profiler) -> None:
    count = profiler.step_counter(1, (2,))
    env, other = Env(), Env()
    count(env, (None, 5.0, False, {}))
    count(other, (None, 1.0, False, {}))
    count.forget(env, "what reset returned")
    count(env, (None, 1.0, True, {}))
    count(other, (None, 1.0, True, {}))
    assert counted(profiler) == (4, 2, 1.0 + 2.0, 1 + 2)
    count(env, (None, np.array([1.0, 1.0]), np.array([True, False]), {}))
    assert counted(profiler) == (6, 3, 4.0, 4.0)
    count.forget(Env())  # never seen


def test_nothing_is_counted_when_it_is_off_inside_a_region_or_while_nothing_records(
    core: CoreName, clock: FakeClock
) -> None:
    profiler = Profiler(clock=clock, core_name=core)
    evaluate = profiler.profile("evaluate")
    count = profiler.step_counter(1, (2, 3), skip_inside=evaluate)
    env, result = Env(), gym(1.0, True)
    count(env, result)
    assert count.calls == 0
    profiler.start()
    with evaluate:
        count(env, result)
    assert count.calls == 1 and counted(profiler)[0] == 0  # its observation is kept all the same
    count.counting = False
    count(env, result)
    assert counted(profiler)[0] == 0
    count.counting = True
    count(env, result)
    assert counted(profiler) == (1, 1, 1.0, 1.0)
    reported = []
    count.report = lambda **words: reported.append(words)
    count(env, gym(2.0, False))
    count(env, result)
    assert counted(profiler)[0] == 1
    assert reported == [
        {"env_steps": 1},
        {"env_steps": 1, "episodes": 1, "episode_return": 3.0, "episode_length": 2.0},
    ]
    profiler.stop()


@pytest.mark.parametrize("ends", [(), (1, 2, 3, 4, 5), (-1,)])
def test_invalid_positions_are_refused(profiler: Profiler, ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one to four places"):
        profiler.step_counter(1, ends)


def test_callbacks_after_a_call_count_as_our_own_time(profiler: Profiler, clock: FakeClock) -> None:
    env_step, outer = profiler.profile("env_step"), profiler.profile("collect")

    def step(env: Any) -> Any:
        clock.advance(10)
        return gym(1.0, False)

    def slow(first: Any, result: Any) -> None:
        clock.advance(3)

    plain = env_step.wrap(step, after=profiler.step_counter(1, (2, 3)))
    wrapped = env_step.wrap(step, after=slow)
    asks = env_step.wrap(step, after=profiler.step_counter(0, (1,), on_unknown=slow))
    with outer:
        plain(Env())  # a counter that asks nobody costs as little as a region
        wrapped(Env())
        asks(Env())
        clock.advance(100)
    stats = profiler.stats()
    assert stats["env_step"].total_ns == 30
    assert (stats["hotloop_hooks"].calls, stats["hotloop_hooks"].total_ns) == (2, 6)
    assert (stats["collect"].total_ns, stats["collect"].own_ns) == (136, 100)
    assert counted(profiler)[0] == 1


def test_hooks_are_not_in_the_gaps_of_a_flat_script(core: CoreName, clock: FakeClock) -> None:
    from hotloop.measure.core_shared import RECORD_GAPS

    profiler = Profiler(clock=clock, core_name=core).start()
    profiler.recorder.flags |= RECORD_GAPS
    profiler.recorder.name_gap = lambda a, b: profiler.profile(f"{a.name}..{b.name}")
    step = profiler.profile("a").wrap(lambda: clock.advance(1), after=lambda first, result: clock.advance(2))
    for _ in range(3):
        step()
        clock.advance(5)
    stats = profiler.stats()
    assert (stats["a..a"].calls, stats["a..a"].total_ns) == (2, 10)
    assert (stats["hotloop_hooks"].calls, stats["hotloop_hooks"].total_ns) == (3, 6)
    profiler.stop()


def result_of(data: st.DataObject, width: int) -> Any:
    """What a step may return: mostly nothing ends at it, and mostly it has the form of the ones before."""
    ends = st.lists(st.sampled_from([False] * 4 + [True]), min_size=width, max_size=width)
    rewards = st.lists(st.floats(-10, 10, width=32), min_size=width, max_size=width)
    form = data.draw(st.sampled_from(["f4", "f4", "f8", "i4", "list"]))
    if form == "list":
        return gym(data.draw(rewards), data.draw(ends), data.draw(ends))
    reward, terminated, truncated = (
        np.array(data.draw(rewards)).astype(form), *(np.array(data.draw(ends), dtype=bool) for _ in range(2))
    )  # fmt: skip
    if width == 1 and data.draw(st.booleans()):
        flag = data.draw(st.sampled_from([bool, np.bool_, int]))
        number = data.draw(st.sampled_from([float, np.float64, np.float32, int]))
        return gym(number(reward[0]), flag(terminated[0]), flag(truncated[0]))
    return gym(reward, terminated, truncated)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_both_cores_count_the_same(data: st.DataObject) -> None:
    """After a wrapped call, where the compiled core has a short cut for steps at which nothing ends."""
    width = data.draw(st.sampled_from([0, 1, 1, 2, 4]))
    costs, knows = data.draw(st.sampled_from([False, True, None])), data.draw(st.booleans())
    results = [
        (data.draw(st.integers(0, 4)), result_of(data, width)) for _ in range(data.draw(st.integers(1, 20)))
    ]
    found = []
    for name in ("compiled", "python"):
        profiler = Profiler(clock=FakeClock(), core_name=name).start(memory=False)
        evaluate = profiler.profile("evaluate")
        count = profiler.step_counter(
            1, (2, 3), resets_cost_a_step=lambda env: costs, skip_inside=evaluate,
            episode_sums=lambda env, result, rows: (len(rows) * 2.0, 8.0) if knows else None,
        )  # fmt: skip
        step = profiler.profile("step").wrap(lambda env, result: result, after=count)
        envs = [Env(), Env()]
        for how, result in results:
            if how == 1:
                count.forget(envs[1], ("reset", {}))
            if how == 2:
                count.forget(envs[0])
            with evaluate if how == 3 else nullcontext():
                step(envs[how == 4], result)
        hooks = profiler.stats().get("hotloop_hooks")
        recent = [(env == id(envs[1]), *kept) for env, *kept in count.recent()]
        found.append((counted(profiler), hooks.calls if hooks else 0, count.calls, recent))
        profiler.stop()
    assert found[0] == found[1]


class Kind(np.ndarray[Any, Any]):
    """A subclass: its memory need not be what its fields say."""


def arrays() -> list[Any]:
    """Arrays of every type that is read, of some that are not, and in every form."""
    values = np.array([0, 1, 1, 0, 1, 0])
    read = [values.astype(dtype) for dtype in "?bBhHiIlLqQfd"]
    frozen = values.astype("f4")
    frozen.flags.writeable = False
    return [
        *read,
        *(values.astype(dtype) for dtype in ("e", "g", "F", ">f4", ">i8", "O", "U1", "S1", "M8[s]")),
        values[::2], values[::-1], values.astype("f4")[1::3], frozen, values[:0], values.view(Kind),
        values.reshape(2, 3), values.reshape(6, 1), np.array(2.5), np.array(True), np.float32(1.5),
        np.rec.array(values), np.ma.masked_array(values, values == 0),
        np.broadcast_to(np.float32(3), 6), np.frombuffer(b"\x00\x01\x01", dtype="?"), memoryview(values),  # type: ignore[arg-type]
    ]  # fmt: skip


def gained(core: CoreName, array: Any) -> Any:
    """What a core counts for steps that return this array as rewards, as ends, or as both."""
    profiler = Profiler(clock=FakeClock(), core_name=core).start(memory=False)
    odd: list[Any] = []
    count = profiler.step_counter(0, (1,), on_unknown=lambda env, result: odd.append(env))
    step = profiler.profile("step").wrap(lambda env, *result: result, after=count)
    env, size = Env(), np.size(array)
    nothing, everything = np.zeros(size, dtype=bool), np.ones(size, dtype=bool)
    for ends in (array, nothing, nothing, nothing[::-1], everything):  # a short cut from the second one on
        step(env, array, ends)
    step(env, nothing.astype(float), array)
    found = counted(profiler)
    profiler.stop()
    return found, len(odd)


def test_arrays_of_every_kind_are_read_the_same() -> None:
    """The compiled core reads the fields of NumPy's arrays; Python asks for their buffer."""
    found = {core: [gained(core, array) for array in arrays()] for core in ("compiled", "python")}
    assert found["compiled"] == found["python"]
    # three rows end in the first and the last step, all in the fifth
    assert found["python"][:13] == [((36, 12, 15.0, 33.0), 0)] * 13
    assert len([one for one in found["python"] if one[1] == 6]) >= 8


def test_wrapped_calls_choose_their_region_in_the_order_never_always_choose(profiler: Profiler) -> None:
    mine, other, around, aside, inner = (
        profiler.profile(n) for n in ("mine", "other", "around", "aside", "inner")
    )
    train, rollout = profiler.profile("train"), profiler.profile("rollout")
    answers = [True, True]
    asked: list[int] = []

    def question(at: int) -> Any:
        return lambda: (asked.append(at), answers[at])[1]

    call = mine.wrap(
        lambda: None,
        outer=around,
        no_outer_inside=(inner,),
        choose=(question(0), question(1)),
        always=(train,),
        never=(rollout,),
        otherwise=other,
        otherwise_outer=aside,
    )

    def calls() -> tuple[int, ...]:
        stats = profiler.stats()
        return tuple(stats[n].calls if n in stats else 0 for n in ("mine", "around", "other", "aside"))

    call()
    assert calls() == (1, 1, 0, 0) and asked == [0, 1]
    answers[0] = False
    call()
    assert calls() == (1, 1, 1, 1) and asked == [0, 1, 0]
    with train:
        call()
        assert calls() == (2, 2, 1, 1) and len(asked) == 3
        with rollout, inner:
            call()
    assert calls() == (2, 2, 2, 1) and len(asked) == 3


def test_regions_with_the_same_bit_are_distinguished(profiler: Profiler) -> None:
    regions = [profiler.profile(f"r{i}") for i in range(130)]
    by_bit: dict[int, list[Any]] = {}
    for region in regions:
        by_bit.setdefault(region.number % 64, []).append(region)
    first, second = by_bit[regions[0].number % 64][:2]
    call = profiler.profile("call").wrap(lambda: None, skip_inside=(second,))
    with first:
        assert first.is_open() and not second.is_open()
        call()
        with second:
            assert first.is_open() and second.is_open()
            call()
    assert profiler.stats("call").calls == 1


@pytest.mark.parametrize("word", ["skip_inside", "no_outer_inside", "always", "never"])
def test_a_wrapped_call_looks_for_seven_regions_at_most(profiler: Profiler, word: str) -> None:
    regions = tuple(profiler.profile(f"r{i}") for i in range(8))
    profiler.profile("a").wrap(len, **{word: regions[:7]})
    with pytest.raises(ValueError, match=f"{word}= takes at most 7 regions, not 8"):
        profiler.profile("a").wrap(len, **{word: regions})


def test_regions_that_begin_and_end_together_add_up(profiler: Profiler, clock: FakeClock) -> None:
    """Also when a window falls due at their end, and what is done at windows takes time."""
    outer, inner = profiler.profile("outer"), profiler.profile("inner")

    def at_window(now: int) -> None:
        clock.advance(1000)
        with profiler.profile("summary"):
            clock.advance(10)

    profiler.recorder.on_window = at_window
    call = inner.wrap(lambda: clock.advance(60_000_000), outer=outer)
    call()
    clock.advance(5)
    stats = profiler.stats()
    assert (stats["inner"].total_ns, stats["inner"].own_ns) == (60_000_000, 60_000_000)
    assert (stats["outer"].total_ns, stats["outer"].own_ns) == (60_001_010, 1000)
    assert stats["summary"].total_ns == 10
    (thread,) = profiler.capture().threads
    assert sum(s.own_ns for s in stats.values()) + thread.unattributed_ns == thread.wall_ns


@pytest.mark.parametrize("word", ["outer", "otherwise", "skip_inside", "no_outer_inside", "always", "never"])
def test_the_compiled_wrapper_refuses_other_objects_than_regions(word: str) -> None:
    profiler = Profiler(core_name="compiled")
    value: Any = "env_step" if word in ("outer", "otherwise") else ("env_step",)
    with pytest.raises(TypeError, match=f"{word}.*region"):
        profiler.profile("a").wrap(len, **{word: value})


@pytest.mark.parametrize(
    ("result", "known"),
    [
        (gym([1, 2], [False, True], [False, False]), ([1.0, 2.0], [False, True])),
        ([None, 1, 0, 1, {}], ([1.0], [True])),
        (("observation", 2.0, True, {}), ([2.0], [True])),
        (gym(torch.ones(2, 1), torch.tensor([[1], [0]]), torch.zeros(2, 1)), ([1.0] * 2, [True, False])),
        (gym(np.float16(1.0), np.array([False]), np.array([True])), ([1.0], [True])),
        (gym(1.0, np.zeros(3), np.zeros(3)), None),
        (gym("a", False), None),
        (("observation", 1.0), None),
        ("text", None),
        (None, None),
        (gym(SimpleNamespace(device=SimpleNamespace(type="cuda")), False), None),
    ],
    ids=range(11),
)
def test_odd_results_in_plain_numbers(result: Any, known: Any) -> None:
    assert plain_numbers(result, 1, (2, 3)) == known


def test_odd_results_are_counted_through_the_instrumented_path() -> None:
    """A step is a step whatever it returns, and tensors are read without recording a transfer."""
    from hotloop.instrument import step_counting
    from hotloop.instrument.libraries import Instrumentation

    instrument = Instrumentation()
    instrument.install()
    default.start()
    try:
        env = Env()
        step_counting.single_step.forget(env)
        step_counting.single_step(env, gym(torch.tensor(1.5), torch.tensor(False), torch.tensor(False)))
        step_counting.single_step(env, (None, 1, True, {}))
        step_counting.single_step(env, "nothing like a result")
        progress = default.capture().progress
        names = set(default.stats())
    finally:
        default.stop()
        instrument.remove()
    assert (progress.env_steps, progress.episodes, progress.return_sum) == (2 + 3, 1, 2.5)
    assert "transfer" not in names


def test_packages_of_another_environment_are_a_library(tmp_path: Path) -> None:
    """As in a venv with `--system-site-packages`: a step of its envs and wrappers is one step."""
    packages, modules = tmp_path / "base" / "site-packages", tmp_path / "mine"
    code = (
        "import sys; from hotloop.measure.core_shared import is_library; "
        "print([is_library(file) for file in sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(packages / "gym" / "core.py"), str(modules / "train.py")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(packages), str(modules)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[True, False]\n"
