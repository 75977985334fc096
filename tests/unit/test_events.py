"""Events between processes: each `set` and `wait` is one operation, and a wait knows what it waited for."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotloop.analysis.logged_threads import LoggedOperation, LoggedThread, find_wakers, read_threads
from hotloop.capture.message_format import RECEIVE, RECORD, SEND, WAIT, WAKE
from hotloop.capture.messages import LoggedChannel, MessageLog, read_messages
from hotloop.instrument.channels import logged_calls, processes
from hotloop.instrument.channels.message_log import MessageLog as OpenLog
from hotloop.instrument.channels.processes import patch_synchronize
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default
from hotloop.testing.captures import make_capture


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process logs its events."""
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    opened = OpenLog()
    for module in (logged_calls, processes):
        monkeypatch.setattr(module, "log", opened)
    before, patches = default.recorder.flags, Patches()
    patch_synchronize(multiprocessing.synchronize, patches)
    yield tmp_path
    assert not patches.undo()
    default.recorder.flags = before


def test_an_event_is_one_operation_whatever_it_does_inside(log: Path) -> None:
    context = multiprocessing.get_context("fork")
    go, done = context.Event(), context.Event()
    assert not go.wait(0.001)  # it gave up: nothing was logged
    for _ in range(2):
        go.set()
        assert go.wait() and go.is_set()
        go.clear()
        assert not go.is_set()
    done.set()
    (found,), unreadable = read_messages(log)
    assert not unreadable
    assert [one.kind for one in found.channels] == ["event", "event"]
    kinds = [(int(row["channel"]), int(row["kind"])) for row in found.records]
    assert kinds == [(0, WAKE), (0, WAIT)] * 2 + [(1, WAKE)]


def test_a_wait_for_an_event_that_was_set_before_depends_on_it() -> None:
    process = make_capture({}).processes[0]

    def thread(*rows: tuple[int, int, int]) -> LoggedThread:
        made = [LoggedOperation(begin, end, 0, kind, 0) for begin, end, kind in rows]
        return LoggedThread(0, process, None, 1, made)

    setter = thread((100, 100, WAKE), (300, 300, WAKE), (310, 310, WAKE), (400, 400, WAKE))
    waiter = thread((150, 151, WAIT), (200, 302, WAIT), (320, 321, WAIT), (330, 331, WAIT))
    find_wakers([setter, waiter], [LoggedChannel("event x", "event")])
    assert [row.waker for row in waiter.rows] == [(0, 0), (0, 1), (0, 2), None]  # the last found it still set
    find_wakers([setter, waiter], [LoggedChannel("condition x", "condition")])
    first = thread((150, 151, WAIT))
    find_wakers([setter, first], [LoggedChannel("condition x", "condition")])
    assert first.rows[0].waker is None  # nobody wakes who does not wait


@pytest.mark.parametrize("left_set", [False, True])
def test_an_event_set_once_for_each_wait_is_a_message(left_set: bool) -> None:
    """The waiter of each round may go on before `set` returns."""
    capture = make_capture({})
    pid = capture.processes[0].pid
    rows = [(10 * n, 10 * n + 5, 1, 0, WAKE, n) for n in range(1, 4)]
    rows += [(10 * n - 3, 10 * n + 2, 2, 0, WAIT, n) for n in range(1, 4)]
    rows += [(33, 34, 2, 0, WAIT, 4)] if left_set else []
    log = MessageLog(pid, (LoggedChannel("event x", "event"),), np.array(rows, dtype=list(RECORD)), len(rows))
    threads, (channel,), counts = read_threads(capture, [log])
    kinds = {row.kind for one in threads.values() for row in one.rows}
    assert channel.kind == ("event" if left_set else "pipe")
    assert kinds == ({WAIT, WAKE} if left_set else {SEND, RECEIVE})
    assert {kind for _, _, kind in counts} == kinds
