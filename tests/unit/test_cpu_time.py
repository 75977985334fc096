"""The CPU time of the training thread decides only where it stands for wall time: if it never waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.comparison import cpu_pairs
from hotloop.analysis.steady_state import run_figures
from hotloop.capture.model import Capture
from hotloop.capture.scheduling import Scheduling
from hotloop.capture.series import Figures, Run
from hotloop.testing.captures import Spec, make_capture


def a_run(cpu: float | None, waiting: float | None = 0.0) -> Run:
    figures = Figures(s_per_env_step=1.0, cpu_s_per_env_step=cpu, waiting_fraction=waiting)
    return Run(0, "a", 0, 0, 0, (), figures=figures)


def test_every_pair_must_be_known_and_no_side_may_wait() -> None:
    pair = a_run(1.0), a_run(0.5)
    assert cpu_pairs([pair, pair]) == [(1.0, 0.5), (1.0, 0.5)]
    assert cpu_pairs([pair, (a_run(1.0), a_run(None, None))]) == []
    assert cpu_pairs([(a_run(1.0), a_run(0.5, 0.2))] * 3) == []
    assert len(cpu_pairs([pair, pair, (a_run(1.0), a_run(0.5, 0.2))])) == 3  # the median counts
    assert cpu_pairs([]) == []


def scheduled(capture: Capture, on_core: float, in_queue: float) -> Capture:
    """The capture with a thread that had a core, or waited for one, for these fractions of its time."""
    process = capture.processes[0]
    thread = process.threads[0]
    times = thread.windows.time_ns
    passed = (times - np.uint64(thread.start_ns)).astype(np.float64)
    cpu_ns = (on_core * passed).astype(np.uint64)
    queue_ns = (in_queue * passed).astype(np.uint64)
    zeros = np.zeros_like(queue_ns)
    scheduling = Scheduling(times, cpu_ns, queue_ns, zeros, zeros)
    thread = replace(thread, windows=replace(thread.windows, cpu_ns=cpu_ns), scheduling=scheduling)
    return replace(capture, processes=(replace(process, threads=(thread,)),))


def test_cpu_time_and_waiting_are_those_of_training() -> None:
    capture = make_capture({"env_step": Spec(20_000, 20_000)}, env_steps=20_000)
    found = run_figures(scheduled(capture, 0.25, 0.7))
    assert found.s_per_env_step is not None
    assert found.cpu_s_per_env_step == pytest.approx(0.25 * found.s_per_env_step, rel=0.02)
    assert found.waiting_fraction == pytest.approx(0.05, abs=0.01)
    assert run_figures(capture).cpu_s_per_env_step is None  # nothing known about its scheduling
