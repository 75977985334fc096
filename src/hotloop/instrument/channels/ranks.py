"""Ranks of torch.distributed: they meet at collectives and in backward passes, and send tensors."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import MutableMapping
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.capture.message_format import MEET, RECEIVE, SEND
from hotloop.instrument.channels.logged_calls import begin_operation, end_operation, now_ns, this_thread
from hotloop.instrument.channels.message_log import NO_CHANNEL, log
from hotloop.instrument.patch import Patch, Patches, Replacement

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "barrier",
    "reduce_scatter_tensor",
)


def patch_distributed(module: ModuleType, into: Patches) -> None:
    """`torch.distributed.distributed_c10d`: collectives that the script calls itself."""

    def log_meeting(f: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if this_thread.inside or kwargs.get("async_op"):
                return f(*args, **kwargs)
            begun = begin_operation()
            this_thread.inside = True
            try:
                return f(*args, **kwargs)
            finally:
                this_thread.inside = False
                end_operation(begun, _ranks_channel(), MEET)

        return call

    patch_tensors(module, into)
    for name in COLLECTIVES:
        into.apply([Patch(module, name, log_meeting)])
        package = sys.modules.get("torch.distributed")
        if package is not None and hasattr(package, name):
            into.apply([Patch(package, name, log_meeting)])


def patch_tensors(module: ModuleType, into: Patches) -> None:
    """`torch.distributed.distributed_c10d`: tensors that one rank sends to another.

    Two messages stand for a tensor: it is there, and the receiver has asked for it. A sender waits for the
    second one (gloo holds a tensor back until then).
    """
    pending: MutableMapping[Any, int] = weakref.WeakKeyDictionary()  # work to wait for -> channel

    def log_blocking(f: Any, sends: bool) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if this_thread.inside:
                return f(*args, **kwargs)
            begun = begin_operation()
            this_thread.inside = True
            try:
                found = f(*args, **kwargs)
            finally:
                this_thread.inside = False
            here, there = _tensor_channels(module, sends, found, args, kwargs)
            log.write(there, SEND, begun[0], begun[0])
            end_operation(begun, here, RECEIVE)
            return found

        return call

    def log_begun(f: Any, sends: bool) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = now_ns()
            work = f(*args, **kwargs)
            if work is not None and not this_thread.inside:
                here, there = _tensor_channels(module, sends, None, args, kwargs)
                log.write(there, SEND, begin, begin)
                with suppress_own(Exception):
                    pending[work] = here
            return work

        return call

    def log_waited(f: Any) -> Any:
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            channel = pending.pop(self, None)
            if channel is None or this_thread.inside:
                return f(self, *args, **kwargs)
            begun = begin_operation()
            found = f(self, *args, **kwargs)
            end_operation(begun, channel, RECEIVE)
            return found

        return wait

    package = sys.modules.get("torch.distributed")
    for name, make in (
        ("send", log_blocking),
        ("recv", log_blocking),
        ("isend", log_begun),
        ("irecv", log_begun),
    ):
        into.apply([Patch(module, name, lambda f, make=make, sends="send" in name: make(f, sends))])  # type: ignore[misc]
        if package is not None and hasattr(package, name):  # the same function: `P2POp` compares them
            ours = getattr(module, name)
            into.apply([Replacement(package, name, lambda _, ours=ours: ours)])  # type: ignore[misc]
    into.apply([Patch(module.Work, "wait", log_waited)])


def _tensor_channels(
    module: ModuleType, sends: bool, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, int]:
    """The channels on which this rank receives and sends for a tensor; NO_CHANNEL if the other is not known.

    `found` is what the call returned: who sent a tensor that was received from anyone.
    """
    with suppress_own(Exception):
        names = ("tensor", "dst" if sends else "src", "group", "tag", "group_dst" if sends else "group_src")
        given = dict(zip(names, args, strict=False)) | kwargs
        group, tag = given.get("group"), given.get("tag") or 0
        other, in_group = given.get(names[1]), given.get(names[4])
        if other is None:
            other = found if in_group is None else module.get_global_rank(group, in_group)
        if isinstance(other, int) and other >= 0:
            mine: int = module.get_rank()
            pair = f"tensors {mine}>{other} {tag}" if sends else f"tensors {other}>{mine} {tag}"
            there, asked = log.channel(pair, "pipe"), log.channel(f"{pair} asked", "pipe")
            return (asked, there) if sends else (there, asked)
    return NO_CHANNEL, NO_CHANNEL


def patch_data_parallel(module: ModuleType, into: Patches) -> None:
    """`torch.nn.parallel.distributed`: ranks meet in the backward pass that follows a forward pass."""
    pending = threading.local()

    def note_forward(f: Any) -> Any:
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = f(self, *args, **kwargs)
            pending.meets = bool(getattr(self, "require_backward_grad_sync", True))
            return found

        return forward

    def log_backward(f: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not getattr(pending, "meets", False):
                return f(*args, **kwargs)
            pending.meets = False
            begun = begin_operation()
            try:
                return f(*args, **kwargs)
            finally:
                end_operation(begun, _ranks_channel(), MEET)

        return backward

    into.apply(
        [
            Patch(module.DistributedDataParallel, "forward", note_forward),
            Patch(sys.modules["torch"].Tensor, "backward", log_backward),
        ]
    )


def _ranks_channel() -> int:
    return log.channel("ranks", "collective", capacity=int(os.environ.get("WORLD_SIZE") or 0) or None)
