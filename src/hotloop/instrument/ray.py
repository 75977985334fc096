"""Ray: waiting for results, sending objects and tasks, running them; each worker is named after its actor."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import sys
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import is_users, suppress_own
from hotloop.capture.region_names import RAY_IDLE, RAY_TASK, RAY_WAIT_FOR
from hotloop.instrument import ray_times
from hotloop.instrument.patch import Patch, Patches, Replacement
from hotloop.instrument.ray_driver import class_name, describe, own_work, patch_connect
from hotloop.measure import origin
from hotloop.measure.decorate import decorate
from hotloop.measure.profiler import default

ray_init = default.profile("ray_init", "other")
ray_get = default.profile("ray_get", "wait")
ray_wait = default.profile("ray_wait", "wait")
ray_put = default.profile("ray_put", "ipc")
ray_submit = default.profile("ray_submit", "ipc")
ray_serialize = default.profile("ray_serialize", "ipc")
ray_deserialize = default.profile("ray_deserialize", "ipc")
ray_task = default.profile(RAY_TASK, "other")
ray_idle = default.profile(RAY_IDLE, "wait")

MOST_NAMES = 1 << 16
_names: dict[bytes, str] = {}  # of tasks that were submitted here: task id -> "Class.method"
_waits: dict[str, Any] = {}  # "Class.method" -> region of waiting for it


def patch_worker(module: ModuleType, into: Patches) -> None:
    """`ray._private.worker`, and the names in `ray` itself if that was imported before, as in workers.

    There, most are functions around those of the module: they start Ray at the first call.
    """
    package = sys.modules.get("ray")
    makers = {
        "init": _recorded(ray_init),
        "get": _waiting(ray_get),
        "wait": _waiting(ray_wait),
        "put": _recorded(ray_put),
    }
    for name, make in makers.items():
        original = getattr(module, name)
        into.apply([Patch(module, name, make)])
        public = vars(package).get(name) if package is not None else None
        if public is original:
            into.apply([Patch(package, name, functools.partial(_replaced, getattr(module, name)))])
        elif original in _inside(public):
            into.apply([Patch(package, name, make)])
    patch_connect(module, into)


def _inside(function: Any) -> Iterator[Any]:
    """The functions that a decorated one calls, as `functools.wraps` tells."""
    while (function := getattr(function, "__wrapped__", None)) is not None:
        yield function


def _replaced(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return ours


def _recorded(region: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda function: region.wrap(function, skip_inside=(region, own_work))


def _waiting(region: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Record as waiting, with a region inside that says for which method."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not default.recorder.epoch or own_work.is_open():
                return function(*args, **kwargs)
            refs = args[0] if args else kwargs.get("object_refs", kwargs.get("ray_waitables"))
            with region, _wait_for(refs):
                return function(*args, **kwargs)

        return call

    return make


def _wait_for(refs: Any) -> Any:
    """The region of waiting for what these references stand for."""
    name = "an object"
    try:
        first = refs[0] if isinstance(refs, (list, tuple)) and refs else refs
        name = _names.get(_task_of(first) or b"", name)
    except Exception as error:
        if is_users(error):
            raise
    found = _waits.get(name)
    if found is None:
        found = _waits[name] = default.profile(f"{RAY_WAIT_FOR}{name}", "wait")
    return found


def _task_of(ref: Any) -> bytes | None:
    """The id of the task whose result this is; None for anything that is no reference.

    Results that a generator yields have the id of its task, too.
    """
    ref = getattr(ref, "_generator_ref", ref)
    return ref.task_id().binary() if hasattr(ref, "task_id") else None


# -- submitting ------------------------------------------------------------------------------------


_wrapped: dict[bytes, str] = {}  # actors whose class only wraps another one -> name of that


_Profiled: type = type(ray_put.wrap(len))  # what stands for a function in a region, with the compiled core


def patch_inspection(module: ModuleType, into: Patches) -> None:
    """`ray._private.inspect_util`: methods in a region are methods of an actor, too, and not left out."""

    def accepting(is_function: Callable[[object], bool]) -> Callable[[object], bool]:
        def is_function_or_method(obj: object) -> bool:
            return is_function(obj) or isinstance(obj, _Profiled)

        return is_function_or_method

    into.apply([Patch(module, "is_function_or_method", accepting)])
    # Modules that were imported before, as in workers, have it under their own name.
    for name in ("ray.actor", "ray._private.function_manager"):
        other = sys.modules.get(name)
        if other is not None and hasattr(other, "is_function_or_method"):
            into.apply([Patch(other, "is_function_or_method", accepting)])


def patch_pickling(module: ModuleType, into: Patches) -> None:
    """`ray.cloudpickle.cloudpickle`: methods of the script's own classes are sent without our regions.

    Ray sends such a class by value, as workers cannot import the script; we stand for a function by its name.
    """

    def reduced(profiled: Any) -> Any:
        name = profiled.__reduce__()
        found: Any = sys.modules.get(getattr(profiled, "__module__", None) or "")
        if getattr(found, "__name__", "__main__") != "__main__":
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is profiled:
                return name
        inside = (one for one in gc.get_referents(profiled) if inspect.isfunction(one))
        function = vars(profiled).get("__wrapped__") or next(inside)
        return copy.copy, (function,)  # a function is its own copy

    def with_ours(table: Any) -> Any:
        return ChainMap({_Profiled: reduced}, table)

    into.apply([Replacement(module.CloudPickler, "dispatch_table", with_ours)])


def patch_actor(module: ModuleType, into: Patches) -> None:
    """`ray.actor`: making actors, and calls of their methods."""
    into.apply(
        [
            Patch(module.ActorClass, "_remote", _creating),
            Patch(module.ActorMethod, "_remote", functools.partial(_submitting, _method_name)),
        ]
    )


def _creating(remote: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin_ns = time.monotonic_ns()
        handle = remote(self, *args, **kwargs)
        if default.recorder.epoch and not own_work.is_open():
            with suppress_own(Exception):
                cls, actor = self.__ray_metadata__.modified_class, handle._ray_actor_id.binary()
                ray_times.created(actor, class_name(cls), begin_ns)
                if class_name(cls) != cls.__name__:
                    _wrapped[actor] = class_name(cls)
        return handle

    return call


def patch_remote_function(module: ModuleType, into: Patches) -> None:
    """`ray.remote_function`: calls of remote functions."""
    into.apply([Patch(module.RemoteFunction, "_remote", functools.partial(_submitting, _function_name))])


def _method_name(method: Any) -> str:
    actor = method._actor
    name = _wrapped.get(actor._ray_actor_id.binary()) if _wrapped else None
    # A class inside a function or a class has their names before its own.
    name = name or str(actor._ray_actor_creation_function_descriptor.class_name).rpartition(".")[2]
    return f"{name}.{method._method_name}"


def _function_name(function: Any) -> str:
    return str(function._function_name).rpartition(".")[2]


def _submitting(name_of: Callable[[Any], str], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        since_ns = time.monotonic_ns()  # before the call: an idle worker may begin before it returns
        result = function(self, *args, **kwargs)
        if default.recorder.epoch and not own_work.is_open():
            with suppress_own(Exception):
                _note(result, name_of(self), since_ns)
        return result

    made: Callable[..., Any] = ray_submit.wrap(call, skip_inside=(ray_submit, own_work))
    return made


def _note(result: Any, name: str, since_ns: int) -> None:
    """Remember what the task of these results is called, by its id: a reference would keep them alive."""
    if len(_names) > MOST_NAMES:
        for old in list(_names)[: MOST_NAMES // 2]:
            del _names[old]
    task = _task_of(result[0] if isinstance(result, list) and result else result)
    if task is not None:
        _names[task] = name
        ray_times.submitted(task, name, since_ns)


# -- objects ---------------------------------------------------------------------------------------


def patch_serialization(module: ModuleType, into: Patches) -> None:
    """`ray._private.serialization`: what is sent and received, in bytes."""
    context = module.SerializationContext

    def sending(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            with suppress_own(Exception):
                ray_serialize.add(bytes=result.total_bytes, flops=0)
            return result

        made: Callable[..., Any] = ray_serialize.wrap(call, skip_inside=(ray_serialize, own_work))
        return made

    def receiving(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, objects: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress_own(Exception):
                ray_deserialize.add(bytes=sum(len(one[0]) for one in objects if one[0] is not None), flops=0)
            return function(self, objects, *args, **kwargs)

        made: Callable[..., Any] = ray_deserialize.wrap(call, skip_inside=(ray_deserialize, own_work))
        return made

    into.apply([Patch(context, "serialize", sending), Patch(context, "deserialize_objects", receiving)])


# -- running tasks in a worker ---------------------------------------------------------------------


_waiting_thread = threading.local()  # has `idle` in threads that wait for their next task


def begin_worker(module: ModuleType, into: Patches) -> None:
    """Record what this worker of Ray runs; called in its main thread before the first task."""
    manager: Any = sys.modules["ray._private.function_manager"]
    into.apply(
        [
            Patch(manager.FunctionActorManager, "_make_actor_method_executor", _executing_methods),
            Patch(manager.FunctionActorManager, "get_execution_info", _executing_functions),
        ]
    )
    origin.more = functools.partial(describe, module.global_worker, "worker")
    ray_idle.__enter__()


def _executing_methods(make_executor: Callable[..., Any]) -> Callable[..., Any]:
    def make(self: Any, method_name: str, method: Any, *args: Any) -> Any:
        region = None
        with suppress_own(Exception):
            # Named after the class of the actor, as in its callers, also if a base class has the method.
            classes = getattr(self, "_loaded_actor_classes", {}).values()
            mine = next((cls for cls in classes if getattr(cls, method_name, None) is method), None)
            qualified = getattr(method, "__qualname__", method_name).rpartition("<locals>.")[2]
            qualified = qualified if mine is None else f"{class_name(mine)}.{method_name}"
            region = default.profile(qualified, "other")
            if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
                inner = decorate(region, method)
                return make_executor(self, method_name, decorate(ray_task, inner), *args)
        executor = make_executor(self, method_name, method, *args)
        if region is None or method_name.startswith("__ray"):
            return executor
        begins = method_name == "__init__"
        wrapped = functools.update_wrapper(_running(region, executor, begins), executor)
        wrapped.name, wrapped.method = executor.name, executor.method  # type: ignore[attr-defined]
        return wrapped

    return make


def _executing_functions(get_info: Callable[..., Any]) -> Callable[..., Any]:
    def get(self: Any, job_id: Any, descriptor: Any) -> Any:
        info = get_info(self, job_id, descriptor)
        try:
            if descriptor.is_actor_method() or hasattr(info.function, "_hotloop_task"):
                return info
            region = default.profile(str(descriptor.function_name).rpartition("<locals>.")[2], "other")
            wrapped: Any = functools.update_wrapper(_running(region, info.function), info.function)
            wrapped._hotloop_task = True
            info = self._function_execution_info[descriptor.function_id] = info._replace(function=wrapped)
        except Exception as error:
            if is_users(error):
                raise
        return info

    return get


def _running(region: Any, function: Callable[..., Any], begins: bool = False) -> Callable[..., Any]:
    """Run a task in its region; the time between two tasks of a thread is waiting.

    `begins`: it is the `__init__` of an actor. A function that generates results only makes a generator when
    it is called; Ray runs that afterwards, so the call is recorded then.
    """
    worker: Any = sys.modules["ray._private.worker"].global_worker
    generates = inspect.isgeneratorfunction(getattr(function, "method", function))

    def begin() -> int:
        if threading.current_thread() is threading.main_thread() or hasattr(_waiting_thread, "idle"):
            ray_idle.__exit__()
            vars(_waiting_thread).pop("idle", None)
        begin_ns = time.monotonic_ns()
        if not begins:
            with suppress_own(Exception):
                ray_times.began(worker.current_task_id.binary())
        return begin_ns

    def end(begin_ns: int) -> None:
        if begins:
            with suppress_own(Exception):
                ray_times.started(worker.actor_id.binary(), begin_ns)
                default.origin_changed()
        if threading.current_thread() is threading.main_thread():
            ray_idle.__enter__()
        elif asyncio._get_running_loop() is None:  # one of several threads of an actor, and no event loop
            _waiting_thread.idle = True
            ray_idle.__enter__()

    def run(*args: Any, **kwargs: Any) -> Any:
        begin_ns = begin()
        try:
            with ray_task, region:
                return function(*args, **kwargs)
        finally:
            end(begin_ns)

    def generate(*args: Any, **kwargs: Any) -> Any:
        begin_ns = begin()
        try:
            with ray_task, region:
                return (yield from function(*args, **kwargs))
        finally:
            end(begin_ns)

    return generate if generates else run
