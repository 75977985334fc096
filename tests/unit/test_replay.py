"""The replay of finite queues: small systems whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotloop.analysis.lane_contention import with_cost_of_receiving
from hotloop.analysis.replay import (
    Lane,
    Operation,
    Part,
    ReplayChannel,
    Trace,
    own_work,
    pieces_under_way,
    replay,
    scaled,
    with_capacity,
    with_pieces_under_way,
    with_workers,
    without_channels,
)
from hotloop.capture.message_format import EMPTY, FOUND, LATER, MEET, PEEK, RECEIVE, SEND, WAIT, WAKE

ROUNDS = 200


def lane(
    name: str,
    ops: list[tuple[int, int]],
    work: list[float],
    core: float = 0.0,
    gil: float = 0.0,
    process: int = 0,
) -> Lane:
    """A lane that repeats operations (kind, channel), each after some work in a region of its name."""
    operations = tuple(
        Operation(kind, channel, 0.0, 0.0, 0.0, number) for number in range(ROUNDS) for kind, channel in ops
    )
    stretches = np.array(work * ROUNDS + [0.0])
    return Lane(name, process, operations, stretches, {name: stretches.copy()}, core, gil, name)


def channel(capacity: int | None = None, parties: int = 0, kind: str = "queue") -> ReplayChannel:
    return ReplayChannel("channel", kind, capacity, 0, 0.0, parties)


def per_round(trace: Trace, operations: int = 1) -> float:
    """Seconds of one round of the driver, the first rounds left out."""
    times = replay(trace).times
    begin = 20 * operations
    return float((times[-1] - times[begin - 1]) / (len(times) - begin)) * operations


def pipeline(produce: float, learn: float, capacity: int | None = 4, **more: float) -> Trace:
    core, gil = more.get("core", 0.0), more.get("gil", 0.0)
    producer = lane("produce", [(SEND, 0)], [produce], core, gil, process=1)
    learner = lane("learn", [(RECEIVE, 0)], [learn], core, gil)
    return Trace((learner, producer), (channel(capacity),), 0, 2.0, 1.0)


def test_a_pipeline_runs_at_the_pace_of_its_slowest_lane() -> None:
    assert per_round(pipeline(5, 2)) == pytest.approx(5)
    assert per_round(pipeline(2, 5)) == pytest.approx(5)
    assert per_round(scaled(pipeline(5, 2), {"produce": 0.5})) == pytest.approx(2.5)
    assert per_round(scaled(pipeline(5, 2), {"produce": 0.1})) == pytest.approx(2)  # the limit has moved
    assert per_round(scaled(pipeline(5, 2), {"learn": 0.5})) == pytest.approx(5)  # no gain


def test_request_and_answer_take_turns() -> None:
    driver = lane("policy", [(SEND, 0), (RECEIVE, 1)], [1.0, 0.0])
    worker = lane("env_step", [(RECEIVE, 0), (SEND, 1)], [0.0, 3.0], process=1)
    trace = Trace((driver, worker), (channel(), channel()), 0, 2.0, 1.0)
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
    trace = Trace(lanes, (channel(parties=2),), 0, 2.0, 1.0)
    assert per_round(trace) == pytest.approx(6)
    assert per_round(scaled(trace, {"rank0": 0.5})) == pytest.approx(6)
    assert per_round(scaled(trace, {"rank1": 0.5})) == pytest.approx(3)


def test_a_wait_ends_when_its_waker_is_there() -> None:
    waker = lane("wake", [(WAKE, 0)], [3.0], process=1)
    waiter = lane("wait", [(WAIT, 0)], [1.0])
    woken = tuple(replace(o, waker=(1, i)) for i, o in enumerate(waiter.operations))
    trace = Trace((replace(waiter, operations=woken), waker), (channel(),), 0, 2.0, 1.0)
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


def test_a_full_pipe_leaves_the_cores_to_the_learner() -> None:
    """12 s of work for a message and 4 s to learn from it, on two cores: one message in 8 s at best."""
    actors = [lane("search", [(SEND, 0)], [12.0], core=1.0, process=1 + i) for i in range(3)]
    learner = lane("learn", [(RECEIVE, 0)], [4.0], core=1.0)

    def games(capacity: int | None) -> Trace:
        return Trace((learner, *actors), (channel(capacity, kind="simple_queue"),), 0, 2.0, 1.0)

    assert per_round(games(2)) == pytest.approx(8, rel=0.03)
    more, _ = with_workers(games(2), [1, 2, 3], 6)
    assert per_round(more) == pytest.approx(8, rel=0.03)
    endless, _ = with_workers(games(None), [1, 2, 3], 6)
    assert per_round(endless) == pytest.approx(14, rel=0.05)  # seven take turns, and messages pile up
    assert with_capacity(games(2), 64) == games(2)  # no program sets the size of a pipe


def test_workers_with_pipes_of_their_own_do_more_in_each_round() -> None:
    driver = lane("policy", [(SEND, 0), (RECEIVE, 1)], [1.0, 0.0])
    worker = lane("env_step", [(RECEIVE, 0), (SEND, 1)], [0.0, 3.0], process=1)
    trace = Trace((driver, worker), (channel(kind="pipe"), channel(kind="pipe")), 0, 2.0, 1.0)
    more, rounds = with_workers(trace, [1], 2)
    assert rounds == 2
    assert per_round(more, 4) == pytest.approx(4, rel=0.01)
    fewer, half = with_workers(more, [1, 2], 1)
    assert half == 0.5
    assert per_round(fewer, 2) == pytest.approx(4)


def test_a_replay_that_cannot_go_on_says_so() -> None:
    trace = Trace(
        (lane("a", [(RECEIVE, 0)], [1.0]), lane("b", [(RECEIVE, 1)], [1.0])),
        (channel(), channel()),
        0,
        2.0,
        1.0,
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
    lock = ReplayChannel("lock", "lock", None, 1, 0.0)
    trace = Trace((mine, theirs), (lock, channel()), 0, 2.0, 1.0)
    assert per_round(trace, 2) == pytest.approx(4, rel=0.02)
    free = without_channels(trace, {0})
    assert not free.lanes[0].operations
    assert float(free.lanes[0].work.sum()) == pytest.approx(3.0 * ROUNDS)


def learners(held: float, free: float, count: int) -> Trace:
    """Learners that take turns in a lock for `held` seconds each; the first begins in it."""
    ops = [(SEND, 0), (SEND, 1), (RECEIVE, 0)]
    first = lane("apply", ops, [held, 0.0, free], process=1)
    others = [lane("apply", [ops[2], *ops[:2]], [free, held, 0.0], process=2 + i) for i in range(count - 1)]
    lock = ReplayChannel("lock", "lock", None, 0, 0.0)
    driver = lane("log", [(RECEIVE, 1)], [0.0])
    return Trace((driver, first, *others), (lock, channel()), 0, 8.0, 1.0)


def test_more_workers_share_one_lock() -> None:
    trace = learners(5.0, 6.0, 2)
    assert per_round(trace) == pytest.approx(5.5, rel=0.02)  # each takes 11 s, and seldom waits
    for count in (3, 4, 6):
        more, rounds = with_workers(trace, [1, 2], count)
        assert rounds == 1
        assert per_round(more) == pytest.approx(5.0, rel=0.02)  # one at a time, however many there are
    nothing_held = learners(1.0, 9.0, 2)
    assert per_round(with_workers(nothing_held, [1, 2], 4)[0]) == pytest.approx(2.5, rel=0.03)


def loader(decode: float, workers: int) -> Trace:
    """A driver that hands out work over queues of each worker and takes results from one queue."""
    ops = [pair for w in range(workers) for pair in ((SEND, 1 + w), (RECEIVE, 0))]
    driver = lane("learn", ops, [0.0, 0.5] * workers)
    hands = [
        lane("decode", [(RECEIVE, 1 + w), (SEND, 0)], [0.0, decode], process=w + 1) for w in range(workers)
    ]
    channels = (channel(), *(replace(channel(), backlog=2) for _ in range(workers)))
    return Trace((driver, *hands), channels, 0, 4.0, 1.0)


def test_fewer_and_more_workers_share_the_work_of_a_loader() -> None:
    trace = loader(4.0, 2)
    assert per_round(trace) == pytest.approx(1.0, rel=0.05)  # two results in 4 s, two operations for each
    one, rounds = with_workers(trace, [1, 2], 1)
    assert rounds == 1
    assert per_round(one) == pytest.approx(2.0, rel=0.05)
    four, _ = with_workers(trace, [1, 2], 4)
    assert per_round(four) == pytest.approx(0.5, rel=0.05)


def test_batches_in_order_come_at_the_pace_of_the_slowest_worker() -> None:
    """Workers of 4 s and 12 s take turns: two batches in 12 s, and four with two more like them."""
    trace = loader(4.0, 2)
    slow = replace(trace.lanes[2], work=3 * trace.lanes[2].work)
    trace = replace(trace, lanes=(*trace.lanes[:2], slow))
    assert per_round(trace) == pytest.approx(3.0, rel=0.05)
    four, _ = with_workers(trace, [1, 2], 4)
    assert per_round(four) == pytest.approx(1.5, rel=0.05)


def test_a_worker_more_has_as_many_batches_under_way_as_the_others() -> None:
    trace = loader(4.0, 2)
    results, waiting, done = replace(channel(), backlog=2), replace(channel(), backlog=2), channel()
    trace = replace(trace, channels=(results, done, waiting))  # the first worker has handed over both of its
    four, _ = with_workers(trace, [1, 2], 4)
    assert [one.backlog for one in four.channels] == [2, 0, 2, 2, 2]


def test_more_batches_under_way_help_while_workers_lack_work() -> None:
    """A worker takes 4 s for a piece; the driver asks for another one 3 s after it got a result."""
    driver = lane("learn", [(RECEIVE, 0), (SEND, 1)], [0.0, 3.0])
    worker = lane("decode", [(RECEIVE, 1), (SEND, 0)], [0.0, 4.0], process=1)
    trace = Trace((driver, worker), (channel(), replace(channel(), backlog=1)), 0, 4.0, 1.0)
    assert pieces_under_way(trace, [1]) == 1
    three = with_pieces_under_way(trace, [1], 3)
    assert three is not None and pieces_under_way(three, [1]) == 3
    assert with_pieces_under_way(three, [1], 1) == trace
    assert per_round(trace, 2) == pytest.approx(7.0, rel=0.03)
    assert per_round(three, 2) == pytest.approx(4.0, rel=0.03)
    assert with_pieces_under_way(pipeline(4, 1), [1], 3) is None  # who only produces gets no work


def test_a_receive_that_always_waited_takes_a_core_for_a_while() -> None:
    learner = lane("learn", [(RECEIVE, 0)], [1.0], core=1.0)
    waited = tuple(replace(o, latency=0.4) for o in learner.operations)
    learner = with_cost_of_receiving(replace(learner, operations=waited), 0.25 * ROUNDS)
    assert {o.cost for o in learner.operations} == {0.25}
    assert {o.cost for o in with_cost_of_receiving(learner, 9.0 * ROUNDS).operations} == {0.4}
    assert with_cost_of_receiving(learner, -1.0) is learner
    trace = Trace((learner, lane("produce", [(SEND, 0)], [0.5], process=1)), (channel(4),), 0, 4.0, 1.0)
    assert per_round(trace) == pytest.approx(1.25, rel=0.02)  # though the producer needs half a second


def server(learn: float, simulate: float, chooses: bool = True) -> Trace:
    """A learner asks a server for batches (channels 0 and 1), and an actor adds to it (channel 2)."""
    learner = lane("learn", [(SEND, 0), (RECEIVE, 1)], [learn, 0.0])
    actor = lane("simulate", [(SEND, 2)], [simulate], process=1)
    serve = [(PEEK, 0), (RECEIVE, 0), (SEND, 1), (PEEK, 2), (RECEIVE, 2)]
    holder = lane("serve", serve, [0.0, 0.0, 0.5, 0.0, 0.0], process=2)
    if chooses:
        holder = replace(holder, chooses=frozenset((0, 2)))
    return Trace((learner, actor, holder), (channel(), channel(), channel()), 0, 8.0, 1.0)


def test_whoever_comes_first_is_served_first() -> None:
    assert per_round(server(4, 4.5), 2) == pytest.approx(4.5, rel=0.02)
    assert per_round(scaled(server(4, 4.5), {"learn": 0.5}), 2) == pytest.approx(2.5, rel=0.02)
    in_order = scaled(server(4, 4.5, chooses=False), {"learn": 0.5})
    assert per_round(in_order, 2) == pytest.approx(4.5, rel=0.02)  # it would wait for the actor each time
    assert per_round(server(4, 100), 2) == pytest.approx(4.5, rel=0.02)  # a late actor holds nobody up


def test_a_server_serves_more_workers() -> None:
    workers = [lane("simulate", [(SEND, 2 * i), (RECEIVE, 2 * i + 1)], [3.0, 0.0], process=i) for i in (0, 1)]
    serve = [(PEEK, 0), (RECEIVE, 0), (SEND, 1), (PEEK, 2), (RECEIVE, 2), (SEND, 3)]
    driver = replace(lane("serve", serve, [0.0, 0.0, 1.0] * 2, process=2), chooses=frozenset((0, 2)))
    trace = Trace((driver, *workers), (channel(),) * 4, 0, 8.0, 1.0)
    assert per_round(trace, 3) == pytest.approx(2, rel=0.02)  # each asks every 4 s, the server takes 1 s
    more, rounds = with_workers(trace, (1, 2), 4)
    assert rounds == 1 and len(more.lanes) == 5
    assert per_round(more, 3) == pytest.approx(1, rel=0.02)


def test_a_lane_that_sleeps_needs_the_gil_only_for_the_rest() -> None:
    """Three threads sleep 2 s and compute 2 s in turn: the GIL is full, and only computing less helps."""

    def actor(process: int) -> Lane:
        made = lane("act", [(SEND, 0)], [4.0], core=0.5, gil=0.5, process=process)
        half = made.work / 2
        return replace(made, regions={"fetch": half, "physics": half}, on_core={"fetch": 0.0, "physics": 1.0})

    learner = lane("learn", [(RECEIVE, 0)], [0.0], process=1)
    trace = Trace((learner, *(actor(0) for _ in range(3))), (channel(),), 0, 8.0, 1.0)
    assert per_round(trace) == pytest.approx(2, rel=0.05)
    assert per_round(scaled(trace, {"physics": 0.5})) == pytest.approx(1, rel=0.1)
    assert per_round(scaled(trace, {"fetch": 0.5})) == pytest.approx(2, rel=0.05)


def pool(rounds_of: int, in_turn: bool) -> Trace:
    """A driver that hands pieces of work to a pool, which sends back results.

    In turn: one for each result; otherwise in rounds, and it waits for all of them.
    """
    ops = [(RECEIVE, 1), (SEND, 0)] if in_turn else [(SEND, 0)] * rounds_of + [(RECEIVE, 1)] * rounds_of
    driver = lane("learn", ops, [0.0] * len(ops))
    times = (4.0, 4.1) if in_turn else (4.0, 4.0)
    workers = [lane("step", [(RECEIVE, 0), (SEND, 1)], [0.0, s], process=i) for i, s in enumerate(times)]
    waiting = replace(channel(kind="thread_queue"), backlog=2 if in_turn else 0)
    trace = Trace((driver, *workers), (waiting, channel(kind="thread_queue")), 0, 8.0, 1.0)
    return timed(trace)


def timed(trace: Trace) -> Trace:
    """The trace with begin and end of every operation as the replay has them."""
    lanes = list(trace.lanes)
    for number, one in enumerate(lanes):
        ends = replay(replace(trace, driver=number)).times
        begins = np.concatenate([[0.0], ends[:-1]]) + one.work[: len(ends)]
        done = zip(one.operations, begins, ends, strict=False)
        operations = tuple(replace(o, begin=float(begin), end=float(end)) for o, begin, end in done)
        lanes[number] = replace(one, operations=operations, work=one.work[: len(operations) + 1])
    return replace(trace, lanes=tuple(lanes))


def test_more_workers_of_a_driver_that_keeps_them_busy_have_more_under_way() -> None:
    trace = pool(2, in_turn=True)
    assert per_round(trace, 2) == pytest.approx(1 / (1 / 4 + 1 / 4.1), rel=0.02)
    assert per_round(with_workers(trace, (1, 2), 4)[0], 2) == pytest.approx(0.5 / (1 / 4 + 1 / 4.1), rel=0.05)


def test_more_workers_than_a_round_of_work_has_pieces_give_nothing() -> None:
    trace = pool(2, in_turn=False)
    assert per_round(trace, 4) == pytest.approx(4, rel=0.02)
    assert per_round(with_workers(trace, (1, 2), 4)[0], 4) == pytest.approx(4, rel=0.02)
    trace = pool(4, in_turn=False)
    assert per_round(trace, 8) == pytest.approx(8, rel=0.02)
    assert per_round(with_workers(trace, (1, 2), 4)[0], 8) == pytest.approx(4, rel=0.05)


def test_tasks_of_an_event_loop_sleep_at_the_same_time() -> None:
    """Two tasks sleep 4 s and then take 1 s of the loop's thread each."""
    loop = lane("pack", [(LATER, 0), (RECEIVE, 0)], [0.0, 0.0])
    operations = tuple(
        replace(o, delay=4.0, region="simulate") if o.kind == LATER else o for o in loop.operations
    )
    work = np.array([1.0 if o.kind == LATER else 0.0 for o in operations] + [0.0])
    loop = replace(loop, operations=operations, work=work, regions={"pack": work})
    trace = Trace((loop,), (replace(channel(kind="thread_queue"), backlog=1),), 0, 2.0, 1.0)
    assert per_round(trace, 2) == pytest.approx(2.5, rel=0.05)  # a round of both takes 5 s
    assert per_round(scaled(trace, {"simulate": 0.5}), 2) == pytest.approx(1.5, rel=0.05)
    assert per_round(scaled(trace, {"simulate": 0.1}), 2) == pytest.approx(1.0, rel=0.05)
    assert per_round(scaled(trace, {"pack": 0.5}), 2) == pytest.approx(2.25, rel=0.05)


# -- threads that take the GIL one after the other ------------------------------------------------------


def with_gil(name: str, ops: list[tuple[int, int]], work: float, gil: float, core: float = 1.0) -> Lane:
    """A lane of which samples say what share of its work needs the GIL."""
    made = lane(name, ops, [work] + [0.0] * (len(ops) - 1), core, gil)
    return replace(made, parts=(Part("", None, 1.0, 1.0), Part(name, "", gil, core)))


def test_native_code_of_one_thread_runs_beside_python_of_another() -> None:
    sender, learner = with_gil("sample", [(SEND, 0)], 0.003, 1.0), with_gil("learn", [(RECEIVE, 0)], 0.004, 0)
    trace = Trace((learner, sender), (channel(2),), 0, 2.0, 1.0)
    assert per_round(trace) == pytest.approx(0.004, rel=0.02)
    both = replace(trace, lanes=(with_gil("learn", [(RECEIVE, 0)], 0.004, 1.0), sender))
    assert per_round(both) == pytest.approx(0.007, rel=0.02)  # they take turns
    assert replay(both).gil_load > 0.95 > replay(trace).gil_load


def test_a_full_gil_is_shared_by_whoever_needs_it() -> None:
    """The thread in native code gains nothing if it is faster; the one that has the GIL does."""
    work = with_gil("both", [(WAIT, 0)], 0.0, 1.0)
    parts = (Part("", None, 1.0, 1.0), Part("play", "", 1.0, 1.0), Part("learn", "", 0.0, 1.0))
    stretches = np.array([0.004] * ROUNDS + [0.0])
    regions = {"play": 0.75 * stretches, "learn": 0.25 * stretches}
    threads = [replace(work, work=stretches, regions=regions, parts=parts, name=str(n)) for n in range(3)]
    trace = Trace(tuple(threads), (channel(),), 0, 4.0, 1.0)
    base = per_round(trace)
    assert base == pytest.approx(0.009, rel=0.03)  # three threads of 3 ms
    assert per_round(scaled(trace, {"learn": 0.5})) == pytest.approx(base, rel=0.03)
    assert per_round(scaled(trace, {"play": 0.5})) == pytest.approx(0.5 * base, rel=0.05)


def test_whoever_gives_up_the_gil_waits_five_milliseconds_for_it() -> None:
    long, short = with_gil("long", [(WAIT, 0)], 0.1, 1.0), with_gil("short", [(WAIT, 0)], 0.002, 1.0)
    short = replace(
        short,
        regions={"nap": 0.5 * short.work, "short": 0.5 * short.work},
        parts=(Part("", None, 1.0, 1.0), Part("nap", "", 0.0, 0.0), Part("short", "", 1.0, 1.0)),
    )
    trace = Trace((short, replace(long, repeats=True)), (channel(),), 0, 2.0, 1.0)
    assert per_round(trace) == pytest.approx(0.007, rel=0.1)  # 1 ms asleep, 5 ms of the other one, 1 ms


def test_a_region_inside_another_is_taken_from_both() -> None:
    parts = (Part("", None, 1, 1), Part("update", "", 1, 1), Part("loss", "update", 1, 1))
    whole = lane("update", [(RECEIVE, 0)], [4.0])
    regions = {"update": 0.5 * whole.work, "loss": 0.25 * whole.work}
    changed = scaled(
        Trace((replace(whole, regions=regions, parts=parts),), (channel(),), 0, 2.0, 1.0), {"loss": 0}
    )
    assert changed.lanes[0].work[0] == pytest.approx(3)
    assert changed.lanes[0].regions["update"][0] == pytest.approx(1)
    assert own_work(changed.lanes[0])[:, 0] == pytest.approx([2, 1, 0])


# -- threads that look for messages and never wait ------------------------------------------------------


def polling(learn: float, store: float, simulate: float) -> Trace:
    """A learner that stores what a pipe holds, then learns; one message for every other update."""
    rows = [(FOUND, 0), (RECEIVE, 0), (EMPTY, 0), (EMPTY, 0)]
    learner = lane("learn", rows, [learn, 0.0, store, learn])
    learn_part = np.array([learn, 0.0, 0.0, learn] * ROUNDS + [0.0])
    store_part = np.array([0.0, 0.0, store, 0.0] * ROUNDS + [0.0])
    marks = (1, 0, 0, 1) * ROUNDS
    learner = replace(learner, regions={"learn": learn_part, "store": store_part}, marks=marks)
    actor = lane("simulate", [(SEND, 0)], [simulate], process=1)
    return Trace((learner, actor), (channel(),), 0, 2.0, 1.0)


def test_who_takes_what_is_there_goes_on_without_it() -> None:
    def pace(trace: Trace) -> float:
        times = replay(trace).times
        return float((times[-1] - times[20]) / (len(times) - 21))

    trace = polling(4.0, 1.0, 9.0)
    assert pace(trace) == pytest.approx(4.5, rel=0.02)
    # A message every 9 s: 8 of them are left for learning.
    assert pace(scaled(trace, {"learn": 0.5})) == pytest.approx(2 * 9 / 8, rel=0.03)
    assert pace(scaled(trace, {"simulate": 0.5})) == pytest.approx(4 * 4.5 / 3.5, rel=0.03)
    assert pace(scaled(trace, {"store": 0.0})) == pytest.approx(4.0, rel=0.02)


def test_a_lane_that_depends_on_nobody_begins_again() -> None:
    slow, fast = lane("learn", [(WAIT, 0)], [2.0]), lane("play", [(WAIT, 0)], [0.5])
    trace = Trace((slow, fast), (channel(),), 0, 4.0, 1.0)
    assert len(replay(trace).times) < ROUNDS  # it stops with the first that has no more record
    trace = replace(trace, lanes=(slow, replace(fast, repeats=True)))
    assert len(replay(trace).times) == ROUNDS and per_round(trace) == pytest.approx(2.0)
