"""Gains of advice where several threads work come from the replay of the whole run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.advice.claims import time_table
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import RunView, view_run
from hotloop.analysis.advice.system_gains import combined_in_system, gain_in_system, with_system_gain
from hotloop.analysis.explain import explain_without_advice
from hotloop.analysis.findings import Claim, Recommendation
from hotloop.analysis.replay import Lane, Operation, ReplayChannel, Trace, replay
from hotloop.analysis.what_ifs import WhatIfs, parse_change
from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.testing.captures import Spec, make_capture

ROUNDS = 200
CHANGE = Change("nothing", effort="minutes", safety="safe")


def lane(name: str, kind: int, work: float, thread: tuple[int, int], process: int) -> Lane:
    operations = tuple(Operation(kind, 0, 0.0, 0.0, 0.0, number) for number in range(ROUNDS))
    stretches = np.array([work] * ROUNDS + [0.0])
    return Lane(
        *(
            name,
            process,
            operations,
            stretches,
            {name: stretches.copy()},
            0.0,
            0.0,
            name,
            frozenset(),
            thread,
        ),
        recorded_s=float(stretches.sum()),
    )


def system(produce: float, learn: float) -> RunView:
    """A learner that takes what a producer sends; the learner's `learn` takes 80 % of its recorded time."""
    capture = make_capture({"learn": Spec(1000, 8e6), "log": Spec(1000, 2e6)}, updates=1000)
    process, thread = capture.processes[0], capture.threads[0]
    learner = lane("learn", RECEIVE, learn, (process.pid, thread.native_id), 0)
    producer = lane("produce", SEND, produce, (process.pid + 1, process.pid + 1), 1)
    trace = Trace((learner, producer), (ReplayChannel("channel", "queue", 4, 0, 0.0),), 0, 2.0, 1.0)
    times = replay(trace).times
    done = tuple(replace(o, end=end) for o, end in zip(learner.operations, times, strict=False))
    learner = replace(learner, operations=done + learner.operations[len(done) :])
    model = WhatIfs(capture)
    model.__dict__["trace"] = replace(trace, lanes=(learner, producer), seconds=float(times[-1]))
    run = view_run(capture, explain_without_advice(capture), model)
    assert run is not None
    return run


def faster_learning(run: RunView) -> Recommendation:
    row = next(row for row in run.rows if row.name == "learn")
    return advise(run, "a", row, "Learn less", ["evidence"], "do", run.gain([row], 0.5), CHANGE)


def test_no_gain_is_promised_where_another_role_is_the_limit() -> None:
    run = system(produce=5.0, learn=2.0)
    alone = faster_learning(run)
    assert alone.gain is not None and alone.gain.value == pytest.approx(1.67, rel=0.05)
    made = with_system_gain(run, alone, time_table(run))
    assert made.gain is not None and made.gain.value == pytest.approx(1.0, rel=0.02)
    assert made.alone == alone.gain
    assert made.tier == "not_worth_optimising"
    assert "`produce`" in made.evidence[-1]


def test_where_the_driving_thread_is_the_limit_it_gains() -> None:
    run = system(produce=1.0, learn=5.0)
    made = with_system_gain(run, faster_learning(run), time_table(run))
    assert made.gain is not None and made.gain.value == pytest.approx(2.0, rel=0.05)
    assert made.tier == "high"


def test_all_advice_together_is_replayed_once() -> None:
    run = system(produce=4.0, learn=5.0)
    table = time_table(run)
    made = with_system_gain(run, faster_learning(run), table)
    together = combined_in_system(run, [made, made], table)
    assert together is not None and together.value == pytest.approx(1.25, rel=0.05)  # then it produces


def test_changes_of_waits_keep_their_own_gain() -> None:
    run = system(produce=5.0, learn=2.0)
    one = faster_learning(run)
    assert one.claim is not None
    kept = replace(one, claim=replace(one.claim, waits=True))
    assert with_system_gain(run, kept, time_table(run)) is kept


def test_one_thread_alone_keeps_its_gain() -> None:
    run = replace(system(produce=5.0, learn=2.0), model=None)
    one = faster_learning(run)
    assert one.gain is not None and one.claim is not None
    assert gain_in_system(run, one.gain, one.claim, time_table(run)) is one.gain
    assert gain_in_system(run, one.gain, Claim(), time_table(run)) is one.gain


def test_regions_without_recorded_calls_are_taken_from_all_the_work() -> None:
    """A program that sends few messages, such as to a log writer, has few single calls in its events."""
    run = system(produce=1.0, learn=5.0)
    assert run.model is not None and run.model.trace is not None
    trace = run.model.trace
    learner = replace(trace.lanes[0], regions={}, unseen=frozenset({"learn"}))
    run.model.__dict__["trace"] = replace(trace, lanes=(learner, trace.lanes[1]))
    gain = run.model.replayed_gain("learn")
    assert gain is not None and gain.value == pytest.approx(1 / 0.6, rel=0.02)
    (prediction,) = [run.model.predict([parse_change("learn=2x")])]
    assert prediction.speed_up is not None and prediction.speed_up.value == pytest.approx(1 / 0.6, rel=0.02)


def test_a_thread_that_only_logs_changes_no_gain() -> None:
    run = system(produce=0.01, learn=5.0)
    assert run.model is not None and run.model.is_alone
    one = faster_learning(run)
    assert with_system_gain(run, one, time_table(run)) is one
