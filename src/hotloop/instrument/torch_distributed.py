"""torch.distributed: collectives are waits for other ranks; what DistributedDataParallel measures itself."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import process_facts
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.profiler import default

# Collectives and messages between ranks: all of them wait for a partner.
COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all"),
    *("all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object"),
    *("monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"),
)
LOGGED = (
    *("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time"),
    *("avg_backward_compute_comm_overlap_time", "iteration"),
)
collective = default.profile("collective", "wait")
work_wait = default.profile("work_wait", "wait")
_models: list[weakref.ref[Any]] = []


def patch_collectives(module: ModuleType, into: Patches) -> None:
    """`torch.distributed.distributed_c10d`, where the functions are defined, and `Work.wait`."""
    for name in COLLECTIVES:
        if hasattr(module, name):
            into.apply([Patch(module, name, _waiting(name))])
    work: Any = getattr(module, "Work", None)
    if work is not None:
        into.apply([Patch(work, "wait", lambda f: work_wait.wrap(f, skip_inside=(collective, work_wait)))])


def patch_package(module: ModuleType, into: Patches) -> None:
    """`torch.distributed`, which has the same functions under its own name."""
    defined = sys.modules.get("torch.distributed.distributed_c10d")
    for name in COLLECTIVES:
        ours = getattr(defined, name, None)
        if hasattr(module, name) and ours is not None and getattr(module, name) is not ours:
            into.apply([Patch(module, name, _the(ours))])


def _the(function: Any) -> Callable[[Any], Any]:
    return lambda original: function


def _waiting(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    region = default.profile(name, "wait")

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            with suppress_own(Exception):
                region.add(bytes=_bytes_of(args[0] if args else kwargs.get("tensor")), flops=0)
            return result

        made: Callable[..., Any] = region.wrap(call, outer=collective, skip_inside=(collective,))
        return made

    return make


def _bytes_of(thing: Any) -> int:
    if isinstance(thing, (list, tuple)):
        return sum(map(_bytes_of, thing))
    return int(thing.numel() * thing.element_size()) if hasattr(thing, "element_size") else 0


def patch_data_parallel(module: ModuleType, into: Patches) -> None:
    """`torch.nn.parallel.distributed`: note each model, whose gradients are added up in `backward`."""
    wrapper: Any = module.DistributedDataParallel

    def noting(init: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            with suppress_own(Exception):
                _models.append(weakref.ref(self))
                process_facts.note("data_parallel", logged())

        return __init__

    into.apply([Patch(wrapper, "__init__", noting)])


def logged() -> dict[str, int]:
    """What DistributedDataParallel has measured: ns of forward, backward, communication and overlap."""
    found: dict[str, int] = {}
    for ref in _models:
        model = ref()
        data = model._get_ddp_logging_data() if model is not None else {}
        for name in LOGGED:
            if isinstance(data.get(name), int):
                found[name] = found.get(name, 0) + data[name]
    return found


_noted_iterations = 0


def note_logged() -> None:
    """Write it into the capture, whenever there were half as many iterations again."""
    global _noted_iterations
    with suppress_own(Exception):
        found = logged() if _models else {}
        if found.get("iteration", 0) > 1.5 * _noted_iterations:
            _noted_iterations = found["iteration"]
            process_facts.note("data_parallel", found)
