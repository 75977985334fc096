"""Common forms of patches: a method as a fixed region, or as one of its own below a fixed region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop.instrument import counting
from hotloop.instrument.patch import Patch
from hotloop.measure.profiler import default


def defines(cls: type, name: str) -> bool:
    """Whether a class has a method of its own by that name, not an abstract one."""
    method = vars(cls).get(name)
    return callable(method) and not getattr(method, "__isabstractmethod__", False)


def below(cls: type, name: str, outer: Any, after: Any = None) -> Patch:
    """The method as a region of its own (`Class.method`), below `outer`."""
    region = default.profile(f"{cls.__name__}.{name}")
    return Patch(cls, name, lambda f: region.wrap(f, outer=outer, after=after))


def once(owner: Any, name: str, region: Any, after: Any = None) -> Patch:
    """The method or function as `region`, but not again when it calls its like."""
    return Patch(owner, name, lambda f: region.wrap(f, alone=(region,), after=after))


def silent(worker: Callable[..., Any]) -> Callable[..., Any]:
    """A worker process's main function: whoever drives the worker counts its steps."""

    def run(*args: Any, **kwargs: Any) -> Any:
        counting.stop_counting()
        return worker(*args, **kwargs)

    return run
