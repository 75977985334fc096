"""What a run of a series did and how fast, after warm-up."""

from __future__ import annotations

import numpy as np
import pytest

from hotloop.analysis.phases import warm_up_windows
from hotloop.analysis.steady_state import run_figures
from hotloop.testing.captures import Spec, make_capture


def test_slow_windows_at_the_start_are_cut_off_and_no_others() -> None:
    steady = 10 + 0.1 * np.sin(np.arange(30.0))
    assert warm_up_windows(steady) == 0
    assert warm_up_windows(np.concatenate([[90.0, 40.0, 15.0], steady])) == 3
    assert warm_up_windows(np.concatenate([steady, [90.0]])) == 0
    # Windows before any work are start-up; later ones may be updates and stay.
    assert warm_up_windows(np.concatenate([[np.inf, np.inf], steady])) == 2
    assert warm_up_windows(np.concatenate([[np.inf, 90.0, np.inf], steady])) == 2


def test_a_fast_start_is_not_warm_up_and_half_of_the_run_is_always_kept() -> None:
    steady = 10 + 0.1 * np.sin(np.arange(30.0))
    assert warm_up_windows(np.concatenate([[1.0, 2.0], steady])) == 0
    falling = np.exp(-np.arange(40.0) / 2) * 1000
    assert 0 < warm_up_windows(falling) <= 20


def test_with_few_windows_start_up_goes_and_the_window_it_ends_in() -> None:
    assert warm_up_windows(np.array([90.0, 10, 10, 10, 10])) == 1
    assert warm_up_windows(np.array([np.inf, 90.0, 10])) == 1
    assert warm_up_windows(np.array([np.inf, np.inf])) == 0
    assert warm_up_windows(np.array([])) == 0


def test_figures_are_per_unit_of_work_and_add_up() -> None:
    capture = make_capture(
        {
            "env_step": Spec(calls=1000, own_ns=600_000),
            "backward": Spec(calls=100, own_ns=2_000_000, bytes_moved=8),
        },
        env_steps=1000,
        updates=100,
        episodes=10,
    )
    found = run_figures(capture)
    assert (found.env_steps, found.updates, found.episodes) == (1000, 100, 10)
    assert found.s_per_env_step is not None and found.s_per_update is not None
    assert found.s_per_update == pytest.approx(10 * found.s_per_env_step, rel=0.02)
    assert sum(found.components_s.values()) == pytest.approx(found.s_per_env_step, rel=0.01)
    assert found.components_s["environment"] == pytest.approx(600e-6, rel=0.1)
    assert found.components_s["backward"] == pytest.approx(200e-6, rel=0.2)
    assert found.calls == 1100 and found.bytes_moved == 800
    whole_s = capture.threads[0].wall_ns / 1e9
    assert found.startup_s is not None
    assert found.startup_s + sum(found.regions_s.values()) == pytest.approx(whole_s, rel=1e-6)


def test_without_progress_there_is_no_time_per_step() -> None:
    found = run_figures(make_capture({"env_step": Spec(calls=10, own_ns=1e6)}))
    assert found.env_steps is None and found.s_per_env_step is None and found.mean_return is None
    assert found.components_s == {} and found.calls == 10
