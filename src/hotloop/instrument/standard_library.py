"""The standard library: waiting in queues and pipes has its own category; garbage collections; pickling."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from hotloop.instrument.method_patches import patch_outermost
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.profiler import default

ipc_wait = default.profile("ipc_wait", "wait")
ipc_send = default.profile("ipc_send")
queue_wait = default.profile("queue_wait", "wait")
gc_pause = default.profile("gc_pause", "framework")


def patch_connection(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.connection`: where SubprocVecEnv, AsyncVectorEnv and Pipe wait."""
    connection: Any = module.Connection
    into.apply(patch_outermost(connection, name, ipc_wait) for name in ("recv", "recv_bytes", "poll"))
    into.apply([patch_outermost(connection, "send", ipc_send)])


def patch_cloudpickle(module: ModuleType, into: Patches) -> None:
    """`cloudpickle.cloudpickle`: methods of classes that it pickles by value, as if they were not wrapped.

    It sends a class of the script itself (an env for SubprocVecEnv) with all of its methods. A wrapped method
    would be sent by name and found in the worker's own copy of the script, whose class is another one: its
    `super()` fails there. `copy.copy` returns a function as it is, and needs no hotloop to be read.
    """

    def unwrapped(original: Any) -> Any:
        def reducer_override(self: Any, obj: Any) -> Any:
            if type(obj) is _WRAPPER and getattr(obj, "__code__", None) is not None:
                function = getattr(obj, "__wrapped__", None)
                if function is not None and _is_wrapper(obj) and _is_of_the_script(function):
                    return copy.copy, (function,)
            return original(self, obj)

        return reducer_override

    into.apply([Patch(module.Pickler, "reducer_override", unwrapped)])


def _is_of_the_script(function: Any) -> bool:
    return function.__module__ == "__main__" or "<locals>" in function.__qualname__


_EXAMPLE: Any = ipc_wait.wrap(_is_of_the_script)
_WRAPPER = type(_EXAMPLE)  # with the core in Python it is a function, known by its code


def _is_wrapper(obj: Any) -> bool:
    return _WRAPPER is not FunctionType or obj.__code__ is _EXAMPLE.__code__


def patch_queues(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.queues`."""
    for queue in (module.Queue, module.SimpleQueue):
        into.apply([patch_outermost(queue, "get", ipc_wait), patch_outermost(queue, "put", ipc_send)])


def patch_queue(module: ModuleType, into: Patches) -> None:
    """`queue`: between threads."""
    queue: Any = module
    into.apply([Patch(queue.Queue, "get", lambda f: queue_wait.wrap(f, skip_inside=(queue_wait, ipc_wait)))])


def watch_garbage_collector() -> Callable[[], None]:
    """Record full garbage collections as a region; returns the function that ends it."""
    callback = gc_pause.on_collection
    gc.callbacks.append(callback)
    return lambda: gc.callbacks.remove(callback)
