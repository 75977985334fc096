"""Scheduling figures of threads and processes, and the number of threads libraries may use."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hotloop
from hotloop import Profiler
from hotloop.capture import layout
from hotloop.capture.read_samples import NO_SCHEDSTAT
from hotloop.capture.sections import Section
from hotloop.instrument.bootstrap import library_threads
from hotloop.measure import origin
from hotloop.measure.core_choice import CoreName
from hotloop.testing.fakes import FakeClock


def burn_cpu(seconds: float = 0.03) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def test_a_thread_has_cumulative_figures_over_time(profiler: Profiler, clock: FakeClock) -> None:
    before_ns = time.thread_time_ns()
    profiler.recorder.sample()
    burn_cpu()
    clock.advance(layout.FIRST_SCHEDULING_NS)
    profiler.recorder.sample()
    (thread,) = profiler.capture().threads
    found = thread.scheduling
    assert found is not None and len(found) == 2
    assert np.diff(found.time_ns.astype(np.int64)).tolist() == [layout.FIRST_SCHEDULING_NS]
    # The kernel brings a running thread's figure up to date at its ticks, so it can lag by a few.
    assert before_ns - 2e7 <= found.on_core_ns[0] and found.on_core_ns[1] <= time.thread_time_ns()
    for column in (
        found.on_core_ns,
        found.run_queue_ns,
        found.voluntary_switches,
        found.involuntary_switches,
    ):
        assert column is not None and (np.diff(column.astype(np.int64)) >= 0).all()


def test_rows_are_taken_once_in_an_interval(profiler: Profiler, clock: FakeClock) -> None:
    for _ in range(10):
        profiler.recorder.sample()
        clock.advance(layout.FIRST_SCHEDULING_NS // 5)
    (thread,) = profiler.capture().threads
    assert thread.scheduling is not None
    assert len(thread.scheduling) == 3  # at 0, 50 and 100 ms: reading the capture takes a sample, too


def test_rows_are_thinned_when_they_are_full(profiler: Profiler, clock: FakeClock) -> None:
    start_ns = clock()
    for _ in range(3 * layout.MAX_SCHEDULING):
        profiler.recorder.sample()
        clock.advance(layout.FIRST_SCHEDULING_NS)
    (process,) = profiler.capture().processes
    for found in (process.scheduling, process.threads[0].scheduling):
        assert found is not None
        assert layout.MAX_SCHEDULING // 2 < len(found) <= layout.MAX_SCHEDULING
        assert np.diff(found.time_ns.astype(np.int64)).max() == 4 * layout.FIRST_SCHEDULING_NS
        assert found.time_ns[0] - start_ns < 4 * layout.FIRST_SCHEDULING_NS
        assert clock() - int(found.time_ns[-1]) <= 4 * layout.FIRST_SCHEDULING_NS


def test_native_threads_are_distinguished_from_python_ones(profiler: Profiler, clock: FakeClock) -> None:
    release = threading.Event()
    threads = [threading.Thread(target=release.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    profiler.recorder.sample()
    release.set()
    for thread in threads:
        thread.join()
    clock.advance(layout.FIRST_SCHEDULING_NS)
    profiler.recorder.sample()
    (process,) = profiler.capture().processes
    found = process.scheduling
    assert found is not None
    assert found.python_threads[0] - found.python_threads[1] == 2
    assert found.os_threads[0] >= found.python_threads[0]
    assert found.native_on_core_ns[1] <= found.cpu_ns[1]


def test_a_system_without_schedstat_says_so(core: CoreName, tmp_path: Path) -> None:
    payload = np.zeros(layout.item_bytes("PROCESS_SCHEDULING"), dtype=np.uint8)
    section = Section("process_scheduling", 1, 0, 0, payload)
    section.struct()["count"] = 1
    section.struct()["rows"][0]["time_ns"] = 5
    from hotloop.capture.read_samples import read_process_scheduling

    warnings: list[str] = []
    assert read_process_scheduling([section], warnings) is None
    assert warnings == [NO_SCHEDSTAT]


def test_settings_are_written_when_they_change(
    core: CoreName, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    threads = {"torch": 4}
    profiler = Profiler(clock=clock, core_name=core)
    profiler.more_thread_settings = lambda: dict(threads)
    profiler.start(tmp_path / "capture")
    for _ in range(3):
        clock.advance(2_000_000_000)
        profiler.progress(env_steps=1)
    threads["torch"] = 1
    clock.advance(2_000_000_000)
    profiler.progress(env_steps=1)
    profiler.stop()
    (process,) = hotloop.load(tmp_path / "capture").processes
    first, second = process.thread_settings
    assert first.values["OMP_NUM_THREADS"] == "3" and first.values["MKL_NUM_THREADS"] is None
    assert first.values["cores_granted"] <= (os.cpu_count() or 1)
    assert (first.values["torch"], second.values["torch"]) == (4, 1)
    assert second.time_ns - first.time_ns == 8_000_000_000


def test_a_failing_setting_is_only_a_warning(core: CoreName, clock: FakeClock) -> None:
    def fail() -> dict[str, object]:
        raise OSError("no such setting")

    profiler = Profiler(clock=clock, core_name=core)
    profiler.more_thread_settings = fail
    with pytest.warns(match="no such setting"):
        profiler.start()
    with profiler.profile("a"):
        pass
    profiler.stop()


def test_threads_of_torch_are_known_once_it_is_loaded() -> None:
    torch = pytest.importorskip("torch")
    assert library_threads()["torch"] == torch.get_num_threads()


def test_what_a_process_has_become_is_written_at_once(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with profiler.profile("before"):
        pass
    monkeypatch.setattr(origin, "more", lambda: {"ray": "worker", "actor": "Runner"})
    (process,) = profiler.capture().processes
    assert process.origin is not None and process.origin.actor == ""
    profiler.origin_changed()  # without it, with the next window that is due: a killed process has none
    (process,) = profiler.capture().processes
    assert process.origin.actor == "Runner"
