"""What lanes lost to each other: time in the run queue."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.message_trace import find_trace
from hotloop.analysis.replay import Trace
from hotloop.capture.message_format import RECEIVE, RECORD, SEND
from hotloop.capture.messages import LoggedChannel, MessageLog
from hotloop.capture.scheduling import Scheduling
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

MS = 1_000_000


def trace_of(on_core: float, queued: float, *, crowded: bool) -> Trace:
    """An actor and a learner that work 5 ms for each message, with these shares of their time."""
    capture = make_capture(
        {"learn": Spec(100, 1e6)}, processes=[ProcessSpec([ThreadSpec({"act": Spec(100, 1e6)})])]
    )
    times = np.arange(0, 400 * MS, 50 * MS).astype(np.uint64)
    figures = Scheduling(
        times, (on_core * times).astype(np.uint64), (queued * times).astype(np.uint64), None, None
    )
    processes = tuple(
        replace(process, threads=(replace(process.threads[0], scheduling=figures),))
        for process in capture.processes[:2]
    )
    channel, logs = LoggedChannel("pipe", "pipe"), []
    for process, kind in zip(processes, (RECEIVE, SEND), strict=True):
        native = process.threads[0].native_id
        rows = [((5 * n + 5) * MS, (5 * n + 5) * MS + 1000, native, 0, kind, n + 1) for n in range(60)]
        logs.append(MessageLog(process.pid, (channel,), np.array(rows, dtype=list(RECORD)), len(rows)))
    driver = processes[0].pid, processes[0].threads[0].native_id
    trace, why = find_trace(replace(capture, processes=processes), logs, driver, 2.0, crowded=crowded)
    assert trace is not None, why
    return trace


def test_waking_up_late_on_free_cores_stays_where_it_was() -> None:
    light = trace_of(0.4, 0.15, crowded=False)
    for lane in light.lanes:
        assert float(lane.work.sum()) == pytest.approx(lane.recorded_s)
        assert lane.core == pytest.approx(0.4, rel=0.02)
    assert light.others == 0


@pytest.mark.parametrize(
    ("on_core", "queued", "crowded"), [(0.4, 0.15, True), (0.6, 0.3, False), (0.4, 0.3, False)]
)
def test_time_in_the_run_queue_is_lost_to_others_on_full_cores(
    on_core: float, queued: float, crowded: bool
) -> None:
    for lane in trace_of(on_core, queued, crowded=crowded).lanes:
        assert float(lane.work.sum()) == pytest.approx((1 - queued) * lane.recorded_s, rel=0.02)
        assert lane.core == pytest.approx(on_core / (1 - queued), rel=0.02)
