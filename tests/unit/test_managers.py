"""Queues and locks of a manager in the message log: each call of a proxy is one operation."""

from __future__ import annotations

import multiprocessing
import multiprocessing.managers
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.capture.messages import read_messages
from hotloop.instrument.channels import logged_calls, managers
from hotloop.instrument.channels.managers import patch_managers
from hotloop.instrument.channels.message_log import MessageLog as OpenLog
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process logs what goes through its managers."""
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    opened = OpenLog()
    for module in (logged_calls, managers):
        monkeypatch.setattr(module, "log", opened)
    before, patches = default.recorder.flags, Patches()
    patch_managers(multiprocessing.managers, patches)
    yield tmp_path
    assert not patches.undo()
    default.recorder.flags = before


def test_calls_of_proxies_are_logged_and_nothing_of_the_server(log: Path) -> None:
    with multiprocessing.get_context("fork").Manager() as manager:
        rollouts, lock, slots = manager.Queue(4), manager.Lock(), manager.Semaphore(3)
        rollouts.put("a")
        rollouts.put("b")
        assert rollouts.get() == "a"
        assert rollouts.qsize() == 1  # no message
        rollouts.get()
        with pytest.raises(queue.Empty):
            rollouts.get(timeout=0.001)
        with lock:
            assert not lock.acquire(False)  # it has taken nothing
        slots.acquire()
    (found,), unreadable = read_messages(log)
    assert not unreadable
    about = [(one.kind, one.capacity, one.tokens) for one in found.channels]
    assert about == [("queue", 4, 0), ("lock", None, 1), ("semaphore", None, 3)]
    kinds = [(int(row["channel"]), int(row["kind"])) for row in found.records]
    assert kinds == [
        *((0, kind) for kind in (SEND, SEND, RECEIVE, RECEIVE)),
        *((1, kind) for kind in (RECEIVE, SEND)),
        (2, RECEIVE),
    ]
