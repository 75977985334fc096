"""The hook that Ray calls in every worker of a job: the worker joins the capture of its driver.

Ray starts workers itself, so they inherit nothing from the driver; the driver puts this hook into the runtime
environment of its job (`ray_driver.py`), and Ray calls it before the first task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

COURIER_VARIABLE = "HOTLOOP_COURIER"  # set in the workers that are ours


class Settings(TypedDict):
    """What a worker has to know to join."""

    capture: str  # folder, on the driver's node
    run_id: str
    options: dict[str, Any]  # of `hotloop run`
    entry: str  # "module:function" to call with these settings
    home: str  # folder of our package on the driver's node
    version: str  # of the driver's hotloop


def worker_hook(settings: Settings, users: Callable[[], Any] | str | None) -> Callable[[], None]:
    """The hook that Ray calls in each worker: joins the capture, then calls the user's own hook.

    Ray sends it by value, because it is defined inside a function: a worker without hotloop must be able to
    load it. So it refers to nothing of this module.
    """

    def hotloop_worker_hook() -> None:
        import importlib
        import os
        import sys

        module, _, function = settings["entry"].partition(":")
        if not os.environ.get("HOTLOOP_COURIER"):
            try:
                try:
                    ours = importlib.import_module(module)
                except ImportError:
                    sys.path.append(settings["home"])
                    try:
                        ours = importlib.import_module(module)
                    finally:
                        sys.path.remove(settings["home"])
                getattr(ours, function)(settings)
            except ImportError:
                pass  # the driver names the node
        if isinstance(users, str):
            setup: Any = importlib.import_module("ray._private.runtime_env.setup_hook")
            problem = setup.load_and_execute_setup_hook(users)
            if problem is not None:
                raise RuntimeError(problem)
        elif users is not None:
            users()

    return hotloop_worker_hook
