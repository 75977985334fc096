"""Ranks of torch.distributed, which meet at collectives and in backward passes."""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType
from typing import Any

from hotloop.capture.message_format import MEET
from hotloop.instrument.channels.logged_calls import begin_operation, end_operation, this_thread
from hotloop.instrument.channels.message_log import log
from hotloop.instrument.patch import Patch, Patches

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

    for name in COLLECTIVES:
        into.apply([Patch(module, name, log_meeting)])
        package = sys.modules.get("torch.distributed")
        if package is not None and hasattr(package, name):
            into.apply([Patch(package, name, log_meeting)])


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
