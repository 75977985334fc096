"""What a region means: nesting, recursion, exceptions, order, threads, names. Exact, by a fake clock."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop import Profiler
from hotloop.capture import layout, reader
from hotloop.capture.model import Node
from hotloop.measure.core_choice import CoreName
from hotloop.measure.core_shared import PACKAGE, call_site
from hotloop.testing.fakes import FakeClock


def node_at(profiler: Profiler, *path: str) -> Node:
    node = profiler.capture().tree
    for name in path:
        (node,) = [child for child in node.children if child.name == name]
    return node


def own_sum(node: Node) -> int:
    return node.own_ns + sum(own_sum(child) for child in node.children)


def test_nesting_gives_a_tree_of_paths(profiler: Profiler, clock: FakeClock) -> None:
    for _ in range(3):
        with profiler.profile("train"):
            clock.advance(5)
            with profiler.profile("step"):
                clock.advance(20)
            clock.advance(7)
    train, step = node_at(profiler, "train"), node_at(profiler, "train", "step")
    assert (train.calls, train.total_ns, train.own_ns) == (3, 96, 36)
    assert (step.calls, step.total_ns, step.own_ns) == (3, 60, 60)


def test_own_times_and_unattributed_add_up_to_the_wall_time(profiler: Profiler, clock: FakeClock) -> None:
    clock.advance(11)
    with profiler.profile("a"):
        clock.advance(13)
        with profiler.profile("b"):
            clock.advance(17)
    clock.advance(19)
    (thread,) = profiler.capture().threads
    assert thread.unattributed_ns == 11 + 19
    assert own_sum(thread.root) == thread.wall_ns == 60


def test_regions_work_in_an_exit_stack(profiler: Profiler, clock: FakeClock) -> None:
    with contextlib.ExitStack() as leave:
        leave.enter_context(profiler.profile("outer"))
        clock.advance(5)
        leave.enter_context(profiler.profile("inner"))
        clock.advance(7)
    assert node_at(profiler, "outer").total_ns == 12
    assert node_at(profiler, "outer", "inner").calls == 1


def test_recursion_does_not_count_time_twice(profiler: Profiler, clock: FakeClock) -> None:
    def fall(depth: int) -> None:
        with profiler.profile("fall"):
            clock.advance(10)
            if depth:
                fall(depth - 1)

    fall(3)
    stats = profiler.stats("fall")
    assert stats.calls == 4
    assert stats.total_ns == 40
    assert stats.own_ns == 40
    assert stats.max_ns == 40
    assert stats.min_ns == 10


def test_an_exception_closes_its_regions_and_passes_on(profiler: Profiler, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="boom"), profiler.profile("outer"):
        clock.advance(3)
        with profiler.profile("inner"):
            clock.advance(4)
            raise ValueError("boom")
    assert node_at(profiler, "outer").total_ns == 7
    assert node_at(profiler, "outer", "inner").total_ns == 4
    (thread,) = profiler.capture().threads
    assert thread.open == ()


def test_the_same_name_under_two_parents_stays_two_nodes_and_can_be_summed(
    profiler: Profiler, clock: FakeClock
) -> None:
    for parent, ns in (("collect", 5), ("learn", 50)):
        with profiler.profile(parent), profiler.profile("forward"):
            clock.advance(ns)
    assert node_at(profiler, "collect", "forward").total_ns == 5
    assert node_at(profiler, "learn", "forward").total_ns == 50
    assert profiler.stats("forward").total_ns == 55
    assert profiler.stats("forward").calls == 2


def test_a_region_closed_out_of_order_closes_the_nearest_match_and_is_flagged(
    profiler: Profiler, clock: FakeClock
) -> None:
    a, b = profiler.profile("a"), profiler.profile("b")
    a.__enter__()
    clock.advance(10)
    b.__enter__()
    clock.advance(10)
    a.__exit__(None, None, None)
    clock.advance(10)
    b.__exit__(None, None, None)
    clock.advance(10)
    stats = profiler.stats()
    assert (stats["a"].calls, stats["a"].total_ns) == (1, 20)
    assert (stats["b"].calls, stats["b"].total_ns) == (1, 20)
    assert node_at(profiler, "a").out_of_order
    (thread,) = profiler.capture().threads
    assert own_sum(thread.root) == thread.wall_ns == 40
    assert thread.open == ()


def test_a_close_without_an_open_is_ignored(profiler: Profiler, clock: FakeClock) -> None:
    profiler.profile("never opened").__exit__(None, None, None)
    with profiler.profile("a"):
        clock.advance(1)
    assert profiler.stats("a").calls == 1
    assert "never opened" not in profiler.stats()


def test_interleaved_tasks_on_one_thread_keep_the_tree_small_and_the_sums_right(
    profiler: Profiler, clock: FakeClock
) -> None:
    async def worker(name: str) -> None:
        for _ in range(50):
            with profiler.profile(name):
                clock.advance(1)
                await asyncio.sleep(0)
                clock.advance(1)

    async def main() -> None:
        await asyncio.gather(*(worker(f"task {i}") for i in range(3)))

    asyncio.run(main())
    (thread,) = profiler.capture().threads
    assert own_sum(thread.root) == thread.wall_ns
    assert thread.open == ()
    assert len(thread.paths) < 40
    assert all(profiler.stats(f"task {i}").calls == 50 for i in range(3))


def test_threads_never_share_a_node(profiler: Profiler, clock: FakeClock) -> None:
    def work() -> None:
        with profiler.profile("work"):
            pass

    threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(5)]
    for thread in threads:
        thread.start()
        thread.join()
    found = {t.name: t for t in profiler.capture().threads}
    for i in range(5):
        (node,) = found[f"worker {i}"].root.children
        assert (node.name, node.calls) == ("work", 1)
    assert profiler.stats("work").calls == 5


def test_an_ended_thread_is_known_to_have_ended(profiler: Profiler) -> None:
    def work() -> None:
        with profiler.profile("work"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # returns a little before the system's thread is gone
    deadline = time.monotonic() + 10
    while not profiler.capture().threads[1].ended and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [t.ended for t in profiler.capture().threads] == [False, True]


def test_thousands_of_short_threads_stay_bounded(core: CoreName) -> None:
    profiler = Profiler(core_name=core).start()

    def work() -> None:
        with profiler.profile("work"), profiler.profile("inner"):
            profiler.progress(env_steps=1)

    for _ in range(1500):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    size = profiler.recorder.part.total_bytes
    capture = profiler.capture()
    assert profiler.stats("inner").calls == 1500
    assert capture.progress.env_steps == 1500
    assert layout.FOLD_AFTER <= len(capture.threads) <= layout.FOLD_AFTER + 8
    assert sum(max(t.folded_threads, 1) for t in capture.threads) == 1501
    assert size < 8_000_000
    for found in capture.threads:
        assert own_sum(found.root) == found.wall_ns
    profiler.stop()


@pytest.mark.parametrize(
    "name", ["", "plain", "żółć 日本語", "a\nb\t\x00c", "\ud800 lone", "<script>alert(1)</script>", "x" * 256]
)
def test_names_are_any_unicode_string(profiler: Profiler, clock: FakeClock, name: str) -> None:
    with profiler.profile(name):
        clock.advance(9)
    assert profiler.stats(name).total_ns == 9


def test_long_names_are_cut_but_stay_apart(profiler: Profiler, clock: FakeClock) -> None:
    for last in "ab":
        with profiler.profile("ü" * 400 + last):
            clock.advance(1)
    names = list(profiler.stats())
    assert len(names) == 2
    assert all(len(n.encode()) <= layout.NAME_BYTES and n.startswith("ü" * 100) for n in names)


def test_a_name_that_is_not_a_string_is_refused_with_a_sentence(profiler: Profiler) -> None:
    with pytest.raises(TypeError, match="name is a string, not int"):
        profiler.profile(3)
    with pytest.raises(TypeError, match="category is a string"):
        profiler.profile("a", category=3)


def test_too_many_names_fall_into_one_bucket_with_one_warning(core: CoreName) -> None:
    profiler = Profiler(core_name=core).start()
    with pytest.warns(UserWarning, match="distinct region names") as warned:
        for i in range(layout.MAX_REGIONS + 200):
            with profiler.profile(f"name {i}"):
                pass
    assert len(warned) == 1
    stats = profiler.stats()
    assert stats[layout.OTHER_NAMES].calls == 202
    assert sum(s.calls for s in stats.values()) == layout.MAX_REGIONS + 200
    profiler.stop()


def test_too_many_paths_fall_into_one_bucket_with_one_warning(core: CoreName) -> None:
    profiler = Profiler(core_name=core).start()
    regions = [profiler.profile(f"r{i}") for i in range(130)]
    with pytest.warns(UserWarning, match="distinct paths") as warned:
        for outer in regions:
            for inner in regions:
                with outer, inner:
                    pass
    assert len(warned) == 1
    stats = profiler.stats()
    assert stats[layout.OTHER_PATHS].calls > 0
    assert sum(s.calls for s in stats.values()) == 2 * 130 * 130
    (thread,) = profiler.capture().threads
    assert own_sum(thread.root) == thread.wall_ns
    profiler.stop()


def test_deeper_than_the_limit_is_counted_and_the_sums_hold(profiler: Profiler, clock: FakeClock) -> None:
    def dive(depth: int) -> None:
        with profiler.profile("dive"):
            clock.advance(1)
            if depth:
                dive(depth - 1)

    dive(layout.MAX_DEPTH + 50)
    with profiler.profile("after"):
        clock.advance(5)
    (process,) = profiler.capture().processes
    (thread,) = process.threads
    assert profiler.stats("dive").calls == layout.MAX_DEPTH
    assert profiler.stats("dive").total_ns == layout.MAX_DEPTH + 51
    assert node_at(profiler, "after").total_ns == 5
    assert own_sum(thread.root) == thread.wall_ns
    assert process.warnings == (
        "51 calls were nested deeper than 256 regions and are not recorded; their time is counted in the "
        "regions around them ('dive')",
    )


def test_a_region_is_made_once_and_used_many_times(profiler: Profiler, clock: FakeClock) -> None:
    region = profiler.profile("env_step")
    assert profiler.profile("env_step") is region
    assert profiler.profile("env_step", category="environment") is not region
    assert profiler.profile("env_step", category="environment") is profiler.profile(
        "env_step", category="environment"
    )
    with region as entered:
        assert entered is region
    assert region.name == "env_step"
    assert region.site.startswith(__file__)


def test_categories_are_kept(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("queue", category="wait"):
        clock.advance(2)
    assert node_at(profiler, "queue").category == "wait"
    assert profiler.stats("queue").category == "wait"


def test_a_region_says_what_it_moved_and_computed(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("push") as push:
        with profiler.profile("inner"):
            push.add(bytes=1000, flops=5)
        push.add(bytes=24.5)
    push.add(bytes=10**9)  # not open: belongs to no call
    stats = profiler.stats("push")
    assert (stats.bytes_moved, stats.flops) == (1024.5, 5)
    with pytest.raises(TypeError):
        push.add(12)


def test_off_means_off(core: CoreName, clock: FakeClock) -> None:
    profiler = Profiler(clock=clock, core_name=core)
    with profiler.profile("before"):
        clock.advance(5)
    profiler.progress(env_steps=3)
    profiler.start()
    with profiler.profile("during"):
        clock.advance(5)
    profiler.stop()
    with profiler.profile("after"):
        clock.advance(5)
    assert list(profiler.stats()) == ["during"]
    assert profiler.capture().progress.env_steps == 0


def test_regions_made_before_start_work_after_it_and_after_a_restart(
    core: CoreName, clock: FakeClock
) -> None:
    profiler = Profiler(clock=clock, core_name=core)
    region = profiler.profile("early")
    for round_number in (1, 2):
        profiler.start()
        for _ in range(round_number):
            with region:
                clock.advance(1)
        profiler.stop()
        assert profiler.stats("early").calls == round_number


def test_a_region_open_across_start_or_stop_does_no_harm(core: CoreName, clock: FakeClock) -> None:
    profiler = Profiler(clock=clock, core_name=core)
    with profiler.profile("across start"):
        profiler.start()
        with profiler.profile("inside"):
            clock.advance(4)
    with profiler.profile("across stop"):
        clock.advance(6)
        profiler.stop()
    stats = profiler.stats()
    assert stats["inside"].calls == 1
    assert (stats["across stop"].calls, stats["across stop"].total_ns) == (0, 6)
    assert "across start" not in stats


def test_open_regions_are_counted_up_to_now(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("outer"):
        clock.advance(100)
        with profiler.profile("inner"):
            clock.advance(50)
            capture = profiler.capture()
            (thread,) = capture.threads
            assert [o.name for o in thread.open] == ["outer", "inner"]
            outer, inner = node_at(profiler, "outer"), node_at(profiler, "outer", "inner")
            assert (outer.total_ns, outer.own_ns, outer.calls, outer.open_calls) == (150, 100, 0, 1)
            assert (inner.total_ns, inner.own_ns) == (50, 50)
            assert outer.mean_ns is None
            assert own_sum(thread.root) == thread.wall_ns


def test_statistics_of_durations(profiler: Profiler, clock: FakeClock) -> None:
    import statistics

    durations = [100, 200, 300, 400, 1000, 10_000]
    for ns in durations:
        with profiler.profile("op"):
            clock.advance(ns)
    stats = profiler.stats("op")
    assert stats.mean_ns == statistics.mean(durations)
    assert stats.sd_ns == pytest.approx(statistics.stdev(durations))
    assert (stats.min_ns, stats.max_ns) == (100, 10_000)
    assert stats.p50_ns is not None and 256 <= stats.p50_ns <= 320  # the bucket 300 lies in
    assert stats.p99_ns is not None and 8192 <= stats.p99_ns <= 10_000


def test_percentiles_are_right_to_a_quarter_octave(profiler: Profiler, clock: FakeClock) -> None:
    for ns in range(1, 5001):
        with profiler.profile("op"):
            clock.advance(ns)
    stats = profiler.stats("op")
    for found, exact in ((stats.p50_ns, 2500), (stats.p90_ns, 4500), (stats.p99_ns, 4950)):
        assert found == pytest.approx(exact, rel=0.05)


def test_two_profilers_do_not_see_each_other(core: CoreName, clock: FakeClock) -> None:
    one, two = (Profiler(clock=clock, core_name=core).start() for _ in range(2))
    with one.profile("a"):
        clock.advance(1)
        with two.profile("b"):
            clock.advance(2)
    assert one.stats("a").total_ns == 3
    assert two.stats("b").total_ns == 2
    assert list(two.stats()) == ["b"]
    one.stop()
    two.stop()


def test_starting_twice_changes_nothing_and_says_so(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("a"):
        clock.advance(3)
        with pytest.warns(UserWarning, match=r"start\(\) is ignored: .* already recording into memory"):
            profiler.start("elsewhere")
    assert profiler.stats("a").total_ns == 3
    assert profiler.folder is None and not Path("elsewhere").exists()


def test_many_threads_at_once(core: CoreName) -> None:
    """Real clock: 16 threads make names and nodes at the same time, and all counts are right."""
    profiler = Profiler(core_name=core).start()
    rounds = 300 if core == "compiled" else 60
    barrier = threading.Barrier(16)

    def work(number: int) -> None:
        barrier.wait()
        for i in range(rounds):
            with profiler.profile("shared"), profiler.profile(f"thread {number} name {i % 20}"):
                profiler.progress(env_steps=1)

    threads = [threading.Thread(target=work, args=(n,), name=f"w{n}") for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    capture = profiler.capture()
    assert profiler.stats("shared").calls == 16 * rounds
    assert capture.progress.env_steps == 16 * rounds
    for found in capture.threads[1:]:
        (shared,) = found.root.children
        number = found.name.removeprefix("w")
        assert {c.name for c in shared.children} == {f"thread {number} name {i}" for i in range(20)}
        assert sum(c.calls for c in shared.children) == rounds
        assert own_sum(found.root) == found.wall_ns
    profiler.stop()


def test_stopping_while_threads_record_does_no_harm(core: CoreName) -> None:
    stop = threading.Event()
    profiler = Profiler(core_name=core)

    def work(number: int) -> None:
        i = 0
        while not stop.is_set():
            i += 1
            with profiler.profile("a"), profiler.profile(f"{number} {i % 500}"):
                pass

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        profiler.start()
        time.sleep(0.005)
        profiler.stop()
        for found in profiler.capture().threads:
            assert found.uncertain or own_sum(found.root) == found.wall_ns
    stop.set()
    for thread in threads:
        thread.join()


def test_a_thread_that_was_just_beginning_to_record_adds_up(
    profiler: Profiler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an arena, but no root yet."""
    whole = reader._consistent_copy

    def without_nodes(*given: Any) -> Any:
        found = whole(*given)
        arena = found.arena.copy()
        arena["node_count"] = 0
        return replace(
            found, arena=arena, nodes=found.nodes[:0], buckets=found.buckets[:0], windows=found.windows[:0]
        )

    with profiler.profile("a"):
        clock.advance(500)
    monkeypatch.setattr(reader, "_consistent_copy", without_nodes)
    for thread in profiler.capture().threads:
        assert own_sum(thread.root) == thread.wall_ns and not thread.root.children


def test_a_thread_that_is_never_still_is_taken_from_the_calmest_try(
    profiler: Profiler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at its nodes meets updates: four of them, only two the third time."""
    copy_of, tries = reader._joined, 0

    def while_it_is_busy(blocks: Any, name: str, count: int) -> Any:
        nonlocal tries
        copied = copy_of(blocks, name, count)
        if name == "nodes":
            tries += 1
            with profiler.profile("a"):
                clock.advance(1)
            if tries != 3:
                with profiler.profile("a"):
                    clock.advance(1000)
        return copied

    with profiler.profile("a"):
        clock.advance(500)
    monkeypatch.setattr(reader, "_joined", while_it_is_busy)
    (thread,) = profiler.capture().threads
    assert thread.uncertain and tries == reader.RETRIES
    (child,) = thread.root.children
    assert child.calls == 5  # one before, two in each of the first two tries


def test_finalizers_may_use_regions(core: CoreName) -> None:
    import gc

    profiler = Profiler(core_name=core).start()

    class Noisy:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            with profiler.profile("finalizer"):
                pass

    before = gc.get_threshold()
    gc.set_threshold(3)
    try:
        for i in range(400):
            Noisy()
            with profiler.profile("loop"), profiler.profile(f"name {i}"):
                pass
    finally:
        gc.set_threshold(*before)
    stats = profiler.stats()
    assert stats["loop"].calls == 400
    assert all(stats[f"name {i}"].calls == 1 for i in range(400))
    # The collector may run finalizers in the twin's sampler thread, which is then recorded too.
    (thread,) = (t for t in profiler.capture().threads if any(n.name == "loop" for n in t.root.children))
    assert own_sum(thread.root) == thread.wall_ns
    profiler.stop()


def test_more_profilers_than_slots_can_come_and_go(core: CoreName) -> None:
    for _ in range(40):
        profiler = Profiler(core_name=core).start()
        with profiler.profile("a"):
            pass
        profiler.stop()


def test_paused_recording_costs_nothing_and_continues(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("before"):
        clock.advance(10)
    profiler.pause()
    with profiler.profile("while paused"):
        clock.advance(100)
    profiler.progress(env_steps=5)
    profiler.resume()
    with profiler.profile("after"):
        clock.advance(20)
    profiler.pause()
    clock.advance(7)
    profiler.stop()
    stats = profiler.stats()
    assert {name: s.total_ns for name, s in stats.items()} == {"before": 10, "after": 20}
    (thread,) = profiler.capture().threads
    assert thread.unattributed_ns == 107
    assert thread.progress.env_steps == 0


def test_an_interrupt_in_the_clock_is_raised_and_nothing_is_half_counted(core: CoreName) -> None:
    """The clock raises as a signal handler would, in the middle of the bookkeeping."""
    ticks = iter(range(1, 10_000))
    interrupt = [False]

    def clock() -> int:
        if interrupt[0]:
            interrupt[0] = False
            raise KeyboardInterrupt
        return next(ticks)

    profiler = Profiler(clock=clock, core_name=core).start()
    for place in ("enter", "exit"):
        region = profiler.profile(place)
        with pytest.raises(KeyboardInterrupt):
            interrupt[0] = place == "enter"
            with region:
                interrupt[0] = place == "exit"
            for _ in range(10):  # the compiled core cannot raise there, and does it at once
                pass
        assert not region.is_open()
    with profiler.profile("after"):
        pass
    (thread,) = profiler.capture().threads
    assert not thread.uncertain
    assert own_sum(thread.root) == thread.wall_ns
    assert profiler.stats("after").calls == profiler.stats("exit").calls == 1
    profiler.stop()


def test_a_clock_that_goes_back_stands_still(profiler: Profiler, clock: FakeClock) -> None:
    with profiler.profile("outer"):
        clock.advance(10)
        with profiler.profile("inner"):
            clock.advance(-7_000)
    clock.advance(7_005)
    (outer,) = profiler.capture().tree.children
    (inner,) = outer.children
    assert (outer.calls, outer.total_ns, inner.calls, inner.total_ns) == (1, 10, 1, 0)
    (thread,) = profiler.capture().threads
    assert own_sum(thread.root) == thread.wall_ns


def test_a_region_made_while_a_module_is_imported_is_not_at_a_line_of_importlib() -> None:
    where: dict[str, Any] = {"call_site": call_site}
    inside = compile("def made(): return call_site()", f"{PACKAGE}imported.py", "exec")
    between = compile("def imported(): return made()", importlib.__file__, "exec")
    exec(inside, where)
    exec(between, where)
    line = sys._getframe().f_lineno + 1
    assert where["imported"]() == f"{__file__}:{line}"
