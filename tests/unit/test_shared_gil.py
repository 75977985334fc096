"""Who has the GIL, from samples; threads and processes that share nothing but cores and the GIL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.what_ifs import WhatIfs, parse_change
from hotloop.capture.model import Capture, Thread
from hotloop.capture.samples import (
    FOR_THE_GIL,
    GIL_ELSEWHERE,
    GIL_HELD,
    RUNNING,
    SAMPLE_DTYPE,
    SLEEPING,
    FunctionSource,
    SampledFrame,
    SampledPath,
    Sampling,
)
from hotloop.capture.scheduling import Scheduling
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

MS = 1_000_000


def with_cores(capture: Capture, on_core: float, queued: float) -> Capture:
    """The capture of a machine with two cores, whose threads had one for this share of their time."""

    def known(thread: Thread) -> Thread:
        times = np.linspace(thread.start_ns, thread.end_ns, 20).astype(np.uint64)
        past = times - times[0]
        figures = Scheduling(
            times, (on_core * past).astype(np.uint64), (queued * past).astype(np.uint64), None, None
        )
        return replace(thread, scheduling=figures)

    processes = tuple(replace(p, threads=tuple(map(known, p.threads))) for p in capture.processes)
    return replace(capture, processes=processes)


def free_running(processes: int) -> Capture:
    """A learner and processes that play, all of them busy all the time; on two cores."""
    each = {"play": Spec(400, 10 * MS)}
    made = make_capture(
        {"learn": Spec(400, 10 * MS)},
        updates=400,
        processes=[ProcessSpec([ThreadSpec(each)]) for _ in range(processes)],
        unattributed=0.0,
        facts={"machine": {"cores_granted": 2}},
    )
    whole = processes + 1
    return with_cores(made, min(2 / whole, 1.0), max(1 - 2 / whole, 0.0))


def test_processes_that_exchange_no_messages_share_the_cores() -> None:
    model = WhatIfs(free_running(3))

    def gain(text: str) -> float:
        found = model.predict([parse_change(text)]).speed_up
        assert found is not None
        return found.value

    assert gain("learn=2x") == pytest.approx(2, rel=0.1)
    assert gain("play=2x") == pytest.approx(1, rel=0.02)  # twice the games in the same cores
    assert gain("workers=1") == pytest.approx(2, rel=0.1)
    assert gain("workers=6") == pytest.approx(4 / 7, rel=0.1)
    assert model.limit.regime == "cpu"
    answer = model.predict([parse_change("learn=2x")])
    assert "share nothing but cores" in answer.why and "hotloop compare" in answer.decide


def test_a_learner_that_waits_for_a_flag_has_no_answer() -> None:
    """It sleeps in `while not flag: sleep`: who sets the flag was not recorded."""
    capture = free_running(1)
    process = capture.processes[0]
    text = "def wait(flag):\n    while not flag.value:\n        time.sleep(0.001)\n"
    paths = [SampledPath((SampledFrame("train.py", "wait", 1, line),)) for line in (1, 3)]
    rows = np.zeros(100, SAMPLE_DTYPE)
    thread = process.threads[0]
    rows["time_ns"] = np.linspace(thread.start_ns, thread.end_ns, 100).astype(np.uint64)
    rows["native_id"], rows["weight_ns"] = thread.native_id, 10 * MS
    rows["path"], rows["state"] = np.arange(100) % 2, SLEEPING
    waiting = replace(
        process,
        samples=rows,
        paths=tuple(paths),
        sources=(FunctionSource("train.py", "wait", 1, text),),
        sampling=Sampling("native", 10 * MS, 100, 0, 0, {}),
    )
    model = WhatIfs(replace(capture, processes=(waiting, *capture.processes[1:])))
    answer = model.predict([parse_change("play=2x")])
    assert answer.speed_up is None and "50 % of the time in the loop at train.py:2" in answer.why


def test_threads_that_hold_the_gil_in_turn_and_native_code_beside_them() -> None:
    """Both threads need it for nine tenths of the time in `play`; `learn` needs a core alone."""
    made = make_capture(
        {"learn": Spec(200, 10 * MS), "play": Spec(200, 10 * MS)},
        updates=200,
        extra_threads=[ThreadSpec({"play": Spec(400, 10 * MS)}, name="actor")],
        unattributed=0.0,
        facts={"machine": {"cores_granted": 2}},
    )
    capture = with_cores(made, 0.75, 0.0)
    process = capture.processes[0]
    main, actor = process.threads
    begin, end = main.start_ns, main.end_ns
    rows = np.zeros(2 * 400, SAMPLE_DTYPE)
    rows["time_ns"] = np.repeat(np.linspace(begin, end, 400).astype(np.uint64), 2)
    rows["weight_ns"] = (end - begin) // 400
    rows["native_id"] = [main.native_id, actor.native_id] * 400
    node = {
        thread.native_id: {path[-1]: n for n, path in enumerate(thread.paths) if path}
        for thread in process.threads
    }
    for n in range(400):
        learns, waits = n % 4 < 2, n % 4 == 2
        holder = 2 * n + (learns or waits)
        for row, name, has_it in (
            (2 * n, "learn" if learns else "play", holder == 2 * n),
            (2 * n + 1, "play", holder == 2 * n + 1),
        ):
            rows["node"][row] = node[int(rows["native_id"][row])][name]
            rows["gil"][row] = GIL_HELD if has_it else GIL_ELSEWHERE
            rows["state"][row] = RUNNING if has_it or name == "learn" else SLEEPING
    rows["reason"][rows["state"] == SLEEPING] = FOR_THE_GIL
    model = WhatIfs(replace(capture, processes=(replace(process, samples=rows),)))
    assert model.trace is not None, model.why_no_replay
    parts = {part.name: part for part in model.trace.lanes[model.trace.driver].parts}
    assert parts["learn"].gil == pytest.approx(0, abs=0.02)
    assert parts["play"].gil == pytest.approx(1, abs=0.02)
    assert model.limit.regime == "gil" and "`play`" in model.limit.sentence
