"""Time per env step over whole cycles: right wherever the run is cut off."""

from __future__ import annotations

import signal

import pytest

from hotloop import Profiler
from hotloop.analysis.steady_state import RunProgress, progress_so_far, run_figures, run_figures_over_cycles
from hotloop.testing.fakes import FakeClock
from hotloop.workflows.probes import ProbeLength, signals_deferred

STEP_NS, LEARN_NS = 20_000_000, 600_000_000
STEPS, ENVS = 20, 4  # a cycle: 0.4 s of collecting, 0.6 s of learning, 80 env steps
TRUE_S = (STEPS * STEP_NS + LEARN_NS) / 1e9 / (STEPS * ENVS)


def run(profiler: Profiler, clock: FakeClock, steps: int, learn: bool = True) -> None:
    """So many vector steps, learning after each `STEPS` of them."""
    for step in range(steps):
        with profiler.profile("env_step"):
            clock.advance(STEP_NS)
        profiler.progress(env_steps=ENVS)
        if learn and (step + 1) % STEPS == 0:
            for _ in range(6):
                with profiler.profile("backward"):
                    clock.advance(LEARN_NS // 6)
                profiler.progress(updates=1)


@pytest.mark.parametrize("steps", [2 * STEPS, 3 * STEPS - 1, 3 * STEPS, 3 * STEPS + 7, 6 * STEPS - 2])
def test_the_time_is_that_of_whole_cycles_wherever_the_run_ends(
    profiler: Profiler, clock: FakeClock, steps: int
) -> None:
    run(profiler, clock, steps)
    found = run_figures_over_cycles(profiler.capture())
    assert found.s_per_env_step == pytest.approx(TRUE_S, rel=0.02)
    assert found.s_per_update == pytest.approx(TRUE_S * STEPS * ENVS / 6, rel=0.02)
    assert sum(found.components_s.values()) == pytest.approx(TRUE_S, rel=0.02)
    assert found.components_s["backward"] == pytest.approx(LEARN_NS / 1e9 / (STEPS * ENVS), rel=0.15)


def test_without_two_rounds_of_learning_the_steady_figures_are_given(
    profiler: Profiler, clock: FakeClock
) -> None:
    run(profiler, clock, STEPS - 1)
    capture = profiler.capture()
    assert run_figures_over_cycles(capture) == run_figures(capture)
    assert progress_so_far(capture) == RunProgress((STEPS - 1) * ENVS, 0, 0)


def test_cycles_are_counted_from_one_round_of_learning_to_the_next(
    profiler: Profiler, clock: FakeClock
) -> None:
    run(profiler, clock, 4 * STEPS)
    seen = progress_so_far(profiler.capture())
    assert (seen.env_steps, seen.updates, seen.cycles) == (4 * STEPS * ENVS, 24, 3)


def test_a_run_without_updates_has_no_cycles(profiler: Profiler, clock: FakeClock) -> None:
    run(profiler, clock, 50, learn=False)
    assert progress_so_far(profiler.capture()).cycles == 0


def test_a_probe_waits_for_whole_cycles_up_to_a_limit() -> None:
    length = ProbeLength(2.0, 30.0, cycles=2)
    assert not length.is_enough(RunProgress(100, 0, 0), 1.9)
    assert not length.is_enough(RunProgress(100, 0, 0), 9.0)  # there may be updates yet
    assert not length.is_enough(RunProgress(200, 6, 1), 11.0) and length.learns
    assert length.is_enough(RunProgress(300, 12, 2), 12.0)
    assert not length.is_enough(RunProgress(300, 0, 0), 12.0)  # the next one: known to learn
    assert length.is_enough(RunProgress(300, 0, 0), 30.0)


def test_a_run_known_not_to_learn_is_ended_in_time() -> None:
    length = ProbeLength(2.0, 30.0)
    assert length.is_enough(RunProgress(100, 0, 0), 10.0)
    length.learn_from(RunProgress(100, 0, 0))
    assert length.learns is False and length.is_enough(RunProgress(10, 0, 0), 2.0)


def test_a_workload_that_ends_its_own_cycle_is_not_waited_for() -> None:
    assert ProbeLength(2.0, 30.0, cycles=0).is_enough(RunProgress(1, 0, 0), 2.0)


def test_work_that_has_to_settle_counts_from_an_update_on() -> None:
    length = ProbeLength(2.0, 30.0, cycles=2, warm_up_updates=4)
    assert not length.has_started(RunProgress(5000, 3, 0)) and length.has_started(RunProgress(5000, 4, 1))
    assert ProbeLength(2.0, 30.0).has_started(RunProgress(1, 0, 0))
    length.learn_from(RunProgress(100, 0, 0))  # it does not learn at all
    assert length.has_started(RunProgress(1, 0, 0))


def test_the_first_updates_can_be_left_out(profiler: Profiler, clock: FakeClock) -> None:
    for cycle in range(8):  # twice as slow until the rings are full
        with profiler.profile("env_step"):
            clock.advance(STEP_NS * (2 if cycle < 4 else 1))
        profiler.progress(env_steps=ENVS)
        with profiler.profile("backward"):
            clock.advance(LEARN_NS * (2 if cycle < 4 else 1))
        profiler.progress(updates=1)
    capture = profiler.capture()
    steady_s = (STEP_NS + LEARN_NS) / 1e9 / ENVS
    assert run_figures_over_cycles(capture, warm_up_updates=4).s_per_env_step == pytest.approx(
        steady_s, rel=0.05
    )
    assert (run_figures_over_cycles(capture).s_per_env_step or 0.0) > 1.15 * steady_s
    # with too few after them, the last cycle there is
    assert run_figures_over_cycles(capture, warm_up_updates=99).s_per_env_step == pytest.approx(
        steady_s, rel=0.05
    )


def test_ctrl_c_waits_for_a_process_that_is_being_started() -> None:
    before, reached = signal.getsignal(signal.SIGINT), False
    with pytest.raises(KeyboardInterrupt), signals_deferred():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached and signal.getsignal(signal.SIGINT) is before
    with signals_deferred():
        pass
