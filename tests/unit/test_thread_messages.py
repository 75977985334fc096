"""Locks, events and queues between threads, and pairs of sockets, in the message log."""

from __future__ import annotations

import copy
import multiprocessing.pool
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotloop.capture.message_format import EMPTY, FOUND, RECEIVE, SEND, WAIT, WAKE
from hotloop.capture.messages import MessageLog, read_messages
from hotloop.instrument import standard_library
from hotloop.instrument.channels import logged_calls, pools, sockets, thread_locks, threads
from hotloop.instrument.channels.message_log import MessageLog as OpenLog
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process logs what its threads send."""
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    opened = OpenLog()
    for module in (logged_calls, threads, thread_locks, sockets):
        monkeypatch.setattr(module, "log", opened)
    before, patches = default.recorder.flags, Patches()
    standard_library.patch_queue(queue, patches)
    threads.patch_queue(queue, patches)
    threads.patch_threading(threading, patches)
    sockets.patch_socket(socket, patches)
    yield tmp_path
    assert not patches.undo()
    default.recorder.flags = before


def only_log(folder: Path, kind: str) -> MessageLog:
    """What went through channels of this kind: threads of the test runner use others at any time."""
    (found,), unreadable = read_messages(folder)
    assert not unreadable
    mine = [number for number, one in enumerate(found.channels) if one.kind == kind]
    records = found.records[np.isin(found.records["channel"], mine)]
    records["channel"] = [mine.index(number) for number in records["channel"]]
    return MessageLog(found.pid, tuple(found.channels[n] for n in mine), records, len(records))


def test_long_holds_of_a_lock_and_waits_for_it_are_logged(log: Path) -> None:
    locks = []

    def has_waited() -> bool:
        lock = threading.Lock()
        locks.append(lock)
        for _ in range(3):
            with lock:  # far too short to matter
                assert lock.locked() and not lock.acquire(blocking=False)
        is_held, will_wait = threading.Semaphore(0), threading.Event()

        def hold() -> None:
            with lock:
                is_held.release()
                will_wait.wait()
                time.sleep(0.005)

        thread = threading.Thread(target=hold)
        thread.start()
        is_held.acquire()
        will_wait.set()
        had_to = lock.locked()
        before = time.perf_counter_ns()
        with lock:
            had_to = had_to and time.perf_counter_ns() - before > 1_000_000
        thread.join()
        return had_to

    while not has_waited():  # on a busy machine this thread may come too late
        pass
    found = only_log(log, "lock")
    assert found.channels[-1].tokens == 1
    mine = found.records[found.records["channel"] == len(found.channels) - 1]
    held, waited, freed, freed_again = mine  # in the order in which they began
    assert mine["kind"].tolist() == [RECEIVE, RECEIVE, SEND, SEND]
    assert held["end_ns"] <= waited["begin_ns"] < freed["end_ns"] <= waited["end_ns"] <= freed_again["end_ns"]


def test_a_logged_lock_is_used_like_any_other(log: Path) -> None:
    lock = threading.Lock()
    seen: list[int] = []
    condition = threading.Condition(lock)

    def wait() -> None:
        with condition:
            condition.wait_for(lambda: bool(seen))

    thread = threading.Thread(target=wait)
    thread.start()
    with condition:
        seen.append(1)
        condition.notify()
    thread.join()
    with pytest.raises(RuntimeError):
        lock.release()
    with pytest.raises(TypeError):
        copy.copy(lock)


def test_a_lock_is_free_after_an_interrupted_with_statement(log: Path) -> None:
    lock = threading.Lock()

    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(500):
            with pytest.raises(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                while True:
                    with lock:
                        pass
            assert not lock.locked()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_event_that_is_set_already_is_waited_for_too(log: Path) -> None:
    event = threading.Event()
    event.set()
    assert event.wait() and event.wait(0.01)
    event.clear()
    assert not event.wait(0.001)  # gave up
    found = only_log(log, "event")
    assert len(found.channels) == 1
    assert found.records["kind"].tolist() == [WAKE, WAIT, WAIT]


def test_the_queue_in_c_is_logged(log: Path) -> None:
    mine: queue.SimpleQueue[int] = queue.SimpleQueue()
    assert isinstance(mine, queue.SimpleQueue)
    mine.put(1)
    mine.put_nowait(2)
    assert (mine.get(), mine.get_nowait(), mine.empty()) == (1, 2, True)
    with pytest.raises(queue.Empty):
        mine.get_nowait()
    found = only_log(log, "thread_queue")
    assert [one.capacity for one in found.channels] == [None]
    kinds = found.records["kind"].tolist()
    assert kinds[:5] == [SEND, SEND, RECEIVE, FOUND, RECEIVE]
    assert set(kinds[5:]) == {EMPTY}  # two looks right after each other are one


def test_a_pair_of_sockets_is_one_channel_each_way(log: Path) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"123")
        assert other.recv(8) == b"123"
        other.send(b"4")
        assert one.recv(8) == b"4"
    found = only_log(log, "socket")
    assert [row["kind"] for row in found.records] == [SEND, RECEIVE] * 2
    there, back = found.records["channel"][::2]
    assert found.records["channel"].tolist() == [there, there, back, back]
    assert found.channels[there].peer == found.channels[back].key


def test_what_the_callback_of_a_pool_sends_is_logged(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "log", vars(logged_calls)["log"])
    patches, results = Patches(), queue.Queue[int](3)
    pools.patch_pool(multiprocessing.pool, patches)
    try:
        with multiprocessing.pool.ThreadPool(1) as pool:
            for number in range(3):
                pool.apply_async(abs, (number,), callback=results.put)
            assert [results.get() for _ in range(3)] == [0, 1, 2]
            pool.close()
            pool.join()
    finally:
        patches.undo()
    (found,), _ = read_messages(log)
    mine = [n for n, one in enumerate(found.channels) if one.kind == "thread_queue" and one.capacity == 3]
    kinds = found.records["kind"][np.isin(found.records["channel"], mine)].tolist()
    assert sorted(kinds) == sorted([SEND, RECEIVE] * 3)
