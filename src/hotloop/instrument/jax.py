"""JAX: calls of jitted functions, waiting for their results, and updates that optax makes.

`jax.jit` returns an object of ours that calls the jitted function and has all its attributes. A call returns
before its result is there, so it is compilation (`compile`, recorded elsewhere) and dispatch; where the
script asks for the result is `jax_wait`.

Inside a jitted function, `optax.apply_updates` runs only while JAX traces it. So what a trace has seen is
remembered, and counted at each call of the function. The body of a `scan` or `fori_loop` counts as often as
it runs; a `while_loop` once, as its length is not known.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument.method_patches import patch_outermost
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.profiler import default

jax_call = default.profile("jax_call", "model")
jax_wait = default.profile("jax_wait", "wait")
LIBRARIES = ("/optax/", "/flax/", "/equinox/", "/jax/", "/chex/")  # an update is made by their caller

Site = tuple[str, int]


class _Trace:
    """Updates seen while a function is traced, by the place that makes them."""

    def __init__(self, code: types.CodeType | None = None):
        self._code = code  # of a loop's body, which may be traced more than once: the last time counts
        self._seen: list[tuple[FrameType | None, Counter[Site]]] = []

    def add(self, updates: Counter[Site], frame: FrameType | None) -> None:
        while self._code is not None and frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        body = frame if self._code is not None else None
        if not self._seen or self._seen[-1][0] is not body:
            self._seen.append((body, Counter()))
        self._seen[-1][1].update(updates)

    @property
    def updates(self) -> Counter[Site]:
        return self._seen[-1][1] if self._seen else Counter()


class _Counting(threading.local):
    def __init__(self) -> None:
        self.traces: list[_Trace] = []


_counting = _Counting()
_made: Counter[Site] = Counter()
_lock = threading.Lock()


def _count(updates: Counter[Site]) -> None:
    """Add updates to the trace under way, or to those that were made.

    An algorithm with several networks makes an update of each: the place with the most is counted.
    """
    if _counting.traces:
        _counting.traces[-1].add(updates, sys._getframe(1))
        return
    with _lock:
        before = max(_made.values(), default=0)
        _made.update(updates)
        new = max(_made.values(), default=0) - before
    if new:
        default.progress(updates=new)


def _remembering(
    call: Callable[[], Any], known: Counter[Site], times: int = 1, code: types.CodeType | None = None
) -> tuple[Any, Counter[Site]]:
    """Call what may trace; counts the updates of this call, and returns those of one trace."""
    trace = _Trace(code)
    _counting.traces.append(trace)
    try:
        result = call()
    finally:
        _counting.traces.pop()
    updates = trace.updates or known
    if updates and times:
        _count(Counter({site: count * times for site, count in updates.items()}))
    return result, updates


class Jitted:
    """A jitted function that records its calls."""

    def __init__(self, jitted: Any, name: str):
        self.__dict__["__wrapped__"] = getattr(jitted, "__wrapped__", jitted)
        self._jitted = jitted
        self._region = default.profile(f"jit {name}"[:120], "model")
        self._updates: Counter[Site] = Counter()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not default.recorder.epoch:
            return self._jitted(*args, **kwargs)
        if _counting.traces:  # inside of another one, which is being traced
            result, self._updates = _remembering(lambda: self._jitted(*args, **kwargs), self._updates)
            return result
        with jax_call, self._region:
            result, self._updates = _remembering(lambda: self._jitted(*args, **kwargs), self._updates)
        return result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "_jitted":  # while it is being copied
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __repr__(self) -> str:
        return repr(self._jitted)

    def __eq__(self, other: object) -> bool:
        return bool(self._jitted == (other._jitted if isinstance(other, Jitted) else other))

    def __hash__(self) -> int:
        return hash(self._jitted)

    def __reduce__(self) -> Any:
        return _same, (self._jitted,)


def _same(jitted: Any) -> Any:
    return jitted


def patch_package(module: ModuleType, into: Patches) -> None:
    """`jax`: `jit`, and waiting for results."""
    into.apply([Patch(module, "jit", _jitting)])
    if hasattr(module, "block_until_ready"):
        into.apply([patch_outermost(module, "block_until_ready", jax_wait)])
    into.apply([patch_outermost(module, "device_get", jax_wait)])
    lax: Any = getattr(module, "lax", None)
    if lax is not None:
        into.apply([Patch(lax, "scan", _scanning), Patch(lax, "fori_loop", _looping)])
    arrays: Any = sys.modules.get("jax._src.array")
    array: Any = getattr(arrays, "ArrayImpl", None)
    if array is not None:
        into.apply(
            [_PropertyPatch(array, "_value", _waiting), patch_outermost(array, "block_until_ready", jax_wait)]
        )


def patch_optax(module: ModuleType, into: Patches) -> None:
    """`optax`: `apply_updates`."""

    def counting(apply_updates: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if default.recorder.epoch:
                with suppress_own(Exception):
                    _count(Counter({_caller(): 1}))
            return apply_updates(*args, **kwargs)

        return call

    into.apply([Patch(module, "apply_updates", counting)])


def _caller() -> Site:
    """Where the script asks for an update, outside of libraries."""
    frame: FrameType | None = sys._getframe(2)
    found = frame
    while frame is not None:
        found = frame
        if not any(name in frame.f_code.co_filename for name in LIBRARIES):
            break
        frame = frame.f_back
    return (found.f_code.co_filename, found.f_lineno) if found is not None else ("", 0)


class _PropertyPatch(Patch):
    """Replaces the function that computes a property."""

    def apply(self) -> None:
        self._was = self._get()
        self._ours = property(self._make(self._was.fget), doc=self._was.__doc__)
        self._put(self._ours)


def _waiting(value: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = jax_wait.wrap(value, skip_inside=(jax_wait,))
    return made


def _jitting(jit: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(made: Any, fun: Any) -> Any:
        known = hasattr(made, "lower") and not isinstance(made, Jitted)
        return Jitted(made, getattr(fun, "__name__", None) or type(fun).__name__) if known else made

    def call(*args: Any, **kwargs: Any) -> Any:
        made = jit(*args, **kwargs)
        fun = args[0] if args else kwargs.get("fun")
        if callable(fun):
            return wrapped(made, fun)
        return lambda later: wrapped(made(later), later)  # a decorator: `@jax.jit(static_argnames=...)`

    return call


_bodies: weakref.WeakKeyDictionary[Any, Counter[Site]] = weakref.WeakKeyDictionary()  # of loops


def _run_loop(call: Callable[[], Any], body: Any, times: int) -> Any:
    if not default.recorder.epoch:
        return call()
    known: Counter[Site] = Counter()
    with suppress_own(TypeError):
        known = _bodies.get(body, known)
    result, updates = _remembering(call, known, times, getattr(body, "__code__", None))
    if updates:
        with suppress_own(TypeError):
            _bodies[body] = updates
    return result


def _scanning(scan: Callable[..., Any]) -> Callable[..., Any]:
    def call(f: Any, *args: Any, **kwargs: Any) -> Any:
        times = 1
        with suppress_own(Exception):
            xs = args[1] if len(args) > 1 else kwargs.get("xs")
            length = args[2] if len(args) > 2 else kwargs.get("length")
            if length is None:
                length = sys.modules["jax"].tree_util.tree_leaves(xs)[0].shape[0]
            times = int(length)
        return _run_loop(lambda: scan(f, *args, **kwargs), f, times)

    return call


def _looping(fori_loop: Callable[..., Any]) -> Callable[..., Any]:
    def call(lower: Any, upper: Any, body_fun: Any, *args: Any, **kwargs: Any) -> Any:
        times = 1
        with suppress_own(Exception):  # traced bounds have no value
            times = max(int(upper) - int(lower), 0)
        return _run_loop(lambda: fori_loop(lower, upper, body_fun, *args, **kwargs), body_fun, times)

    return call
