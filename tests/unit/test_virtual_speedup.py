"""Virtual speed-ups: the plan, the accounting of delays, and the verdict from marks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop._util.read_files import json_text
from hotloop.analysis.tree import driving_thread
from hotloop.analysis.virtual_speedups import virtual_results
from hotloop.capture.message_format import RECORD
from hotloop.capture.messages import MessageLog
from hotloop.capture.virtual import FOLDER, PLAN, QUARTERS, Mark, VirtualPlan, read_virtual
from hotloop.cli.main import main
from hotloop.measure.core_choice import CoreName, compiled
from hotloop.measure.profiler import Profiler
from hotloop.measure.virtual_speedup import RegionTotal, VirtualSpeedup
from hotloop.testing import make_capture
from hotloop.testing.fakes import FakeClock
from hotloop.testing.planted import collect, learn
from hotloop.workflows.virtual_speedup import FEW_MESSAGES, regions_of, waits_for_others

DRIVER = (7, 7)
CORES = ["python", *(["compiled"] if compiled is not None else [])]


def plan_of(*regions: str) -> VirtualPlan:
    return VirtualPlan(regions, 0.5, 400_000_000, 1, 0)


def test_every_block_has_each_region_once_in_varying_order() -> None:
    plan = plan_of("a", "b")
    orders = [tuple(plan.region_of(3 * block + i) for i in range(3)) for block in range(40)]
    assert all(sorted(order) == [-1, 0, 1] for order in orders)
    assert len(set(orders)) == 6
    assert plan.region_at(5 * 400_000_000 + 1) == plan.region_of(5)


def marks(plan: VirtualPlan, effect: list[float], segments: int = 60) -> Iterator[Mark]:
    """A driver with an operation each ms of effective time, or faster; a third of wall time is delay."""
    source = random.Random(3)
    operations = paid = 0.0
    for quarter in range(QUARTERS * segments + 1):
        time_ns = quarter * plan.segment_ns // QUARTERS
        yield Mark(*DRIVER, quarter, time_ns, paid, round(operations))
        region = plan.region_of(quarter // QUARTERS)
        step = plan.segment_ns / QUARTERS
        delay = step / 3 if region >= 0 else 0.0
        speed = (effect[region] if region >= 0 else 1.0) * source.uniform(0.99, 1.01)
        operations += (step - delay) / 1e6 * speed
        paid += delay


def test_the_verdict_is_about_effective_time() -> None:
    plan = plan_of("env_step", "log")
    slow, nothing = virtual_results(plan, tuple(marks(plan, [1.5, 1.0])), DRIVER)
    assert slow.blocks == 20
    assert slow.verdict.word == "faster"
    assert slow.verdict.speed_up.value == pytest.approx(1.5, rel=0.02)
    assert nothing.verdict.word == "no_difference"


def test_marks_are_read_and_a_cut_line_is_ignored(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    plan = plan_of("a")
    (tmp_path / FOLDER / PLAN).write_text(json_text(plan.as_json()))
    (tmp_path / FOLDER / "7.marks").write_text("7 7 0 5 0 0\n7 7 1 9 2.5 3\n7 7 2")
    found = read_virtual(tmp_path)
    assert found == (plan, (Mark(7, 7, 0, 5, 0.0, 0), Mark(7, 7, 1, 9, 2.5, 3)))
    (tmp_path / FOLDER / PLAN).write_text("{}")
    assert read_virtual(tmp_path) is None


@pytest.mark.parametrize("core", CORES)
def test_the_time_in_a_region_is_read_from_the_recording(core: CoreName) -> None:
    clock = FakeClock()
    profiler = Profiler(clock=clock, core_name=core).start()
    total = RegionTotal(profiler.recorder, "step")
    assert total.read() == 0
    for around in ("loop", "step", "other"):
        with profiler.profile(around), profiler.profile("step"):
            clock.advance(1000)
    assert total.read() == 3000  # inside another call of it, it counts once
    with profiler.profile("step"):
        clock.advance(500)
    assert total.read() == 3500
    del total
    profiler.stop()


def test_others_are_delayed_and_who_was_woken_has_paid(tmp_path: Path) -> None:
    """Uses the real clock: a delay is slept, and its length is credited."""
    (tmp_path / FOLDER).mkdir()
    profiler = Profiler().start()
    plan = VirtualPlan(("step",), 0.5, 10**15, 5, time.monotonic_ns())
    seed = next(s for s in range(50) if VirtualPlan(("step",), 0.5, 10**15, s, 0).region_of(0) == 0)
    plan = VirtualPlan(("step",), 0.5, 10**15, seed, plan.start_ns)
    virtual = VirtualSpeedup(plan, tmp_path, profiler.recorder)
    with profiler.profile("step"):
        pass
    virtual.pay()
    paid: list[float] = []
    ready, go = threading.Event(), threading.Event()

    def other() -> None:
        before = virtual.pay()
        ready.set()
        go.wait()
        begin = time.monotonic()
        virtual.pay()
        paid.append(time.monotonic() - begin)
        virtual.woken(before, 0, 10**9)
        paid.append(virtual._state.paid_ns - virtual._delay())

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    with profiler.profile("step"):
        time.sleep(0.04)
    begin = time.monotonic()
    virtual.pay()
    assert time.monotonic() - begin < 0.02 + 1  # who ran the region does not pay
    go.set()
    thread.join()
    profiler.stop()
    assert paid[0] >= 0.019  # half of 40 ms
    assert paid[1] >= 0


def test_a_driving_thread_without_messages_cannot_be_made_virtually_faster() -> None:
    made = make_capture({**collect(1000), **learn(100)}, env_steps=8000, updates=100)
    capture = replace(made, path=Path("runs/a"))
    driver = driving_thread(capture)
    assert driver is not None
    process, thread = driver
    own = np.zeros(FEW_MESSAGES, dtype=list(RECORD))
    own["thread"] = thread.native_id
    others = own.copy()
    others["thread"] += 1
    logs = [MessageLog(process.pid, (), records, len(records)) for records in (own, own[:2], others)]
    assert [waits_for_others(replace(capture, messages=(log,))) for log in logs] == [True, False, False]
    assert not waits_for_others(capture)


def test_regions_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert regions_of("a, b") == ("a", "b")
    for typed in ("", ",", "a,a"):
        with pytest.raises(HotloopError, match="--what-if"):
            regions_of(typed)
    assert main(["run", "--what-if", ",", "train.py"]) == 2
    assert "separated by commas" in capsys.readouterr().err
