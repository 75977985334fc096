"""The ring between processes, checked against a model, its twin, ThreadSanitizer and kill -9."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop._util.errors import HotloopError
from hotloop.rl.collect import _transport, transport_twin
from hotloop.rl.collect.ring import RecordRing
from hotloop.rl.collect.weight_channel import WeightBoard

KINDS = [pytest.param(_transport, id="compiled"), pytest.param(transport_twin, id="twin")]
RECORD = np.dtype([("number", np.uint64), ("check", np.uint64), ("payload", np.uint8, (24,))])


def numbered(first: int, count: int) -> np.ndarray[Any, Any]:
    """Records that show any mix-up: a number, a hash of it, bytes that follow from it."""
    rows = np.zeros(count, dtype=RECORD)
    rows["number"] = np.arange(first, first + count)
    rows["check"] = rows["number"] * np.uint64(2654435761) + np.uint64(12345)
    rows["payload"] = (rows["number"] % 251).astype(np.uint8)[:, None]
    return rows


def check(rows: np.ndarray[Any, Any], first: int) -> None:
    assert (rows == numbered(first, len(rows))).all()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    capacity=st.integers(1, 9),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 12)), max_size=80),
)
def test_the_ring_behaves_like_a_queue(kind: Any, capacity: int, moves: list[tuple[bool, int, int]]) -> None:
    memory = mmap.mmap(-1, 512 + 8 * capacity)
    ring = kind.Ring(memory, 8, create=True)
    other = kind.Ring(memory, 8)
    cells = np.frombuffer(memory, dtype=np.uint64, offset=512, count=capacity)
    model: deque[int] = deque()
    sent = 0
    for writes, most, used in moves:
        if writes:
            first, count = ring.reserve(most)
            assert count <= min(most, capacity - len(model)) and (
                count > 0 or not most or len(model) == capacity
            )
            for cell in range(first, first + min(used, count)):
                cells[cell] = sent
                model.append(sent)
                sent += 1
            ring.commit(min(used, count))
        else:
            first, count = other.peek(most)
            assert count <= min(most, len(model)) and (count > 0 or not most or not model)
            assert cells[first : first + count].tolist() == list(model)[:count]
            for _ in range(min(used, count)):
                model.popleft()
            other.give_back(min(used, count))
        state = ring.state()
        assert state["handed_over"] == sent and state["handed_over"] - state["given_back"] == len(model)
    with pytest.raises(ValueError, match="room"):
        ring.commit(capacity - len(model) + 1)
    with pytest.raises(ValueError, match="fewer than"):
        other.give_back(len(model) + 1)


def produce(ring: RecordRing, first: int, total: int) -> None:
    sent = first
    while sent < total:
        rows = ring.reserve(min(total - sent, 1 + sent % 61), 5.0)
        rows[:] = numbered(sent, len(rows))
        ring.commit(len(rows))
        sent += len(rows)


@pytest.mark.parametrize(
    ("method", "capacity", "total"),
    [
        ("fork", 1, 3_000),
        ("fork", 2, 5_000),
        ("fork", 7, 20_000),
        ("fork", 1000, 300_000),
        ("spawn", 64, 20_000),
        ("forkserver", 64, 20_000),
    ],
)
def test_records_cross_processes_whole_and_in_order(method: str, capacity: int, total: int) -> None:
    ring = RecordRing(RECORD, capacity)
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=produce, args=(ring, 0, total))
    child.start()
    got = 0
    while got < total:
        rows = ring.peek(total, 20.0)
        assert len(rows), "nothing came for 20 s"
        check(rows, got)
        got += len(rows)
        ring.give_back(len(rows))
    child.join()
    assert child.exitcode == 0 and len(ring.peek(1)) == 0
    del rows
    ring.free()


@pytest.mark.long
@pytest.mark.parametrize("capacity", [*range(1, 17), 64, 1000, 65536])
def test_a_million_records_through_every_size(capacity: int) -> None:
    test_records_cross_processes_whole_and_in_order("fork", capacity, 1_000_000)


def test_producers_killed_at_any_moment_lose_only_what_they_had_not_handed_over() -> None:
    ring = RecordRing(RECORD, 64)
    context = multiprocessing.get_context("fork")
    rng = np.random.default_rng(0)
    got = 0
    for _ in range(25):
        child = context.Process(target=produce, args=(ring, ring.state()["handed_over"], 10**9))
        child.start()
        end = time.monotonic() + 0.02 * rng.random()
        while time.monotonic() < end:
            rows = ring.peek(40, 0.001)
            check(rows, got)
            got += len(rows)
            ring.give_back(len(rows))
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
    while len(rows := ring.peek(1000)):
        check(rows, got)
        got += len(rows)
        ring.give_back(len(rows))
    assert got == ring.state()["handed_over"] > 0


def consume(ring: RecordRing, total: int) -> None:
    got = ring.state()["given_back"]
    while got < total:
        rows = ring.peek(1 + got % 53, 5.0)
        check(rows, got)
        got += len(rows)
        ring.give_back(len(rows))


@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
def test_both_ends_killed_at_random_and_every_record_is_still_whole_and_in_its_place(capacity: int) -> None:
    ring, total = RecordRing(RECORD, capacity), 400 * capacity
    context = multiprocessing.get_context("fork")
    rng = np.random.default_rng(capacity)
    deaths = 0
    while ring.state()["given_back"] < total:
        producer = context.Process(target=produce, args=(ring, ring.state()["handed_over"], total))
        consumer = context.Process(target=consume, args=(ring, total))
        pair = [producer, consumer]
        for child in pair:
            child.start()
        time.sleep(0.01 * rng.random())
        if deaths < 12:
            rng.shuffle(pair)
            os.kill(pair[0].pid or 0, signal.SIGKILL)
            time.sleep(0.01 * rng.random())
            os.kill(pair[1].pid or 0, signal.SIGKILL)
            deaths += 2
        consumer.join()
        intact = consumer.exitcode in (0, -signal.SIGKILL)
        if not intact:
            producer.kill()
        producer.join()
        assert intact, "a record was not what its place says"
    assert ring.state()["handed_over"] == ring.state()["given_back"] == total and deaths > 0
    ring.free()


def test_a_run_around_the_end_of_the_memory_comes_as_two_blocks() -> None:
    ring = RecordRing(RECORD, 5)
    produce(ring, 0, 4)
    assert ring.pending() == 4 and [len(block) for block in ring.blocks(10)] == [4]
    ring.give_back(3)
    produce(ring, 4, 8)
    blocks = ring.blocks(10)
    assert [len(block) for block in blocks] == [2, 3]
    check(np.concatenate(blocks), 3)
    assert [len(block) for block in ring.blocks(3)] == [2, 1]
    assert [len(block) for block in ring.blocks(2)] == [2] and ring.blocks(0) == []
    ring.give_back(5)
    assert ring.blocks(10) == []


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_ends_by_time_by_room_and_by_closing_and_is_counted(kind: Any) -> None:
    ring = kind.Ring(mmap.mmap(-1, 512 + 8), 8, create=True)
    assert ring.peek(1, 0.02) == (0, 0)
    assert ring.state()["consumer_wait_ns"] >= 20_000_000
    ring.commit(1)
    threading.Timer(0.05, ring.give_back, (1,)).start()
    assert ring.reserve(1, 20.0) == (0, 1)
    assert ring.state()["producer_wait_ns"] > 10_000_000
    ring.commit(1)
    threading.Timer(0.05, ring.close).start()
    assert ring.reserve(1, 20.0)[1] == 0 and ring.state()["closed"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bell_wakes_all_waiters(kind: Any) -> None:
    bell = kind.Bell(mmap.mmap(-1, 64))
    seen = bell.count()
    assert not bell.wait(seen, 0.02)
    threading.Timer(0.05, bell.ring).start()
    assert bell.wait(seen, 20.0) and bell.wait(seen, 0.0)


def test_waiting_burns_no_core() -> None:
    ring = RecordRing(RECORD, 4)
    before = time.thread_time()
    ring.peek(1, 0.4)
    assert time.thread_time() - before < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_does_not_fit_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="at least"):
        kind.Ring(mmap.mmap(-1, 512), 8, create=True)
    with pytest.raises(ValueError, match="holds no ring"):
        kind.Ring(mmap.mmap(-1, 4096), 8)
    with pytest.raises(ValueError, match="holds no board"):
        kind.Board(mmap.mmap(-1, 4096), 64)
    board = kind.Board(mmap.mmap(-1, 4096), 64, create=True)
    with pytest.raises(ValueError, match="the board's 64"):
        board.publish(bytearray(72))
    with pytest.raises(HotloopError, match="at least 1"):
        RecordRing(RECORD, 0)


def test_too_much_memory_is_one_sentence() -> None:
    with pytest.raises(HotloopError, match="fewer collectors"):
        RecordRing(np.dtype((np.void, 1 << 30)), 1 << 30)


def publish_for_ever(board: WeightBoard) -> None:
    weights = np.zeros(board.size, dtype=np.float32)
    for version in range(1, 10**9):
        weights[:] = version
        board.publish(weights)


def test_weights_are_never_torn_even_when_the_writer_is_killed() -> None:
    board = WeightBoard(4097)
    writer = multiprocessing.get_context("fork").Process(target=publish_for_ever, args=(board,))
    writer.start()
    weights, known, reads = np.zeros(4097, dtype=np.float32), 0, 0
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        version = board.read(weights, known)
        assert version >= known
        if version > known:
            assert (weights == version).all()
            known, reads = version, reads + 1
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    version = board.read(weights)
    assert reads > 10 and version == board.version and (weights == version).all()
    assert board.publish(np.full(4097, 7, dtype=np.float32)) == version + 1
    assert board.read(weights, version) == version + 1 and (weights == 7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_board_returns_the_newest_block_or_none(kind: Any) -> None:
    board = kind.Board(mmap.mmap(-1, 4096), 64, create=True)
    into = bytearray(64)
    assert board.version() == 0 and board.read(into) == 0
    for version in range(1, 6):
        assert board.publish(bytes([version]) * 64) == version
    assert board.read(into) == 5 and into == bytes([5]) * 64
    assert board.read(into, 5) == 0


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_the_atomics_hold_under_thread_sanitizer(tmp_path: Path) -> None:
    here = Path(__file__).parent
    program = tmp_path / "stress"
    header = Path(_transport.__file__).parent
    build = [
        "gcc",
        "-std=gnu11",
        "-O1",
        "-g",
        "-fsanitize=thread",
        f"-I{header}",
        str(here / "ring_stress.c"),
    ]
    subprocess.run([*build, "-o", str(program), "-pthread"], check=True, capture_output=True)
    for capacity in ("1", "3", "64"):
        ran = subprocess.run([str(program), capacity], capture_output=True, text=True)
        if "unexpected memory mapping" in ran.stderr:  # address randomisation that this sanitizer cannot take
            ran = subprocess.run(["setarch", "-R", str(program), capacity], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "intact\n", ""), ran.stderr[-2000:]
