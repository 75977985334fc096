"""The standard library: waiting in queues and pipes gets a category of its own; garbage collections."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
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
