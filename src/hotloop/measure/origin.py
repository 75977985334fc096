"""How this process came to be: its program, the function it runs for multiprocessing, its rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

RANK_VARIABLES = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE"}
more: Callable[[], dict[str, Any]] = dict  # set by an instrumented library: further fields
SERVICES = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


def describe_origin() -> dict[str, Any]:
    """The fields of `capture.origin.Origin` for this process."""
    found: dict[str, Any] = {}
    for name, variable in RANK_VARIABLES.items():
        text = os.environ.get(variable, "")
        found[name] = int(text) if text.isdecimal() and len(text) < 10 else None
    processes: Any = sys.modules.get("multiprocessing.process")
    current = processes.current_process() if processes is not None else None
    if current is not None and getattr(current, "_parent_pid", None) is not None:
        found["target"] = _name_of(getattr(current, "_target", None) or type(current).run)
        context: Any = sys.modules.get("multiprocessing.context")
        method = getattr(type(current), "_start_method", None) or (
            context._default_context.get_start_method(allow_none=True) if context is not None else None
        )
        found["start_method"] = method or ""
        main: Any = sys.modules.get("__mp_main__") or sys.modules.get("__main__")
        found["program"] = os.path.basename(getattr(main, "__file__", None) or "")[:200]
    else:
        found["program"] = _program()
    return found | more()


def _name_of(function: Any) -> str:
    while hasattr(function, "func"):  # a partial
        function = function.func
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}".strip(".")[:200]


def _program() -> str:
    """The script or module of the process; a service of multiprocessing by the module it runs."""
    words = getattr(sys, "orig_argv", sys.argv)
    for word in words[1:4]:
        for service in SERVICES:
            if word.startswith("from ") and service in word:
                return service
    module: Any = sys.modules.get("__main__")
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name not in (None, "__main__"):
        return str(spec.name).removesuffix(".__main__")[:200]
    if "-m" in words[1:-1]:
        return str(words[words.index("-m") + 1])[:200]
    return _short(sys.argv[0] if sys.argv and sys.argv[0] else "")[:200]


def _short(file: str) -> str:
    """The name of a script; one of a library with its folders, such as `ray/dashboard/agent.py`."""
    _, inside, rest = file.replace("\\", "/").rpartition("/site-packages/")
    return rest if inside else os.path.basename(file)
