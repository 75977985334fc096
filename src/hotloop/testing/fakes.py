"""A clock and a device that tests control."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still until `advance`; call it to read nanoseconds."""

    def __init__(self, start_ns: int = 1_000_000_000):
        self.ns = start_ns

    def __call__(self) -> int:
        return self.ns

    def advance(self, ns: int) -> None:
        self.ns += ns


class FakeEvent:
    """A point in a device's work queue."""

    def __init__(self) -> None:
        self.at_ns: int | None = None


class FakeDevice:
    """A device whose events complete only when `finish` is called, like an asynchronous GPU queue."""

    name = "fake"

    def __init__(self) -> None:
        self.queued_ns = 0  # device time of the work queued so far
        self.finished_ns = -1  # events up to this device time are done
        self.allocated_bytes = 0
        self.events_made = 0

    def work(self, ns: int) -> None:
        """Queue work that takes the device `ns` nanoseconds."""
        self.queued_ns += ns

    def finish(self) -> None:
        """Complete everything queued so far."""
        self.finished_ns = self.queued_ns

    def new_event(self) -> FakeEvent:
        """A new event; `events_made` counts them, so that tests can check reuse."""
        self.events_made += 1
        return FakeEvent()

    def record(self, event: FakeEvent) -> None:
        """Place the event after the work queued so far."""
        event.at_ns = self.queued_ns

    def is_done(self, event: FakeEvent) -> bool:
        """Whether the work before the event is finished."""
        return event.at_ns is not None and event.at_ns <= self.finished_ns

    def elapsed_ns(self, start: FakeEvent, end: FakeEvent) -> int:
        assert start.at_ns is not None and end.at_ns is not None
        return end.at_ns - start.at_ns

    def memory_bytes(self) -> int:
        return self.allocated_bytes
