"""The sample of calls over the whole run: bounded, spread over all of it, in bursts of calls in a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotloop import Profiler, load
from hotloop.capture import layout
from hotloop.capture.export import from_json, to_json
from hotloop.capture.model import Thread
from hotloop.measure.core_choice import CoreName
from hotloop.testing.fakes import FakeClock

STEP_NS = 100_000  # one iteration; a burst holds 64 of them


def sampled(core: CoreName, iterations: int, folder: Path | None = None) -> Thread:
    """A loop of two calls that takes STEP_NS, and every 100th time a long call."""
    clock = FakeClock()
    profiler = Profiler(clock=clock, core_name=core).start(folder, timeline=True, memory=False)
    act, step, learn = (profiler.profile(name) for name in ("act", "step", "learn"))
    for number in range(iterations):
        with act:
            clock.advance(STEP_NS // 4)
        with step:
            clock.advance(STEP_NS // 2)
        if number % 100 == 99:
            with learn:
                clock.advance(20 * STEP_NS)
        clock.advance(STEP_NS // 4)
    thread = profiler.capture().threads[0]
    profiler.stop()
    return thread


def test_a_short_run_keeps_the_first_calls_of_each_stretch(core: CoreName) -> None:
    thread = sampled(core, 20)
    assert len(thread.calls) == 40
    assert [thread.paths[path][-1] for path in thread.calls["path"]] == ["act"] * 20 + ["step"] * 20
    assert set(thread.calls["duration_ns"].tolist()) == {STEP_NS // 4, STEP_NS // 2}


def test_a_long_run_is_sampled_evenly_in_bursts_of_bounded_number(core: CoreName) -> None:
    iterations = 60_000 if core == "compiled" else 30_000  # 7.2 s and 3.6 s, 109 and 54 stretches
    thread = sampled(core, iterations)
    calls = np.sort(thread.calls, order="start_ns")
    assert layout.MAX_CALLS // 4 < len(calls) <= layout.MAX_CALLS
    at = (calls["start_ns"] - thread.start_ns) / (thread.end_ns - thread.start_ns)
    by_tenth, _ = np.histogram(at, bins=10, range=(0, 1))
    assert by_tenth.min() > len(calls) / 10 / 2, by_tenth
    # Within a burst the calls follow each other: act, then step a moment later.
    short = calls[calls["duration_ns"] < STEP_NS]
    gaps = np.diff(short["start_ns"].astype(np.int64))
    assert np.mean(gaps <= 22 * STEP_NS) > 0.97
    long = [thread.paths[path][-1] == "learn" for path in calls["path"]]
    assert sum(long) == iterations // 100  # 2 ms each: all of them were kept


@pytest.mark.parametrize("length_ns", [3_000_000, 3_000_000_000], ids=["3 ms", "3 s"])
def test_a_run_of_long_calls_stays_bounded(core: CoreName, length_ns: int) -> None:
    clock = FakeClock()
    profiler = Profiler(clock=clock, core_name=core).start(timeline=True, memory=False)
    region = profiler.profile("step")
    for _ in range(3 * layout.MAX_CALLS):
        with region:
            clock.advance(length_ns)
    thread = profiler.capture().threads[0]
    profiler.stop()
    assert layout.MAX_CALLS // 8 < len(thread.calls) <= layout.MAX_CALLS
    at = (thread.calls["start_ns"] - thread.start_ns) / (thread.end_ns - thread.start_ns)
    by_tenth, _ = np.histogram(at, bins=10, range=(0, 1))
    assert by_tenth.min() > 0, by_tenth


def test_a_clock_that_jumps_neither_loops_nor_fails(core: CoreName) -> None:
    clock = FakeClock()
    profiler = Profiler(clock=clock, core_name=core).start(timeline=True, memory=False)
    region = profiler.profile("step")
    for number in range(2 * layout.MAX_CALLS + 10):
        with region:
            clock.advance(2**40 if number % 2 else 1)
    assert 0 < len(profiler.capture().threads[0].calls) <= layout.MAX_CALLS
    profiler.stop()


def test_the_sample_survives_the_file_and_the_export(core: CoreName, tmp_path: Path) -> None:
    before = sampled(core, 300, tmp_path / "run")
    capture = load(tmp_path / "run")
    assert np.array_equal(capture.threads[0].calls, before.calls)
    assert np.array_equal(from_json(to_json(capture)).threads[0].calls, before.calls)


def test_without_a_timeline_nothing_is_sampled(core: CoreName) -> None:
    profiler = Profiler(core_name=core).start(memory=False)
    with profiler.profile("step"):
        pass
    assert len(profiler.capture().threads[0].calls) == 0
    profiler.stop()
