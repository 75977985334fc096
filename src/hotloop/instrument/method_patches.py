"""Common forms of patches: a method as a fixed region, or as one of its own below a fixed region."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from hotloop.instrument import step_counting
from hotloop.instrument.patch import Patch
from hotloop.measure.profiler import default


def defines(cls: type, name: str) -> bool:
    """Whether a class has a method of its own by that name, not an abstract one."""
    method = vars(cls).get(name)
    return callable(method) and not getattr(method, "__isabstractmethod__", False)


def below(cls: type, name: str, outer: Any, category: str, after: Any = None) -> Patch:
    """The method as a region of its own (`Class.method`), below `outer`.

    The category is said, since a class may have any word in its name.
    """
    region = default.profile(f"{cls.__name__}.{name}", category)
    return Patch(cls, name, lambda f: region.wrap(f, outer=outer, after=after))


def once(owner: Any, name: str, region: Any, after: Any = None) -> Patch:
    """The method or function as `region`, but not again when it calls its like."""
    return Patch(owner, name, lambda f: region.wrap(f, skip_inside=(region,), after=after))


# Patches that tracing cannot look into, until something is compiled, and the plain function of each.
_untraceable: weakref.WeakKeyDictionary[Patch, Callable[..., Any] | None] = weakref.WeakKeyDictionary()
_compiles = False


def traceable(patch: Patch, plain: Callable[..., Any] | None = None) -> Patch:
    """The same patch for a function that `torch.compile` may trace.

    It cannot look into a compiled wrapper; while it traces, it is given the function itself, or
    `plain` when what is there is patched already. That takes two more Python calls each time, so it is
    done only from the moment on when something is compiled.
    """
    if _compiles:
        patch.then(functools.partial(_with_a_look, plain))
    else:
        _untraceable[patch] = plain
    return patch


def begin_compiling() -> None:
    """Something is about to be compiled: make all patches traceable, these and later ones."""
    global _compiles
    _compiles = True
    while _untraceable:
        patch, plain = _untraceable.popitem()
        patch.then(functools.partial(_with_a_look, plain))


def _with_a_look(
    plain: Callable[..., Any] | None, wrapper: Callable[..., Any], f: Callable[..., Any]
) -> Callable[..., Any]:
    """A Python function that calls the wrapper, but shows the function itself to who traces it."""
    compiler: Any = sys.modules["torch"].compiler
    # The general question costs half a microsecond more at every call.
    is_compiling = getattr(compiler, "is_dynamo_compiling", compiler.is_compiling)
    original = plain or f

    def record(*args: Any, **kwargs: Any) -> Any:  # tracing looks at what `call` refers to
        return wrapper(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if is_compiling() else record(*args, **kwargs)

    return call


def silent(worker: Callable[..., Any]) -> Callable[..., Any]:
    """A worker process's main function: whoever drives the worker counts its steps."""

    def run(*args: Any, **kwargs: Any) -> Any:
        step_counting.stop_counting()
        return worker(*args, **kwargs)

    return run
