"""The standard library's queues and pipes: waiting is not working, so it gets a category of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.profiler import default

ipc_wait = default.profile("ipc_wait", "wait")
ipc_send = default.profile("ipc_send")
queue_wait = default.profile("queue_wait", "wait")
gc_pause = default.profile("gc_pause", "framework")


def patch_connection(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.connection`: what SubprocVecEnv, AsyncVectorEnv and Pipe wait in."""
    connection: Any = module.Connection
    into.apply(
        [
            Patch(connection, "recv", lambda f: ipc_wait.wrap(f, skip_inside=(ipc_wait,))),
            Patch(connection, "recv_bytes", lambda f: ipc_wait.wrap(f, skip_inside=(ipc_wait,))),
            Patch(connection, "poll", lambda f: ipc_wait.wrap(f, skip_inside=(ipc_wait,))),
            Patch(connection, "send", lambda f: ipc_send.wrap(f, skip_inside=(ipc_send,))),
        ]
    )


def patch_queues(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.queues`."""
    queues: Any = module
    into.apply(
        [
            Patch(queues.Queue, "get", lambda f: ipc_wait.wrap(f, skip_inside=(ipc_wait,))),
            Patch(queues.Queue, "put", lambda f: ipc_send.wrap(f, skip_inside=(ipc_send,))),
            Patch(queues.SimpleQueue, "get", lambda f: ipc_wait.wrap(f, skip_inside=(ipc_wait,))),
            Patch(queues.SimpleQueue, "put", lambda f: ipc_send.wrap(f, skip_inside=(ipc_send,))),
        ]
    )


def patch_queue(module: ModuleType, into: Patches) -> None:
    """`queue`: between threads."""
    queue: Any = module
    into.apply([Patch(queue.Queue, "get", lambda f: queue_wait.wrap(f, skip_inside=(queue_wait, ipc_wait)))])


def watch_collector() -> Callable[[], None]:
    """Full garbage collections as a region; returns what ends it."""

    callback = gc_pause.on_collection
    gc.callbacks.append(callback)
    return lambda: gc.callbacks.remove(callback)
