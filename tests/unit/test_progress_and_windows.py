"""Counters, and windows over time."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop import Profiler
from hotloop.capture import layout
from hotloop.measure.core_choice import CoreName
from hotloop.measure.core_shared import RECORD_GAPS
from hotloop.testing.fakes import FakeClock


def test_counts_add_up_and_values_are_means(profiler: Profiler) -> None:
    profiler.progress(env_steps=8, updates=2, loss=0.5)
    profiler.progress(env_steps=8, updates=2, loss=1.5)
    profiler.progress(episodes=3, episode_return=10.0, episode_length=100)
    profiler.progress(episodes=1, episode_return=50.0, episode_length=np.float32(200))
    progress = profiler.capture().progress
    assert (progress.env_steps, progress.updates, progress.episodes) == (16, 4, 4)
    assert progress.mean_return == 20.0
    assert progress.mean_length == 125.0
    assert progress.mean_loss == 1.0


def test_unreported_values_are_none(profiler: Profiler) -> None:
    profiler.progress(env_steps=np.int64(4), episode_return=None)
    progress = profiler.capture().progress
    assert progress.env_steps == 4
    assert progress.mean_return is None and progress.mean_loss is None


def test_mistakes_are_reported(profiler: Profiler) -> None:
    with pytest.raises(TypeError):
        profiler.progress(8)
    with pytest.raises(TypeError, match="steps"):
        profiler.progress(steps=8)
    with pytest.raises(ValueError, match="negative"):
        profiler.progress(env_steps=-1)


def test_windows_are_cumulative_and_cover_the_run(profiler: Profiler, clock: FakeClock) -> None:
    for _ in range(10):
        with profiler.profile("loop"):
            with profiler.profile("step"):
                clock.advance(30_000_000)
            profiler.progress(env_steps=4)
            clock.advance(30_000_000)
    (thread,) = profiler.capture().threads
    windows = thread.windows
    step, loop = thread.paths.index(("loop", "step")), thread.paths.index(("loop",))
    assert len(windows) == 10
    assert windows.calls[:, step].tolist() == list(range(1, 11))
    assert windows.total_ns[:, step].tolist() == [30_000_000 * k for k in range(1, 11)]
    assert windows.progress["env_steps"].tolist() == [4 * k for k in range(1, 11)]
    assert (windows.total_ns[:, loop] == windows.time_ns - thread.start_ns).all()
    assert (windows.own_ns.sum(axis=1) == windows.time_ns - thread.start_ns).all()
    assert (windows.real_ns > 1.6e18).all()


def test_windows_stay_bounded_and_even_over_a_long_run(profiler: Profiler, clock: FakeClock) -> None:
    for _ in range(20_000):
        with profiler.profile("step"):
            clock.advance(10_000_000)
    (thread,) = profiler.capture().threads
    windows = thread.windows
    assert layout.MAX_WINDOWS // 2 <= len(windows) <= layout.MAX_WINDOWS
    gaps = np.diff(windows.time_ns.astype(np.int64))
    assert gaps.max() <= 2.1 * gaps.min()
    assert windows.time_ns[-1] - thread.start_ns > 0.95 * thread.wall_ns
    step = thread.paths.index(("step",))
    assert (windows.calls[:, step] * 10_000_000 == windows.total_ns[:, step]).all()


def test_a_progress_call_takes_a_window_inside_a_long_region(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("train"):
        for _ in range(4):
            clock.advance(70_000_000)
            profiler.progress(updates=1)
        (thread,) = profiler.capture().threads
    train = thread.paths.index(("train",))
    assert thread.windows.total_ns[:, train].tolist() == [70_000_000 * k for k in range(1, 5)]
    assert thread.windows.own_ns[:, train].tolist() == [70_000_000 * k for k in range(1, 5)]


def test_the_timeline_keeps_the_last_events(core: CoreName, clock: FakeClock) -> None:
    profiler = Profiler(clock=clock, core_name=core).start(timeline=True)
    for _ in range(layout.EVENTS_PER_SECTION + 100):
        with profiler.profile("step"):
            clock.advance(10)
    (thread,) = profiler.capture().threads
    assert len(thread.events) == layout.EVENTS_PER_SECTION
    assert thread.paths[thread.events[0].path] == ("step",)
    starts = [e.start_ns for e in thread.events]
    assert starts == sorted(starts)
    assert starts[-1] == clock.ns - 10
    assert {e.duration_ns for e in thread.events} == {10}
    profiler.stop()


def test_a_summary_comes_every_n_steps(profiler: Profiler, clock: FakeClock) -> None:
    seen = []
    profiler.summarise_every(lambda: seen.append(profiler.capture().progress.env_steps), env_steps=100)
    for _ in range(35):
        profiler.progress(env_steps=10)
    assert seen == [100, 200, 300]


def test_a_summary_comes_every_n_seconds(profiler: Profiler, clock: FakeClock) -> None:
    seen = []
    profiler.summarise_every(lambda: seen.append(clock.ns), seconds=1.0)
    for _ in range(35):
        with profiler.profile("step"):
            clock.advance(100_000_000)
    assert len(seen) == 3
    assert profiler.stats("hotloop_summary").calls == 3


def test_a_summary_that_fails_does_not_stop_training(profiler: Profiler) -> None:
    def fail() -> None:
        raise RuntimeError("no terminal")

    profiler.summarise_every(fail, env_steps=1)
    with pytest.warns(UserWarning, match="no terminal"):
        profiler.progress(env_steps=1)
    profiler.progress(env_steps=1)
    assert profiler.capture().progress.env_steps == 2


def test_cpu_time_counts_from_the_start_of_the_recording(core: CoreName) -> None:
    import time

    start = time.thread_time_ns()
    while time.thread_time_ns() - start < 50_000_000:
        pass
    profiler = Profiler(core_name=core).start()
    with profiler.profile("a"):
        pass
    profiler.stop()
    (thread,) = profiler.capture().threads
    assert thread.cpu_ns is not None and 0 < thread.cpu_ns <= thread.wall_ns + 1_000_000


def test_segmenting_names_the_time_between_outermost_regions(profiler: Profiler, clock: FakeClock) -> None:
    profiler.recorder.flags |= RECORD_GAPS
    profiler.recorder.name_gap = lambda before, after: profiler.profile(f"{before.name} -> {after.name}")
    clock.advance(7)
    for _ in range(3):
        with profiler.profile("act"):
            clock.advance(10)
            with profiler.profile("inner"):
                clock.advance(1)
        clock.advance(20)
        with profiler.profile("step"):
            clock.advance(30)
        clock.advance(40)
    stats = profiler.stats()
    assert (stats["act -> step"].calls, stats["act -> step"].total_ns) == (3, 60)
    assert (stats["step -> act"].calls, stats["step -> act"].total_ns) == (2, 80)
    (thread,) = profiler.capture().threads
    assert thread.unattributed_ns == 7 + 40  # before the first and after the last region
    assert sum(s.own_ns for s in stats.values()) + thread.unattributed_ns == thread.wall_ns


def test_a_wrapped_function_knows_its_place(profiler: Profiler, clock: FakeClock) -> None:
    seen = []
    outer, inner, other = (profiler.profile(n) for n in ("env_step", "wrapper", "learner"))

    def plain(x: int, again: bool = False) -> int:
        clock.advance(5)
        return wrapped(x, False) if again else x

    wrapped = inner.wrap(plain, outer=outer, after=lambda first, result: seen.append((first, result)))
    assert wrapped(3, again=True) == 3
    assert profiler.stats("env_step").calls == 1
    assert profiler.stats("wrapper").calls == 2
    assert seen == [(3, 3)]  # once, for the call that opened the outer region

    alone = other.wrap(plain, skip_inside=(other, outer))
    with outer:
        alone(1)
    assert "learner" not in profiler.stats()
    alone(1)
    assert profiler.stats("learner").calls == 1

    grad = [True]
    chosen = other.wrap(plain, choose=lambda: grad[0], otherwise=inner)
    chosen(1)
    grad[0] = False
    chosen(1)
    assert profiler.stats("learner").calls == 2
    assert profiler.stats("wrapper").calls == 3
