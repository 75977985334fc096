"""Phases are found from progress and windows, and a capture is cut to its training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop import Profiler
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.phases import cut_to_training, cycle_bounds, find_phases
from hotloop.analysis.steady_state import run_figures
from hotloop.capture.model import Capture, Node
from hotloop.capture.plausible import no_windows
from hotloop.capture.samples import SAMPLE_DTYPE, SampledPath
from hotloop.testing.captures import Spec, make_capture
from hotloop.testing.fakes import FakeClock

MS = 1_000_000


def record(profiler: Profiler, clock: FakeClock, *parts: tuple[str, int, int, int]) -> None:
    """`(region, milliseconds, env steps, updates)`, one call of the region each."""
    for name, milliseconds, env_steps, updates in parts:
        with profiler.profile(name):
            clock.advance(milliseconds * MS)
        profiler.progress(env_steps=env_steps, updates=updates)


def a_run(profiler: Profiler, clock: FakeClock) -> Capture:
    """5 s of imports, 2 s of slow first steps, 10 s of training, 1 s of saving."""
    record(profiler, clock, ("import", 5000, 0, 0), ("build", 200, 0, 0))
    record(profiler, clock, *[("env_step", 500, 1, 0), ("learn", 500, 0, 1)] * 2)
    record(profiler, clock, *[("env_step", 60, 1, 0), ("learn", 40, 0, 1)] * 100)
    record(profiler, clock, *[("save", 100, 0, 0)] * 10)
    return profiler.capture()


def test_the_report_is_about_training(profiler: Profiler, clock: FakeClock) -> None:
    capture = a_run(profiler, clock)
    phases = find_phases(capture)
    assert phases is not None and phases.steady and phases.unit == "env_steps"
    seconds = [
        ns / 1e9 for ns in (phases.start_up_ns, phases.warm_up_ns, phases.training_ns, phases.shutdown_ns)
    ]
    assert phases.last_round_ns == 0
    assert sum(seconds) == pytest.approx(capture.threads[0].wall_ns / 1e9)
    assert seconds == pytest.approx([5.2, 2.0, 10.0, 1.0], abs=0.5)
    found = explain_without_advice(capture)
    shares = {c.category: c.share for c in found.breakdown.categories}
    assert shares["environment"] == pytest.approx(0.6, abs=0.03)
    assert {r.name for r in found.regions if r.share > 0.02} == {"env_step", "learn"}
    assert found.env_steps == 102 and found.env_steps_per_s == pytest.approx(10.0, rel=0.05)
    assert "env_step" in found.headline and "training" in found.basis


def test_shutting_down_processes_is_no_training(profiler: Profiler, clock: FakeClock) -> None:
    record(profiler, clock, *[("env_step", 60, 1, 0), ("learn", 40, 0, 1)] * 50)
    record(profiler, clock, ("env_step", 10, 1, 0))  # in the same window as what follows
    with profiler.profile("shut_down"):
        clock.advance(2000 * MS)
    phases = find_phases(profiler.capture())
    assert phases is not None and phases.shutdown_ns >= 2000 * MS
    assert phases.training_ns == pytest.approx(5000 * MS, rel=0.1)


def test_evaluating_the_trained_agent_is_no_training(profiler: Profiler, clock: FakeClock) -> None:
    """Also where only updates are counted: a pause of one counter is no shutdown by itself."""
    record(profiler, clock, *[("learn", 50, 0, 1)] * 40)
    with profiler.profile("shut_down"), profiler.profile("evaluate"):
        clock.advance(3000 * MS)
    phases = find_phases(profiler.capture())
    assert phases is not None and phases.shutdown_ns >= 3000 * MS
    assert phases.training_ns == pytest.approx(2000 * MS, rel=0.1)


def test_a_trainer_that_ends_before_another_one_does_not_end_training(
    profiler: Profiler, clock: FakeClock
) -> None:
    record(profiler, clock, *[("learn", 50, 0, 1)] * 40)
    with profiler.profile("shut_down"), profiler.profile("evaluate"):
        clock.advance(100 * MS)
    record(profiler, clock, *[("learn", 50, 0, 1)] * 10)
    phases = find_phases(profiler.capture())
    assert phases is not None and phases.shutdown_ns < 60 * MS


def test_a_report_and_a_comparison_cover_the_same_stretch(profiler: Profiler, clock: FakeClock) -> None:
    capture = a_run(profiler, clock)
    rate = explain_without_advice(capture).env_steps_per_s
    figures = run_figures(capture)
    assert rate is not None and figures.s_per_env_step == pytest.approx(1 / rate, rel=0.02)


def test_times_of_the_cut_capture_add_up(profiler: Profiler, clock: FakeClock) -> None:
    capture = a_run(profiler, clock)
    phases = find_phases(capture)
    assert phases is not None
    thread = cut_to_training(capture, phases).threads[0]
    regions = sum(node.own_ns for node in thread.root.children)
    assert regions + thread.unattributed_ns == thread.wall_ns == phases.training_ns
    steps = sum(n.calls for n in thread.root.children if n.name == "env_step")
    assert thread.progress.env_steps == pytest.approx(steps, abs=1)  # a window is taken between the two
    last = thread.windows
    assert int(last.own_ns[-1].sum()) <= thread.wall_ns and int(last.time_ns[-1]) <= thread.end_ns


def test_a_short_run_gets_no_gain_but_how_long_to_run(profiler: Profiler, clock: FakeClock) -> None:
    record(profiler, clock, ("import", 3000, 0, 0), *[("env_step", 100, 1, 0)] * 4)
    found = explain_without_advice(profiler.capture())
    assert found.phases is not None and not found.phases.steady
    assert all(b.gain_if_twice_as_fast is None for b in found.bottlenecks)
    assert any(reason.startswith("gains: training was too short") for reason in found.not_measured)
    assert any("run for" in reason for reason in found.not_measured)


def test_filling_the_replay_buffer_is_warm_up() -> None:
    steps = np.arange(1.0, 41.0)
    updates = np.concatenate([np.zeros(10), np.arange(1.0, 31.0)])
    assert cycle_bounds({"env_steps": steps, "updates": updates}, 0, 40) == list(range(10, 41))


def test_rounds_of_collecting_and_learning_are_kept_whole() -> None:
    collecting, learning = [1.0, 1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0]
    steps, updates = np.cumsum(collecting * 5), np.cumsum(learning * 5)
    assert cycle_bounds({"env_steps": steps, "updates": updates}, 0, 25) == [3, 8, 13, 18, 23]


def test_an_update_longer_than_a_window_begins_no_round() -> None:
    collecting, learning = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    steps, updates = np.cumsum(collecting * 5), np.cumsum(learning * 5)
    assert cycle_bounds({"env_steps": steps, "updates": updates}, 0, 35) == [2, 9, 16, 23, 30]


def test_the_learning_of_the_last_round_is_no_shutdown(profiler: Profiler, clock: FakeClock) -> None:
    for _ in range(12):
        record(profiler, clock, *[("env_step", 300, 1, 0)] * 5, *[("learn", 300, 0, 1)] * 10)
    record(profiler, clock, ("save", 200, 0, 0))
    phases = find_phases(profiler.capture())
    assert phases is not None
    assert phases.last_round_ns == pytest.approx(3000 * MS, abs=600 * MS)
    assert phases.shutdown_ns <= 500 * MS


def test_a_run_that_trains_from_the_start_is_left_as_it_is() -> None:
    capture = make_capture({"env_step": Spec(20_000, 20_000)}, env_steps=20_000)
    phases = find_phases(capture)
    assert phases is not None and phases.whole_run
    assert cut_to_training(capture, phases) is capture


def test_nothing_recorded_has_no_phases() -> None:
    assert find_phases(Capture(path=None, facts={}, processes=())) is None


def test_samples_that_stand_for_no_time_say_nothing_about_phases() -> None:
    capture = make_capture({"a": Spec(10, 1_000_000.0)})
    (process,) = capture.processes
    (thread,) = process.threads
    samples = np.zeros(30, dtype=SAMPLE_DTYPE)
    samples["native_id"], samples["time_ns"], samples["path"] = thread.native_id, thread.end_ns, 2
    process = replace(process, samples=samples, paths=(SampledPath(()),) * 3)
    phases = find_phases(replace(capture, processes=(process,)))
    assert phases is not None and phases.training_ns == thread.wall_ns


def test_a_damaged_recording_that_lost_its_nodes_has_phases() -> None:
    capture = make_capture({"a": Spec(10, 1_000_000.0)})
    (process,) = capture.processes
    (thread,) = process.threads
    samples = np.zeros(30, dtype=SAMPLE_DTYPE)
    samples["native_id"], samples["time_ns"] = thread.native_id, thread.end_ns
    bare = replace(thread, paths=(), root=Node("", own_ns=thread.wall_ns), windows=no_windows(0))
    process = replace(process, samples=samples, paths=(SampledPath(()),), threads=(bare,))
    assert find_phases(replace(capture, processes=(process,))) is not None
