"""Common patches: a method as a fixed region, or as its own region below a fixed one."""

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
    """Whether a class itself defines a method with that name that is not abstract."""
    method = vars(cls).get(name)
    return callable(method) and not getattr(method, "__isabstractmethod__", False)


def patch_below(cls: type, name: str, outer: Any, category: str, after: Any = None) -> Patch:
    """Record the method as its own region (`Class.method`) below `outer`.

    The category is explicit, since it cannot be guessed from the name of a class.
    """
    region = default.profile(f"{cls.__name__}.{name}", category)
    return Patch(cls, name, lambda f: region.wrap(f, outer=outer, after=after))


def patch_outermost(owner: Any, name: str, region: Any, after: Any = None) -> Patch:
    """Record the method or function as `region`, except for calls inside that region."""
    return Patch(owner, name, lambda f: region.wrap(f, skip_inside=(region,), after=after))


# Patches that torch.compile cannot trace yet, and the original function of each.
_untraceable: weakref.WeakKeyDictionary[Patch, Callable[..., Any] | None] = weakref.WeakKeyDictionary()
_compiles = False


def traceable(patch: Patch, plain: Callable[..., Any] | None = None) -> Patch:
    """Make a patch of a function that `torch.compile` may trace.

    It cannot trace our compiled wrapper, so while it traces it gets the function itself, or `plain` if that
    is already patched. This costs two more Python calls each time, so it begins when something is compiled.
    """
    if _compiles:
        patch.then(functools.partial(_bypass_while_tracing, plain))
    else:
        _untraceable[patch] = plain
    return patch


def compiles() -> bool:
    """Whether something has been compiled in this process."""
    return _compiles


def begin_compiling() -> None:
    """Something is about to be compiled: make all patches traceable, existing and future ones."""
    global _compiles
    _compiles = True
    while _untraceable:
        patch, plain = _untraceable.popitem()
        patch.then(functools.partial(_bypass_while_tracing, plain))


def _bypass_while_tracing(
    plain: Callable[..., Any] | None, wrapper: Callable[..., Any], f: Callable[..., Any]
) -> Callable[..., Any]:
    """A Python function that calls the wrapper, or the function itself while it is being traced."""
    compiler: Any = sys.modules["torch"].compiler
    # The more general is_compiling costs half a microsecond more per call.
    is_compiling = getattr(compiler, "is_dynamo_compiling", compiler.is_compiling)
    original = plain or f

    def record(*args: Any, **kwargs: Any) -> Any:  # hides the wrapper from the tracer
        return wrapper(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if is_compiling() else record(*args, **kwargs)

    return call


def without_counting(worker: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the main function of a worker process, whose steps are counted by the process that drives it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        step_counting.stop_counting()
        return worker(*args, **kwargs)

    return run
