"""Time and memory of an accelerator, from its own events and without ever synchronising.

A region that launches device work records an event at its start and one at its end. Events that have
completed are read later (`collect`) and returned to a pool.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol

from hotloop._util.extras import require_extra

MAX_PENDING = 4096  # regions whose events have not completed; beyond that the oldest are dropped


class Device(Protocol):
    """An accelerator whose work can be timed."""

    name: str

    def new_event(self) -> Any:
        """An event that can be recorded any number of times."""

    def record(self, event: Any) -> None:
        """Put the event into the queue of the device."""

    def is_done(self, event: Any) -> bool:
        """Whether the device has reached the event. Must not block."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Device time between two events that are done."""

    def memory_bytes(self) -> int:
        """Memory currently allocated on the device."""


class TorchDevice:
    """A CUDA (or compatible) device of torch."""

    def __init__(self, name: str = "cuda"):
        torch = require_extra("torch", "rl")
        self.name = name
        self._device = torch.device(name)
        self._api = getattr(torch, self._device.type)  # torch.cuda, torch.xpu

    def new_event(self) -> Any:
        return self._api.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        event.record(self._api.current_stream(self._device))

    def is_done(self, event: Any) -> bool:
        return bool(event.query())

    def elapsed_ns(self, start: Any, end: Any) -> int:
        return int(start.elapsed_time(end) * 1e6)

    def memory_bytes(self) -> int:
        nested = getattr(self._api, "memory_stats_as_nested_dict", None)
        if nested is None:
            return int(self._api.memory_allocated(self._device))
        # memory_stats() would flatten and sort a hundred figures first.
        return int(nested(self._device)["allocated_bytes"]["all"]["current"])


class DeviceTimer:
    """Credits device time and memory to nodes; each thread has its own queue of events."""

    def __init__(self, device: Device, credit: Any, outermost: bool = False):
        """`credit` is called with (node, device_ns or None, growth_bytes, peak_bytes).

        With `outermost`, device regions inside others are not timed, since events and memory cost time.
        """
        self.device = device
        self._outermost = outermost
        self.dropped = 0  # regions whose events did not complete in time
        self._credit = credit
        self._local = threading.local()

    def _state(self) -> Any:
        if not hasattr(self._local, "open"):
            self._local.open = []
            self._local.pending = deque()
            self._local.pool = []
        return self._local

    def _event(self, state: Any) -> Any:
        event = state.pool.pop() if state.pool else self.device.new_event()
        self.device.record(event)
        return event

    def enter(self, depth: int) -> None:
        """A device region begins with `depth` regions open."""
        state = self._state()
        self._drop(state, depth)
        inside = self._outermost and state.open
        state.open.append((depth, None if inside else (self._event(state), self.device.memory_bytes())))

    @staticmethod
    def _drop(state: Any, depth: int) -> None:
        """Forget regions that were open at this depth or deeper: their end was missed."""
        while state.open and state.open[-1][0] >= depth:
            state.open.pop()

    def exit(self, node: Any, depth: int) -> None:
        """The device region that began with `depth` regions open ends; its figures go to `node`."""
        state = self._state()
        self._drop(state, depth + 1)
        if not state.open or state.open[-1][0] != depth:
            return  # entered before the device was attached
        _, begun = state.open.pop()
        if begun is None:
            return
        start, before = begun
        after = self.device.memory_bytes()
        self._credit(node, None, after - before, max(before, after))
        state.pending.append((node, start, self._event(state)))
        if len(state.pending) > MAX_PENDING:
            self.collect()
            if len(state.pending) > MAX_PENDING:
                state.pending.popleft()
                self.dropped += 1

    def collect(self) -> None:
        """Credit the events that have completed, in order, up to the first that has not."""
        state = self._state()
        while state.pending and self.device.is_done(state.pending[0][2]):
            node, start, end = state.pending.popleft()
            self._credit(node, self.device.elapsed_ns(start, end), 0, 0)
            state.pool += [start, end]

    @property
    def pending(self) -> int:
        """Number of regions of this thread whose events have not completed."""
        return len(self._state().pending)
