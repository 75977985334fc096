"""`queue.SimpleQueue` is written in C: its methods cannot be replaced, so a subclass stands in for it."""

from __future__ import annotations

from typing import Any

_ORIGINAL = "_hotloop_original"  # attribute of the subclass


def with_methods(original: Any) -> Any:
    """A subclass of `SimpleQueue` with methods of its own, which can be patched."""

    class SimpleQueue(original):  # type: ignore[misc]
        maxsize = 0

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            return original.get(self, block, timeout)

        def get_nowait(self) -> Any:
            return self.get(False)

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            original.put(self, item)

        def put_nowait(self, item: Any) -> None:
            self.put(item)

    SimpleQueue.__module__, SimpleQueue.__qualname__ = original.__module__, original.__qualname__
    setattr(SimpleQueue, _ORIGINAL, original)
    return SimpleQueue


def queue_in_c(module: Any) -> Any:
    """The original `SimpleQueue` of the module `queue`."""
    return getattr(module.SimpleQueue, _ORIGINAL, module.SimpleQueue)
