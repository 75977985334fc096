"""Counting updates of optax through traces, on a stand-in for JAX, which itself is in the long tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hotloop.capture.stats import by_name
from hotloop.instrument import jax as instrument
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


class Compiled:
    """Runs the function the first time it sees an argument, as JAX traces for each shape."""

    def __init__(self, function: Callable[..., Any]):
        self._function, self._known = function, set[Any]()

    def __call__(self, shape: Any) -> Any:
        if shape not in self._known:
            self._known.add(shape)
            self._function(shape)
        return shape

    def lower(self) -> str:
        return "lowered"


def scan(f: Any, init: Any, xs: Any = None, length: int | None = None) -> Any:
    f(init, None)  # a first trace finds the types
    f(init, None)
    return init, xs


def fori_loop(lower: int, upper: int, body_fun: Any, init_val: Any) -> Any:
    body_fun(lower, init_val)
    return init_val


@pytest.fixture
def jax() -> Iterator[Any]:
    module = ModuleType("jax")
    vars(module).update(
        jit=lambda fun=None, **_: Compiled if fun is None else Compiled(fun),
        device_get=lambda value: value,
        lax=SimpleNamespace(scan=scan, fori_loop=fori_loop),
    )
    optax = ModuleType("optax")
    vars(optax).update(apply_updates=lambda params: params)
    into = Patches()
    instrument._made.clear()
    instrument.patch_package(module, into)
    instrument.patch_optax(optax, into)
    default.start()
    try:
        yield SimpleNamespace(
            jit=module.jit, lax=module.lax, device_get=module.device_get, apply=optax.apply_updates
        )
    finally:
        default.stop()
        into.undo()


def updates() -> int:
    return default.capture().progress.updates


def test_a_jitted_function_counts_what_its_trace_has_seen_at_each_call(jax: Any) -> None:
    def step(shape: Any) -> None:
        jax.apply(shape)

    jitted = jax.jit(step)
    for shape in (1, 1, 1, 2, 2):
        jitted(shape)
    assert updates() == 5 and jitted.lower() == "lowered"
    outer = jax.jit(fun=lambda shape: jitted(shape))  # what is inside is not traced again
    outer(1)
    outer(1)
    assert updates() == 7
    later = jax.jit(static_argnames="n")(step)
    later(1)
    jax.apply(0)  # without jit; another place, of which there are fewer
    assert updates() == 8
    found = {name: node.calls for name, node in by_name(default.capture().tree).items()}
    assert (found["jit step"], found["jit <lambda>"], found["jax_call"]) == (6, 2, 8)


def test_loops_count_as_often_as_their_body_runs(jax: Any) -> None:
    def body(carry: Any, x: Any) -> Any:
        jax.apply(carry)
        return carry, x

    jitted = jax.jit(lambda shape: jax.lax.scan(body, shape, None, length=10))
    jitted(1)
    jitted(1)
    assert updates() == 20  # not 40: the body was traced twice
    jax.lax.fori_loop(2, 5, body, 0)
    assert updates() == 23


def test_of_several_networks_the_one_with_the_most_updates_counts(jax: Any) -> None:
    def step(shape: Any) -> None:
        jax.apply("critic")
        if shape == 2:
            jax.apply("actor")

    jitted = jax.jit(step)
    for number in range(10):
        jitted(1 + number % 2)
    assert updates() == 10


def test_nothing_is_counted_or_recorded_without_a_recording(jax: Any) -> None:
    default.stop()
    jitted = jax.jit(lambda shape: jax.apply(shape))
    assert jitted(3) == 3
    assert not instrument._made
