"""Which modules have their messages logged, and the function that has them patched as they are imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from hotloop._util.interrupts import suppress_own
from hotloop.instrument.libraries import Instrumentation

# module -> our function that patches it, as "module:function"
LOGGED_LIBRARIES = {
    "multiprocessing.connection": "hotloop.instrument.channels.processes:patch_connection",
    "multiprocessing.managers": "hotloop.instrument.channels.managers:patch_managers",
    "multiprocessing.queues": "hotloop.instrument.channels.processes:patch_queues",
    "multiprocessing.synchronize": "hotloop.instrument.channels.processes:patch_synchronize",
    "fcntl": "hotloop.instrument.channels.file_locks:patch_file_locks",
    "os": "hotloop.instrument.channels.folders:patch_folders",
    "socket": "hotloop.instrument.channels.sockets:patch_socket",
    "selectors": "hotloop.instrument.channels.sockets:patch_selectors",
    "asyncio.base_events": "hotloop.instrument.channels.event_loops:patch_event_loops",
    "queue": "hotloop.instrument.channels.threads:patch_queue",
    "threading": "hotloop.instrument.channels.threads:patch_threading",
    "multiprocessing.pool": "hotloop.instrument.channels.pools:patch_pool",
    "concurrent.futures._base": "hotloop.instrument.channels.pools:patch_futures",
    "concurrent.futures.thread": "hotloop.instrument.channels.pools:patch_executor",
    "torch.distributed.distributed_c10d": "hotloop.instrument.channels.ranks:patch_distributed",
    "torch.nn.parallel.distributed": "hotloop.instrument.channels.ranks:patch_data_parallel",
}


def log_messages(instrumentation: Instrumentation) -> None:
    """Log the messages of this process from now on; call it before the instrumentation is installed."""

    def patcher(target: str) -> Callable[[ModuleType], None]:
        def patch(module: ModuleType) -> None:
            ours, _, function = target.partition(":")
            with suppress_own(Exception):  # the library has changed: it is not logged
                getattr(importlib.import_module(ours), function)(module, instrumentation.patches)

        return patch

    for name, target in LOGGED_LIBRARIES.items():
        instrumentation.hook.also(name, patcher(target))
