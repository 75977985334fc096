"""Gymnasium: `env_step`, `env_reset` and `env_render`, and below them each wrapper and env by name.

Two wrappers that `make` puts around every env do next to nothing, and regions of their own would cost as much
as they take: their time belongs to the region around them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from hotloop.instrument import step_counting
from hotloop.instrument.method_patches import defines, patch_below, patch_outermost, without_counting
from hotloop.instrument.patch import Patch, Patches, follow_subclasses
from hotloop.instrument.standard_library import ipc_wait
from hotloop.measure.profiler import default

env_observe = default.profile("env_observe", "environment")
# method -> the region around the outermost call, and the category of the regions below it
_OUTER = {
    "step": (default.profile("env_step"), "environment"),
    "reset": (default.profile("env_reset"), "environment"),
    "render": (default.profile("env_render"), "rendering"),
}
THIN = frozenset({"TimeLimit", "OrderEnforcing"})


def patch_core(module: ModuleType, into: Patches) -> None:
    """`gymnasium.core`: every subclass of `Env`, existing and future."""
    after = {"step": step_counting.single_step, "reset": step_counting.single_reset}
    methods = functools.partial(_methods, hollow=module.Wrapper, after=after)
    into.apply([follow_subclasses(module.Env, methods, into)])


def patch_old_core(module: ModuleType, into: Patches) -> None:
    """`gym.core` of OpenAI's Gym, which came before: until 0.26 its steps had one flag, `done`."""
    version = str(getattr(sys.modules.get("gym"), "__version__", "0"))
    numbers = [int(part) if part.isdecimal() else 0 for part in version.split(".")[:2]]
    counter = step_counting.single_step if numbers >= [0, 26] else step_counting.done_step
    after = {"step": counter, "reset": step_counting.forget_after_reset(counter)}
    methods = functools.partial(_methods, hollow=module.Wrapper, after=after)
    into.apply([follow_subclasses(module.Env, methods, into)])


def patch_vector(module: ModuleType, into: Patches) -> None:
    """`gymnasium.vector.vector_env`: every subclass of `VectorEnv`, existing and future."""
    after = {"step": step_counting.vector_step, "reset": step_counting.vector_reset}
    methods = functools.partial(_methods, hollow=module.VectorWrapper, after=after)
    into.apply([follow_subclasses(module.VectorEnv, methods, into)])


def patch_minatar(module: ModuleType, into: Patches) -> None:
    """`minatar.environment`: `act` is the step; observations are asked for with `state`."""
    cls = module.Environment
    region, forget = _OUTER["step"][0], step_counting.forget_after_reset(step_counting.act_step)
    into.apply(
        [
            patch_below(cls, "act", region, "environment", step_counting.act_step),
            patch_below(cls, "reset", _OUTER["reset"][0], "environment", forget),
            patch_outermost(cls, "state", env_observe, step_counting.act_step.see),
        ]
    )


def patch_async(module: ModuleType, into: Patches) -> None:
    """`gymnasium.vector.async_vector_env`: waiting for workers, which do not count their steps."""
    into.apply(
        [
            patch_outermost(module.AsyncVectorEnv, "step_wait", ipc_wait),
            Patch(module, "_async_worker", without_counting),
        ]
    )


def _methods(cls: type, hollow: type, after: dict[str, Any]) -> Iterable[Patch]:
    """Patches of the methods that a class itself defines; the class `hollow` only passes calls on."""
    is_thin = cls.__name__ in THIN and cls.__module__.startswith(hollow.__module__.partition(".")[0] + ".")
    for name, (outer, category) in _OUTER.items() if cls is not hollow else ():
        if not defines(cls, name):
            continue
        if is_thin:
            yield patch_outermost(cls, name, outer, after.get(name))
        else:
            yield patch_below(cls, name, outer, category, after.get(name))
