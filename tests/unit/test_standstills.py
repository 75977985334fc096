"""A machine that stands still blames no region."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop import Profiler
from hotloop.analysis.explain import explain
from hotloop.analysis.phases import training_of
from hotloop.analysis.standstills import standstills, without_standstills
from hotloop.capture.model import Capture
from hotloop.capture.samples import RUNNING, SAMPLE_DTYPE, SampledPath, Sampling
from hotloop.capture.scheduling import ProcessScheduling
from hotloop.report.text import terminal
from hotloop.testing.fakes import FakeClock

MS = 1_000_000
PAUSE_MS = 27_000


def a_run(
    profiler: Profiler, clock: FakeClock, *, paused: bool, beats: bool = False, cpu: float = 0.0
) -> Capture:
    """20 s of training, sampled every 10 ms; after 8 s nothing runs for 27 s, inside `learn`.

    `beats`: the sampler ran meanwhile, so it was one long call. `cpu`: share of CPU time in the pause.
    """
    start_ns = clock()
    for number in range(200):
        with profiler.profile("env_step"):
            clock.advance(60 * MS)
        with profiler.profile("learn"), profiler.profile("backward"):
            clock.advance((40 + PAUSE_MS * (paused and number == 80)) * MS)
        profiler.progress(env_steps=1, updates=1)
    capture = profiler.capture()
    process = capture.processes[0]
    times = np.arange(start_ns, clock(), 10 * MS, dtype=np.int64)
    begin, end = start_ns + 80 * 100 * MS + 70 * MS, start_ns + 80 * 100 * MS + 70 * MS + PAUSE_MS * MS
    if paused and not beats:
        times = times[(times <= begin) | (times >= end)]
    rows = np.zeros(len(times), dtype=SAMPLE_DTYPE)
    rows["time_ns"], rows["weight_ns"] = times, 10 * MS
    rows["weight_ns"][np.searchsorted(times, end) if paused and not beats else 0] = 1000 * MS
    rows["native_id"], rows["state"] = process.threads[0].native_id, RUNNING
    ends = np.array([start_ns, begin, end, clock()], dtype=np.uint64)
    spent = np.array([0, 8e9, 8e9 + cpu * PAUSE_MS * MS, 20e9 + cpu * PAUSE_MS * MS]).astype(np.uint64)
    scheduling = ProcessScheduling(ends, ends, None, spent, None, None, spent)
    sampled = replace(
        process,
        samples=rows,
        paths=(SampledPath(()),),
        sampling=Sampling("native", 10 * MS, len(rows), 0, 0, {}),
        scheduling=scheduling if paused and not beats else None,
    )
    return replace(capture, processes=(sampled,))


def test_figures_are_those_of_a_run_without_the_pause(profiler: Profiler, clock: FakeClock) -> None:
    capture = a_run(profiler, clock, paused=True)
    (still,) = standstills(capture.processes[0])
    assert still.length_ns == pytest.approx(PAUSE_MS * MS, rel=0.01)
    found = explain(capture)
    assert found.stood_still_ns == still.length_ns
    assert found.wall_ns == capture.wall_ns
    assert found.env_steps_per_s == pytest.approx(10.0, rel=0.03)
    shares = {c.category: c.share for c in found.breakdown.categories}
    assert shares["environment"] == pytest.approx(0.6, abs=0.02)
    assert shares["backward"] == pytest.approx(0.4, abs=0.02)
    assert "stood still for 27.0 s" in terminal(found)


def test_times_still_add_up_afterwards(profiler: Profiler, clock: FakeClock) -> None:
    capture, gone_ns = without_standstills(a_run(profiler, clock, paused=True))
    process, thread = capture.processes[0], capture.threads[0]
    assert thread.wall_ns == thread.end_ns - thread.start_ns == thread.root.total_ns
    assert thread.root.own_ns + sum(node.total_ns for node in thread.root.children) == thread.wall_ns
    learn = next(node for node in thread.root.children if node.name == "learn")
    assert learn.total_ns == learn.own_ns + sum(node.total_ns for node in learn.children)
    assert np.all(np.diff(thread.windows.time_ns.astype(np.int64)) >= 0)
    assert np.all(np.diff(thread.windows.own_ns.astype(np.int64), axis=0) >= 0)
    assert float(process.samples["weight_ns"].sum()) == pytest.approx(thread.wall_ns, rel=0.01)
    assert without_standstills(capture)[1] == 0
    assert gone_ns > 0 and training_of(capture).threads[0].wall_ns <= thread.wall_ns


def test_a_thread_without_regions_is_cut_too(profiler: Profiler, clock: FakeClock) -> None:
    capture = a_run(profiler, clock, paused=True)
    process, thread = capture.processes[0], capture.threads[0]
    windows = thread.windows
    no_columns = {name: getattr(windows, name)[:, :0] for name in ("calls", "total_ns", "own_ns")}
    idle = replace(
        thread,
        paths=(),
        root=replace(thread.root, children=[], own_ns=thread.root.total_ns),
        windows=replace(windows, **no_columns),
    )
    cut, gone_ns = without_standstills(
        replace(capture, processes=(replace(process, threads=(thread, idle)),))
    )
    assert gone_ns > 0
    assert cut.threads[1].wall_ns == cut.threads[1].root.own_ns == cut.threads[0].wall_ns


@pytest.mark.parametrize("what", ["no pause", "one long call", "short and busy"])
def test_a_long_call_is_no_standstill(
    profiler: Profiler, clock: FakeClock, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "short and busy":  # the sampler was held up while the process worked
        monkeypatch.setattr("hotloop.analysis.standstills.CERTAIN_NS", 60_000 * MS)
    capture = a_run(
        profiler,
        clock,
        paused=what != "no pause",
        beats=what == "one long call",
        cpu=1.0 if what == "short and busy" else 0.0,
    )
    assert standstills(capture.processes[0]) == ()
    assert explain(capture).stood_still_ns == 0
