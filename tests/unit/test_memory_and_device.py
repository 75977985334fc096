"""Memory is credited to open regions; device time comes from events that complete late."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from hotloop import Profiler
from hotloop.measure.core_choice import CoreName
from hotloop.testing.fakes import FakeClock, FakeDevice

MiB = 1024 * 1024


def grow(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size)
    for at in range(0, size, 4096):
        memory[at] = 1
    return memory


def test_growth_goes_to_the_innermost_region_and_the_peak_to_all_open_ones(profiler: Profiler) -> None:
    with profiler.profile("outer"):
        profiler.recorder.sample()
        with profiler.profile("allocates"):
            memory = grow(64 * MiB)
            profiler.recorder.sample()
        with profiler.profile("later"):
            profiler.recorder.sample()
    stats = profiler.stats()
    assert 60 * MiB < stats["allocates"].rss_growth_bytes < 80 * MiB
    assert abs(stats["later"].rss_growth_bytes) < 16 * MiB
    assert stats["outer"].rss_peak_bytes >= stats["allocates"].rss_growth_bytes
    memory.close()


def test_memory_that_was_not_sampled_is_none(core: CoreName, clock: FakeClock) -> None:
    profiler = Profiler(clock=clock, core_name=core).start(memory=False)
    with profiler.profile("a"):
        profiler.recorder.sample()
    stats = profiler.stats("a")
    assert stats.rss_growth_bytes is None and stats.rss_peak_bytes is None
    (process,) = profiler.capture().processes
    assert process.rss_bytes is None
    profiler.stop()


def test_the_sampler_runs_by_itself(core: CoreName) -> None:
    import time

    profiler = Profiler(core_name=core).start()
    deadline = time.monotonic() + 10
    with profiler.profile("waits"):
        memory = grow(32 * MiB)
        while profiler.recorder.part.get("rss_bytes") == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
    stats = profiler.stats("waits")
    assert stats.rss_peak_bytes is not None and stats.rss_peak_bytes > 32 * MiB
    profiler.stop()
    memory.close()


def test_device_time_is_credited_when_events_complete_late(core: CoreName, clock: FakeClock) -> None:
    device = FakeDevice()
    profiler = Profiler(clock=clock, core_name=core).start(device=device)
    timer = profiler.recorder.device
    for _ in range(3):
        with profiler.profile("backward"):
            device.work(1000)
            device.allocated_bytes += 100
            clock.advance(10)  # the call returns long before the device is done
        with profiler.profile("log"):
            clock.advance(1)
    timer.collect()
    assert timer.pending == 3
    assert profiler.stats("backward").device_ns is None
    device.finish()
    timer.collect()
    assert timer.pending == 0
    stats = profiler.stats("backward")
    assert stats.device_ns == 3000
    assert stats.device_growth_bytes == 300
    assert stats.device_peak_bytes == 300
    assert profiler.stats("log").device_ns is None
    assert stats.total_ns == 30
    profiler.stop()


def test_events_are_pooled(core: CoreName, clock: FakeClock) -> None:
    device = FakeDevice()
    profiler = Profiler(clock=clock, core_name=core).start(device=device)
    for _ in range(50):
        with profiler.profile("loss"):
            device.work(5)
        device.finish()
        profiler.recorder.device.collect()
    assert device.events_made == 2
    assert profiler.stats("loss").device_ns == 250
    profiler.stop()


def test_nested_device_regions(core: CoreName, clock: FakeClock) -> None:
    device = FakeDevice()
    profiler = Profiler(clock=clock, core_name=core).start(device=device)
    with profiler.profile("update", device=True):
        device.work(10)
        with profiler.profile("backward"):
            device.work(100)
        device.work(1)
    device.finish()
    profiler.recorder.device.collect()
    assert profiler.stats("backward").device_ns == 100
    assert profiler.stats("update").device_ns == 111
    profiler.stop()


def test_a_device_found_later_is_timed_in_outermost_regions(
    core: CoreName, clock: FakeClock, tmp_path: Path
) -> None:
    device = FakeDevice()
    profiler = Profiler(clock=clock, core_name=core)
    profiler.attach_device(device)  # nothing records yet: nothing happens
    profiler.start(tmp_path / "capture")
    with profiler.profile("policy_forward"):
        profiler.attach_device(device)
        device.work(7)
    with profiler.profile("policy_forward"):
        device.work(10)
        with profiler.profile("Net.forward", "policy"):
            device.work(100)
        with profiler.profile("log"):
            device.work(1000)
    with profiler.profile("Net.forward", "policy"):
        device.work(5)
    profiler.attach_device(FakeDevice())  # the first stays
    device.finish()
    profiler.recorder.device.collect()
    assert profiler.recorder.device.device is device
    assert profiler.stats("policy_forward").device_ns == 1110
    assert profiler.stats("Net.forward").device_ns == 5
    facts = profiler.capture().facts
    assert facts["device"] == "fake" and facts["device_policy"] == "events, queried, never synchronised"
    profiler.stop()


def test_events_that_never_complete_are_reported_at_the_end(core: CoreName, clock: FakeClock) -> None:
    profiler = Profiler(clock=clock, core_name=core).start(device=FakeDevice())
    with profiler.profile("loss"):
        pass
    profiler.recorder.device.device.work(5)
    with profiler.profile("loss"):
        profiler.recorder.device.device.work(5)
    with pytest.warns(UserWarning, match="device events had not completed"):
        profiler.stop()


def test_without_a_device_its_figures_are_none(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("backward"):
        clock.advance(5)
    stats = profiler.stats("backward")
    assert stats.device_ns is None and stats.device_peak_bytes is None
