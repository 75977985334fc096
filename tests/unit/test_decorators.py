"""`@profile_function` on functions, methods, coroutines and generators."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import AsyncIterator, Generator

import pytest

import hotloop
from hotloop import Profiler
from hotloop.testing.fakes import FakeClock


@hotloop.profile_function("module level")
def module_level(x: int, y: int = 2, *, z: int = 3) -> int:
    """Adds."""
    return x + y + z


def test_functions_keep_their_name_signature_docstring_and_pickle() -> None:
    assert module_level(1, y=5) == 9
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "Adds."
    assert str(inspect.signature(module_level)) == "(x: 'int', y: 'int' = 2, *, z: 'int' = 3) -> 'int'"
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.deepcopy(module_level) is module_level
    assert module_level.__defaults__ == (2,)


def test_calls_are_counted_with_and_without_a_name(profiler: Profiler, clock: FakeClock) -> None:
    @profiler.profile_function
    def bare() -> None:
        clock.advance(3)

    @profiler.profile_function("named", category="loss")
    def other() -> None:
        clock.advance(4)

    bare()
    other()
    other()
    stats = profiler.stats()
    assert stats["named"].calls == 2 and stats["named"].category == "loss"
    (name,) = [n for n in stats if n.endswith("bare")]
    assert stats[name].total_ns == 3


def test_a_region_object_decorates_too(profiler: Profiler, clock: FakeClock) -> None:
    @profiler.profile("region")
    def work() -> str:
        clock.advance(2)
        return "done"

    assert work() == "done"
    assert profiler.stats("region").total_ns == 2


def test_methods_static_and_class_methods(profiler: Profiler, clock: FakeClock) -> None:
    class Env:
        @profiler.profile_function("step")
        def step(self, action: int) -> int:
            clock.advance(1)
            return action + 1

        @profiler.profile_function("static")
        @staticmethod
        def static(x: int) -> int:
            return x

        @classmethod
        @profiler.profile_function("class")
        def make(cls) -> str:
            return cls.__name__

    env = Env()
    assert env.step(1) == 2
    assert Env.step(env, 2) == 3
    bound = env.step
    assert bound(5) == 6
    assert Env.static(4) == 4 and env.static(4) == 4
    assert Env.make() == "Env"
    assert profiler.stats("step").calls == 3
    assert profiler.stats("static").calls == 2
    assert profiler.stats("class").calls == 1


def test_exceptions_pass_through_a_decorated_function(profiler: Profiler, clock: FakeClock) -> None:
    @profiler.profile_function("fails")
    def fails() -> None:
        clock.advance(6)
        raise KeyError("x")

    with pytest.raises(KeyError):
        fails()
    assert profiler.stats("fails").total_ns == 6


def test_a_coroutine_is_timed_at_each_resumption(profiler: Profiler, clock: FakeClock) -> None:
    @profiler.profile_function("work")
    async def work() -> int:
        clock.advance(10)
        await asyncio.sleep(0)
        clock.advance(20)
        return 7

    async def main() -> list[int]:
        return list(await asyncio.gather(work(), work()))

    assert asyncio.run(main()) == [7, 7]
    stats = profiler.stats("work")
    assert (stats.calls, stats.total_ns, stats.max_ns) == (4, 60, 20)
    assert inspect.iscoroutinefunction(work)
    assert not profiler.capture().tree.children[0].out_of_order


def test_a_coroutine_can_be_cancelled(profiler: Profiler, clock: FakeClock) -> None:
    @profiler.profile_function("sleeper")
    async def sleeper() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            clock.advance(5)
            return "cancelled"
        return "slept"

    async def main() -> str:
        task = asyncio.create_task(sleeper())
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(main()) == "cancelled"
    assert profiler.stats("sleeper").total_ns == 5


def test_a_generator_is_timed_at_each_resumption(profiler: Profiler, clock: FakeClock) -> None:
    @profiler.profile_function("produce")
    def produce() -> Generator[int, int | None, str]:
        for i in range(3):
            clock.advance(10)
            got = yield i
            if got:
                clock.advance(got)
        return "end"

    made = produce()
    assert next(made) == 0
    clock.advance(1000)  # suspended: not its time
    assert made.send(7) == 1
    assert next(made) == 2
    with pytest.raises(StopIteration) as stop:
        next(made)
    assert stop.value.value == "end"
    assert profiler.stats("produce").total_ns == 37
    assert inspect.isgeneratorfunction(produce)


def test_a_generator_takes_exceptions_and_closing(profiler: Profiler, clock: FakeClock) -> None:
    closed = []

    @profiler.profile_function("produce")
    def produce() -> Generator[str, None, None]:
        try:
            while True:
                try:
                    yield "item"
                except ValueError:
                    yield "caught"
        finally:
            closed.append(True)

    made = produce()
    assert next(made) == "item"
    assert made.throw(ValueError()) == "caught"
    made.close()
    assert closed == [True]


def test_an_async_generator_is_timed_at_each_resumption(profiler: Profiler, clock: FakeClock) -> None:
    @profiler.profile_function("stream")
    async def stream() -> AsyncIterator[int]:
        for i in range(3):
            clock.advance(10)
            await asyncio.sleep(0)
            clock.advance(1)
            yield i

    async def main() -> list[int]:
        found = []
        async for item in stream():
            clock.advance(500)
            found.append(item)
        return found

    assert asyncio.run(main()) == [0, 1, 2]
    assert profiler.stats("stream").total_ns == 33


def test_only_callables_can_be_decorated(profiler: Profiler) -> None:
    with pytest.raises(TypeError, match="decorates functions"):
        profiler.profile("x")(3)
