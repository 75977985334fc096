"""A machine that stands still blames no region."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop import Profiler
from hotloop.analysis.explain import explain
from hotloop.analysis.phases import training_of
from hotloop.analysis.standstills import standstills, without_standstills
from hotloop.capture.channels import ChannelUse
from hotloop.capture.message_format import RECORD
from hotloop.capture.messages import MessageLog
from hotloop.capture.model import ROUND_DTYPE, Capture, Event
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


@pytest.mark.parametrize("pause_ms", [0, 1500, PAUSE_MS])
def test_a_process_that_waits_is_sampled_less_often(
    profiler: Profiler, clock: FakeClock, pause_ms: int
) -> None:
    process = a_run(profiler, clock, paused=False).processes[0]
    busy, end = process.samples, int(process.samples["time_ns"][-1])
    waiting = np.zeros(20, dtype=SAMPLE_DTYPE)
    waiting["time_ns"] = end + np.arange(1, 21, dtype=np.uint64) * 800 * MS  # half a second each, at random
    waiting["time_ns"][10:] += pause_ms * MS
    waiting["weight_ns"] = 500 * MS
    process = replace(process, threads=(), samples=np.concatenate([busy, waiting]))
    assert len(standstills(process)) == (pause_ms == PAUSE_MS)


def test_messages_and_single_calls_move_with_the_clock(profiler: Profiler, clock: FakeClock) -> None:
    capture = a_run(profiler, clock, paused=True)
    process, thread = capture.processes[0], capture.threads[0]
    (still,) = standstills(process)
    late = still.end_ns + 500 * MS
    calls = [(still.begin_ns - 5 * MS, 2 * MS), (still.begin_ns - 1 * MS, PAUSE_MS * MS), (late, 3 * MS)]
    rounds = np.array([(0, start, length) for start, length in calls], dtype=ROUND_DTYPE)
    times = np.array([thread.start_ns, still.begin_ns, still.end_ns, clock()], dtype=np.uint64)
    waited = np.array([0, 5 * MS, 5 * MS + still.length_ns, 9 * MS + still.length_ns], dtype=np.uint64)
    use = ChannelUse("pipe 1", "receive", times, times, waited, None)
    thread = replace(
        thread,
        events=tuple(Event(0, start, length) for start, length in calls),
        rounds=rounds,
        channels=(use,),
    )
    records = np.zeros(3, dtype=list(RECORD))
    records["begin_ns"] = [start for start, _ in calls]
    records["end_ns"] = [start + length for start, length in calls]
    log = MessageLog(process.pid, (), records, 3)
    other = MessageLog(process.pid + 1, (), records.copy(), 3)  # of a process that nobody recorded
    capture = replace(capture, processes=(replace(process, threads=(thread,)),), messages=(log, other))
    cut, gone_ns = without_standstills(capture)
    found = cut.threads[0]
    lengths = [2 * MS, (PAUSE_MS * MS - still.length_ns), 3 * MS]
    assert [event.duration_ns for event in found.events] == pytest.approx(lengths, abs=2 * MS)
    assert found.rounds["duration_ns"].tolist() == [event.duration_ns for event in found.events]
    assert found.events[2].start_ns == late - gone_ns
    assert found.channels[0].total_ns.tolist() == [0, 5 * MS, 5 * MS, 9 * MS]
    mine, theirs = cut.messages
    assert (mine.records["end_ns"] - mine.records["begin_ns"]).tolist() == found.rounds[
        "duration_ns"
    ].tolist()
    assert theirs is other
