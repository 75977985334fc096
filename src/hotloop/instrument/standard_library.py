"""The standard library: waiting has its own category, by pipe and queue; garbage collections; pickling."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from hotloop.instrument.channels import totals
from hotloop.instrument.channels.identity import remember_ends
from hotloop.instrument.method_patches import patch_outermost
from hotloop.instrument.patch import Patch, Patches, Replacement
from hotloop.instrument.queue_in_c import with_methods
from hotloop.measure.profiler import default

ipc_wait = default.profile("ipc_wait", "wait")
ipc_send = default.profile("ipc_send")
queue_wait = default.profile("queue_wait", "wait")
queue_put = default.profile("queue_put", "wait")
condition_wait = default.profile("condition_wait", "wait")
process_wait = default.profile("process_wait", "wait")
shut_down = default.profile("shut_down", "other")
gc_pause = default.profile("gc_pause", "framework")


def patch_connection(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.connection`: where SubprocVecEnv, AsyncVectorEnv and Pipe wait."""
    connection: Any = module.Connection
    into.apply([Patch(module, "Pipe", remember_ends)])
    into.apply(
        _channel(connection, name, ipc_wait, totals.region_of_pipe) for name in ("recv", "recv_bytes", "poll")
    )
    into.apply(_channel(connection, name, ipc_send, totals.region_of_pipe) for name in ("send", "send_bytes"))


def _channel(owner: Any, name: str, region: Any, detail: Any, skip_inside: tuple[Any, ...] = ()) -> Patch:
    """Record a method as `region`, and below it the region of the pipe or queue."""
    aside = skip_inside or (ipc_wait, ipc_send)
    return Patch(owner, name, lambda f: region.wrap(f, skip_inside=aside, detail=detail))


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
    # Methods in C have no module.
    return getattr(function, "__module__", None) == "__main__" or "<locals>" in function.__qualname__


_EXAMPLE: Any = ipc_wait.wrap(_is_of_the_script)
_WRAPPER = type(_EXAMPLE)  # with the core in Python it is a function, known by its code


def _is_wrapper(obj: Any) -> bool:
    return _WRAPPER is not FunctionType or obj.__code__ is _EXAMPLE.__code__


def patch_queues(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.queues`."""
    for queue in (module.Queue, module.SimpleQueue):
        into.apply(
            [
                _channel(queue, "get", ipc_wait, totals.region_of_queue),
                _channel(queue, "put", ipc_send, totals.region_of_queue),
            ]
        )


def patch_socket(module: ModuleType, into: Patches) -> None:
    """`socket`: waiting for another process, or for another computer."""
    socket: Any = module.socket
    into.apply(
        _channel(socket, name, ipc_wait, totals.region_of_socket) for name in ("recv", "recv_into", "accept")
    )
    for name in ("send", "sendall"):
        into.apply(
            [
                Patch(socket, name, totals.count_bytes),
                _channel(socket, name, ipc_send, totals.region_of_socket),
            ]
        )


def patch_selectors(module: ModuleType, into: Patches) -> None:
    """`selectors`: where asyncio waits for whatever comes first."""
    aside = (ipc_wait, ipc_send, queue_wait, queue_put, condition_wait)
    for name in ("EpollSelector", "PollSelector", "SelectSelector"):
        if hasattr(module, name):
            selector: Any = getattr(module, name)
            into.apply([Patch(selector, "select", lambda f: ipc_wait.wrap(f, skip_inside=aside))])


def patch_queue(module: ModuleType, into: Patches) -> None:
    """`queue`: between threads."""
    queue: Any = module
    aside = (queue_wait, queue_put, ipc_wait)
    into.apply([Replacement(module, "SimpleQueue", with_methods)])
    for owner in (queue.Queue, queue.SimpleQueue):
        into.apply(
            [
                _channel(owner, "get", queue_wait, totals.region_of_thread_queue, aside),
                _channel(owner, "put", queue_put, totals.region_of_thread_queue, aside),
            ]
        )


def patch_threading(module: ModuleType, into: Patches) -> None:
    """`threading`: waiting for an event or a condition, or for threads to end, also when the program does."""
    aside = (condition_wait, queue_wait, queue_put, ipc_wait, ipc_send)
    of_threads: Any = module
    into.apply(
        [
            Patch(of_threads.Condition, "wait", lambda f: condition_wait.wrap(f, skip_inside=aside)),
            Patch(of_threads.Thread, "join", lambda f: condition_wait.wrap(f, skip_inside=aside)),
            Patch(module, "_shutdown", _shutting_down),
        ]
    )


def _shutting_down(shutdown: Callable[[], Any]) -> Callable[[], Any]:
    """Where Python waits for other threads at its end; it does not need to if there are none."""

    def _shutdown() -> Any:
        here = threading.current_thread()
        if all(thread.daemon or thread is here for thread in threading.enumerate()):
            return shutdown()
        with shut_down:
            return shutdown()

    return _shutdown


def patch_subprocess(module: ModuleType, into: Patches) -> None:
    """`subprocess`: waiting for a child process to end."""
    popen: Any = module.Popen
    into.apply(patch_outermost(popen, name, process_wait) for name in ("wait", "communicate"))


def watch_garbage_collector() -> Callable[[], None]:
    """Record full garbage collections as a region; returns the function that ends it."""
    callback = gc_pause.on_collection
    gc.callbacks.append(callback)
    return lambda: gc.callbacks.remove(callback)
