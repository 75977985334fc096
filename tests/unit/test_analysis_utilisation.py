"""Busy and waiting threads, the roofline and its limits, the time series."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.analysis.categories import Resolver
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.roofline import roofline
from hotloop.analysis.tree import flatten
from hotloop.analysis.utilisation import others_may_hold_up, processes_at_once, threads_each, utilisation
from hotloop.analysis.windows import time_series, work_done
from hotloop.capture.model import Capture
from hotloop.machine import limits
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture


def test_busy_waiting_and_idle_by_hand() -> None:
    capture = make_capture(
        {"env_step": Spec(10, 5000), "lock_wait": Spec(10, 2000, children={"helper": Spec(10, 1000)})},
        unattributed=0.2,
        cpu=0.6,
    )
    (use,) = utilisation(capture, Resolver())
    assert (use.wall_ns, use.busy_ns, use.waiting_ns) == (100_000, 50_000, 30_000)
    assert use.idle_ns == 20_000 - (60_000 - 50_000)  # 10,000 ns of CPU time that no region can have used
    assert (use.process, use.thread, use.stuck_in) == ("train.py (pid 4000)", "MainThread", None)


def test_idle_is_unknown_without_cpu_time() -> None:
    (use,) = utilisation(make_capture({"env_step": Spec(10, 5000)}, cpu=None), Resolver())
    assert use.idle_ns is None and use.cpu_ns is None


def test_a_stuck_thread_names_its_innermost_open_region() -> None:
    capture = make_capture(
        {"train": Spec(0, open_for_ns=9000, children={"env_step": Spec(3, 100, open_for_ns=5000)})},
        alive=True,
    )
    (use,) = utilisation(capture, Resolver())
    assert (use.stuck_in, use.stuck_for_ns) == ("env_step", 5000)


def pipeline(learner_wait: float, worker_wait: float) -> Capture:
    def thread(work: str, wait: float, **done: Any) -> ThreadSpec:
        return ThreadSpec(
            {work: Spec(1000, 1000 * (1 - wait)), "queue_wait": Spec(1000, 1000 * wait)},
            unattributed=0,
            **done,
        )

    learner = thread("loss", learner_wait, updates=1000)
    workers = [ProcessSpec([thread("env_step", worker_wait, env_steps=1000)]) for _ in range(3)]
    return make_capture(learner.regions, updates=1000, unattributed=0.0, processes=workers)


@pytest.mark.parametrize(
    ("learner", "worker", "says", "held_up"),
    [
        (0.7, 0.02, "The learner waits for the env workers", True),
        (0.02, 0.7, "The env workers wait for the learner", False),
        (0.5, 0.5, "They take turns instead of running in parallel", False),
        (0.01, 0.01, "No thread waits much", False),
    ],
)
def test_who_waits_for_whom(learner: float, worker: float, says: str, held_up: bool) -> None:
    found = explain_without_advice(pipeline(learner, worker))
    assert found.waits is not None and found.waits.summary.startswith(says)
    assert found.waits.driver_share == pytest.approx(learner, abs=0.01)
    assert found.waits.others_share == pytest.approx(worker, abs=0.01)
    assert others_may_hold_up(found.waits) is held_up
    loss = next(b for b in found.bottlenecks if b.name == "loss")
    assert loss.gain_if_twice_as_fast is not None
    assert (loss.gain_if_twice_as_fast.low == 1.0) is held_up


def test_without_waits_nothing_is_reported() -> None:
    assert explain_without_advice(make_capture({"env_step": Spec(10, 100)})).waits is None


def test_oversubscription_counts_processes_times_threads() -> None:
    worker = ProcessSpec([ThreadSpec({"env_step": Spec(100, 1000)})])
    machine = {"cores_granted": 2.0, "cores_present": 8, "threads_env": {}}
    found = explain_without_advice(
        make_capture({"x": Spec(100, 1000)}, processes=[worker] * 3, facts={"machine": machine})
    ).oversubscription
    assert found is not None
    assert (found.processes, found.threads_each, found.factor) == (4, 8, 16.0)
    assert found.summary == "4 processes x 8 compute threads on 2 cores: 16.0 threads per core."
    limited = {**machine, "threads_env": {"OMP_NUM_THREADS": "1"}, "cores_granted": 4}
    found = explain_without_advice(
        make_capture({"x": Spec(100, 1000)}, processes=[worker] * 3, facts={"machine": limited})
    ).oversubscription
    assert found is not None and found.factor == 1.0 and "OMP" not in found.summary
    assert found.threads_from == "OMP_NUM_THREADS"


def test_oversubscription_is_unknown_without_facts() -> None:
    capture = make_capture({"x": Spec(1, 1)})
    assert explain_without_advice(replace(capture, facts={})).oversubscription is None
    assert threads_each({"threads_env": {"OMP_NUM_THREADS": "many"}}) == (None, "")
    assert threads_each({"threads_env": {"OMP_NUM_THREADS": "4,2"}})[0] == 4


def test_processes_one_after_the_other_are_not_at_once() -> None:
    capture = make_capture({"x": Spec(10, 100)}, processes=[ProcessSpec([ThreadSpec({"x": Spec(1, 1)})])])
    first, second = capture.processes
    after = replace(second, start_real_ns=first.start_real_ns + first.end_ns - first.start_ns)
    assert processes_at_once(capture.processes) == 2
    assert processes_at_once((first, after)) == 1


# -- speed of light ------------------------------------------------------------------------------

LIMITS = {"copy_bytes_per_s": 1e9, "matmul_flops_per_s": 1e9, "wakeup_ns": 5000.0, "empty_step_ns": 100.0}


def lit(regions: dict[str, Spec], known: dict[str, float] | None = LIMITS) -> tuple[Any, ...]:
    return roofline(flatten(make_capture(regions).tree, Resolver(), None), known)


def test_ratios_by_hand() -> None:
    rows, unsure = lit(
        {
            "push": Spec(10, 40_000, bytes_moved=1000),  # 1000 bytes at 1 byte/ns: 1000 ns
            "infer": Spec(10, 26_000, flops=20_000),
            "env_step": Spec(10, 2000),
            "ipc_wait": Spec(10, 10_000),
            "silent": Spec(10, 90_000),
        }
    )
    found = {(r.name, r.limit): (r.limit_ns, r.ratio) for r in rows}
    assert found == {
        ("push", "copy_bandwidth"): (1000.0, pytest.approx(40.0)),
        ("infer", "matrix_product"): (20_000.0, pytest.approx(1.3)),
        ("ipc_wait", "wakeup_round_trip"): (5000.0, pytest.approx(2.0)),
        ("env_step", "empty_step"): (100.0, pytest.approx(20.0)),
    }
    assert not unsure


def test_a_time_that_beats_its_limit_is_noted_and_gets_no_ratio() -> None:
    rows, unsure = lit({"push": Spec(10, 500, bytes_moved=1000), "ipc_wait": Spec(10, 100)})
    assert rows == ()
    assert any("push" in u and "does not apply" in u for u in unsure)
    assert any("ipc_wait" in u and "rarely had to wait" in u for u in unsure)


def test_large_copies_are_held_against_large_copies() -> None:
    known = {**LIMITS, "copy_large_bytes_per_s": 0.25e9}
    (row,), _ = lit({"push": Spec(10, 80_000_000, bytes_moved=10e6)}, known)
    assert row.ratio == pytest.approx(2.0)


def test_device_work_and_missing_limits_are_not_measured() -> None:
    rows, unsure = lit({"infer": Spec(10, 1000, flops=10, device_ns=900)})
    assert rows == () and "ran on a device" in unsure[0]
    rows, unsure = lit({"push": Spec(10, 1000, bytes_moved=10)}, None)
    assert rows == () and "were not measured" in unsure[0]
    assert lit({"push": Spec(10, 1000)}, None) == ((), [])


def test_limits_are_measured_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The real clock: what comes out must be possible on a computer.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = limits.limits()
    assert set(found) == set(limits.NAMES)
    assert 1e8 < found["copy_bytes_per_s"] < 1e13 and found["matmul_flops_per_s"] > 1e7
    assert 500 < found["wakeup_ns"] < 1e8 and 10 < found["empty_step_ns"] < 1e5
    file = tmp_path / "hotloop" / "limits.json"
    assert json.loads(file.read_text())[limits.machine_key()] == found
    monkeypatch.setattr(limits, "measure", lambda: pytest.fail("measured again"))
    assert limits.limits() == found


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", '{"KEY": {"wakeup_ns": 3}}', '{"KEY": 7}'])
def test_a_broken_cache_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = tmp_path / "limits.json"
    file.write_text(text.replace("KEY", limits.machine_key()))
    fresh = dict.fromkeys(limits.NAMES, 1.0)
    monkeypatch.setattr(limits, "measure", lambda: fresh)
    assert limits.limits(file=file) == fresh
    assert limits.read_cache(file) == {limits.machine_key(): fresh}


def test_an_unwritable_cache_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "measure", lambda: dict.fromkeys(limits.NAMES, 2.0))
    (tmp_path / "file").write_text("in the way")
    assert limits.limits(file=tmp_path / "file" / "limits.json")["wakeup_ns"] == 2.0


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert limits.cache_file() == Path.home() / ".cache" / "hotloop" / "limits.json"


def test_the_best_of_several_tries_counts() -> None:
    ticks = iter([0, 0, 50, 100, 120, 200, 207, 10**12])
    assert limits.best_ns(lambda: None, lambda: next(ticks)) == 7


# -- the course over time ------------------------------------------------------------------------


def test_the_course_has_rates_of_all_threads_and_shares_of_one() -> None:
    capture = make_capture(
        {"loss": Spec(1000, 1000)},
        updates=1000,
        windows=20,
        rss=(100, 300),
        processes=[ProcessSpec([ThreadSpec({"env_step": Spec(1000, 900)}, env_steps=n)]) for n in (400, 600)],
    )
    process, thread = capture.processes[0], capture.threads[0]
    found = time_series(capture, process, thread, Resolver())
    assert {len(series) for series in found.values()} == {len(thread.windows)}
    shares = np.array([series for name, series in found.items() if name.startswith("share:")])
    assert shares.sum(axis=0) == pytest.approx(np.ones(len(thread.windows)))
    span = np.diff(found["time_s"], prepend=0.0)
    assert (np.array(found["env_steps_per_s"]) * span).sum() == pytest.approx(1000, rel=0.01)
    assert found["rss_bytes"][-1] == 300.0
    assert found["time_s"][-1] == pytest.approx(thread.wall_ns / 1e9)


def test_unmeasured_values_are_absent_from_the_time_series() -> None:
    capture = make_capture({"loss": Spec(1000, 1000)})
    found = time_series(capture, capture.processes[0], capture.threads[0], Resolver())
    assert set(found) == {"time_s", "share:loss", "share:unattributed"}


def test_work_on_another_host_is_aligned_by_real_time() -> None:
    worker = ProcessSpec([ThreadSpec({"env_step": Spec(1000, 1000)}, env_steps=1000)])
    capture = make_capture({"loss": Spec(1000, 1000)}, processes=[worker])
    first, second = capture.processes
    shift = 10**15  # the other host's monotonic clock is far away, its real time the same
    thread = second.threads[0]
    windows = replace(thread.windows, time_ns=thread.windows.time_ns + np.uint64(shift))
    moved = replace(thread, start_ns=thread.start_ns + shift, end_ns=thread.end_ns + shift, windows=windows)
    away = replace(
        second,
        host="elsewhere",
        start_ns=second.start_ns + shift,
        end_ns=second.end_ns + shift,
        threads=(moved,),
    )
    end_ns = np.linspace(0, thread.wall_ns, 7)
    here = work_done(capture, first, first.threads[0], end_ns, "env_steps")
    there = work_done(replace(capture, processes=(first, away)), first, first.threads[0], end_ns, "env_steps")
    assert there == pytest.approx(here)
    assert here[-1] == pytest.approx(1000)
