"""The replay of finite queues: small systems whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.replay import (
    Lane,
    Operation,
    ReplayEdge,
    Trace,
    replay,
    scaled,
    with_capacity,
    with_workers,
    without_edges,
)
from hotloop.capture.message_format import MEET, RECEIVE, SEND, WAIT, WAKE

ROUNDS = 200


def lane(
    name: str,
    ops: list[tuple[int, int]],
    work: list[float],
    core: float = 0.0,
    gil: float = 0.0,
    process: int = 0,
) -> Lane:
    """A lane that repeats operations (kind, edge), each after some work in a region of its name."""
    operations = tuple(
        Operation(kind, edge, 0.0, 0.0, 0.0, number) for number in range(ROUNDS) for kind, edge in ops
    )
    stretches = np.array(work * ROUNDS + [0.0])
    return Lane(name, process, operations, stretches, {name: stretches.copy()}, core, gil, name)


def edge(capacity: int | None = None, parties: int = 0, kind: str = "queue") -> ReplayEdge:
    return ReplayEdge("edge", kind, capacity, 0, 0.0, parties)


def per_round(trace: Trace, operations: int = 1) -> float:
    """Seconds of one round of the driver, the first rounds left out."""
    times = replay(trace).times
    begin = 20 * operations
    return float((times[-1] - times[begin - 1]) / (len(times) - begin)) * operations


def pipeline(produce: float, learn: float, capacity: int | None = 4, **more: float) -> Trace:
    core, gil = more.get("core", 0.0), more.get("gil", 0.0)
    producer = lane("produce", [(SEND, 0)], [produce], core, gil, process=1)
    learner = lane("learn", [(RECEIVE, 0)], [learn], core, gil)
    return Trace((learner, producer), (edge(capacity),), 0, 2.0, 1.0)


def test_a_pipeline_runs_at_the_pace_of_its_slowest_lane() -> None:
    assert per_round(pipeline(5, 2)) == pytest.approx(5)
    assert per_round(pipeline(2, 5)) == pytest.approx(5)
    assert per_round(scaled(pipeline(5, 2), {"produce": 0.5})) == pytest.approx(2.5)
    assert per_round(scaled(pipeline(5, 2), {"produce": 0.1})) == pytest.approx(2)  # the limit has moved
    assert per_round(scaled(pipeline(5, 2), {"learn": 0.5})) == pytest.approx(5)  # no gain


def test_request_and_answer_take_turns() -> None:
    driver = lane("policy", [(SEND, 0), (RECEIVE, 1)], [1.0, 0.0])
    worker = lane("env_step", [(RECEIVE, 0), (SEND, 1)], [0.0, 3.0], process=1)
    trace = Trace((driver, worker), (edge(), edge()), 0, 2.0, 1.0)
    assert per_round(trace, 2) == pytest.approx(4)
    assert per_round(scaled(trace, {"env_step": 0.5}), 2) == pytest.approx(2.5)


def test_a_deeper_queue_evens_out_varying_times() -> None:
    trace = pipeline(1, 1, capacity=1)
    source = np.random.default_rng(1)
    lanes = tuple(replace(one, work=source.exponential(1.0, len(one.work))) for one in trace.lanes)
    shallow = replace(trace, lanes=lanes)
    assert per_round(shallow) > 1.05 * per_round(with_capacity(shallow, 64))


def test_ranks_wait_for_the_slowest() -> None:
    lanes = tuple(lane(f"rank{i}", [(MEET, 0)], [work], process=i) for i, work in enumerate((2.0, 6.0)))
    trace = Trace(lanes, (edge(parties=2),), 0, 2.0, 1.0)
    assert per_round(trace) == pytest.approx(6)
    assert per_round(scaled(trace, {"rank0": 0.5})) == pytest.approx(6)
    assert per_round(scaled(trace, {"rank1": 0.5})) == pytest.approx(3)


def test_a_wait_ends_when_its_waker_is_there() -> None:
    waker = lane("wake", [(WAKE, 0)], [3.0], process=1)
    waiter = lane("wait", [(WAIT, 0)], [1.0])
    woken = tuple(replace(o, waker=(1, i)) for i, o in enumerate(waiter.operations))
    trace = Trace((replace(waiter, operations=woken), waker), (edge(),), 0, 2.0, 1.0)
    assert per_round(trace) == pytest.approx(3)


def test_lanes_share_cores_and_the_gil() -> None:
    assert per_round(pipeline(4, 4, core=1.0)) == pytest.approx(4)
    one_core = replace(pipeline(4, 4, core=1.0), cores=1.0)
    assert per_round(one_core) == pytest.approx(8, rel=0.02)
    both = pipeline(4, 4, core=1.0, gil=1.0)
    together = replace(both, lanes=tuple(replace(one, process=0) for one in both.lanes))
    assert per_round(together) == pytest.approx(8, rel=0.02)
    assert replay(together).gil_load == pytest.approx(1, rel=0.02)


def test_more_workers_help_until_the_learner_or_the_cores_are_the_limit() -> None:
    trace = pipeline(6, 2)
    more, rounds = with_workers(trace, [1], 2)
    assert rounds == 1
    assert per_round(more) == pytest.approx(3, rel=0.03)
    many, _ = with_workers(trace, [1], 8)
    assert per_round(many) == pytest.approx(2, rel=0.03)
    busy, _ = with_workers(replace(pipeline(6, 0.1, core=1.0), cores=2.0), [1], 8)
    assert per_round(busy) == pytest.approx(3, rel=0.05)  # two cores do the work of two workers


def test_workers_with_pipes_of_their_own_do_more_in_each_round() -> None:
    driver = lane("policy", [(SEND, 0), (RECEIVE, 1)], [1.0, 0.0])
    worker = lane("env_step", [(RECEIVE, 0), (SEND, 1)], [0.0, 3.0], process=1)
    trace = Trace((driver, worker), (edge(kind="pipe"), edge(kind="pipe")), 0, 2.0, 1.0)
    more, rounds = with_workers(trace, [1], 2)
    assert rounds == 2
    assert per_round(more, 4) == pytest.approx(4, rel=0.01)
    fewer, half = with_workers(more, [1, 2], 1)
    assert half == 0.5
    assert per_round(fewer, 2) == pytest.approx(4)


def test_a_replay_that_cannot_go_on_says_so() -> None:
    trace = Trace(
        (lane("a", [(RECEIVE, 0)], [1.0]), lane("b", [(RECEIVE, 1)], [1.0])), (edge(), edge()), 0, 2.0, 1.0
    )
    assert replay(trace).stuck


def test_busy_threads_of_other_programs_take_cores() -> None:
    alone = replace(pipeline(4, 1, core=1.0), cores=2.0)
    assert per_round(alone) == pytest.approx(4, rel=0.02)
    crowded = replace(alone, others=3.0)  # the producer and three others on two cores
    assert per_round(crowded) == pytest.approx(8, rel=0.15)
    asleep = replace(pipeline(4, 1, core=0.0), others=3.0)  # who needs no core does not care
    assert per_round(asleep) == pytest.approx(4, rel=0.02)


def test_time_that_the_log_does_not_hold_counts() -> None:
    trace = replace(pipeline(4, 1), outside_s=100.0, outside={"learn": 60.0})
    changed = scaled(trace, {"learn": 0.5})
    assert changed.outside_s == pytest.approx(70.0)
    assert changed.outside["learn"] == pytest.approx(30.0)


def test_without_a_lock_nobody_waits_for_it() -> None:
    mine = lane("a", [(RECEIVE, 0), (SEND, 0)], [1.0, 2.0], process=0)
    theirs = lane("b", [(RECEIVE, 0), (SEND, 0)], [1.0, 2.0], process=1)
    lock = ReplayEdge("lock", "lock", None, 1, 0.0)
    trace = Trace((mine, theirs), (lock, edge()), 0, 2.0, 1.0)
    assert per_round(trace, 2) == pytest.approx(4, rel=0.02)
    free = without_edges(trace, {0})
    assert not free.lanes[0].operations
    assert float(free.lanes[0].work.sum()) == pytest.approx(3.0 * ROUNDS)


def loader(decode: float, workers: int) -> Trace:
    """A driver that hands out work over queues of each worker and takes results from one queue."""
    ops = [pair for w in range(workers) for pair in ((SEND, 1 + w), (RECEIVE, 0))]
    driver = lane("learn", ops, [0.0, 0.5] * workers)
    hands = [
        lane("decode", [(RECEIVE, 1 + w), (SEND, 0)], [0.0, decode], process=w + 1) for w in range(workers)
    ]
    edges = (edge(), *(replace(edge(), backlog=2) for _ in range(workers)))
    return Trace((driver, *hands), edges, 0, 4.0, 1.0)


def test_fewer_and_more_workers_share_the_work_of_a_loader() -> None:
    trace = loader(4.0, 2)
    assert per_round(trace) == pytest.approx(1.0, rel=0.05)  # two results in 4 s, two operations for each
    one, rounds = with_workers(trace, [1, 2], 1)
    assert rounds == 1
    assert per_round(one) == pytest.approx(2.0, rel=0.05)
    four, _ = with_workers(trace, [1, 2], 4)
    assert per_round(four) == pytest.approx(0.5, rel=0.05)
