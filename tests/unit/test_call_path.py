"""The number of the lines that led to a call, from frame objects and from the interpreter's own frames."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotloop.measure import core_choice

if core_choice.compiled is None:
    pytest.skip("the compiled core is not available", allow_module_level=True)
call_paths: Callable[[], tuple[int, int | None, int | None]] = core_choice.compiled.call_paths


def one_path() -> int:
    """Here, where all ways must agree."""
    by_objects, by_frames, by_copies = call_paths()
    assert by_objects != 0
    if by_frames is not None:
        assert by_objects == by_frames == by_copies
    return by_objects


def deeper(levels: int) -> int:
    return one_path() if levels == 0 else deeper(levels - 1)


def yielded(times: int) -> Iterator[int]:
    for _ in range(times):
        yield one_path()


def passed_on() -> Iterator[int]:
    yield from yielded(3)


async def awaited() -> int:
    return one_path()


async def outer() -> list[int]:
    return [await awaited(), await awaited()]


class Thing:
    def __call__(self) -> int:
        return one_path()

    @property
    def value(self) -> int:
        return one_path()

    def __eq__(self, other: object) -> bool:
        self.seen = one_path()
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("levels", [0, 3, 60, 61, 62, 63, 200, 700])
def test_recursion(levels: int) -> None:
    first, again = (deeper(levels) for _ in range(2))
    other = deeper(levels + 1)
    assert first == again
    assert (first == other) == (levels >= 62)  # only the innermost 64 frames count


def test_generators_and_coroutines() -> None:
    for make in (yielded, lambda _: passed_on()):
        first, second, third = make(3)
        assert first == second == third
    assert len({one_path() for _ in range(2)}) == 1
    coroutine = outer()
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    first, second = end.value.value
    assert first != second  # of one line, but not of one instruction


def test_calls_from_c_to_python() -> None:
    thing = Thing()
    for call in (
        lambda: max([1, 2], key=lambda _: one_path()),
        lambda: sorted([2, 1], key=lambda _: one_path())[1],
        functools.partial(deeper, 2),
        thing,
        lambda: thing.value,
        lambda: [thing == 1, thing.seen][1],
        lambda: eval("one_path()"),
        lambda: functools.reduce(lambda _, __: one_path(), range(3)),
    ):
        assert call()


def test_each_thread_has_its_own() -> None:
    found: list[int] = []

    def work() -> None:
        for _ in range(200):
            found.append(deeper(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 800 and len(set(found)) == 1
    assert found[0] != deeper(5)


FIRST_CALLS = """
from hotloop import Profiler
profiler = Profiler(core_name="compiled")
region = profiler.profile("region")
paths = []
def pick(path, previous):
    paths.append(path)
    return region
wrapped = region.wrap(lambda: None, pick=pick)
def deeper(call, levels):
    return call() if levels == 0 else deeper(call, levels - 1)
def turn(call):
    call()
    deeper(call, 100)
    list(map(lambda _: call(), range(1)))
    next(call() for _ in range(1))
for _ in range(50):
    turn(lambda: None)  # Python 3.11 replaces instructions that it has executed some times by others
profiler.start()
for _ in range(50):
    turn(wrapped)
profiler.stop()
assert len(paths) == 200 and len(set(paths)) == 4 and paths == 50 * paths[:4], paths
print("the same")
"""


def test_the_first_calls_of_a_process_have_the_same_paths_as_later_ones() -> None:
    """In the first 32 frame objects are asked as well."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "the same\n", done.stderr


def test_a_finalizer_and_a_trace_function_do_not_disturb(monkeypatch: Any) -> None:
    def trace(*_: Any) -> Any:
        one_path()
        return trace

    sys.settrace(trace)
    try:
        deeper(2)
    finally:
        sys.settrace(None)

    class Ends:
        def __del__(self) -> None:
            seen.append(one_path())

    seen: list[int] = []
    Ends()
    assert seen
