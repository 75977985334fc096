"""Gymnasium: `env_step`, `env_reset` and `env_render`, below them each wrapper's own share."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from hotloop.instrument import step_counting
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.measure.profiler import default

# method -> the region around the outermost call, and the category of each class's own
_OUTER = {
    "step": (default.profile("env_step"), "environment"),
    "reset": (default.profile("env_reset"), "environment"),
    "render": (default.profile("env_render"), "rendering"),
}


def patch_core(module: ModuleType, into: Patches) -> None:
    """`gymnasium.core`: every class derived from `Env`, now and later."""
    after = {"step": step_counting.single_step, "reset": step_counting.single_step.forget}
    methods = functools.partial(_methods, hollow=module.Wrapper, after=after)
    into.apply([follow_subclasses(module.Env, methods, into)])


def patch_vector(module: ModuleType, into: Patches) -> None:
    """`gymnasium.vector.vector_env`: every class derived from `VectorEnv`, now and later."""
    after = {"step": step_counting.vector_step, "reset": step_counting.vector_step.forget}
    methods = functools.partial(_methods, hollow=module.VectorWrapper, after=after)
    into.apply([follow_subclasses(module.VectorEnv, methods, into)])


def patch_async(module: ModuleType, into: Patches) -> None:
    """`gymnasium.vector.async_vector_env`: waiting for workers; workers do not count steps."""
    wait = default.profile("ipc_wait", "wait")
    into.apply([Patch(module.AsyncVectorEnv, "step_wait", lambda f: wait.wrap(f, skip_inside=(wait,)))])

    def silent(worker: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            step_counting.stop_counting()
            return worker(*args, **kwargs)

        return run

    into.apply([Patch(module, "_async_worker", silent)])


def _methods(cls: type, hollow: type, after: dict[str, Any]) -> Iterable[Patch]:
    """Patches of the methods a class defines itself; the `hollow` one only passes calls on."""
    for name, (outer, category) in _OUTER.items() if cls is not hollow else ():
        if callable(vars(cls).get(name)) and not getattr(vars(cls)[name], "__isabstractmethod__", False):
            region = default.profile(f"{cls.__name__}.{name}", category)
            yield Patch(cls, name, functools.partial(region.wrap, outer=outer, after=after.get(name)))
